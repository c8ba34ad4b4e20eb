"""A driver's way to a worker of `training_loops.worker`.

Importing this module does not import TensorFlow; calling a worker does.
"""

from collections.abc import Callable, Iterator
import contextlib
import functools
import logging
import math
import threading
from typing import Any

import grpc

from training_loops import worker_protocol
from training_loops.certificates import Certificates
from training_loops.worker_process import MESSAGE_OPTIONS

# A worker that is busy starting, or far away, may take as long to be reached.
_CONNECT_SECONDS = 10.0
# After what looks like an error of a computation: how long it may take to turn out that
# the worker has gone.
_BREAK_SECONDS = 1.0

# The first is the wait after one failure, doubled with each more.
_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.25, 30.0

_GIVEN_UP = 'it was given up'
# What gRPC says where one side does not accept the other's certificate: who is refused
# only sees the connection end.
_REFUSED = ('handshake', 'Socket closed', 'reset by peer')
_HINT = ' (do its certificates fit those here, and are all of them valid still?)'
_LOST = (
  grpc.StatusCode.UNAVAILABLE,
  grpc.StatusCode.DEADLINE_EXCEEDED,
  grpc.StatusCode.FAILED_PRECONDITION,  # It was started anew meanwhile.
)

_logger = logging.getLogger(__name__)

_METHODS = {
  'get_executor': 'GetExecutor',
  'create_value': 'CreateValue',
  'create_call': 'CreateCall',
  'create_struct': 'CreateStruct',
  'compute': 'Compute',
  'dispose': 'Dispose',
  'dispose_executor': 'DisposeExecutor',
}


class WorkerLost(Exception):
  """A worker cannot be reached, or not any more, or does not answer in time."""


class OtherVersion(WorkerLost):
  """A worker is of another version."""


class WorkerLink:
  """A worker, which is connected to again and again while it cannot be reached.

  Attributes:
    address: Where it is, host:port.
    num_failures: How often in turn it could not be reached, or was lost.
    reason: Why it is not connected.
    is_other_version: Whether that is why.
    is_told: Whether the user has been told, for who uses the link to do so.
  """

  def __init__(self, address: str, certificates: Certificates, timeout: float):
    """Initializes the link, and begins to connect.

    Args:
      address: Where the worker is, host:port.
      certificates: Of this machine.
      timeout: How many seconds each answer may take, or each client: see `Session`.
    """
    self.address = address
    self.num_failures = 0
    self.reason = ''
    self.is_other_version = False
    self.is_told = False
    self._timeout = timeout
    self._credentials = credentials(certificates)
    self._session: Session | None = None
    self._lock = threading.Lock()
    self._closed = threading.Event()
    self._start_connecting(0.0)

  @property
  def session(self) -> 'Session | None':
    """The connection that there is."""
    return self._session

  def lost(self, session: 'Session', reason: str) -> None:
    """Gives a connection up, unless that has been done before."""
    with self._lock:
      if session is not self._session:
        return
      self._session = None
      self._failed(reason)
    session.close()
    self._start_connecting(self._wait())

  def proved(self) -> None:
    """The worker has done something."""
    self.num_failures = 0

  def leave(self) -> None:
    """Ends all calls; the worker forgets what it has made. Then connects again."""
    if self._end_session():
      self._start_connecting(0.0)

  def close(self) -> None:
    """Leaves the worker for good."""
    self._closed.set()
    self._end_session()

  def _end_session(self) -> bool:
    with self._lock:
      session, self._session = self._session, None
    if session:
      session.close()
    return session is not None

  def _failed(self, reason: str) -> None:
    self.num_failures += 1
    self.reason = reason

  def _wait(self) -> float:
    wait = _FIRST_WAIT_SECONDS * 2 ** (self.num_failures - 1)
    return min(wait, _LONGEST_WAIT_SECONDS)

  def _start_connecting(self, wait: float) -> None:
    threading.Thread(target=self._connect, args=(wait,), daemon=True).start()

  def _connect(self, wait: float) -> None:
    """Tries until it succeeds."""
    while not self._closed.wait(wait):
      session = Session(self.address, self._credentials, self._timeout)
      try:
        session.attend()
      except WorkerLost as error:
        session.close()
        self.is_other_version = isinstance(error, OtherVersion)
        if self.is_other_version and str(error) != self.reason:
          _logger.warning('Worker %s is not used: %s.', self.address, error)
        self._failed(str(error))
        wait = self._wait()
        continue
      with self._lock:
        if not self._closed.is_set():
          if self.num_failures:
            _logger.info('Worker %s is there again.', self.address)
          self.is_told = False
          self._session = session
          session.when_broken(functools.partial(self.lost, session))
          return
      session.close()


