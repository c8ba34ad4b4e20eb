"""What stands between the network and TFF's worker: gRPC with certificates.

Importing this module does not import TensorFlow.
"""

from collections.abc import Callable, Iterator, Sequence
import concurrent.futures
import contextlib
import dataclasses
import threading
from typing import Any
import uuid

import grpc

from training_loops import worker_protocol
from training_loops.certificates import Certificates
from training_loops.failures import RuntimeFailure
from training_loops.worker_process import MESSAGE_OPTIONS

# Each call waits in a thread of its own, as does each driver.
_MAX_CALLS = 256
# Anybody may ask how it is: with nothing else, and a few at a time.
_MAX_HEALTH_CALLS = 2
_MAX_HEALTH_WAITING = 16
_HEALTH_OPTIONS = (
  ('grpc.max_receive_message_length', 1024),
  ('grpc.max_concurrent_streams', _MAX_HEALTH_WAITING),
)
# What the worker may take to say that it is there.
_ANSWER_SECONDS = 5.0

# Asks for an executor of no clients: what answers it is well.
_PROBE = b'\n\x0b\n\t\n\x07clients'

_GET, _DISPOSE = 'GetExecutor', 'DisposeExecutor'
_PASSED_ON = (
  _GET,
  _DISPOSE,
  'CreateValue',
  'CreateCall',
  'CreateStruct',
  'CreateSelection',
  'Compute',
  'Dispose',
)

_Call = Callable[[bytes, grpc.ServicerContext], Any]


@dataclasses.dataclass
class _Driver:
  """What TFF's worker has for a driver that attends.

  Attributes:
    executors: What the driver has got is what it would give back: the same bytes.
    num_calls: How many calls the worker is at for it, also after their time limit.
  """

  executors: list[bytes] = dataclasses.field(default_factory=list)
  num_calls: int = 0


