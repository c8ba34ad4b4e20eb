"""TFF's worker, a binary of the package, as a child process.

Importing this module does not import TensorFlow.
"""

import abc
from collections.abc import Sequence
import importlib.util
import os
import pathlib
import socket
import subprocess
import tempfile
import threading
import time
from typing import Any

from training_loops import closed_port, processes
from training_loops.failures import RuntimeFailure
from training_loops.options import UserError

# Longer than any start of the worker seen, on machines far busier than sensible.
_START_TIMEOUT_SECONDS = 60.0

# Large models and data sets travel in single messages: allow all that gRPC can.
_MAX_MESSAGE_BYTES = 2**31 - 1
MESSAGE_OPTIONS = (
  ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
)
_CHANNEL_OPTIONS = (
  *MESSAGE_OPTIONS,
  # A proxy from the environment must not stand between us and our own machine.
  ('grpc.enable_http_proxy', 0),
  # The worker is ready some 0.2 s after its launch; gRPC would wait a second.
  ('grpc.initial_reconnect_backoff_ms', 50),
  ('grpc.min_reconnect_backoff_ms', 50),
  ('grpc.max_reconnect_backoff_ms', 500),
)

_ANY_PORT = 1024  # Of one that is never bound.
_MAX_SOCKET_PATH = 107  # Of Linux.

# Where the user has not set them otherwise; for what computes in this process, too.
ENVIRONMENT = {
  'TF_NUM_INTRAOP_THREADS': '1',  # A core for each client.
  'TF_CPP_MIN_LOG_LEVEL': '1',
}
WORKER_ENVIRONMENT = {
  **ENVIRONMENT,
  # With an arena of memory for each of its threads, clients of ever other sizes leave
  # ever more holes: with two the worker stays as it is, at the same speed.
  'MALLOC_ARENA_MAX': '2',
  # Tensors of a model's size come and go at every step: their memory is kept rather
  # than given back and asked for again, a twentieth to a tenth of a round of a CNN.
  'MALLOC_MMAP_THRESHOLD_': str(2**25),
  'MALLOC_TRIM_THRESHOLD_': str(2**28),
}


def binary() -> pathlib.Path:
  """Where the worker is.

  Raises:
    RuntimeFailure: If it is not installed.
  """
  spec = importlib.util.find_spec('tensorflow_federated')  # Imports nothing.
  if spec is None or spec.origin is None:
    raise RuntimeFailure('tensorflow_federated is not installed.')
  path = pathlib.Path(spec.origin).parent / 'data' / 'worker_binary'
  if not path.is_file():
    raise RuntimeFailure(f"TFF's worker is missing: expected a file {path}.")
  return path


class WorkerProcess(abc.ABC):
  """A worker that cannot outlive this process."""

  def __init__(self, num_threads: int, port: int):
    """Starts it, without waiting for it. Call from the main thread.

    Args:
      num_threads: How many clients compute at once.
      port: What it is told to listen on.

    Raises:
      RuntimeFailure: If it cannot be started.
    """
    if threading.current_thread() is not threading.main_thread():
      # Linux's "parent" is the thread that forked: the worker would die with it.
      raise RuntimeFailure('A worker must be launched from the main thread.')
    self._owner_pid = os.getpid()
    self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by kill)
    command = [
      str(binary()),
      f'--port={port}',
      f'--max_concurrent_computation_calls={num_threads}',
    ]
    self._process = self._start(
      command,
      stdin=subprocess.DEVNULL,
      # An inherited stdout would keep a pipe open as long as the worker lives.
      stdout=self._log,
      stderr=self._log,
      env={**WORKER_ENVIRONMENT, **os.environ},
      # Ctrl-C is for the program, which may want to save its state with the worker.
      start_new_session=True,
    )

  @abc.abstractmethod
  def _start(self, command: Sequence[str], **options: Any) -> subprocess.Popen:
    """Starts the command, as a child that ends with this process."""

  @property
  @abc.abstractmethod
  def target(self) -> str:
    """Where it listens, as gRPC writes it."""

  @property
  def pid(self) -> int:
    """Its process id."""
    return self._process.pid

  def is_ours(self) -> bool:
    """Whether this process started the worker, rather than one it was forked from."""
    return os.getpid() == self._owner_pid

  def is_alive(self) -> bool:
    """Whether it is still running."""
    return self._process.poll() is None

  def kill(self) -> None:
    """Ends it."""
    self._process.kill()
    self._process.wait()
    self._log.close()

  def connect(self) -> Any:
    """A gRPC channel to the worker, once that answers.

    Raises:
      RuntimeFailure: If it does not.
    """
    import grpc

    channel = grpc.insecure_channel(self.target, _CHANNEL_OPTIONS)
    ready = grpc.channel_ready_future(channel)
    deadline = time.monotonic() + _START_TIMEOUT_SECONDS
    while True:
      try:
        ready.result(timeout=0.1)
        return channel
      except grpc.FutureTimeoutError:
        if not self.is_alive() or time.monotonic() > deadline:
          ready.cancel()
          raise self.failure('No worker could be started.') from None

  def failure(self, what: str) -> RuntimeFailure:
    """An error that says what happened, and all that is known of the worker."""
    try:
      # A worker that has just closed its connection is about to be a dead one.
      code = self._process.wait(timeout=1)
    except subprocess.TimeoutExpired:
      return RuntimeFailure(f"{what} TFF's worker (pid {self.pid}) is running.")
    words = '' if self._log.closed else processes.last_words(self._log.fileno())
    return RuntimeFailure(
      f"{what} TFF's worker (pid {self.pid}) {processes.describe_exit(code)}. "
      f'Its last words:\n{words}'
    )


class PortWorker(WorkerProcess):
  """A worker that listens on a free port of this machine."""

  def __init__(self, num_threads: int):
    """Starts it; see `WorkerProcess`."""
    self._reservation = _reserve_port()
    self.port = self._reservation.getsockname()[1]
    super().__init__(num_threads, self.port)

  def _start(self, command: Sequence[str], **options: Any) -> subprocess.Popen:
    return subprocess.Popen(processes.ending_with_parent(command), **options)

  @property
  def target(self) -> str:
    return f'127.0.0.1:{self.port}'

  def kill(self) -> None:
    super().kill()
    self._reservation.close()


def _reserve_port() -> socket.socket:
  """A socket bound to a free port, which keeps it from others as long as it is open.

  The worker (as all of gRPC) binds with SO_REUSEPORT, so it can share the port; it
  would also share it with another worker, silently, had both chosen the same one.
  """
  reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
  reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
  reservation.bind(('', 0))
  return reservation


class SocketWorker(WorkerProcess):
  """A worker that no other machine and no other user can reach: see `closed_port`."""

  def __init__(self, num_threads: int, directory: pathlib.Path):
    """Starts it; see `WorkerProcess`.

    Args:
      num_threads: How many clients compute at once.
      directory: A directory for its owner alone, where its socket is to be.

    Raises:
      UserError: If its path is too long.
    """
    self._path = directory / 'worker'
    if len(os.fsencode(self._path)) > _MAX_SOCKET_PATH:
      raise UserError(
        f'{self._path} is too long for a socket: set TMPDIR to a shorter directory.'
      )
    super().__init__(num_threads, _ANY_PORT)

  def _start(self, command: Sequence[str], **options: Any) -> subprocess.Popen:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.setblocking(False)
    self._path.unlink(missing_ok=True)  # That of one that was here before.
    listening.bind(str(self._path))
    return closed_port.start(command, listening, **options)

  @property
  def target(self) -> str:
    return f'unix:{self._path}'
