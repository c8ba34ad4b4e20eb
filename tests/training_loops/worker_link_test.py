"""Tests of the way to a worker, with workers that are made up."""

import concurrent.futures
import contextlib
import dataclasses
import json

import grpc
import pytest

from tests.training_loops import child_processes, remote_workers
from training_loops import certificates, remote_context, worker_link, worker_protocol
from training_loops.failures import RuntimeFailure


@pytest.fixture(scope='module')
def directory(tmp_path_factory):
  """Of certificates."""
  path = tmp_path_factory.mktemp('link') / 'certificates'
  return remote_workers.make_certificates(path)


@contextlib.contextmanager
def _greeting(directory, *greetings):
  """The address of what greets like this, and then ends the call."""
  own = certificates.read(str(directory / 'worker'))
  attend = grpc.unary_stream_rpc_method_handler(
    lambda request, context: iter(greetings)
  )
  service, name = worker_protocol.ATTEND[1:].split('/')
  server = grpc.server(
    concurrent.futures.ThreadPoolExecutor(4),
    handlers=[grpc.method_handlers_generic_handler(service, {name: attend})],
  )
  credentials = grpc.ssl_server_credentials(
    [(own.key, own.certificate)], own.ca, require_client_auth=True
  )
  port = server.add_secure_port('localhost:0', credentials)
  server.start()
  try:
    yield f'localhost:{port}'
  finally:
    server.stop(grace=0).wait()


def _said(**changed):
  content = json.loads(worker_protocol.greeting('0' * 32, 2))
  return json.dumps({**content, **changed}).encode()


def _link(directory, address):
  own = certificates.read(str(directory / 'driver'))
  return worker_link.WorkerLink(address, own, timeout=10)


_NO_GREETINGS = {
  'nothing': b'',
  'no text': b'\xff\xfe',
  'no object': b'[1, 2]',
  'nested too deeply': b'[' * 100_000,
  'no versions': json.dumps({'session': '0' * 32, 'num_threads': 2}).encode(),
  'versions of another kind': _said(versions=['tensorflow']),
  'no session': _said(session=None),
  'a session that cannot be sent': _said(session='ä\n'),
  'no threads': _said(num_threads=0),
  'less than none': _said(num_threads=-2),
  'too many': _said(num_threads=worker_protocol.MAX_THREADS + 1),
  'a fraction': _said(num_threads=1.5),
  'true': _said(num_threads=True),
}


@pytest.mark.parametrize('greeting', _NO_GREETINGS.values(), ids=_NO_GREETINGS)
def test_who_greets_in_another_way_is_refused_as_another_version_is(
  greeting, directory
):
  with _greeting(directory, greeting) as address:
    link = _link(directory, address)
    with (
      contextlib.closing(link),
      pytest.raises(RuntimeFailure, match=f'{address} cannot be used: it is .*version'),
    ):
      remote_context.wait_until_connected([link])


def test_who_ends_the_call_without_a_greeting_is_lost_and_tried_again(directory):
  with (
    _greeting(directory) as address,
    contextlib.closing(_link(directory, address)) as link,
  ):
    child_processes.wait_for(lambda: link.num_failures >= 2)
    assert link.reason == 'it ended without saying who it is'
    assert not link.is_other_version


def test_who_ends_the_call_after_the_greeting_is_lost_and_tried_again(directory):
  with (
    _greeting(directory, _said()) as address,
    contextlib.closing(_link(directory, address)) as link,
  ):
    child_processes.wait_for(lambda: link.num_failures >= 2)
    assert link.reason == 'it has said goodbye'


@pytest.mark.parametrize('whose', ['another authority', 'workers'])
def test_who_is_refused_is_asked_about_the_certificates(whose, directory, tmp_path):
  if whose == 'workers':
    own = certificates.read(str(directory / 'worker'))
  else:
    remote_workers.make_certificates(tmp_path / 'others')
    own = certificates.read(str(tmp_path / 'others' / 'driver'))
    ours = certificates.read(str(directory / 'driver'))
    own = dataclasses.replace(own, ca=ours.ca)
  with _greeting(directory, _said()) as address:
    session = worker_link.Session(address, worker_link.credentials(own), timeout=10)
    with (
      contextlib.closing(session),
      pytest.raises(worker_link.WorkerLost, match='do its certificates fit those here'),
    ):
      session.attend()


class _Stub:
  """Takes down how long each answer may take."""

  def __init__(self):
    self.seconds = []

  def __getattr__(self, name):
    return lambda request, timeout, metadata: self.seconds.append(timeout)


def test_an_answer_may_take_as_long_as_all_clients_that_the_worker_has(directory):
  own = certificates.read(str(directory / 'driver'))
  credentials = worker_link.credentials(own)
  session = worker_link.Session('localhost:1', credentials, timeout=6)
  with contextlib.closing(session):
    session.num_threads = 2
    stub = session.__dict__['_stub'] = _Stub()
    with session.computing(5):
      session.compute(None)  # Three times two clients at once.
      with session.computing(32):
        session.compute(None)
        session.create_value(None)  # It computes no client.
      session.compute(None)
    session.compute(None)
  assert stub.seconds == [18, 114, 6, 18, 6]
