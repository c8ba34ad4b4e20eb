"""Tests of reading runs."""

import pytest

from training_loops import files, results
from training_loops.options import UserError


def _write(path, is_finished: bool):
  files.write_json(path / 'config.json', {'flags': {'rounds': 4}})
  (path / 'metrics.csv').write_text('round,eval/loss\n2,0.5\n4,nan\n')
  (path / 'timing.csv').write_text('round,seconds\n2,1.5\n4,2.5\n')
  if is_finished:
    files.write_json(path / 'result.json', {'rounds': 4, 'best_round': 2})


def test_a_finished_run_is_read_with_numbers_as_numbers(tmp_path):
  _write(tmp_path, is_finished=True)
  result = results.load(tmp_path)
  assert result.flags == {'rounds': 4}
  assert result.rows[0] == {'round': 2, 'eval/loss': 0.5}
  assert result.rows[1]['eval/loss'] != result.rows[1]['eval/loss']  # Not a number.
  assert (result.seconds, result.is_finished, result.best_round) == (2.5, True, 2)


def test_an_unfinished_run_is_read_as_far_as_it_got(tmp_path):
  _write(tmp_path, is_finished=False)
  result = results.load(tmp_path)
  assert (len(result.rows), result.is_finished, result.best_round) == (2, False, None)


def test_a_run_without_an_evaluated_round_has_no_rows(tmp_path):
  files.write_json(tmp_path / 'config.json', {'flags': {}})
  (tmp_path / 'metrics.csv').touch()
  assert results.load(tmp_path).rows == []


def test_a_directory_that_is_no_run_says_so(tmp_path):
  with pytest.raises(UserError, match='is no run'):
    results.load(tmp_path)
