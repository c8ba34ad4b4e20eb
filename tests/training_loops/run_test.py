"""Tests of training as a function; `training_test` has those of the training."""

import pathlib
import subprocess
import sys

import pytest

from training_loops import files, results, run, runtimes, train_flags, training
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


def test_the_worker_ends_before_the_files_that_it_may_be_writing_go(
  tmp_path, monkeypatch
):
  seen: list[pathlib.Path] = []

  class Worker(runtimes.Runtime):
    def start(self):
      pass

    def stop(self):
      assert seen[0].is_dir()

  def interrupted(flags, directory, files_directory, on_row):
    seen.append(files_directory)
    raise KeyboardInterrupt

  monkeypatch.setattr(train_flags, 'create_runtime', lambda flags: Worker())
  monkeypatch.setattr(training, 'train', interrupted)
  with pytest.raises(KeyboardInterrupt):
    run.train(train_flags.configure(**_NEEDED, output_dir=tmp_path / 'a'))
  assert not seen[0].exists()


@pytest.mark.slow
def test_each_row_is_handed_on_and_of_a_continued_run_those_before_too(
  tmp_path, runtime
):
  flags = train_flags.configure(
    **_NEEDED, clients_per_round=2, rounds=4, rounds_per_eval=2, output_dir=tmp_path
  )
  for rounds, expected in ((4, [2, 4]), (7, [2, 4, 6, 7])):
    rows = []
    run.train({**flags, 'rounds': rounds}, runtime=runtime, on_row=rows.append)
    assert [row['round'] for row in rows] == expected
    assert rows == results.load(tmp_path).rows


@pytest.mark.slow
def test_a_row_is_handed_on_as_soon_as_it_is_there(tmp_path, runtime):
  flags = train_flags.configure(
    **_NEEDED, clients_per_round=2, rounds=6, rounds_per_eval=2, output_dir=tmp_path
  )

  def stop(row):
    if row['round'] == 4:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt):
    run.train(flags, runtime=runtime, on_row=stop)
  assert results.load(tmp_path).rows[-1]['round'] == 4
  rows = []
  result = run.train(flags, runtime=runtime, on_row=rows.append)
  assert [row['round'] for row in rows] == [2, 4, 6]
  assert rows == result.rows
