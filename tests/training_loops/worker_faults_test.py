"""Tests of what happens when workers are lost, hang, or are of another version."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated.proto.v0 import executor_pb2

from tests.training_loops import child_processes, remote_workers, rounds
from tests.training_loops.remote_workers import Worker
from training_loops import (
  certificates,
  remote_pass,
  remote_work,
  results,
  run,
  runtimes,
  train_flags,
  worker_context,
  worker_link,
)
from training_loops.failures import RuntimeFailure, WorkersLost

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('runtime')]


@pytest.fixture(scope='module')
def directory(tmp_path_factory):
  """Of certificates."""
  path = tmp_path_factory.mktemp('workers') / 'certificates'
  return remote_workers.make_certificates(path)


@pytest.fixture
def workers(directory):
  """Three workers that a test may break."""
  with contextlib.ExitStack() as stack:
    started = [Worker(directory) for _ in range(3)]
    for worker in started:
      stack.callback(worker.close)
    yield started


@contextlib.contextmanager
def _remote(directory, workers, runtime, **options):
  options = remote_workers.options(directory, workers, **options)
  try:
    with runtimes.create('remote', **options) as own:
      yield own
  finally:
    runtime.start()


class _Clients:
  """Clients that say when they have begun, and end when they are told to."""

  def __init__(self, path):
    self._begun, self._go = path / 'begun', path / 'go'
    self._begun.mkdir()
    begun, go = str(self._begun), str(self._go)

    @tff.tensorflow.computation(np.str_, np.float32)
    def work(name, value):
      write = tf.io.write_file(tf.strings.join([begun, '/', name]), '')
      with tf.control_dependencies([write]):

        def num_go():
          return tf.size(tf.io.matching_files(f'{go}*'))

        waited = tf.while_loop(lambda n: n < 1, lambda n: [num_go()], [num_go()])[0]
      return value * value + 0 * tf.cast(waited, tf.float32)

    @tff.federated_computation(
      tff.FederatedType(np.str_, tff.CLIENTS),
      tff.FederatedType(np.float32, tff.CLIENTS),
    )
    def squares(names, values):
      each = tff.federated_map(work, (names, values))
      return each, tff.federated_sum(each)

    self._squares = squares

  def compute(self, number=9):
    """Has them computed; asserts that the numbers are right."""
    values = [np.float32(i) for i in range(number)]
    names = [f'client {i}'.encode() for i in range(number)]
    each, total = self._squares(names, values)
    assert each == [v * v for v in values]
    assert total == sum(v * v for v in values)

  def wait(self, number):
    """Waits until so many have begun."""
    child_processes.wait_for(lambda: len([*self._begun.iterdir()]) >= number)

  def go(self):
    """Has them end, also those that begin later."""
    self._go.touch()


def _during(clients, act, number=6):
  """Computes clients; when so many have begun, acts, and has them end."""
  failed = []

  def then():
    try:
      clients.wait(number)
      act()
    except BaseException as error:
      failed.append(error)
    finally:
      clients.go()

  thread = threading.Thread(target=then)
  thread.start()
  try:
    clients.compute()
  finally:
    thread.join()
  assert not failed


def _wait_for_all(remote, before=()):
  """Waits until all workers are there, otherwise than in sessions of before.

  Those that are there earlier would be given all clients.
  """
  none = (None, *before)
  child_processes.wait_for(
    lambda: all(link.session not in none for link in remote.links)
  )


def _sessions(remote):
  return [link.session for link in remote.links]


def _lost_lines(caplog):
  return [r.getMessage() for r in caplog.records if 'is lost' in r.getMessage()]


@pytest.mark.parametrize('which', ['front', 'binary'])
def test_clients_of_a_worker_that_is_killed_are_computed_by_the_others(
  which, workers, directory, runtime, tmp_path, caplog
):
  clients = _Clients(tmp_path)
  with _remote(directory, workers, runtime):
    pid = workers[1].process.pid if which == 'front' else workers[1].binary
    _during(clients, lambda: os.kill(pid, signal.SIGKILL))
  (line,) = _lost_lines(caplog)
  assert f'Worker localhost:{workers[1].port} is lost' in line
  assert 'are computed again; 2 of 3 workers are left.' in line


def test_clients_of_a_worker_that_hangs_are_computed_by_the_others(
  workers, directory, runtime, tmp_path, caplog
):
  def stop():
    os.kill(workers[0].binary, signal.SIGSTOP)

  with _remote(directory, workers, runtime, worker_timeout=5):
    _during(_Clients(tmp_path), stop)
  (line,) = _lost_lines(caplog)
  # As many seconds as it takes for all the clients that it has, two at a time.
  which = f'Worker localhost:{workers[0].port} is lost: it did not answer in '
  assert re.search(f'{which}(5|10) s', line)


def test_a_machine_that_is_cut_off_is_lost_before_the_time_limit(
  workers, directory, runtime, tmp_path, caplog
):
  """As far as others can tell: nothing there answers any more."""

  def stop():
    for pid in (workers[0].process.pid, workers[0].binary):
      os.kill(pid, signal.SIGSTOP)

  with _remote(directory, workers, runtime, worker_timeout=10_000):
    _during(_Clients(tmp_path), stop)
  assert len(_lost_lines(caplog)) == 1


def test_a_worker_that_comes_back_is_used_again(
  workers, directory, runtime, tmp_path, caplog
):
  with _remote(directory, workers, runtime) as own:
    for path in ('once', 'again'):
      (tmp_path / path).mkdir()
    port = workers[2].port
    _during(_Clients(tmp_path / 'once'), lambda: workers[2].stop(signal.SIGKILL))
    with contextlib.closing(Worker(directory, port)):
      _wait_for_all(own)
      # Two at a time is what each worker does: six begin only if all three take part.
      _during(_Clients(tmp_path / 'again'), lambda: None, number=6)
  assert len(_lost_lines(caplog)) == 1


@pytest.mark.parametrize('algorithm', ['fed_avg', 'mime', 'scaffold'])
def test_rounds_in_which_a_worker_is_killed_have_the_numbers_of_others(
  algorithm, workers, directory, runtime, tmp_path, monkeypatch, caplog
):
  compute, num_calls = remote_work.RemoteClients.compute, []

  def killing(self, session, which):
    num_calls.append(which)
    if len(num_calls) == 5:  # In the second round, or the second phase of the first.
      workers[0].stop(signal.SIGKILL)
    return compute(self, session, which)

  monkeypatch.setattr(remote_work.RemoteClients, 'compute', killing)
  options = remote_workers.options(directory, workers)
  with _remote(directory, workers, runtime):
    flags, found = rounds.on_first_task(
      algorithm,
      tmp_path,
      runtime='remote',
      workers=','.join(options['workers']),
      certificates=options['certificates'],
    )
  assert len(num_calls) >= 6
  here = {**flags, 'runtime': 'local', 'client_rows': 'read'}
  rounds.assert_equal(found, rounds.outputs(here, tmp_path / 'here'), 1e-5)


def test_clients_with_which_every_worker_is_lost_are_given_up(
  workers, directory, runtime, tmp_path, monkeypatch, caplog
):
  def lost(self, session, which):
    raise worker_link.WorkerLost('as planned')

  monkeypatch.setattr(remote_work.RemoteClients, 'compute', lost)
  with (
    _remote(directory, workers, runtime),
    pytest.raises(WorkersLost, match='given to 4 workers in turn') as error,
  ):
    _Clients(tmp_path).compute()
  assert str(error.value).endswith(': as planned.')
  assert error.value.exit_code == 3


def test_clients_that_were_lost_together_are_computed_again_one_by_one(
  workers, directory, runtime, tmp_path, monkeypatch, caplog
):
  compute, given = remote_work.RemoteClients.compute, []

  def losing_once(self, session, which):
    given.append(which)
    if len(given) == 1:
      raise worker_link.WorkerLost('as planned')
    return compute(self, session, which)

  clients = _Clients(tmp_path)
  clients.go()
  monkeypatch.setattr(remote_work.RemoteClients, 'compute', losing_once)
  with _remote(directory, workers, runtime):
    clients.compute(64)
  lost, *others = given
  assert len(lost) > 1
  assert {range(i, i + 1) for i in lost} <= {*others}


@pytest.mark.parametrize(
  ('wrong', 'reason'),
  [
    (lambda made: made[:-1], 'it returned something else'),
    (lambda made: [[np.zeros(7, np.float32), *own[1:]] for own in made], 'it returned'),
    (lambda made: [[np.float64(1), *own[1:]] for own in made], 'it returned'),
    (lambda made: [own[1:] for own in made], 'what it returned cannot be read'),
    (lambda made: made[100], 'what it returned cannot be read'),
  ],
)
def test_what_a_worker_returns_is_what_it_was_asked_for_or_it_is_lost(
  wrong, reason, workers, directory, runtime, tmp_path, monkeypatch, caplog
):
  deserialize, num_calls = remote_work.deserialize, []

  def lying_once(message, value_type):
    made = deserialize(message, value_type)
    num_calls.append(1)
    return wrong(made) if len(num_calls) == 1 else made

  clients = _Clients(tmp_path)
  clients.go()
  monkeypatch.setattr(remote_work, 'deserialize', lying_once)
  with _remote(directory, workers, runtime):
    clients.compute()
  (line,) = _lost_lines(caplog)
  assert f' is lost: {reason}' in line


def test_without_any_worker_there_is_a_clear_error(
  workers, directory, runtime, tmp_path, monkeypatch
):
  monkeypatch.setattr(remote_pass, '_MAX_FAILURES', 3)
  clients = _Clients(tmp_path)

  def kill_all():
    for worker in workers:
      worker.stop(signal.SIGKILL)

  with (
    _remote(directory, workers, runtime),
    pytest.raises(WorkersLost, match='no worker is left') as error,
  ):
    _during(clients, kill_all)
  for worker in workers:
    assert f'localhost:{worker.port}: ' in str(error.value)
  with (
    pytest.raises(WorkersLost, match='no worker is left'),
    _remote(directory, workers, runtime),
  ):
    pass


def _interrupted(clients, number):
  """Has clients computed, and that interrupted when so many have begun."""

  def interrupt():
    clients.wait(number)
    os.kill(os.getpid(), signal.SIGINT)  # Wakes up the main thread.

  thread = threading.Thread(target=interrupt)
  # What runs in the background may have been started with the signal ignored.
  before = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    thread.start()
    with pytest.raises(KeyboardInterrupt):
      clients.compute()
  finally:
    signal.signal(signal.SIGINT, before)
  thread.join()


def test_an_interrupted_round_ends_at_once_and_the_next_one_works(
  workers, directory, runtime, tmp_path
):
  with _remote(directory, workers, runtime) as own:
    for path in ('first', 'second'):
      (tmp_path / path).mkdir()
    first, before = _Clients(tmp_path / 'first'), _sessions(own)
    _interrupted(first, 6)
    first.go()
    _wait_for_all(own, before)
    _during(_Clients(tmp_path / 'second'), lambda: None)


def test_what_nobody_waits_for_any_more_is_not_computed_on(
  workers, directory, runtime, tmp_path
):
  binaries = [worker.binary for worker in workers if worker.port]
  for path in ('first', 'second'):
    (tmp_path / path).mkdir()
  with _remote(directory, workers, runtime) as own:
    first, before = _Clients(tmp_path / 'first'), _sessions(own)
    _interrupted(first, 6)  # They would go on for ever.
    child_processes.wait_for(lambda: not any(map(child_processes.is_alive, binaries)))
    _wait_for_all(own, before)
    _during(_Clients(tmp_path / 'second'), lambda: None)
  for worker in workers:
    assert worker.stop() == 0
    assert 'it is started anew' in worker.log


def test_what_another_driver_has_made_outlasts_those_who_are_interrupted(
  directory, runtime, tmp_path
):
  with contextlib.closing(Worker(directory)) as worker:
    assert worker.port
    binary = worker.binary
    own = certificates.read(str(directory / 'driver'))
    credentials = worker_link.credentials(own)
    other = worker_link.Session(f'localhost:{worker.port}', credentials, timeout=10)
    other.attend()
    kept = worker_context.Executor(other, 5)
    clients = _Clients(tmp_path)
    with _remote(directory, [worker], runtime) as remote:
      first = remote.links[0].session
      _interrupted(clients, 2)
      (gone, *_) = first.executors.values()

      def is_forgotten():
        request = executor_pb2.CreateValueRequest(executor=gone._id)
        request.value.struct.SetInParent()
        try:
          other.create_value(request)
        except worker_link.WorkerLost:
          return True
        return False

      child_processes.wait_for(is_forgotten)
      assert worker.binary == binary
      kept.create([], tff.StructType([]))
    clients.go()
    other.close()


# Versions.


@pytest.fixture
def other_version(tmp_path):
  """An environment in which TFF looks like one of another version."""
  metadata = tmp_path / 'tensorflow_federated-0.86.0.dist-info' / 'METADATA'
  metadata.parent.mkdir()
  lines = ('Metadata-Version: 2.1', 'Name: tensorflow-federated', 'Version: 0.86.0', '')
  metadata.write_text('\n'.join(lines))
  return {'PYTHONPATH': str(tmp_path)}


_OTHER = 'it is of another version: tensorflow-federated 0.86.0 where 0.87.0 is needed'


def test_a_worker_of_another_version_is_refused(
  directory, other_version, workers, runtime
):
  with contextlib.closing(Worker(directory, environment=other_version)) as other:
    with (
      pytest.raises(RuntimeFailure, match=_OTHER) as error,
      _remote(directory, [*workers, other], runtime),
    ):
      pass
    assert f'localhost:{other.port}' in str(error.value)


def test_a_worker_that_comes_back_in_another_version_is_not_used(
  directory, other_version, workers, runtime, tmp_path, caplog
):
  port = workers[0].port
  with _remote(directory, workers, runtime) as own:
    workers[0].stop()
    with contextlib.closing(Worker(directory, port, environment=other_version)):
      child_processes.wait_for(lambda: own.links[0].is_other_version)
      clients = _Clients(tmp_path)
      clients.go()
      clients.compute()
  lines = [r.getMessage() for r in caplog.records if 'is not used' in r.getMessage()]
  assert lines == [f'Worker localhost:{port} is not used: {_OTHER}.']


# A program.


def _train(directory, options, **flags):
  """The words of a command line that trains."""
  own = {
    'task': 'digits_logistic',
    'algorithm': 'fed_avg',
    'rounds_per_eval': 5,
    'clients_per_round': 3,
    'output_dir': directory,
    'runtime': 'remote',
    'workers': ','.join(options['workers']),
    'certificates': options['certificates'],
    **flags,
  }
  return [f'--{name}={value}' for name, value in own.items()]


def _run(arguments):
  return subprocess.run(
    [sys.executable, '-m', 'training_loops.train', *arguments],
    cwd=remote_workers.ROOT,
    capture_output=True,
    text=True,
    timeout=300,
  )


def test_a_run_whose_workers_all_go_ends_with_3_and_is_continued_to_the_same_numbers(
  workers, directory, runtime, tmp_path
):
  options = remote_workers.options(directory, workers)
  ports = [worker.port for worker in workers]
  arguments = _train(tmp_path / 'run', options, rounds=10_000)

  def kill_all():
    curves = tmp_path / 'run' / 'metrics.csv'
    child_processes.wait_for(lambda: curves.exists() and ',' in curves.read_text())
    for worker in workers:
      worker.stop(signal.SIGKILL)

  killing = threading.Thread(target=kill_all)
  killing.start()
  done = _run(arguments)
  killing.join()
  assert done.returncode == 3, done.stderr
  last = done.stderr.splitlines()[-1]
  assert last.startswith('train: error: no worker is left. ')
  assert all(f'localhost:{port}: ' in last for port in ports)
  assert 'Traceback' not in done.stderr
  assert 'saved after round' in done.stderr
  saved = int(re.findall(r'saved after round (\d+)', done.stderr)[0])

  rounds_in_all = saved + 5
  with contextlib.ExitStack() as stack:
    for port in ports:
      stack.callback(Worker(directory, port).close)
    done = _run(_train(tmp_path / 'run', options, rounds=rounds_in_all))
  assert done.returncode == 0, done.stderr
  undisturbed = train_flags.configure(
    task='digits_logistic',
    algorithm='fed_avg',
    rounds=rounds_in_all,
    rounds_per_eval=5,
    clients_per_round=3,
    output_dir=tmp_path / 'here',
  )
  expected = run.train(undisturbed, runtime=runtime).rows[-1]
  found = results.load(tmp_path / 'run').rows[-1]
  assert found.keys() == expected.keys()
  for name, value in expected.items():
    np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)
