"""Tests of what a sweep has tried."""

import dataclasses
import math
import multiprocessing
import sqlite3

import pytest

from training_loops import ledger
from training_loops.ledger import State
from training_loops.options import UserError
from training_loops.sweep_files import Range, Sweep

_GRID = Sweep(
  flags={'task': 'digits_logistic', 'algorithm': 'fed_avg'},
  search={'batch_size': (5, 10), 'client_epochs': (1, 2, 3)},
  trials=6,
  goal='maximize',
)
_RANGES = Sweep(
  flags=_GRID.flags,
  search={
    'client_learning_rate': Range(0.001, 1.0, log=True),
    'client_epochs': Range(1, 4),
    'server_optimizer': ('sgd', 'momentum'),
  },
  sampler='random',
  trials=20,
  goal='maximize',
)


def _open(tmp_path, sweep=_GRID, where='here', **options) -> ledger.Ledger:
  return ledger.Ledger(sweep, f'sqlite:///{tmp_path / "sweep.db"}', where, **options)


def _ask_all(book: ledger.Ledger) -> list[tuple[int, dict]]:
  asked = []
  while (trial := book.ask()) is not None:
    asked.append(trial)
  return asked


def _states(book: ledger.Ledger) -> list[str]:
  return [trial.state.name for trial in book.trials()]


def test_a_grid_is_asked_for_point_by_point_in_order(tmp_path):
  asked = _ask_all(_open(tmp_path))
  assert [point for _, point in asked] == _GRID.grid()
  assert [number for number, _ in asked] == [0, 1, 2, 3, 4, 5]


def test_random_points_are_known_beforehand_and_lie_in_their_ranges(tmp_path):
  points = ledger.points(_RANGES)
  assert [point for _, point in _ask_all(_open(tmp_path, _RANGES))] == points
  assert len(points) == 20
  for point in points:
    assert 0.001 <= point['client_learning_rate'] <= 1
    assert point['client_epochs'] in (1, 2, 3, 4)
    assert point['server_optimizer'] in ('sgd', 'momentum')
    # Six digits are all that is told apart.
    rate = point['client_learning_rate']
    assert rate == float(f'{rate:.6g}')
  # On a logarithmic scale half of them are below the middle, give or take.
  low = sum(point['client_learning_rate'] < 10**-1.5 for point in points)
  assert 4 <= low <= 16


def test_large_whole_numbers_are_not_rounded(tmp_path):
  sweep = Sweep(
    flags={},
    search={'vocabulary_size': Range(1_234_567, 1_234_568)},
    sampler='random',
    trials=1,
    goal='maximize',
  )
  assert ledger.points(sweep)[0]['vocabulary_size'] in (1_234_567, 1_234_568)


def test_random_points_differ_as_long_as_there_are_others():
  sweep = dataclasses.replace(_GRID, sampler='random')
  points = ledger.points(sweep)
  assert sorted(map(str, points)) == sorted(map(str, _GRID.grid()))


def test_more_random_trials_begin_with_the_same_ones():
  more = dataclasses.replace(_RANGES, trials=30)
  assert ledger.points(more)[:20] == ledger.points(_RANGES)
  other = dataclasses.replace(_RANGES, seed=1)
  assert ledger.points(other) != ledger.points(_RANGES)


def test_the_corners_contain_every_value_and_the_ends_of_every_range():
  corners = list(ledger.corners(_RANGES))
  assert {corner['client_learning_rate'] for corner in corners} == {0.001, 1.0}
  assert {corner['client_epochs'] for corner in corners} == {1, 4}
  assert {corner['server_optimizer'] for corner in corners} == {'sgd', 'momentum'}
  assert {p['client_epochs'] for p in ledger.corners(_GRID)} == {1, 2, 3}


def test_what_was_told_is_there_when_it_is_opened_again(tmp_path):
  book = _open(tmp_path)
  (first, _), (second, _), (third, _) = book.ask(), book.ask(), book.ask()
  book.tell(first, State.COMPLETE, value=0.9, seconds=1.25)
  book.tell(second, State.PRUNED, reason='losing at round 3')
  book.tell(third, State.FAIL, reason='its process was killed by SIGKILL')
  again = _open(tmp_path)
  again.take_up()
  trials = again.trials()
  assert _states(again) == ['COMPLETE', 'PRUNED', 'FAIL']
  assert trials[0].value == 0.9
  assert trials[1].user_attrs['reason'] == 'losing at round 3'
  # Only what was never tried is left.
  assert [point for _, point in _ask_all(again)] == _GRID.grid()[3:]


