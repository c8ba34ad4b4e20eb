"""Tests of the runtimes: they compute, they fail in time, and they leave nothing."""

import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from training_loops import runtimes, worker_process
from training_loops.options import UserError

_ROOT = pathlib.Path(__file__).parents[2]

# A program with a worker that waits until it is told how to end. `busy` is the state of
# a program in the middle of a round.
_PROGRAM = """
import os, signal, sys, time
from training_loops import runtimes
# A shell makes what it runs in the background ignore Ctrl-C, and tests may run there.
signal.signal(signal.SIGINT, signal.default_int_handler)
state, end = sys.argv[1:]
runtime = runtimes.create('local')
runtime.launch()
if state == 'busy':
  import numpy as np
  import tensorflow as tf
  import tensorflow_federated as tff
  runtime.start()

  @tff.tensorflow.computation(np.int64)
  def count(limit):
    return tf.while_loop(lambda i: i < limit, lambda i: [i + 1], [np.int64(0)])[0]

  assert count(10) == 10
print(runtime.worker_pid, flush=True)
if end == 'return':
  pass
elif end == 'exception':
  raise ValueError('as planned')
elif end == 'sys.exit':
  sys.exit(7)
elif state == 'busy':
  count(10**15)
else:
  time.sleep(600)
"""


def _start_program(source, *arguments):
  return subprocess.Popen(
    [sys.executable, '-c', source, *arguments],
    cwd=_ROOT,
    env={**os.environ, 'TF_CPP_MIN_LOG_LEVEL': '1'},
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  )


def _is_running(pid: int) -> bool:
  try:
    stat = pathlib.Path(f'/proc/{pid}/stat').read_text()
  except FileNotFoundError:
    return False
  return stat.rpartition(')')[2].split()[0] not in 'ZX'  # Zombies and the dead.


def _ends_within(pid: int, seconds: float) -> bool:
  deadline = time.monotonic() + seconds
  while _is_running(pid) and time.monotonic() < deadline:
    time.sleep(0.01)
  return not _is_running(pid)


def _count(limit: int) -> int:
  """Counts on the worker: a computation as long as one likes."""
  import numpy as np
  import tensorflow as tf
  import tensorflow_federated as tff

  @tff.tensorflow.computation(np.int64)
  def count(limit):
    return tf.while_loop(lambda i: i < limit, lambda i: [i + 1], [np.int64(0)])[0]

  return count(limit)


@pytest.mark.slow
def test_local_runtime_runs_federated_computations(runtime):
  import numpy as np
  import tensorflow_federated as tff

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def total(values):
    return tff.federated_sum(values)

  assert total([1.0, 2.0, 4.0]) == 7.0
  assert total([1.0, 2.0]) == 3.0


