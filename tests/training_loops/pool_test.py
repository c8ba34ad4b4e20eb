"""Tests of runs in processes of their own."""

import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import pytest

from tests.training_loops import child_processes
from training_loops import cores, pool, results, train_flags

pytestmark = pytest.mark.slow


def _flags(path, **flags):
  return train_flags.configure(
    algorithm='fed_avg',
    output_dir=path,
    **{'task': 'digits_logistic', 'rounds': 6, 'rounds_per_eval': 2, **flags},
  )


def _finish(runs: pool.Pool) -> dict:
  """Waits for all runs; their rows and outcomes by key."""
  events: dict = {}
  while runs.running:
    for key, event in runs.wait(100):
      events.setdefault(key, []).append(event)
  return events


def test_runs_send_their_rows_and_then_how_they_ended(tmp_path):
  with pool.Pool(2) as runs:
    runs.start('a', _flags(tmp_path / 'a'))
    assert runs.has_room
    runs.start('b', _flags(tmp_path / 'b', seed=1))
    assert not runs.has_room
    events = _finish(runs)
    runs.start('c', _flags(tmp_path / 'c', clients_per_round=51))
    events |= _finish(runs)
  for key in ('a', 'b'):
    *rows, outcome = events[key]
    assert rows == results.load(tmp_path / key).rows
    assert [row['round'] for row in rows] == [2, 4, 6]
    assert outcome == pool.Outcome('done')
  (outcome,) = events['c']
  assert outcome.state == 'refused'
  assert outcome.reason.startswith('--clients_per_round=51 is more than the 50')
  assert not (tmp_path / 'c').exists()


def test_runs_on_other_machines_have_no_share_of_the_cores(tmp_path):
  flags = _flags(
    tmp_path / 'a', runtime='remote', workers='localhost:1', certificates=tmp_path
  )
  with pool.Pool(1) as runs:
    runs.start('a', flags)
    ((outcome,),) = _finish(runs).values()
  assert outcome.state == 'refused'
  assert outcome.reason.startswith(f'--certificates={tmp_path} needs the files')


def test_the_runs_share_the_cores(tmp_path):
  with pool.Pool(cores.number()) as runs:
    assert runs.num_threads == 1
    runs.start('a', _flags(tmp_path / 'a'))
    runs.start('b', _flags(tmp_path / 'b', num_threads=2))
    _finish(runs)
  assert results.load(tmp_path / 'a').flags['num_threads'] == 1
  assert results.load(tmp_path / 'b').flags['num_threads'] == 2


def test_a_run_by_itself_or_among_others_has_the_same_weights(tmp_path):
  command = [sys.executable, '-m', 'training_loops.train']
  flags = ['--task=digits_mlp', '--algorithm=fed_avg', '--rounds=3']
  subprocess.run([*command, *flags, f'--output_dir={tmp_path / "alone"}'], check=True)
  with pool.Pool(1) as runs:  # It has all cores, and several threads.
    runs.start('a', _flags(tmp_path / 'a', task='digits_mlp', rounds=3))
    _finish(runs)
  alone, among = (np.load(tmp_path / name / 'weights.npz') for name in ('alone', 'a'))
  assert alone.files == among.files
  for name in alone.files:
    np.testing.assert_array_equal(alone[name], among[name])


def test_xla_is_of_a_process_and_for_the_runs_that_ask_for_it(tmp_path):
  with pool.Pool(1) as runs:
    for i, xla in enumerate([True, False, True]):
      runs.start(i, _flags(tmp_path / str(i), rounds=1, xla=xla))
      assert _finish(runs)[i][-1] == pool.Outcome('done')
    commands = [
      pathlib.Path(f'/proc/{pid}/cmdline').read_text().split('\0')[:-1]
      for pid in child_processes.children(os.getpid())
    ]
  ends = [c[-1] for c in commands if 'training_loops.runner' in c]
  assert sorted(end == 'xla' for end in ends) == [False, True]


def test_a_process_that_is_killed_is_a_failed_run_and_the_others_go_on(tmp_path):
  with pool.Pool(2) as runs:
    runs.start('killed', _flags(tmp_path / 'killed', rounds=5000, runtime='local'))
    killed = child_processes.children(os.getpid())[-1]
    runs.start('other', _flags(tmp_path / 'other'))
    child_processes.wait_for((tmp_path / 'killed' / 'metrics.csv').exists)
    worker = child_processes.children(killed)
    os.kill(killed, signal.SIGKILL)
    events = _finish(runs)
    assert events['other'][-1] == pool.Outcome('done')
    failed = events['killed'][-1]
    assert failed.state == 'failed'
    assert (
      failed.reason == 'its process was killed by SIGKILL (often for want of memory)'
    )
    # A new process takes its place.
    runs.start('again', _flags(tmp_path / 'again'))
    assert _finish(runs)['again'][-1] == pool.Outcome('done')
  child_processes.wait_for(lambda: not any(map(child_processes.is_alive, worker)))


def test_a_run_that_is_stopped_is_saved_and_can_be_continued(tmp_path):
  flags = _flags(tmp_path / 'a', rounds=3000)
  with pool.Pool(1) as runs:
    runs.start('a', flags)
    assert runs.wait(100)
    runs.stop('a')
    assert runs.running == []
    assert runs.has_room
  result = results.load(tmp_path / 'a')
  assert not result.is_finished
  log = (tmp_path / 'a' / 'train.log').read_text()
  assert 'Interrupted; saved after round' in log
  rounds = result.rows[-1]['round'] + 2
  with pool.Pool(1) as runs:
    runs.start('a', {**flags, 'rounds': rounds})
    events = _finish(runs)
  assert events['a'][-1] == pool.Outcome('done')
  # Those of the earlier time come again.
  assert [row['round'] for row in events['a'][:-1]] == list(range(2, rounds + 1, 2))


def test_a_process_makes_many_runs_but_not_too_many(tmp_path, monkeypatch):
  monkeypatch.setattr(pool, '_MAX_RUNS_OF_A_PROCESS', 2)
  before = set(child_processes.children(os.getpid()))
  seen = []
  with pool.Pool(1) as runs:
    for i in range(3):
      runs.start(i, _flags(tmp_path / str(i), rounds=1))
      seen.append((set(child_processes.children(os.getpid())) - before).pop())
      _finish(runs)
      if i == 1:
        # It is let go of by the pool once all its threads have ended.
        child_processes.wait_for(
          lambda: (
            not runs.wait(0) and seen[1] not in child_processes.children(os.getpid())
          )
        )
  assert seen[0] == seen[1] != seen[2]
  assert set(child_processes.children(os.getpid())) <= before


_PARENT = """
import sys
from training_loops import pool, train_flags
flags = train_flags.configure(
  task='digits_logistic', algorithm='fed_avg', rounds=5000, runtime='local',
  output_dir=sys.argv[1])
with pool.Pool(1) as runs:
  runs.start('a', flags)
  while runs.running:
    print(runs.wait(), flush=True)
"""


def test_runs_are_saved_and_end_when_their_parent_is_killed(tmp_path):
  with subprocess.Popen(
    [sys.executable, '-c', _PARENT, tmp_path / 'a'], stdout=subprocess.PIPE, text=True
  ) as parent:
    assert 'train/loss' in parent.stdout.readline()
    family = child_processes.descendants(parent.pid)
    assert len(family) == 2  # A process, and TFF's worker.
    parent.kill()
  child_processes.wait_for(lambda: not any(map(child_processes.is_alive, family)))
  assert 'saved after round' in (tmp_path / 'a' / 'train.log').read_text()