@pytest.mark.parametrize('num_running', [1, 3, 6])
def test_what_was_running_when_it_was_killed_is_asked_for_again(tmp_path, num_running):
  book = _open(tmp_path)
  for _ in range(num_running):
    book.ask()
  again = _open(tmp_path)  # The first one is gone without a word.
  again.take_up()
  points = [point for _, point in _ask_all(again)]
  assert sorted(map(str, points)) == sorted(map(str, _GRID.grid()))
  assert len(again.trials()) == 6


def test_killed_again_and_again_every_point_is_still_done_once(tmp_path):
  done = []
  for life in range(8):
    book = _open(tmp_path)
    book.take_up()
    asked = [book.ask() for _ in range(3)]
    if asked[0] is not None and life % 2:
      number, point = asked[0]
      book.tell(number, State.COMPLETE, value=0.5)
      done.append(point)
  book = _open(tmp_path)
  book.take_up()
  done += [point for _, point in _ask_all(book)]
  assert sorted(map(str, done)) == sorted(map(str, _GRID.grid()))


@pytest.mark.filterwarnings('ignore:Heartbeat')
def test_a_trial_created_without_its_point_is_taken_up(tmp_path):
  book = _open(tmp_path)
  book.study.ask()  # Killed at this instant: it has neither a point nor a place.
  again = _open(tmp_path)
  again.take_up()
  points = [point for _, point in _ask_all(again)]
  assert sorted(map(str, points)) == sorted(map(str, _GRID.grid()))


def test_two_machines_share_a_sweep_and_none_does_what_the_other_does(tmp_path):
  first = _open(tmp_path, where='a', is_shared=True)
  second = _open(tmp_path, where='b', is_shared=True)
  asked = []
  while (pair := (first.ask(), second.ask())) != (None, None):
    asked += [trial for trial in pair if trial]
  assert sorted(str(point) for _, point in asked) == sorted(map(str, _GRID.grid()))
  # What runs on the other machine is not taken up.
  third = _open(tmp_path, where='a', is_shared=True)
  third.take_up()
  waiting = [t for t in third.trials() if t.state == State.WAITING]
  assert len(waiting) == 3


def test_a_machine_that_has_long_been_silent_loses_its_trials(tmp_path):
  dead = _open(tmp_path, where='dead', is_shared=True)
  dead.ask()
  alive = _open(tmp_path, where='alive', is_shared=True)
  number, _ = alive.ask()
  with sqlite3.connect(tmp_path / 'sweep.db') as connection:
    connection.execute(
      "UPDATE trial_heartbeats SET heartbeat = datetime(heartbeat, '-1 day') "
      'WHERE trial_id != (SELECT trial_id FROM trials WHERE number = ?)',
      (number,),
    )
  points = [point for _, point in _ask_all(alive)]
  assert _GRID.grid()[0] in points
  assert len(points) == 5


def test_if_two_ask_for_the_last_one_at_once_one_gets_nothing(tmp_path):
  _ask_all(_open(tmp_path))
  late = _open(tmp_path, where='late', is_shared=True)
  late.trials = lambda: []  # As if it had looked before the other asked.
  assert late.ask() is None
  assert len(_open(tmp_path).trials()) == 6


def test_what_another_machine_has_taken_over_is_nothing_to_report_on(tmp_path):
  away = _open(tmp_path, where='away', is_shared=True)
  first, second = away.ask()[0], away.ask()[0]
  with sqlite3.connect(tmp_path / 'sweep.db') as connection:
    connection.execute(
      "UPDATE trial_heartbeats SET heartbeat = datetime(heartbeat, '-1 day')"
    )
  other = _open(tmp_path, where='other', is_shared=True)
  assert other.num_elsewhere() == 2
  assert len(_ask_all(other)) == 6
  assert other.num_elsewhere() == 0
  with pytest.raises(ledger.TakenOver):
    away.report(first, 0.5, 10)
  away.tell(second, State.COMPLETE, value=0.5)  # The other's word counts.
  assert set(_states(other)) == {'RUNNING'}