class Front:
  """Passes on the calls of those who have a certificate, as the bytes that they are."""

  def __init__(
    self,
    channel: grpc.Channel,
    certificates: Certificates,
    port: int,
    health_port: int | None,
    num_threads: int,
  ):
    """Starts to listen.

    Args:
      channel: To the worker.
      certificates: Those of this machine.
      port: Where to listen; 0 for any that is free.
      health_port: Where to tell anybody who asks, in plain text, whether the worker is
        well, and nothing else; None for nowhere.
      num_threads: How many clients the worker computes at once.

    Raises:
      RuntimeFailure: If a port is taken.
    """
    self._num_threads = num_threads
    self._ended = threading.Event()
    # What follows is for who holds this.
    self._changed = threading.Condition()
    self._methods = _methods(channel)
    self._drivers: dict[str, _Driver] = {}
    self._is_left = False
    health = {worker_protocol.HEALTH: grpc.unary_unary_rpc_method_handler(self._health)}
    server = _server(_MAX_CALLS, {**health, **self._handlers()}, MESSAGE_OPTIONS)
    self._servers = [server]
    credentials = grpc.ssl_server_credentials(
      [(certificates.key, certificates.certificate)],
      root_certificates=certificates.ca,
      require_client_auth=True,
    )
    with _said_if_taken(port):
      self.port = server.add_secure_port(f'[::]:{port}', credentials)
    if health_port is not None:
      self._servers.append(
        _server(_MAX_HEALTH_CALLS, health, _HEALTH_OPTIONS, _MAX_HEALTH_WAITING)
      )
      with _said_if_taken(health_port):
        self._servers[-1].add_insecure_port(f'[::]:{health_port}')
    for server in self._servers:
      server.start()

  def stop(self) -> None:
    """Ends all calls, and listens no more."""
    self._ended.set()
    with self._changed:
      self._changed.notify_all()
    for server in self._servers:
      server.stop(grace=0).wait()

  @property
  def is_left(self) -> bool:
    """Whether TFF's worker computes for nobody: it would not stop of itself.

    From then on calls wait for `renew`.
    """
    return self._is_left

  def renew(self, channel: grpc.Channel) -> None:
    """Passes on to another worker from now on, for one that was left."""
    with self._changed:
      self._methods, self._is_left = _methods(channel), False
      self._changed.notify_all()

  def is_well(self) -> bool:
    """Whether the worker answers."""
    with self._changed:
      methods = self._methods_when_there()
    try:
      executor = methods[_GET](_PROBE, timeout=_ANSWER_SECONDS)
      methods[_DISPOSE](executor, timeout=_ANSWER_SECONDS)
    except grpc.RpcError:
      return False
    return True

  def _methods_when_there(self) -> dict[str, Any]:
    """Those of the worker, once none is being started; holds `_changed`."""
    self._changed.wait_for(lambda: not self._is_left or self._ended.is_set())
    return self._methods

  def _handlers(self) -> dict[str, grpc.RpcMethodHandler]:
    handlers = {
      worker_protocol.ATTEND: grpc.unary_stream_rpc_method_handler(self._attend)
    }
    for name in _PASSED_ON:
      handlers[worker_protocol.EXECUTORS + name] = grpc.unary_unary_rpc_method_handler(
        self._passing_on(name)
      )
    return handlers

  def _health(self, request: bytes, context: grpc.ServicerContext) -> bytes:
    is_well = self.is_well()
    return worker_protocol.SERVING if is_well else worker_protocol.NOT_SERVING

  def _attend(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
    if not self.is_well():
      context.abort(grpc.StatusCode.UNAVAILABLE, "TFF's worker does not answer")
    session, gone = uuid.uuid4().hex, threading.Event()
    with self._changed:
      self._drivers[session] = _Driver()
    if not context.add_callback(gone.set):
      gone.set()
    try:
      yield worker_protocol.greeting(session, self._num_threads)
      while not (gone.wait(1) or self._ended.is_set()):
        pass
    finally:
      with self._changed:
        gone_driver, methods = self._drivers.pop(session), self._methods
        others = self._drivers.values()
        is_needed = any(own.executors or own.num_calls for own in others)
        if gone_driver.num_calls and not is_needed:
          self._is_left = True
      for executor in gone_driver.executors:
        _dispose(methods, executor)

  def _passing_on(self, name: str) -> _Call:
    def pass_on(request: bytes, context: grpc.ServicerContext) -> bytes:
      session = dict(context.invocation_metadata()).get(worker_protocol.SESSION, '')
      with self._changed:
        methods = self._methods_when_there()
        driver = self._drivers.get(session, _Driver())
        driver.num_calls += 1
      try:
        # Not given up when the driver goes: TFF's worker would compute on all the same.
        response = methods[name](request, timeout=context.time_remaining())
      except grpc.RpcError as error:
        # After the driver's time limit too.
        if error.code() != grpc.StatusCode.DEADLINE_EXCEEDED:
          with self._changed:
            driver.num_calls -= 1
        context.abort(error.code(), error.details())
      with self._changed:
        driver.num_calls -= 1
        is_known = session in self._drivers
        if is_known and name == _GET:
          driver.executors.append(response)
        elif is_known and name == _DISPOSE and request in driver.executors:
          driver.executors.remove(request)
      if not is_known and name == _GET:  # The driver went meanwhile.
        _dispose(methods, response)
      return response

    return pass_on


def _methods(channel: grpc.Channel) -> dict[str, Any]:
  """Those of TFF's worker, by name."""
  return {
    name: channel.unary_unary(worker_protocol.EXECUTORS + name) for name in _PASSED_ON
  }


def _dispose(methods: dict[str, Any], executor: bytes) -> None:
  with contextlib.suppress(grpc.RpcError):  # It may be the worker that has gone.
    methods[_DISPOSE](executor, timeout=_ANSWER_SECONDS)


def _server(
  num_threads: int,
  handlers: dict[str, grpc.RpcMethodHandler],
  options: Sequence[tuple[str, int]],
  max_calls: int | None = None,
) -> grpc.Server:
  return grpc.server(
    concurrent.futures.ThreadPoolExecutor(num_threads),
    handlers=[_Handlers(handlers)],
    maximum_concurrent_rpcs=max_calls,
    options=[
      *options,
      *worker_protocol.PING_OPTIONS,
      ('grpc.so_reuseport', 0),  # A port that is taken is an error.
    ],
  )


@contextlib.contextmanager
def _said_if_taken(port: int) -> Iterator[None]:
  try:
    yield
  except RuntimeError:
    raise RuntimeFailure(
      f'port {port} cannot be listened on: it is taken, or not for this user.'
    ) from None


class _Handlers(grpc.GenericRpcHandler):
  """Handlers by the names of methods; what they take and return are bytes."""

  def __init__(self, handlers: dict[str, grpc.RpcMethodHandler]):
    self._handlers = handlers

  def service(
    self, handler_call_details: grpc.HandlerCallDetails
  ) -> grpc.RpcMethodHandler | None:
    return self._handlers.get(handler_call_details.method)
