"""Tests of what goes on between the runs of a sweep and its ledger."""

import pathlib

import pytest

from training_loops import files, ledger, pool, sweeps
from training_loops.options import UserError
from training_loops.sweep_files import Sweep

_SWEEP = Sweep(
  flags={'task': 'digits_logistic', 'algorithm': 'fed_avg', 'rounds': 4},
  search={'client_epochs': (1, 2)},
  sampler='tpe',
  trials=3,
  goal='maximize',
)


class _Book:
  """A ledger that is asked for what it was made of."""

  def __init__(self, *points: int):
    self._asked = [(i, {'client_epochs': epochs}) for i, epochs in enumerate(points)]
    self.told: dict = {}
    self.taken_over: set = set()

  def ask(self):
    return self._asked.pop(0) if self._asked else None

  def trials(self):
    return []

  def report(self, number, value, round_num):
    if number in self.taken_over:
      raise ledger.TakenOver
    return value < 0.1

  def tell(self, number, state, *, value=None, reason=None, seconds=0.0):
    self.told[number] = (state.name, value, reason)


class _Runs:
  """A pool in which nothing happens."""

  has_room = True

  def __init__(self):
    self.started = {}
    self.stopped = []

  def start(self, number, flags):
    self.started[number] = flags

  def stop(self, number):
    self.stopped.append(number)


class _Shown:
  def reached(self, *arguments, **options):
    pass

  def say(self, *arguments):
    pass


def _search(tmp_path, book):
  runs = _Runs()
  search = sweeps._Search(_SWEEP, tmp_path, book, runs, _Shown())
  search.start_runs()
  for flags in runs.started.values():  # As if it had begun.
    directory = pathlib.Path(flags['output_dir'])
    directory.mkdir(parents=True)
    files.write_json(directory / 'config.json', {'flags': flags})
  return search, runs


def _row(accuracy: float, round_num: int = 2, loss: float = 1.0):
  return {'round': round_num, 'eval/accuracy': accuracy, 'eval/loss': loss}


def test_a_point_that_is_drawn_again_meanwhile_is_made_once_and_told_of_twice(tmp_path):
  book = _Book(1, 2, 1)
  search, runs = _search(tmp_path, book)
  assert list(runs.started) == [0, 1]
  search.handle_row(0, _row(0.5))
  search.handle_row(0, _row(0.25, 4))
  search.handle_end(0, pool.Outcome('done'))
  assert book.told == {0: ('COMPLETE', 0.5, ''), 2: ('COMPLETE', 0.5, '')}


def test_a_run_that_diverges_or_loses_is_stopped_with_the_reason(tmp_path):
  book = _Book(1, 2)
  search, runs = _search(tmp_path, book)
  search.handle_row(0, _row(0.5, loss=float('inf')))
  search.handle_row(1, _row(0.05, 4))
  assert runs.stopped == [0, 1]
  assert book.told == {
    0: ('PRUNED', None, 'diverged by round 2'),
    1: ('PRUNED', None, 'losing at round 4'),
  }


def test_a_run_that_another_machine_has_taken_over_is_stopped_without_a_word(tmp_path):
  book = _Book(1, 2)
  search, runs = _search(tmp_path, book)
  book.taken_over = {0}
  search.handle_row(0, _row(0.5))
  assert (runs.stopped, book.told) == ([0], {})
  search.handle_row(1, _row(0.75))
  search.handle_end(1, pool.Outcome('done'))
  assert book.told == {1: ('COMPLETE', 0.75, '')}


def test_what_is_not_a_number_does_not_count_and_alone_is_a_failure(tmp_path):
  book = _Book(1, 2)
  search, _ = _search(tmp_path, book)
  for accuracy in (float('nan'), 0.5, float('nan')):
    search.handle_row(0, _row(accuracy))
  search.handle_end(0, pool.Outcome('done'))
  search.handle_row(1, _row(float('nan')))
  search.handle_end(1, pool.Outcome('done'))
  assert book.told == {
    0: ('COMPLETE', 0.5, ''),
    1: ('FAIL', None, 'eval/accuracy is not a number'),
  }


def test_a_run_that_fails_or_is_refused_is_told_of_with_its_reason(tmp_path):
  book = _Book(1, 2)
  search, _ = _search(tmp_path, book)
  search.handle_end(0, pool.Outcome('failed', 'it burst', 'all of it'))
  search.handle_end(1, pool.Outcome('refused', 'no'))
  assert book.told == {0: ('FAIL', None, 'it burst'), 1: ('FAIL', None, 'no')}
  failures = [path.read_text() for path in tmp_path.rglob('failure.txt')]
  assert 'it burst\n\nall of it\n' in failures


def test_a_metric_that_is_not_there_is_the_users_mistake(tmp_path):
  search, _ = _search(tmp_path, _Book(1))
  with pytest.raises(UserError, match='no metric eval/accuracy, but eval/loss'):
    search.handle_row(0, {'round': 2, 'eval/loss': 1.0})
