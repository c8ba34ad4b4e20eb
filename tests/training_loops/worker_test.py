"""Tests of a worker's door: who gets in, what is reachable, how it ends."""

import contextlib
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys

import grpc
import pytest

from tests.training_loops import child_processes, remote_workers
from training_loops import (
  certificates,
  closed_port,
  worker_link,
  worker_process,
  worker_protocol,
)
from training_loops.failures import RuntimeFailure
from training_loops.options import UserError

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def directory(tmp_path_factory):
  """Of certificates."""
  path = tmp_path_factory.mktemp('worker') / 'certificates'
  return remote_workers.make_certificates(path)


@pytest.fixture(scope='module')
def worker(directory):
  """A worker for tests that leave it as it is."""
  with contextlib.closing(remote_workers.Worker(directory)) as own:
    yield own


@pytest.fixture
def own_worker(directory):
  """One that a test may break."""
  with contextlib.closing(remote_workers.Worker(directory)) as own:
    yield own


def _credentials(path):
  own = certificates.read(str(path))
  return grpc.ssl_channel_credentials(own.ca, own.key, own.certificate)


def _health(worker, credentials, address='localhost'):
  target = f'{address}:{worker.port}'
  if credentials is None:
    channel = grpc.insecure_channel(target)
  else:
    channel = grpc.secure_channel(target, credentials)
  with channel:
    return channel.unary_unary(worker_protocol.HEALTH)(b'', timeout=10)


# Who gets in.


def test_a_driver_with_a_certificate_gets_in_and_the_worker_is_well(worker, directory):
  found = _health(worker, _credentials(directory / 'driver'))
  assert found == worker_protocol.SERVING


def _strangers(directory, tmp_path):
  """Who has no business with the worker."""
  others = remote_workers.make_certificates(tmp_path / 'others')
  own = certificates.read(str(directory / 'driver'))
  yield 'plain text', None
  yield 'no certificate', grpc.ssl_channel_credentials(own.ca)
  yield 'a certificate of workers', _credentials(directory / 'worker')
  stranger = certificates.read(str(others / 'driver'))
  yield (
    'a certificate of another authority',
    grpc.ssl_channel_credentials(own.ca, stranger.key, stranger.certificate),
  )


def test_others_are_refused(worker, directory, tmp_path):
  for who, credentials in _strangers(directory, tmp_path):
    with pytest.raises(grpc.RpcError) as refused:
      _health(worker, credentials)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE, who
  # It is not that it is not there.
  test_a_driver_with_a_certificate_gets_in_and_the_worker_is_well(worker, directory)


def test_a_driver_refuses_a_worker_of_another_authority(worker, directory, tmp_path):
  others = remote_workers.make_certificates(tmp_path / 'others')
  own = certificates.read(str(directory / 'driver'))
  other_ca = certificates.read(str(others / 'driver')).ca
  credentials = grpc.ssl_channel_credentials(other_ca, own.key, own.certificate)
  with pytest.raises(grpc.RpcError) as refused:
    _health(worker, credentials)
  assert 'handshake failed' in refused.value.details()


def test_a_driver_refuses_a_worker_by_a_name_that_is_not_in_its_certificate(
  worker, directory
):
  with pytest.raises(grpc.RpcError) as refused:
    _health(worker, _credentials(directory / 'driver'), '127.0.0.1')
  assert 'not in peer certificate' in refused.value.details()


# What is reachable.


def _listening(pid):
  """The inodes of the sockets that a process listens on, of the internet's."""
  own = {os.readlink(path) for path in pathlib.Path(f'/proc/{pid}/fd').iterdir()}
  found = []
  for family in ('tcp', 'tcp6'):
    lines = pathlib.Path(f'/proc/{pid}/net/{family}').read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    found += [f[1] for f in fields if f[3] == '0A' and f'socket:[{f[9]}]' in own]
  return found


def test_only_the_front_can_be_reached_from_anywhere(worker):
  assert worker.port
  assert _listening(worker.binary) == []
  assert len(_listening(worker.process.pid)) == 1


def test_the_port_that_the_binary_means_to_listen_on_is_closed_on_every_address(worker):
  command = pathlib.Path(f'/proc/{worker.binary}/cmdline').read_bytes().split(b'\0')
  (port,) = (int(w.split(b'=')[1]) for w in command if w.startswith(b'--port='))
  assert worker.port
  for address in ('127.0.0.1', '::1', socket.gethostname()):
    with pytest.raises(OSError), socket.create_connection((address, port), timeout=5):
      pass


