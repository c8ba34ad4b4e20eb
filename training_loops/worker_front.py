"""What stands between the network and TFF's worker: gRPC with certificates.

Importing this module does not import TensorFlow.
"""

from collections.abc import Callable, Iterator
import concurrent.futures
import contextlib
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
_MAX_HEALTH_CALLS = 2
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
    self._methods: dict[str, Any] = {
      name: channel.unary_unary(worker_protocol.EXECUTORS + name) for name in _PASSED_ON
    }
    # What a driver has got is what it would give back: the bytes are the same.
    self._executors: dict[str, list[bytes]] = {}
    self._lock = threading.Lock()
    self._ended = threading.Event()
    health = {worker_protocol.HEALTH: grpc.unary_unary_rpc_method_handler(self._health)}
    server = _server(_MAX_CALLS, {**health, **self._handlers()})
    self._servers = [server]
    credentials = grpc.ssl_server_credentials(
      [(certificates.key, certificates.certificate)],
      root_certificates=certificates.ca,
      require_client_auth=True,
    )
    with _said_if_taken(port):
      self.port = server.add_secure_port(f'[::]:{port}', credentials)
    if health_port is not None:
      self._servers.append(_server(_MAX_HEALTH_CALLS, health))
      with _said_if_taken(health_port):
        self._servers[-1].add_insecure_port(f'[::]:{health_port}')
    for server in self._servers:
      server.start()

  def stop(self) -> None:
    """Ends all calls, and listens no more."""
    self._ended.set()
    for server in self._servers:
      server.stop(grace=0).wait()

  def is_well(self) -> bool:
    """Whether the worker answers."""
    try:
      executor = self._methods[_GET](_PROBE, timeout=_ANSWER_SECONDS)
      self._methods[_DISPOSE](executor, timeout=_ANSWER_SECONDS)
    except grpc.RpcError:
      return False
    return True

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
    with self._lock:
      self._executors[session] = []
    if not context.add_callback(gone.set):
      gone.set()
    try:
      yield worker_protocol.greeting(session, self._num_threads)
      while not (gone.wait(1) or self._ended.is_set()):
        pass
    finally:
      with self._lock:
        left = self._executors.pop(session)
      for executor in left:
        self._dispose(executor)

  def _dispose(self, executor: bytes) -> None:
    with contextlib.suppress(grpc.RpcError):  # It may be the worker that has gone.
      self._methods[_DISPOSE](executor, timeout=_ANSWER_SECONDS)

  def _passing_on(self, name: str) -> _Call:
    method = self._methods[name]

    def pass_on(request: bytes, context: grpc.ServicerContext) -> bytes:
      session = dict(context.invocation_metadata()).get(worker_protocol.SESSION, '')
      try:
        # Not given up when the driver goes: TFF's worker would compute on all the same.
        response = method(request, timeout=context.time_remaining())
      except grpc.RpcError as error:
        context.abort(error.code(), error.details())
      with self._lock:
        known = self._executors.get(session)
        if known is not None and name == _GET:
          known.append(response)
        elif known is not None and name == _DISPOSE and request in known:
          known.remove(request)
      if known is None and name == _GET:  # The driver went meanwhile.
        self._dispose(response)
      return response

    return pass_on


def _server(
  num_threads: int, handlers: dict[str, grpc.RpcMethodHandler]
) -> grpc.Server:
  return grpc.server(
    concurrent.futures.ThreadPoolExecutor(num_threads),
    handlers=[_Handlers(handlers)],
    options=[
      *MESSAGE_OPTIONS,
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