@pytest.mark.parametrize(
  'state', ['launched', pytest.param('busy', marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
  ('end', 'code'),
  [
    ('return', 0),
    ('exception', 1),
    ('sys.exit', 7),
    ('SIGTERM', -signal.SIGTERM),
    ('SIGINT', -signal.SIGINT),
    ('SIGKILL', -signal.SIGKILL),
  ],
)
def test_worker_is_gone_however_the_program_ended(state, end, code):
  with _start_program(_PROGRAM, state, end) as program:
    worker = int(program.stdout.readline())
    if end.startswith('SIG'):
      time.sleep(0.3)  # So that the signal finds the program waiting for its worker.
      assert _is_running(worker)
      program.send_signal(getattr(signal, end))
    # Waits for the end of stdout and stderr, which a surviving worker could hold open.
    try:
      _, errors = program.communicate(timeout=60)
    finally:
      program.kill()
  assert program.returncode == code, errors
  # Nothing is printed but Python's own account of an exception.
  expected = {'exception': 'as planned', 'SIGINT': 'KeyboardInterrupt'}
  if end in expected:
    assert expected[end] in errors
    assert errors.count('Traceback') == 1
  else:
    assert not errors
  assert _ends_within(worker, seconds=5)


# The same of a program that computes by itself.
_PROGRAM_WITHOUT_WORKER = """
import os, signal, sys
from training_loops import runtimes
signal.signal(signal.SIGINT, signal.default_int_handler)
runtime = runtimes.create('in_process')
runtime.launch()
runtime.start()
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

@tff.tensorflow.computation(np.int64)
def count(limit):
  return tf.while_loop(lambda i: i < limit, lambda i: [i + 1], [np.int64(0)])[0]

@tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
def counts(limits):
  return tff.federated_sum(tff.federated_map(count, limits))

assert counts([10, 20, 30]) == 60
print('started', flush=True)
end = sys.argv[1]
if end == 'exception':
  raise ValueError('as planned')
if end == 'sys.exit':
  sys.exit(7)
if end == 'caught':
  try:
    counts([10**15] * 5)
  except KeyboardInterrupt:
    assert counts([10, 20, 30]) == 60
elif end != 'return':
  counts([10**15] * 5)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
  ('end', 'code'),
  [
    ('return', 0),
    ('exception', 1),
    ('sys.exit', 7),
    ('SIGTERM', -signal.SIGTERM),
    ('SIGINT', -signal.SIGINT),
    ('SIGKILL', -signal.SIGKILL),
    ('caught', 0),
  ],
)
def test_program_without_worker_ends_as_it_should(end, code):
  with _start_program(_PROGRAM_WITHOUT_WORKER, end) as program:
    assert program.stdout.readline() == 'started\n'
    signal_number = {'caught': signal.SIGINT}.get(end, getattr(signal, end, None))
    if signal_number:
      time.sleep(0.5)  # So that the signal finds the program computing.
      program.send_signal(signal_number)
    try:
      _, errors = program.communicate(timeout=60)
    finally:
      program.kill()
  assert program.returncode == code, errors
  expected = {'exception': 'as planned', 'SIGINT': 'KeyboardInterrupt'}
  if end in expected:
    assert expected[end] in errors
    assert 'terminate called' not in errors
  else:
    assert not errors


def test_worker_survives_the_exit_of_a_forked_child():
  program = _start_program("""
import os, sys
from training_loops import runtimes
runtime = runtimes.create('local')
runtime.launch()
child = os.fork()
if child == 0:
  sys.exit()  # Runs the child's atexit handlers.
os.waitpid(child, 0)
os.kill(runtime.worker_pid, 0)
print(open(f'/proc/{runtime.worker_pid}/stat').read().rpartition(')')[2].split()[0])
""")
  state, errors = program.communicate(timeout=60)
  assert program.returncode == 0, errors
  assert state.strip() in ('R', 'S', 'D')


def test_worker_is_only_launched_from_the_main_thread():
  errors = []

  def launch():
    try:
      runtimes.create('local').launch()
    except runtimes.RuntimeFailure as error:
      errors.append(error)

  thread = threading.Thread(target=launch)
  thread.start()
  thread.join()
  assert 'main thread' in str(errors[0])


@pytest.mark.parametrize('name', ['local', 'in_process'])
def test_importing_runtimes_and_launching_does_not_import_tensorflow(name):
  source = """
import sys
from training_loops import runtimes
runtimes.create(sys.argv[1]).launch()
print([m for m in ('tensorflow', 'tensorflow_federated', 'grpc') if m in sys.modules])
"""
  program = _start_program(source, name)
  modules, errors = program.communicate(timeout=60)
  assert modules.strip() == '[]', errors


def test_workers_of_two_runtimes_have_ports_of_their_own():
  workers = [worker_process.PortWorker(num_threads=1) for _ in range(8)]
  try:
    assert len({worker.port for worker in workers}) == 8
  finally:
    for worker in workers:
      worker.kill()


def test_unknown_runtime_is_refused_with_the_known_names():
  with pytest.raises(ValueError, match="'cloud'; known are local, in_process"):
    runtimes.create('cloud')


@pytest.mark.parametrize('name', ['local', 'in_process'])
def test_runtime_without_threads_is_refused(name):
  with pytest.raises(ValueError, match='positive'):
    runtimes.create(name, num_threads=0)


def test_a_device_that_is_there_is_known_by_its_short_names():
  full = '/device:CPU:0'
  for name in ('/CPU:0', 'cpu:0', '/device:cpu:0', full):
    assert runtimes.known_device(name) == full
  assert runtimes.known_device(None) is None


@pytest.mark.parametrize('name', ['/GPU:0', '/CPU:7', 'nonsense:x:y'])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(name):
  with pytest.raises(UserError, match=f"no device '{name}'; there are /device:CPU:0"):
    runtimes.known_device(name)


# A runtime that cannot be started.
_FAILING_PROGRAM = """
import pathlib, sys
from training_loops import certificates, runtimes, worker_process
name, directory = sys.argv[1:]
options = {}
if name == 'in_process':
  options['device'] = '/GPU:0'
elif name == 'local':
  worker_process.binary = lambda: pathlib.Path('/bin/false')
else:
  from training_loops import remote_pass
  remote_pass._MAX_FAILURES = 1
  certificates.make(pathlib.Path(directory), ['localhost'], days=1)
  own = f'{directory}/driver'
  options = {'workers': ['localhost:1'], 'certificates': own, 'worker_timeout': 5}
try:
  runtimes.create(name, **options).start()
except (runtimes.UserError, runtimes.RuntimeFailure) as error:
  print('could not be started', file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize('name', ['in_process', 'local', 'remote'])
def test_a_runtime_that_cannot_be_started_leaves_the_error_alone(name, tmp_path):
  with _start_program(_FAILING_PROGRAM, name, str(tmp_path / 'c')) as program:
    _, errors = program.communicate(timeout=120)
  assert errors == 'could not be started\n'


@pytest.fixture
def own_runtime(runtime):
  """A runtime that a test may break; the shared one is the default again afterwards."""
  own = runtimes.create('local', num_threads=1)
  yield own
  own.stop()
  runtime.start()


@pytest.mark.slow
def test_dead_worker_is_an_error_and_not_a_hang(own_runtime):
  own_runtime.start()
  assert _count(3) == 3
  os.kill(own_runtime.worker_pid, signal.SIGKILL)
  started = time.monotonic()
  with pytest.raises(runtimes.RuntimeFailure, match='killed by SIGKILL'):
    _count(3)
  assert time.monotonic() - started < 60


@pytest.mark.slow
def test_worker_that_dies_in_a_round_is_an_error_and_not_a_hang(own_runtime):
  own_runtime.start()
  assert _count(3) == 3
  timer = threading.Timer(0.5, os.kill, (own_runtime.worker_pid, signal.SIGSEGV))
  timer.start()
  started = time.monotonic()
  with pytest.raises(runtimes.RuntimeFailure, match='killed by SIGSEGV'):
    _count(10**15)
  assert 0.5 <= time.monotonic() - started < 60


@pytest.mark.slow
def test_stopped_runtime_refuses_work_until_started_again(own_runtime):
  with own_runtime:
    assert _count(3) == 3
    worker = own_runtime.worker_pid
  assert not _is_running(worker)
  with pytest.raises(runtimes.RuntimeFailure, match='stopped'):
    _count(3)
  own_runtime.start()
  assert _count(3) == 3


@pytest.mark.slow
def test_start_tries_again_after_a_worker_that_fails(own_runtime, monkeypatch):
  binaries = [pathlib.Path('/bin/false'), worker_process.binary()]
  monkeypatch.setattr(worker_process, 'binary', lambda: binaries.pop(0))
  own_runtime.start()
  assert _count(3) == 3
  assert not binaries


@pytest.mark.slow
def test_worker_that_never_starts_is_an_error(own_runtime, monkeypatch):
  monkeypatch.setattr(worker_process, 'binary', lambda: pathlib.Path('/bin/false'))
  with pytest.raises(runtimes.RuntimeFailure, match='exited with code 1'):
    own_runtime.start()


def test_what_the_user_has_set_for_tensorflow_stays():
  source = """
import os
os.environ['TF_NUM_INTRAOP_THREADS'] = '3'
from training_loops import runtimes
runtimes.create('in_process').launch()
print(os.environ['TF_NUM_INTRAOP_THREADS'], os.environ['TF_CPP_MIN_LOG_LEVEL'])
"""
  found, errors = _start_program(source).communicate(timeout=60)
  assert found.split() == ['3', '1'], errors


_CHAIN = """
import sys
from training_loops import runtimes
with runtimes.create('in_process', xla=sys.argv[1] == 'xla'):
  import numpy as np
  import tensorflow as tf
  import tensorflow_federated as tff

  @tff.tensorflow.computation(tff.TensorType(np.float32, [3]))
  def chain(x):
    for _ in range(20):
      x = tf.sin(x) + tf.cos(x)
    return x

  for _ in range(3):
    print(*chain(np.float32([0, 0.5, 1])))
"""


@pytest.mark.parametrize('compiler', ['xla', 'none'])
def test_xla_compiles_if_asked_to(compiler, monkeypatch):
  monkeypatch.setenv('TF_CPP_MIN_LOG_LEVEL', '0')
  found = subprocess.run(
    [sys.executable, '-c', _CHAIN, compiler], cwd=_ROOT, capture_output=True, text=True
  )
  x = np.array([0, 0.5, 1])
  for _ in range(20):
    x = np.sin(x) + np.cos(x)
  rows = [[float(word) for word in line.split()] for line in found.stdout.splitlines()]
  np.testing.assert_allclose(rows, [x] * 3, rtol=1e-6, err_msg=found.stderr)
  # TensorFlow says so once, at the first cluster.
  assert ('Compiled cluster using XLA' in found.stderr) == (compiler == 'xla')
