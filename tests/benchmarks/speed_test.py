"""Tests of the benchmark itself."""

import importlib.util
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import environments, speed
from benchmarks.peer_processes import PeerFailure, PeerProcess
from tests.benchmarks import fake_peer, small_work

_ROOT = pathlib.Path(__file__).parents[2]
_TASK = next(iter(speed.TASKS.values()))


def _run(*flags, **arguments):
  return subprocess.run(
    [sys.executable, '-m', 'benchmarks.speed', *flags],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=300,
    **arguments,
  )


@pytest.mark.parametrize(
  'flag', ['--works=logistic_10,unknown', '--peers=unknown', '--works=', '--rounds=0']
)
def test_a_value_that_is_not_known_is_told_before_anything_slow(
  flag, without_tensorflow
):
  done = _run(flag, env=without_tensorflow)
  assert done.returncode == 1
  assert 'Traceback' not in done.stderr
  told, how_to_get_help = done.stderr.splitlines()
  assert flag.partition('=')[0] in told
  assert '--help' in how_to_get_help


def test_help_needs_no_tensorflow(without_tensorflow):
  done = _run('--helpshort', env=without_tensorflow)
  assert '--works' in done.stdout
  assert done.stderr == ''


@pytest.mark.parametrize('name', speed.TASKS)
def test_goals_are_set_against_peers_that_take_part(name):
  task = speed.TASKS[name]
  assert {goal.peer for goal in task.goals} <= set(task.peers) <= set(speed.KINDS)
  assert {goal.of for goal in task.goals} <= {'time', 'memory'}


@pytest.mark.parametrize('kind', speed.KINDS.values(), ids=speed.KINDS)
def test_every_peer_has_a_module_and_the_pins_of_its_environment(kind):
  assert importlib.util.find_spec(f'benchmarks.peers.{kind.module}')
  if kind.environment:
    assert (environments.PEERS / f'{kind.environment}.txt').exists()


def test_same_weights_agree_and_others_are_found():
  start = [np.array([[3.0], [3.0]]), np.array([0.0])]
  ours = [np.array([[3.0], [4.0]]), np.array([0.0])]  # A way of 1.
  close = [np.array([[3.0], [4.001]]), np.array([0.0])]
  found = speed.distances(start, {speed.OURS: ours, 'other': close})
  assert found == {speed.OURS: 0, 'other': pytest.approx(1e-3)}
  for number in (4.1, np.nan):
    other = [np.array([[3.0], [number]]), np.array([0.0])]
    with pytest.raises(AssertionError, match='other trains to other weights'):
      speed.distances(start, {speed.OURS: ours, 'other': other})


class _Fakes:
  """Peers that are started in the place of others, each with arguments of its own."""

  def __init__(self, arguments):
    self._arguments = list(arguments)
    self.started = []

  def start(self, kind, pythons, directory):
    process = PeerProcess(
      pathlib.Path(sys.executable),
      'tests.benchmarks.fake_peer',
      directory,
      self._arguments[len(self.started)],
    )
    self.started.append(process)
    return process


def _measure(monkeypatch, arguments, cohorts):
  fakes = _Fakes(arguments)
  monkeypatch.setattr(speed, '_started', fakes.start)
  names = [speed.OURS, *_TASK.peers][: len(arguments)]
  return fakes, lambda: speed.measure(small_work.make(), cohorts, {}, names)


def _assert_ended(fakes, number):
  assert len(fakes.started) == number
  assert not any(list(process._pids()) for process in fakes.started)


def test_peers_are_measured_after_the_rounds_to_warm_up(monkeypatch):
  cohorts = [[0, 1], [2, 3], [0, 2], [1, 3], [0, 3]]
  fakes, measure = _measure(monkeypatch, [(), (), ()], cohorts)
  measured = measure()
  assert len(measured) == 3
  for own in measured.values():
    assert own.seconds.shape == (3,)
    assert (own.seconds > 0).all()
    assert own.examples.tolist() == [7 + 10, 3 + 1, 7 + 1]
    assert own.megabytes > 5
    assert own.first_round > 0
  _assert_ended(fakes, 3)


def test_a_peer_that_trains_to_other_weights_is_not_measured(monkeypatch):
  fakes, measure = _measure(monkeypatch, [(), ('odd',)], [[0, 1], [2, 3], [0, 2]])
  with pytest.raises(AssertionError, match='trains to other weights'):
    measure()
  _assert_ended(fakes, 2)


def test_one_peer_that_fails_ends_all(monkeypatch):
  cohorts = [[0, 1], [2, 3], [fake_peer.DEADLY]]
  fakes, measure = _measure(monkeypatch, [(), ()], cohorts)
  with pytest.raises(PeerFailure, match='failed, as planned'):
    measure()
  _assert_ended(fakes, 2)


@pytest.mark.slow
def test_ours_and_tff_learning_are_measured_and_the_page_written(tmp_path):
  page = tmp_path / 'speed.md'
  flags = ['--works=logistic_10', '--peers=tff.learning', '--rounds=1']
  done = _run(*flags, f'--output={page}')
  assert done.returncode == 0, done.stderr
  lines = [line.split('|') for line in done.stdout.splitlines() if '|' in line]
  rows = [line for line in lines if line[1].strip() == 'logistic_10']
  # Of the table, then of the goals.
  assert [row[2].strip() for row in rows] == [speed.OURS, speed.TFF, 'time']
  assert all('|'.join(row) in page.read_text() for row in rows)
  assert {p.suffix for p in tmp_path.iterdir()} == {'.md', '.csv', '.png'}
