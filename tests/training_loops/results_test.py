"""Tests of reading runs."""

import os

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


def test_what_a_round_does_not_have_is_left_out_of_its_row(tmp_path):
  _write(tmp_path, is_finished=True)
  (tmp_path / 'metrics.csv').write_text('round,a,b\n2,0.5,\n4,,1.5\n')
  assert results.load(tmp_path).rows == [{'round': 2, 'a': 0.5}, {'round': 4, 'b': 1.5}]


def test_a_directory_that_is_no_run_says_so(tmp_path):
  with pytest.raises(UserError, match='is no run'):
    results.load(tmp_path)


def _make_runs(directory, *names: str):
  for name in names:
    (directory / name).mkdir(parents=True)
    _write(directory / name, is_finished=True)


def test_runs_are_found_at_and_below_paths_in_order_of_name(tmp_path):
  _make_runs(tmp_path, 'x/b', 'x/a/seed_1', 'x/a/seed_0', 'y', 'z')
  (tmp_path / 'x' / 'empty').mkdir()
  found = results.find([tmp_path / 'y', str(tmp_path / 'x')])
  names = [os.path.relpath(path, tmp_path) for path in found]
  assert names == ['y', 'x/a/seed_0', 'x/a/seed_1', 'x/b']
  assert results.load(found[1]).best_round == 2


def test_a_run_is_found_once_however_often_it_is_named(tmp_path, monkeypatch):
  _make_runs(tmp_path, 'x/a', 'x/b')
  (tmp_path / 'link').symlink_to(tmp_path / 'x' / 'a')
  monkeypatch.chdir(tmp_path)
  found = results.find(['link', 'x', 'x/a', tmp_path / 'x' / 'b', 'x/../x'])
  # By the name that it was given first.
  assert [str(path) for path in found] == ['link', 'x/b']


def test_a_path_that_is_a_run_stands_for_itself_whatever_lies_in_it(tmp_path):
  _make_runs(tmp_path, 'x', 'x/inside')
  assert results.find([tmp_path / 'x']) == [tmp_path / 'x']


@pytest.mark.parametrize(
  ('name', 'reason'),
  [
    ('absent', 'is no run: there is no such directory.'),
    ('file', 'is no run: it is a file.'),
    ('empty', 'is no run and holds none: there is no config.json.'),
  ],
)
def test_a_path_without_runs_is_named_even_beside_one_with_some(tmp_path, name, reason):
  _make_runs(tmp_path, 'run')
  (tmp_path / 'file').touch()
  (tmp_path / 'empty').mkdir()
  with pytest.raises(UserError) as caught:
    results.find([tmp_path / 'run', tmp_path / name])
  assert str(caught.value) == f'{tmp_path / name} {reason}'
