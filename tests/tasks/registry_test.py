"""Tests of the registry of tasks."""

import pathlib
import subprocess
import sys

import pytest

import tasks


def test_listing_tasks_does_not_import_tensorflow():
  source = """
import sys
import tasks
print(tasks.names(), tasks.describe(), [tasks.options(name) for name in tasks.names()])
assert not {'tensorflow', 'tensorflow_federated', 'sklearn', 'numpy'} & set(sys.modules)
"""
  subprocess.run(
    [sys.executable, '-c', source], cwd=pathlib.Path(__file__).parents[2], check=True
  )


def test_every_task_has_a_description_of_one_line():
  assert tuple(tasks.describe()) == tasks.names()
  for name, description in tasks.describe().items():
    assert description, name
    assert len(f'{name}  {description}') <= 100
    assert '\n' not in description


def test_unknown_task_is_refused_with_known_and_near_names():
  with pytest.raises(ValueError, match=r'digits_logistic.* Did you mean digits_mlp'):
    tasks.load('digit_mlp', seed=0)
  with pytest.raises(ValueError, match=r"'moon'; known are digits_logistic.*\.$"):
    tasks.load('moon', seed=0)


def test_foreign_option_is_refused_with_the_options_taken():
  with pytest.raises(ValueError, match='not take flavour; it takes num_clients, dir'):
    tasks.load('digits_mlp', seed=0, flavour='mint')


def test_defaults_cannot_be_changed_by_accident():
  with pytest.raises(TypeError):
    tasks.options('digits_mlp')['num_clients'] = 3
