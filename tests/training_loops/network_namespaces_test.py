"""Workers in networks of their own give the numbers of this machine.

Each is in a network namespace, joined to ours by a pair of virtual interfaces: to it
and to us it is another machine. That takes root and iproute2.
"""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess

import pytest

from tests.training_loops import remote_workers, rounds
from tests.training_loops.remote_workers import Worker
from training_loops import runtimes

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('runtime')]

_PORT = 8470


def _ip(*words):
  subprocess.run(['ip', *words], check=True, capture_output=True, text=True)


def _namespace(stack, i):
  """Makes a namespace; returns its name, and its address."""
  pid = os.getpid()
  name, ours, theirs = (f'tff-{what}{i}-{pid}' for what in 'not')
  network = f'198.18.{(3 * pid + i) % 256}'
  _ip('netns', 'add', name)
  stack.callback(_ip, 'netns', 'delete', name)
  _ip('link', 'add', ours, 'type', 'veth', 'peer', 'name', theirs, 'netns', name)
  _ip('address', 'add', f'{network}.1/30', 'dev', ours)
  _ip('link', 'set', ours, 'up')
  for words in (
    ('address', 'add', f'{network}.2/30', 'dev', theirs),
    ('link', 'set', theirs, 'up'),
    ('link', 'set', 'lo', 'up'),
  ):
    _ip('-n', name, *words)
  return name, f'{network}.2'


@pytest.fixture(scope='module')
def machines(tmp_path_factory):
  """The directory of certificates, and three workers by address."""
  if shutil.which('ip') is None:
    pytest.skip('needs iproute2')
  with contextlib.ExitStack() as stack:
    try:
      made = [_namespace(stack, i) for i in range(3)]
    except subprocess.CalledProcessError as error:
      pytest.skip(f'network namespaces are not permitted here: {error.stderr.strip()}')
    directory = tmp_path_factory.mktemp('machines') / 'certificates'
    remote_workers.make_certificates(directory, [address for _, address in made])
    workers = {}
    for name, address in made:
      worker = Worker(directory, _PORT, prefix=['ip', 'netns', 'exec', name])
      stack.callback(worker.close)
      workers[address] = worker
    for worker in workers.values():
      assert worker.port == _PORT
    yield directory, workers


def _can_be_reached(address, port):
  with contextlib.suppress(OSError), socket.create_connection((address, port), 5):
    return True
  return False


def test_only_the_front_of_a_machine_can_be_reached_from_another(machines):
  _, workers = machines
  for address, worker in workers.items():
    command = pathlib.Path(f'/proc/{worker.binary}/cmdline').read_bytes().split(b'\0')
    (port,) = (int(w.split(b'=')[1]) for w in command if w.startswith(b'--port='))
    assert _can_be_reached(address, _PORT)
    assert not _can_be_reached(address, port)


@pytest.mark.parametrize('algorithm', ['fed_avg', 'mime', 'scaffold'])
def test_machines_give_what_this_one_gives(algorithm, machines, runtime, tmp_path):
  directory, workers = machines
  options = {
    'workers': [f'{address}:{_PORT}' for address in workers],
    'certificates': str(directory / 'driver'),
  }
  with runtimes.create('remote', **options, worker_timeout=30) as own:
    assert all(link.session for link in own.links)
    flags, found = rounds.on_first_task(
      algorithm,
      tmp_path,
      runtime='remote',
      workers=','.join(options['workers']),
      certificates=options['certificates'],
    )
  runtime.start()
  here = {**flags, 'runtime': 'local', 'client_rows': 'read'}
  rounds.assert_equal(found, rounds.outputs(here, tmp_path / 'here'), 1e-5)
