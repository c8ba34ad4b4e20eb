"""Tests of importing TensorFlow Federated."""

import os
import subprocess
import sys

import pytest


def _printed(tmp_path, module: str, program: str) -> list[str]:
  """What a program prints where TFF is a module with this text."""
  (tmp_path / 'tensorflow_federated.py').write_text(f'import gc\n{module}\n')
  done = subprocess.run(
    [sys.executable, '-c', f'import gc\n{program}'],
    capture_output=True,
    text=True,
    check=True,
    timeout=30,
    env={**os.environ, 'PYTHONPATH': str(tmp_path)},
  )
  return done.stdout.splitlines()


def test_no_garbage_is_looked_for_meanwhile_nor_later_in_what_stays(tmp_path):
  module = 'print(gc.isenabled())\nstays = [[] for _ in range(12345)]'
  program = """
from training_loops import importing
def full_searches(): return gc.get_stats()[2]['collections']
before = full_searches()
importing.import_tff()
print(full_searches() - before, gc.isenabled(), gc.get_freeze_count() > 12345)
"""
  assert _printed(tmp_path, module, program) == ['False', '0 True True']


def test_a_program_that_has_it_already_stays_as_it_is(tmp_path):
  program = """
import tensorflow_federated
from training_loops import importing
importing.import_tff()
print(gc.isenabled(), gc.get_freeze_count())
"""
  assert _printed(tmp_path, '', program) == ['True 0']


@pytest.mark.parametrize('is_enabled', [True, False])
@pytest.mark.parametrize('module', ['', 'raise ImportError'])
def test_the_collector_is_afterwards_as_it_was(tmp_path, module, is_enabled):
  program = f"""
import contextlib
from training_loops import importing
{'' if is_enabled else 'gc.disable()'}
with contextlib.suppress(ImportError):
  importing.import_tff()
print(gc.isenabled())
"""
  assert _printed(tmp_path, module, program) == [str(is_enabled)]


def test_training_brings_nothing_slow_along_before_the_end():
  program = """
import sys
from training_loops import importing
importing.import_tff()
before = set(sys.modules)
from training_loops import training
import tasks.emnist, tff_algorithms.fed_avg
slow = {'matplotlib', 'optuna', 'pandas', 'scipy', 'sklearn', 'tensorflow_datasets'}
print(sorted(slow & (set(sys.modules) - before)))
"""
  done = subprocess.run(
    [sys.executable, '-c', program],
    capture_output=True,
    text=True,
    check=True,
    timeout=120,
  )
  assert done.stdout == '[]\n'
