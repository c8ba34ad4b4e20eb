"""Tests of runs whose clients keep something: on the real runtime, and the binary."""

import functools
import gc
import hashlib
import logging
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import pytest

from tests.training_loops import disturbed_runs
from tests.training_loops.child_processes import wait_for
from tests.training_loops.disturbed_runs import Killed, killed_at, rounds_of
from training_loops import (
  checkpoints,
  client_state_store,
  evaluation,
  records,
  run,
  train_flags,
)
from training_loops.options import UserError

_ALGORITHMS = ['scaffold', 'fed_dyn']
_STORE_FILES = ('client_states.sqlite', 'client_states.data')


def _flags(output_dir, algorithm='scaffold', **flags):
  return train_flags.configure(
    **{
      'task': 'digits_logistic',
      'algorithm': algorithm,
      'num_clients': 6,
      'clients_per_round': 3,
      'rounds': 5,
      'rounds_per_eval': 2,
      'rounds_per_checkpoint': 2,
      'output_dir': output_dir,
      **flags,
    }
  )


@pytest.fixture(scope='module', autouse=True)
def built_once(tmp_path_factory):
  with disturbed_runs.built_once(tmp_path_factory.mktemp('scratch')):
    yield


@pytest.fixture(scope='module')
def references(tmp_path_factory, runtime):
  """Runs that nothing disturbed, by the algorithm."""
  path = tmp_path_factory.mktemp('references')
  for algorithm in _ALGORITHMS:
    run.train(_flags(path / algorithm, algorithm), runtime=runtime)
  return path


@pytest.fixture
def train(runtime):
  return functools.partial(run.train, runtime=runtime)


_STATE_BYTES = 4 * (64 * 10 + 10)  # The weights of logistic regression.
_SLOT_BYTES = 4096


def _states(path: pathlib.Path) -> dict[str, tuple[int, bytes]]:
  """The newest state of every client of a run, with its checksum."""
  content = (path / 'client_states.data').read_bytes()
  connection = sqlite3.connect(path / 'client_states.sqlite')
  try:
    rows = connection.execute(
      'SELECT client, checksum, slot FROM states ORDER BY version'
    )
    return {
      client: (checksum, content[slot * _SLOT_BYTES :][:_STATE_BYTES])
      for client, checksum, slot in rows
    }
  finally:
    connection.close()


def _outcome(path: pathlib.Path):
  names = ('metrics.csv', 'weights.npz')
  return _states(path), *((path / name).read_bytes() for name in names)