def credentials(certificates: Certificates) -> grpc.ChannelCredentials:
  """What opens the door of a worker."""
  return grpc.ssl_channel_credentials(
    certificates.ca, certificates.key, certificates.certificate
  )


class Session:
  """A connection. The methods of `_METHODS` are TFF's, and raise `WorkerLost`.

  An answer may take as long as a client may, and that with clients in it as long as all
  that the worker has, so many at once: those that came before are computed before.

  Attributes:
    num_threads: How many clients the worker computes at once.
    executors: What the worker has made for this driver, for who uses it to fill.
    lock: For who does.
  """

  def __init__(
    self, address: str, credentials: grpc.ChannelCredentials, timeout: float
  ):
    """Initializes the session; `attend` connects."""
    self.num_threads = 1
    self.executors: dict[int, Any] = {}
    self.lock = threading.Lock()
    self._channel = grpc.secure_channel(
      address,
      credentials,
      options=[
        *MESSAGE_OPTIONS,
        *worker_protocol.PING_OPTIONS,
        ('grpc.enable_http_proxy', 0),  # For the web, not for one's own machines.
        # Each has its own connection: one that is made anew is really a new one.
        ('grpc.use_local_subchannel_pool', 1),
      ],
    )
    self._timeout = timeout
    self._num_clients = 0
    self._counting = threading.Lock()
    self._metadata: tuple[tuple[str, str], ...] = ()
    self._is_closed = False
    self._attending: Any = None

  def attend(self) -> None:
    """Connects, and makes sure of the worker's version.

    Raises:
      WorkerLost: If it cannot be reached.
      OtherVersion: If it is of another version.
    """
    attend = self._channel.unary_stream(worker_protocol.ATTEND)
    self._attending = attend(b'')
    timer = threading.Timer(_CONNECT_SECONDS, self._attending.cancel)
    timer.start()
    try:
      greeting = next(self._attending)
    except grpc.RpcError as error:
      reason = _described(error, _CONNECT_SECONDS)
      if any(words in reason for words in _REFUSED):
        reason += _HINT
      raise WorkerLost(reason) from None
    except StopIteration:
      raise WorkerLost('it ended without saying who it is') from None
    finally:
      timer.cancel()
    try:
      session, self.num_threads = worker_protocol.read_greeting(greeting)
    except ValueError as error:
      raise OtherVersion(str(error)) from None
    self._metadata = ((worker_protocol.SESSION, session),)

  def when_broken(self, act: Callable[[str], None]) -> None:
    """Has a function called, in another thread, with the reason why it has ended."""

    def ended(attending):
      if not attending.cancelled():
        error = attending.exception()
        reason = error.details() if error else 'it has said goodbye'
        threading.Thread(target=act, args=(reason,), daemon=True).start()

    self._attending.add_done_callback(ended)

  @contextlib.contextmanager
  def computing(self, num_clients: int) -> Iterator[None]:
    """A block in which the worker has so many clients more."""
    with self._counting:
      self._num_clients += num_clients
    try:
      yield
    finally:
      with self._counting:
        self._num_clients -= num_clients

  def close(self) -> None:
    """Ends all calls, and the connection."""
    self._is_closed = True
    if self._attending is not None:
      self._attending.cancel()
    self._channel.close()

  @functools.cached_property
  def _stub(self) -> Any:
    from tensorflow_federated.proto.v0 import executor_pb2_grpc

    return executor_pb2_grpc.ExecutorGroupStub(self._channel)

  def __getattr__(self, name: str) -> Callable[[Any], Any]:
    if name not in _METHODS:
      raise AttributeError(name)
    method = getattr(self._stub, _METHODS[name])

    def call(request):
      seconds = self._timeout
      if name == 'compute':
        seconds *= max(1, math.ceil(self._num_clients / self.num_threads))
      try:
        return method(request, timeout=seconds, metadata=self._metadata)
      except ValueError:  # The channel is closed: another thread has given it up.
        raise WorkerLost(_GIVEN_UP) from None
      except grpc.RpcError as error:
        if self._is_closed:
          raise WorkerLost(_GIVEN_UP) from None
        if error.code() in _LOST or self._is_broken():
          raise WorkerLost(_described(error, seconds)) from None
        raise

    return call

  def _is_broken(self) -> bool:
    """Whether the connection turns out to be broken."""
    try:
      self._attending.exception(timeout=_BREAK_SECONDS)
    except grpc.FutureTimeoutError:
      return False
    except grpc.FutureCancelledError:
      pass
    return True


def _described(error: grpc.RpcError, seconds: float) -> str:
  if error.code() in (grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
    return f'it did not answer in {seconds:g} s'
  return f'{error.details()}'
