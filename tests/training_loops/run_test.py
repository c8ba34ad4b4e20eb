"""Tests of training as a function; `training_test` has those of the training."""

import subprocess
import sys

import pytest

from training_loops import files, run, train_flags
from training_loops.options import UserError

_NEEDED = {'task': 'digits_logistic', 'algorithm': 'fed_avg'}


def _finished(path, **flags):
  path.mkdir()
  flags = train_flags.configure(**_NEEDED, output_dir=path, **flags)
  files.write_json(path / 'config.json', {'flags': flags})
  files.write_json(path / 'result.json', {'rounds': flags['rounds'], 'best_round': 3})
  return flags


def test_a_finished_run_is_answered_without_tensorflow(tmp_path):
  _finished(tmp_path / 'a')
  program = f"""
import sys
from training_loops import run, train_flags
result = run.train(train_flags.configure(
  **{_NEEDED!r}, output_dir={str(tmp_path / 'a')!r}, rounds=50))
print(result.best_round, 'tensorflow' in sys.modules)
"""
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True, timeout=30
  )
  assert done.stdout == '3 False\n'


def test_other_flags_are_refused_before_a_runtime_is_started(tmp_path, monkeypatch):
  flags = _finished(tmp_path / 'a', batch_size=3)
  monkeypatch.setattr(train_flags, 'create_runtime', lambda flags: pytest.fail())
  with pytest.raises(UserError, match='--batch_size'):
    run.train({**flags, 'batch_size': 4, 'rounds': 1000})
