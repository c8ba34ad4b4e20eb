"""Tests of the registry of tasks."""

import pathlib
import subprocess
import sys

import pytest

import tasks

_OWN = """
from tasks import Task, load
import dataclasses

def digits(name, seed):
  return dataclasses.replace(load('digits_logistic', seed), name=name)

def nothing(name, seed):
  pass

def other(x):
  pass

number = 7
"""


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
  with pytest.raises(
    ValueError, match='not take flavour; it takes partitioner, num_clients, dirichlet_'
  ):
    tasks.load('digits_mlp', seed=0, flavour='mint')
  with pytest.raises(ValueError, match='not take dirichlet_alpha'):
    tasks.load('digits_mlp', seed=0, partitioner='iid', dirichlet_alpha=1.0)


def test_unknown_choice_is_refused_with_the_known():
  with pytest.raises(ValueError, match='tfds_model must be one of logistic, mlp, cnn'):
    tasks.load('tfds', seed=0, tfds_name='mnist', tfds_model='oracle')
  with pytest.raises(ValueError, match=r"partitioner must be one of iid.*found 'fair'"):
    tasks.load('digits_mlp', seed=0, partitioner='fair')


def test_defaults_cannot_be_changed_by_accident():
  with pytest.raises(TypeError):
    tasks.options('digits_mlp')['num_clients'] = 3


def test_a_function_of_ones_own_is_a_task_by_its_dotted_name(tmp_path, monkeypatch):
  (tmp_path / 'my_tasks.py').write_text(_OWN)
  monkeypatch.syspath_prepend(tmp_path)
  tasks.check('my_tasks.digits')
  assert tasks.load('my_tasks.digits', seed=3).name == 'my_tasks.digits'
  for name in ('nobodys_tasks.digits', 'my_tasks.', 'my_tasks.digits.more'):
    with pytest.raises(ValueError, match='no module'):
      tasks.check(name)
  with pytest.raises(ValueError, match=r"my_tasks.*has no function 'digit'"):
    tasks.load('my_tasks.digit', seed=3)
  with pytest.raises(ValueError, match=r"my_tasks.*has no function 'number'"):
    tasks.load('my_tasks.number', seed=3)
  with pytest.raises(ValueError, match=r'my_tasks\.nothing returned None'):
    tasks.load('my_tasks.nothing', seed=3)
  with pytest.raises(ValueError, match=r'my_tasks\.other is not a function of \(name'):
    tasks.load('my_tasks.other', seed=3)
  with pytest.raises(ValueError, match='does not take num_clients'):
    tasks.load('my_tasks.digits', seed=3, num_clients=3)