def _copy(path: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
  """A run that has all its rounds but is not finished."""
  shutil.copytree(path, to)
  (to / 'result.json').unlink()
  return to


def _hashes(path: pathlib.Path) -> dict[str, str]:
  """Of all files of a run but the log, which tells of every attempt."""
  return {
    str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest()
    for p in path.rglob('*')
    if p.is_file() and p.name != 'train.log'
  }


@pytest.mark.slow
@pytest.mark.parametrize('algorithm', _ALGORITHMS)
def test_a_run_keeps_what_its_clients_keep_and_nothing_else_is_left(
  references, algorithm
):
  path = references / algorithm
  states = _states(path)
  assert 3 <= len(states) <= 6
  assert len(set(states.values())) == len(states)
  assert all(np.frombuffer(value, np.float32).any() for _, value in states.values())
  stateful = [p.name for p in path.iterdir() if 'client_states' in p.name]
  assert set(stateful) == set(_STORE_FILES)


@pytest.mark.slow
@pytest.mark.parametrize('algorithm', _ALGORITHMS)
@pytest.mark.parametrize('rounds', [2, 3])
def test_continued_in_the_middle_a_run_ends_as_one_that_was_not(
  references, train, tmp_path, algorithm, rounds
):
  path = tmp_path / 'a'
  train(_flags(path, algorithm, rounds=rounds))
  train(_flags(path, algorithm))
  states, metrics, weights = _outcome(path)
  wanted_states, wanted_metrics, wanted_weights = _outcome(references / algorithm)
  assert (states, weights) == (wanted_states, wanted_weights)
  if rounds == 3:  # As the last one then, it has a row, which it has not otherwise.
    assert rounds_of(path) == [2, 3, 4, 5]
    metrics = b''.join(metrics.splitlines(keepends=True)[i] for i in (0, 1, 3, 4))
  assert metrics == wanted_metrics


@pytest.mark.slow
@pytest.mark.parametrize('rounds_per_checkpoint', [1, 100])
def test_how_often_a_run_is_saved_does_not_change_it(
  references, train, tmp_path, rounds_per_checkpoint
):
  path = tmp_path / 'a'
  train(_flags(path, rounds_per_checkpoint=rounds_per_checkpoint))
  assert _outcome(path) == _outcome(references / 'scaffold')


@pytest.mark.slow
@pytest.mark.parametrize('algorithm', _ALGORITHMS)
@pytest.mark.parametrize('at_call', [1, 2, 3])
def test_interrupted_during_evaluation_it_continues_to_the_same_end(
  references, train, tmp_path, monkeypatch, algorithm, at_call
):
  path = tmp_path / 'a'
  calls = []
  evaluate = evaluation.Evaluator.__call__

  def interrupted(self, weights, rows):
    calls.append(1)
    if len(calls) == at_call:
      raise KeyboardInterrupt
    return evaluate(self, weights, rows)

  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(evaluation.Evaluator, '__call__', interrupted)
    train(_flags(path, algorithm, rounds_per_checkpoint=100))
  completed = [1, 3, 4][at_call - 1]
  assert (path / 'checkpoints' / f'round_{completed:08d}.ckpt').exists()
  train(_flags(path, algorithm))
  assert _outcome(path) == _outcome(references / algorithm)


@pytest.mark.slow
def test_an_interrupt_between_a_row_and_its_round_does_not_keep_its_states(
  references, train, tmp_path, monkeypatch
):
  path = tmp_path / 'a'
  add = records.Records.add

  def interrupted(self, row, seconds):
    add(self, row, seconds)
    if row['round'] == 4:
      raise KeyboardInterrupt

  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(records.Records, 'add', interrupted)
    train(_flags(path))
  train(_flags(path))
  assert _outcome(path) == _outcome(references / 'scaffold')


@pytest.mark.slow
def test_rounds_as_in_practice_continue_to_the_same_end_too(train, tmp_path):
  realistic = {
    'sampling': 'log_normal',
    'dropout_rate': 0.3,
    'straggler_rate': 0.5,
    'straggler_steps': 1,
    'available_share': 0.7,
    'rounds_per_day': 4,
  }
  train(_flags(tmp_path / 'a', **realistic))
  train(_flags(tmp_path / 'b', **realistic, rounds=2))
  train(_flags(tmp_path / 'b', **realistic))
  assert _outcome(tmp_path / 'a') == _outcome(tmp_path / 'b')


@pytest.mark.slow
@pytest.mark.parametrize('algorithm', _ALGORITHMS)
def test_from_the_checkpoint_before_a_damaged_one_it_gets_to_the_same_end(
  references, train, tmp_path, caplog, algorithm
):
  path = tmp_path / 'a'
  train(_flags(path, algorithm, rounds=4))
  (path / 'result.json').unlink()
  last = path / 'checkpoints' / 'round_00000004.ckpt'
  last.write_bytes(last.read_bytes()[:-1])
  with caplog.at_level(logging.INFO, 'training_loops'):
    train(_flags(path, algorithm))
  assert 'round_00000004.ckpt is damaged' in caplog.text
  assert 'Continuing after round 2.' in caplog.text
  assert _outcome(path) == _outcome(references / algorithm)


def _truncate(path: pathlib.Path) -> None:
  os.truncate(path, path.stat().st_size // 2)


def _shorten(path: pathlib.Path) -> None:
  os.truncate(path, path.stat().st_size - 1)


def _empty(path: pathlib.Path) -> None:
  os.truncate(path, 0)


def _overwrite(path: pathlib.Path) -> None:
  path.write_bytes(b'something else\n' * 10_000)


@pytest.mark.slow
@pytest.mark.parametrize('name', _STORE_FILES)
@pytest.mark.parametrize(
  'damage', [pathlib.Path.unlink, _truncate, _shorten, _empty, _overwrite]
)
def test_a_run_whose_store_is_damaged_is_refused_and_left_alone(
  references, train, tmp_path, damage, name
):
  path = _copy(references / 'scaffold', tmp_path / 'a')
  damage(path / name)
  before = _hashes(path)
  with pytest.raises(UserError) as error:
    train(_flags(path, rounds=7))
  assert str(path / name) in str(error.value)
  assert _hashes(path) == before
  # With the file put back it goes on.
  shutil.copy(references / 'scaffold' / name, path)
  train(_flags(path, rounds=7))


@pytest.mark.slow
def test_a_store_of_another_algorithm_is_refused_and_left_alone(
  references, train, tmp_path
):
  path = _copy(references / 'scaffold', tmp_path / 'a')
  for name in _STORE_FILES:
    shutil.copy(references / 'fed_dyn' / name, path)
  before = _hashes(path)
  with pytest.raises(UserError, match=r'its algorithm is fed_dyn.* scaffold'):
    train(_flags(path, rounds=7))
  assert _hashes(path) == before


@pytest.mark.slow
def test_a_store_of_another_time_or_run_is_refused_and_left_alone(
  references, train, tmp_path
):
  """An older copy; and one of the same rounds, but with another seed."""
  old = tmp_path / 'old'
  train(_flags(old, rounds=2))
  other = tmp_path / 'other'
  train(_flags(other, seed=1))
  path = _copy(references / 'scaffold', tmp_path / 'a')
  for source, message in ((old, 'after round 0 and 2'), (other, 'does not have')):
    for name in _STORE_FILES:
      shutil.copy(source / name, path)
    before = _hashes(path)
    with pytest.raises(UserError, match=f'client_states.sqlite .*{message}') as error:
      train(_flags(path, rounds=7))
    assert _hashes(path) == before
    del error


@pytest.mark.slow
@pytest.mark.parametrize('are_damaged', [False, True])
def test_a_store_without_any_checkpoint_is_refused_and_nothing_is_deleted(
  references, train, tmp_path, are_damaged
):
  path = _copy(references / 'scaffold', tmp_path / 'a')
  for checkpoint in (path / 'checkpoints').iterdir():
    if are_damaged:
      _shorten(checkpoint)
    else:
      checkpoint.unlink()
  before = _hashes(path)
  with pytest.raises(UserError, match=r'after round 4 and 5, but .* after round 0'):
    train(_flags(path))
  assert _hashes(path) == before
  # With the checkpoints put back it goes on.
  shutil.rmtree(path / 'checkpoints')
  shutil.copytree(references / 'scaffold' / 'checkpoints', path / 'checkpoints')
  train(_flags(path))
  assert _outcome(path) == _outcome(references / 'scaffold')


def _mortal_statements(
  monkeypatch, operation: int, error: type[BaseException] = Killed, how_often=10**9
) -> list[str]:
  """The same for the statements of the store; or with an interrupt, once."""
  done: list[str] = []

  class Connection(sqlite3.Connection):
    def execute(self, statement, *arguments):
      if operation <= len(done) < operation + how_often:
        done.append('')
        raise error
      done.append(statement)
      return super().execute(statement, *arguments)

  # Closing it takes back what was not committed, as the next one to open it would.
  connect = functools.partial(sqlite3.connect, factory=Connection)
  monkeypatch.setattr(client_state_store.sqlite3, 'connect', connect)
  return done


@pytest.mark.long
def test_killed_between_any_two_operations_on_files_it_ends_as_one_never_killed(
  references, train, tmp_path, monkeypatch
):
  operation, is_killed = 0, True
  while is_killed:
    path = tmp_path / str(operation)
    with monkeypatch.context() as patch:
      done = killed_at(patch, operation)
      try:
        train(_flags(path))
        is_killed = False
      except Killed:
        pass
    gc.collect()  # What is dead holds no lock.
    train(_flags(path))
    assert _outcome(path) == _outcome(references / 'scaffold'), done
    assert not [p for p in path.rglob('.*') if p.name != '.lock'], done
    operation += 1
  assert operation > 20


@pytest.fixture(scope='module')
def num_statements(tmp_path_factory, runtime):
  """How many statements a run has its store execute."""
  with pytest.MonkeyPatch.context() as patch:
    done = _mortal_statements(patch, 10**9)
    run.train(_flags(tmp_path_factory.mktemp('counted') / 'run'), runtime=runtime)
  assert sum(statement == 'COMMIT' for statement in done) == 4
  return len(done)


@pytest.fixture(params=[Killed, KeyboardInterrupt])
def check_stopped(request, references, train, tmp_path, monkeypatch):
  """Checks that a run ends as ever that was stopped before a certain statement."""
  error = request.param

  def check(operation):
    path = tmp_path / str(operation)
    with monkeypatch.context() as patch, pytest.raises(error):
      _mortal_statements(patch, operation, error, 10**9 if error is Killed else 1)
      train(_flags(path))
    if error is Killed:
      gc.collect()  # What is dead holds no lock.
    train(_flags(path))
    assert _outcome(path) == _outcome(references / 'scaffold'), operation

  return check


@pytest.mark.slow
def test_stopped_between_statements_of_the_store_it_ends_as_one_never_stopped(
  check_stopped, num_statements
):
  for operation in range(3, num_statements, 12):  # Some of them.
    check_stopped(operation)


@pytest.mark.long
def test_stopped_between_any_two_statements_it_ends_as_one_never_stopped(
  check_stopped, num_statements
):
  for operation in range(num_statements):
    check_stopped(operation)


# The binary.


def _command(output_dir, *flags: str) -> list[str]:
  return [
    *(sys.executable, '-m', 'training_loops.train'),
    '--task=digits_logistic',
    '--algorithm=scaffold',
    '--rounds_per_eval=10',
    '--rounds_per_checkpoint=1',
    f'--output_dir={output_dir}',
    *flags,
  ]


@pytest.mark.slow
def test_a_missing_store_is_one_line_and_exit_code_2(tmp_path):
  path = tmp_path / 'run'
  subprocess.run(_command(path, '--rounds=3'), check=True, capture_output=True)
  (path / 'result.json').unlink()
  (path / 'client_states.sqlite').unlink()
  before = _hashes(path)
  done = subprocess.run(
    _command(path, '--rounds=5'), capture_output=True, text=True, timeout=100
  )
  assert done.returncode == 2
  assert done.stderr.startswith(f'train: error: {path / "client_states.sqlite"} is')
  assert done.stderr.count('\n') == 1
  assert _hashes(path) == before


_LONG_ROUNDS = 400


def _end(path: pathlib.Path) -> checkpoints.Checkpoint:
  return next(checkpoints.Store(path / 'checkpoints').newest_first())


def _saved_rounds(path: pathlib.Path) -> int:
  """The last round that a run has a checkpoint of."""
  names = [p.stem for p in (path / 'checkpoints').glob('round_*.ckpt')]
  return max((int(name.removeprefix('round_')) for name in names), default=0)


def _stop(process: subprocess.Popen) -> None:
  """Halts a process where it is, until SIGCONT or SIGKILL."""
  process.send_signal(signal.SIGSTOP)
  seen = os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
  assert seen and seen.si_code == os.CLD_STOPPED, 'It ended before it was killed.'


@pytest.mark.long
def test_killed_at_many_random_instants_the_binary_ends_as_one_never_killed(tmp_path):
  rounds = f'--rounds={_LONG_ROUNDS}'
  reference, path = tmp_path / 'reference', tmp_path / 'run'
  subprocess.run(_command(reference, rounds), check=True, capture_output=True)
  seconds_per_round = _end(reference).record['seconds'] / _LONG_ROUNDS
  seed = random.SystemRandom().randrange(10**6)
  print(f'The instants are those of seed {seed}.')
  generator = random.Random(seed)
  journal = path / 'client_states.sqlite-journal'
  num_within = 0
  for leg in range(12):
    # Saved always, most instants are between transactions; seldom, within one, and
    # there it is looked at that they are.
    rounds_per_checkpoint = (1, 4)[leg % 2]
    saves = f'--rounds_per_checkpoint={rounds_per_checkpoint}'
    # When it has saved again, the journal of the one killed before is gone.
    until = _saved_rounds(path) + generator.randint(1, 15)
    with subprocess.Popen(
      _command(path, rounds, saves), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
      try:
        wait_for(lambda u=until: _saved_rounds(path) >= u)
        is_within = False
        while not is_within:
          time.sleep(generator.uniform(0, 4 * seconds_per_round))
          _stop(process)
          is_within = journal.exists()
          if rounds_per_checkpoint == 1:
            break
          if not is_within:
            process.send_signal(signal.SIGCONT)
        num_within += is_within
        process.kill()
        _, stderr = process.communicate(timeout=300)
        assert b'Traceback' not in stderr
      finally:
        process.kill()
  print(f'12 kills, {num_within} of them within a transaction.')
  assert not (path / 'result.json').exists()
  subprocess.run(_command(path, rounds), check=True, capture_output=True)
  assert _outcome(path) == _outcome(reference)
  for end in (_end(path), _end(reference)):
    assert end.record['round'] == _LONG_ROUNDS
  for name in ('rows', 'best_round', 'client_states'):
    assert _end(path).record[name] == _end(reference).record[name]
  arrays, wanted = _end(path).arrays, _end(reference).arrays
  assert {n: a.tobytes() for n, a in arrays.items()} == {
    n: a.tobytes() for n, a in wanted.items()
  }
