"""End-to-end tests of the training binary, run as a user runs it."""

import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.training_loops import remote_workers
from tests.training_loops.child_processes import children, is_alive, wait_for

_ROUNDS = 160  # Enough that none of the legs below gets to the end.


def _command(output_dir, *flags: str) -> list[str]:
  return [
    *(sys.executable, '-m', 'training_loops.train'),
    '--task=digits_mlp',
    '--algorithm=fed_avg',
    '--server_optimizer=adam',
    f'--rounds={_ROUNDS}',
    '--rounds_per_eval=4',
    '--rounds_per_checkpoint=3',
    f'--output_dir={output_dir}',
    *flags,
  ]


def _run(*arguments, environment=None) -> subprocess.CompletedProcess:
  return subprocess.run(
    _command(*arguments), capture_output=True, text=True, timeout=300, env=environment
  )


@contextlib.contextmanager
def _running(*arguments):
  """The binary with its output in pipes, killed at the end if need be."""
  with subprocess.Popen(
    _command(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  ) as process:
    try:
      yield process
    finally:
      process.kill()


def _last_checkpoint(output_dir: pathlib.Path) -> int:
  found = sorted((output_dir / 'checkpoints').glob('*.ckpt'))
  return int(found[-1].stem.partition('_')[2]) if found else 0


def _outcome(output_dir) -> tuple[bytes, bytes]:
  return tuple(
    (output_dir / name).read_bytes() for name in ('metrics.csv', 'weights.npz')
  )


@pytest.fixture(scope='module')
def reference(tmp_path_factory):
  """The output directory of a run that nothing disturbed, and what it said."""
  path = tmp_path_factory.mktemp('reference') / 'run'
  return path, _run(path)


@pytest.mark.slow
def test_a_run_ends_with_0_and_a_line_for_each_evaluated_round(reference):
  path, done = reference
  assert (done.returncode, done.stderr) == (0, '')
  lines = done.stdout.splitlines()
  assert len(lines) == _ROUNDS // 4 + 1
  for i, line in enumerate(lines[:-1]):
    assert line.startswith(f'fed_avg round {4 * (i + 1)}/{_ROUNDS} | train: loss ')
  assert str(path) in lines[-1]
  assert len((path / 'metrics.csv').read_text().splitlines()) == 1 + _ROUNDS // 4


@pytest.mark.slow
def test_a_finished_run_says_so_at_once_and_changes_nothing(
  reference, without_tensorflow
):
  path, _ = reference
  before = {p: p.stat().st_mtime_ns for p in path.rglob('*')}
  done = _run(path, environment=without_tensorflow)
  assert done.returncode == 0
  assert done.stdout.startswith(f'{path} is finished: {_ROUNDS} rounds are done.\n')
  assert {p: p.stat().st_mtime_ns for p in path.rglob('*')} == before


@pytest.mark.slow
@pytest.mark.parametrize(('runtime', 'num_workers'), [('in_process', 0), ('local', 1)])
def test_stopped_by_sigterm_ctrl_c_and_sigkill_a_run_ends_as_one_never_stopped(
  reference, tmp_path, runtime, num_workers
):
  undisturbed, _ = reference
  flag, path = f'--runtime={runtime}', tmp_path / 'run'
  if runtime != 'in_process':
    undisturbed = tmp_path / 'undisturbed'
    assert _run(undisturbed, flag).returncode == 0
  for signal_number, code in (
    (signal.SIGTERM, 143),
    (signal.SIGINT, 130),
    (signal.SIGKILL, -9),
  ):
    before = _last_checkpoint(path)
    with _running(path, flag) as process:
      wait_for(lambda b=before: _last_checkpoint(path) > b + 3)
      workers = children(process.pid)
      assert len(workers) == num_workers
      if signal_number == signal.SIGTERM:
        second = _run(path, flag)
        assert (second.returncode, 'in use' in second.stderr) == (2, True)
      process.send_signal(signal_number)
      _, stderr = process.communicate(timeout=60)  # Ends: the pipes are let go.
      assert process.returncode == code
      assert 'Traceback' not in stderr
      saved = _last_checkpoint(path)
      assert saved < _ROUNDS
      if code > 0:
        expected = f'saved after round {saved}. The same command continues.'
        assert expected in stderr
      wait_for(lambda w=workers: not any(map(is_alive, w)))
  done = _run(path, flag)
  assert done.returncode == 0
  assert f'Continuing after round {saved}.' in done.stdout
  assert _outcome(path) == _outcome(undisturbed)


@pytest.mark.parametrize(
  ('flag', 'message'),
  [
    ('--client_learning_rate=-0.1', '--client_learning_rate=-0.1: expected a number'),
    ('--task=digits_mpl', 'did you mean digits_mlp'),
    ('--base_momentum=0.5', '--base_momentum is not used with --algorithm=fed_avg'),
    ('--learning_rate=1', 'unknown flag --learning_rate'),
    ('--output_dir=/proc/version/x', '/proc/version is not a directory'),
    ('--straggler_steps=3', '--straggler_rate and --straggler_steps go together'),
    ('--rounds_per_day=24', '--available_share and --rounds_per_day go together'),
    ('--task=no_module.f', "no module 'no_module' with a function 'f'"),
  ],
)
def test_a_mistake_is_one_line_and_exit_code_2_at_once(
  tmp_path, without_tensorflow, flag, message
):
  done = _run(tmp_path / 'run', flag, environment=without_tensorflow)
  assert done.returncode == 2
  assert done.stdout == ''
  assert message in done.stderr
  assert done.stderr.startswith('train: error: ')
  assert done.stderr.count('\n') == 1
  assert os.listdir(tmp_path) == []


@pytest.mark.slow
def test_more_clients_a_round_than_there_are_is_one_line_and_nothing_is_written(
  tmp_path,
):
  done = _run(tmp_path / 'run', '--clients_per_round=51')
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr == (
    'train: error: --clients_per_round=51 is more than the 50 clients of digits_mlp.\n'
  )
  assert os.listdir(tmp_path) == []


_BAD_TASKS = """
import dataclasses
import numpy as np
import tasks
from tasks import FederatedData

def returns_nothing(name, seed):
  pass

def cannot_be_read(name, seed):
  def load(client_id):
    raise ValueError('picture.png is broken')
  task = tasks.load('digits_mlp', seed)
  return dataclasses.replace(task, test=FederatedData(['a'], load, lambda c: 1))

def test_of_another_type(name, seed):
  task = tasks.load('digits_mlp', seed)
  rows = {'x': np.zeros([3, 8, 8]), 'y': np.zeros([3], np.int32)}
  return dataclasses.replace(task, test=FederatedData.from_clients({'a': rows}))

def train_of_another_shape(name, seed):
  task = tasks.load('digits_mlp', seed)
  rows = {'x': np.zeros([3, 9], np.float32), 'y': np.zeros([3], np.int32)}
  clients = {str(i): rows for i in range(20)}
  return dataclasses.replace(task, train=FederatedData.from_clients(clients))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
  ('function', 'message'),
  [
    ('returns_nothing', 'bad_tasks.returns_nothing returned None'),
    ('cannot_be_read', 'picture.png is broken'),
    ('test_of_another_type', 'the test data has rows of x float64[8, 8]'),
    ('train_of_another_shape', 'has rows of x float32[9]'),
  ],
)
def test_a_mistake_in_ones_own_task_is_one_line_and_nothing_is_written(
  tmp_path, function, message
):
  modules = tmp_path / 'modules'
  modules.mkdir()
  (modules / 'bad_tasks.py').write_text(_BAD_TASKS)
  paths = os.pathsep.join([str(modules), os.environ.get('PYTHONPATH', '')])
  done = _run(
    tmp_path / 'run',
    f'--task=bad_tasks.{function}',
    environment={**os.environ, 'PYTHONPATH': paths},
  )
  assert (done.returncode, done.stdout) == (2, '')
  assert message in done.stderr
  assert done.stderr.startswith('train: error: bad_tasks.')
  assert done.stderr.count('\n') == 1
  assert os.listdir(tmp_path) == ['modules']


@pytest.mark.long
def test_killed_at_many_random_instants_a_run_ends_as_one_never_killed(
  reference, tmp_path
):
  path = tmp_path / 'run'
  seed = random.SystemRandom().randrange(10**6)
  print(f'The instants are those of seed {seed}.')
  generator = random.Random(seed)
  num_kills = 0
  while not (path / 'result.json').exists():
    before = len((path / 'train.log').read_text()) if path.exists() else 0
    with _running(path) as process:
      if num_kills < 10:
        # Before training begins there is nothing to disturb.
        wait_for(
          lambda b=before: (
            (path / 'train.log').exists() and len((path / 'train.log').read_text()) > b
          )
        )
        time.sleep(generator.uniform(0, 0.5))
        process.kill()
        num_kills += 1
      process.communicate(timeout=120)
  assert num_kills > 3
  assert _outcome(path) == _outcome(reference[0])


@contextlib.contextmanager
def _flags_of(runtime, directory):
  """The flags of a runtime, and the processes that are its workers."""
  with contextlib.ExitStack() as stack:
    flags, pids = [f'--runtime={runtime}'], []
    if runtime == 'remote':
      remote_workers.make_certificates(directory)
      workers = [remote_workers.Worker(directory) for _ in range(2)]
      for worker in workers:
        stack.callback(worker.close)
      options = remote_workers.options(directory, workers)
      flags.append(f'--workers={",".join(options["workers"])}')
      flags.append(f'--certificates={options["certificates"]}')
      pids = [pid for own in workers for pid in (own.process.pid, own.binary)]
    yield flags, pids


def _resident_megabytes(pid: int) -> float:
  for line in pathlib.Path(f'/proc/{pid}/status').read_text().splitlines():
    if line.startswith('VmRSS:'):
      return int(line.split()[1]) / 1024
  raise AssertionError(f'{pid} is gone.')


@pytest.mark.long
@pytest.mark.parametrize(
  'flags',
  [
    ['--task=digits_mlp'],
    # Cohorts of 1, 2 and 3 clients.
    ['--task=digits_mlp', '--clients_per_round=3', '--dropout_rate=0.4'],
    ['--task=emnist_logistic', '--max_eval_examples=100'],
    ['--task=tests.training_loops.many_clients.task'],
  ],
  ids=' '.join,
)
@pytest.mark.parametrize('runtime', ['in_process', 'local', 'remote'])
def test_memory_does_not_grow_with_the_rounds(runtime, flags, tmp_path, request):
  flags = [*flags, '--rounds=600', '--rounds_per_checkpoint=50']
  if '--task=emnist_logistic' in flags:
    flags.append(f'--data_dir={request.getfixturevalue("data_dir")}')
  with (
    _flags_of(runtime, tmp_path / 'certificates') as (of_runtime, workers),
    _running(tmp_path / 'run', *flags, *of_runtime) as process,
  ):
    pids = [process.pid, *workers]
    if runtime == 'local':
      pids += wait_for(lambda: children(process.pid))
    megabytes = {}
    for line in process.stdout:
      if line.startswith('fed_avg round '):
        round_num = int(line.split()[2].partition('/')[0])
        megabytes[round_num] = [_resident_megabytes(pid) for pid in pids]
  print({r: m for r, m in megabytes.items() if r % 100 == 0})
  for i in range(len(pids)):
    # The first rounds fill caches and pools.
    assert megabytes[596][i] - megabytes[200][i] < 10