def test_closing_it_takes_no_privileges(directory):
  if shutil.which('setpriv') is None or os.getuid() != 0:
    pytest.skip('needs root and setpriv, to be without the privileges of root')
  without = ['setpriv', '--bounding-set=-all', '--inh-caps=-all']
  with contextlib.closing(remote_workers.Worker(directory, prefix=without)) as own:
    assert own.port
    for pid in (own.process.pid, own.binary):
      status = pathlib.Path(f'/proc/{pid}/status').read_text()
      assert 'CapEff:\t0000000000000000\n' in status
    assert _listening(own.binary) == []
    credentials = _credentials(directory / 'driver')
    assert _health(own, credentials) == worker_protocol.SERVING


def test_the_socket_in_its_place_is_for_its_owner_alone(worker):
  assert worker.port
  lines = pathlib.Path('/proc/net/unix').read_text().splitlines()
  own = {os.readlink(p) for p in pathlib.Path(f'/proc/{worker.binary}/fd').iterdir()}
  paths = {f[7] for f in map(str.split, lines) if f'socket:[{f[6]}]' in own and f[7:]}
  (path,) = map(pathlib.Path, paths)
  assert path.parent.stat().st_mode & 0o777 == 0o700


# How it ends.


@pytest.mark.parametrize('signal_number', [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly_and_all_of_it(own_worker, signal_number):
  assert own_worker.port
  binary = own_worker.binary
  assert own_worker.stop(signal_number) == 0
  assert own_worker.log.endswith('Stopped.\n')
  assert not child_processes.is_alive(binary)


def test_killed_it_leaves_nothing_running(own_worker):
  assert own_worker.port
  binary = own_worker.binary
  own_worker.stop(signal.SIGKILL)
  child_processes.wait_for(lambda: not child_processes.is_alive(binary))


def test_without_the_binary_it_ends_and_says_why(own_worker):
  assert own_worker.port
  os.kill(own_worker.binary, signal.SIGKILL)
  assert own_worker.process.wait(timeout=30) == 1
  assert 'nothing left to serve' in own_worker.log
  assert 'killed by SIGKILL' in own_worker.log


def test_a_binary_that_hangs_is_not_well(own_worker, directory):
  assert own_worker.port
  os.kill(own_worker.binary, signal.SIGSTOP)
  found = _health(own_worker, _credentials(directory / 'driver'))
  assert found == worker_protocol.NOT_SERVING
  os.kill(own_worker.binary, signal.SIGCONT)
  found = _health(own_worker, _credentials(directory / 'driver'))
  assert found == worker_protocol.SERVING


def test_a_port_that_is_taken_is_said(worker, directory):
  with contextlib.closing(remote_workers.Worker(directory, worker.port)) as second:
    assert second.process.wait(timeout=30) == 1
    assert f'port {worker.port} cannot be listened on' in second.log


@pytest.mark.parametrize(
  'flag', ['--port=70000', '--health_port=65536', '--num_threads=2000']
)
def test_numbers_that_cannot_be_are_refused(flag, directory):
  with contextlib.closing(remote_workers.Worker(directory, flags=[flag])) as own:
    assert own.process.wait(timeout=30) == 2
    assert own.log.startswith(f'worker: error: {flag}: expected at most ')


def test_a_directory_too_deep_for_a_socket_is_said(tmp_path):
  with pytest.raises(UserError, match='set TMPDIR to a shorter directory'):
    worker_process.SocketWorker(1, tmp_path / ('x' * 100))


_REMOTE = ('--runtime=remote', '--task=digits_logistic', '--algorithm=fed_avg')


@pytest.mark.parametrize(
  ('program', 'flags'),
  [
    ('train', _REMOTE),
    ('compare', (*_REMOTE[:2], '--run=--algorithm=fed_avg')),
    ('sweep', (*_REMOTE, '--file=sweep.yaml')),
    ('check_workers', ()),
  ],
)
def test_workers_that_are_no_addresses_are_refused_and_nothing_is_written(
  program, flags, directory, tmp_path
):
  (tmp_path / 'sweep.yaml').write_text('search: {client_learning_rate: [0.1, 0.3]}\n')
  output = [] if program == 'check_workers' else ['--output_dir=out']
  own = ['--workers=localhost', f'--certificates={directory / "driver"}']
  done = subprocess.run(
    [sys.executable, '-m', f'training_loops.{program}', *own, *flags, *output],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': str(remote_workers.ROOT)},
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.returncode == 2, done.stderr
  assert 'expected host:port,host:port' in done.stderr
  assert done.stderr.count('\n') == 1
  assert os.listdir(tmp_path) == ['sweep.yaml']


def test_certificates_that_are_not_there_are_said(tmp_path):
  command = [sys.executable, '-m', 'training_loops.worker']
  done = subprocess.run(
    [*command, f'--certificates={tmp_path}'],
    cwd=remote_workers.ROOT,
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.returncode == 2
  assert 'needs the files ca.pem, cert.pem and key.pem' in done.stderr
  assert 'make_certificates' in done.stderr


def _free_port():
  with socket.create_server(('', 0)) as own:
    return own.getsockname()[1]


def test_its_health_is_told_to_anybody_where_that_is_asked_for_and_nothing_else(
  directory,
):
  port = _free_port()
  with (
    contextlib.closing(
      remote_workers.Worker(directory, flags=[f'--health_port={port}'])
    ) as own,
    grpc.insecure_channel(f'localhost:{port}') as channel,
  ):
    assert own.port
    health = channel.unary_unary(worker_protocol.HEALTH)
    assert health(b'', timeout=10) == worker_protocol.SERVING
    for method in ('GetExecutor', 'CreateValue', 'Compute'):
      with pytest.raises(grpc.RpcError) as refused:
        channel.unary_unary(worker_protocol.EXECUTORS + method)(b'', timeout=10)
      assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    # Nor does it take in what nobody has to say.
    with pytest.raises(grpc.RpcError) as refused:
      health(bytes(2000), timeout=10)
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


def test_a_program_says_which_workers_can_be_used(worker, directory):
  closed = _free_port()
  command = [sys.executable, '-m', 'training_loops.check_workers']
  flags = [f'--certificates={directory / "driver"}']

  def check(*ports):
    workers = ','.join(f'localhost:{port}' for port in ports)
    return subprocess.run(
      [*command, *flags, f'--workers={workers}'],
      cwd=remote_workers.ROOT,
      capture_output=True,
      text=True,
      timeout=60,
    )

  well = f'localhost:{worker.port}: well, 2 clients at once.\n'
  done = check(worker.port)
  assert (done.returncode, done.stdout) == (0, well)
  done = check(closed, worker.port)
  assert done.returncode == 1
  assert done.stdout.startswith(f'localhost:{closed}: failed to connect')
  assert done.stdout.endswith(well)


def test_where_linux_does_not_let_us_close_the_port_nothing_is_started(
  monkeypatch, tmp_path
):
  no_such_call = closed_port._SHIM.replace('libc.syscall(317,', 'libc.syscall(4095,')
  assert no_such_call != closed_port._SHIM
  monkeypatch.setattr(closed_port, '_SHIM', no_such_call)
  with pytest.raises(RuntimeFailure, match='kept from listening on all networks'):
    worker_process.SocketWorker(1, tmp_path)


# What it does for drivers.


def test_what_a_driver_has_made_goes_with_it(worker, directory, runtime):
  """Seen from the worker: an executor that nobody holds any more is not there."""
  import tensorflow_federated as tff
  from tensorflow_federated.proto.v0 import executor_pb2

  credentials = _credentials(directory / 'driver')
  sessions = [
    worker_link.Session(f'localhost:{worker.port}', credentials, timeout=10)
    for _ in range(2)
  ]
  for session in sessions:
    session.attend()
  first, second = sessions
  cardinality = executor_pb2.Cardinality(cardinality=12345)
  cardinality.placement.uri = tff.CLIENTS.uri
  request = executor_pb2.GetExecutorRequest(cardinalities=[cardinality])
  executor = first.get_executor(request).executor
  value = executor_pb2.CreateValueRequest(executor=executor)
  value.value.struct.SetInParent()
  second.create_value(value)
  first.close()

  def is_forgotten():
    try:
      second.create_value(value)
    except worker_link.WorkerLost as error:
      return str(error)
    return None

  assert 'executor' in child_processes.wait_for(is_forgotten).lower()
  second.close()