def test_many_may_begin_the_same_sweep_at_the_same_moment(tmp_path):
  url = ledger.sqlite_url(tmp_path / 'sweep.db')
  with multiprocessing.get_context('spawn').Pool(4) as processes:
    numbers = processes.starmap(_ask_once, [(url, str(i)) for i in range(4)])
  assert sorted(numbers) == [0, 1, 2, 3]


def _ask_once(url: str, where: str) -> int:
  asked = ledger.Ledger(_GRID, url, where, is_shared=True).ask()
  assert asked is not None
  return asked[0]


def test_a_file_of_any_name_can_be_the_data_base(tmp_path):
  path = tmp_path / 'a b?x=1 %41{q}#' / 'sweep.db'
  path.parent.mkdir()
  book = ledger.Ledger(_GRID, ledger.sqlite_url(path), 'here')
  assert book.ask() is not None
  assert path.exists()


def test_failed_trials_are_tried_again_only_if_asked_to(tmp_path):
  book = _open(tmp_path)
  for number, _ in _ask_all(book):
    book.tell(number, State.FAIL, reason='no reason')
  again = _open(tmp_path)
  again.take_up()
  assert again.ask() is None
  again.take_up(failed=True)
  assert [point for _, point in _ask_all(again)] == _GRID.grid()
  assert set(_states(again)) == {'RUNNING'}


def test_other_sweeps_in_the_same_data_base_are_apart(tmp_path):
  _ask_all(_open(tmp_path))
  assert _open(tmp_path, _RANGES).trials() == []


def _pruning(pruner: str) -> Sweep:
  return Sweep(
    flags={}, search={'seed': tuple(range(9))}, trials=9, goal='maximize', pruner=pruner
  )


def test_a_run_below_the_median_of_the_others_is_losing(tmp_path):
  book = _open(tmp_path, _pruning('median'))
  for value in (0.5, 0.6, 0.7, 0.8):
    number, _ = book.ask()
    assert not book.report(number, value, 10)
    book.tell(number, State.COMPLETE, value=value)
  number, _ = book.ask()
  assert book.report(number, 0.6, 10)
  number, _ = book.ask()
  assert not book.report(number, 0.7, 10)
  assert not book.report(number, math.nan, 20)


def test_without_a_pruner_nobody_is_losing(tmp_path):
  book = _open(tmp_path, _pruning('none'))
  for value in (0.9, 0.8, 0.7, 0.6, 0.0):
    number, _ = book.ask()
    assert not book.report(number, value, 10)
    book.tell(number, State.COMPLETE, value=value)


def _bayesian(trials: int) -> Sweep:
  return Sweep(
    flags={},
    search={'client_learning_rate': Range(1e-4, 1.0, log=True)},
    sampler='tpe',
    trials=trials,
    goal='minimize',
  )


def test_the_bayesian_search_goes_where_it_was_good(tmp_path):
  sweep = _bayesian(trials=40)
  assert ledger.points(sweep) == []
  book = _open(tmp_path, sweep)
  distances = []
  while (asked := book.ask()) is not None:
    number, point = asked
    distance = abs(math.log10(point['client_learning_rate']) + 2)  # Best at 0.01.
    book.tell(number, State.COMPLETE, value=distance)
    distances.append(distance)
  # At random the mean of 20 distances is 1, with a standard deviation of 0.13.
  assert sum(distances[20:]) / 20 < 0.7


def test_continued_the_bayesian_search_does_not_draw_the_same_again(tmp_path):
  sweep = _bayesian(trials=6)
  drawn = []
  for _ in range(3):
    book = _open(tmp_path, sweep)
    for _ in range(2):
      number, point = book.ask()
      book.tell(number, State.COMPLETE, value=1.0)
      drawn.append(point['client_learning_rate'])
  assert len(set(drawn)) == 6


def test_the_password_of_a_data_base_is_not_shown():
  with pytest.raises(UserError) as caught:
    ledger.Ledger(_GRID, 'oracle9://me:secret@host/x', 'here')
  assert 'me:***@host' in str(caught.value)
  assert 'secret' not in str(caught.value)


@pytest.mark.parametrize(
  'url', ['nonsense', 'oracle9://x', 'sqlite:////no/such/directory/x.db']
)
def test_a_data_base_that_cannot_be_used_is_one_line(url):
  with pytest.raises(UserError) as caught:
    ledger.Ledger(_GRID, url, 'here')
  assert url in str(caught.value)
  assert '\n' not in str(caught.value)
