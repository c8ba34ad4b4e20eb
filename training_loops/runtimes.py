"""Where federated computations run: the choices of `--runtime`.

A runtime is made by `create(name)` and used as a context manager around everything
that calls a TFF computation:

    runtime = runtimes.create('local')
    runtime.launch()  # Starts at once, while TensorFlow is still being imported.
    import tensorflow_federated as tff
    with runtime:
      process.next(state, clients)

TFF's own default context starts a worker process that outlives the program and keeps
its stdout open, so that `train | tee log` never ends. A worker of this module is gone
as soon as the program is, however that ended.

Importing this module does not import TensorFlow.
"""

import abc
import atexit
import ctypes
import importlib.util
import os
import pathlib
import socket
import subprocess
import tempfile
import threading
import time
from typing import Any

from training_loops import importing, processes
from training_loops.options import UserError

# Longer than any start of the worker seen, on machines far busier than sensible.
_START_TIMEOUT_SECONDS = 60.0
_START_ATTEMPTS = 3

# What an interrupted computation may take to notice that: a step of a client.
_STOP_TIMEOUT_SECONDS = 10.0

# Large models and data sets travel in single messages: allow all that gRPC can.
_MAX_MESSAGE_BYTES = 2**31 - 1
_CHANNEL_OPTIONS = (
  ('grpc.max_send_message_length', _MAX_MESSAGE_BYTES),
  ('grpc.max_receive_message_length', _MAX_MESSAGE_BYTES),
  # A proxy from the environment must not stand between us and our own machine.
  ('grpc.enable_http_proxy', 0),
  # The worker is ready some 0.2 s after its launch; gRPC would wait a second.
  ('grpc.initial_reconnect_backoff_ms', 50),
  ('grpc.min_reconnect_backoff_ms', 50),
  ('grpc.max_reconnect_backoff_ms', 500),
)

# Where the user has not set them otherwise.
_ENVIRONMENT = {
  'TF_NUM_INTRAOP_THREADS': '1',  # A core for each client.
  'TF_CPP_MIN_LOG_LEVEL': '1',
}
_WORKER_ENVIRONMENT = {
  **_ENVIRONMENT,
  # With an arena of memory for each of its threads, clients of ever other sizes leave
  # ever more holes: with two the worker stays as it is, at the same speed.
  'MALLOC_ARENA_MAX': '2',
  # Tensors of a model's size come and go at every step: their memory is kept rather
  # than given back and asked for again, a twentieth to a tenth of a round of a CNN.
  'MALLOC_MMAP_THRESHOLD_': str(2**25),
  'MALLOC_TRIM_THRESHOLD_': str(2**28),
}
# What glibc calls them for a process that is running already.
_MALLOC_PARAMETERS = {
  'MALLOC_ARENA_MAX': -8,
  'MALLOC_MMAP_THRESHOLD_': -3,
  'MALLOC_TRIM_THRESHOLD_': -1,
}

# Whatever is worth it, on CPUs too.
_XLA_FLAGS = '--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit'


class RuntimeFailure(RuntimeError):
  """The runtime itself failed, rather than the computation that it was given."""


class Runtime(abc.ABC):
  """Something that executes TFF computations, between `start` and `stop`."""

  def launch(self) -> None:  # noqa: B027 (most runtimes have nothing to launch)
    """Begins what can begin before TensorFlow is imported; `start` does the rest."""

  @abc.abstractmethod
  def start(self) -> None:
    """Makes this runtime TFF's default context. Imports TFF."""

  @abc.abstractmethod
  def stop(self) -> None:
    """Releases everything; harmless when nothing was started or called twice."""

  def __enter__(self) -> 'Runtime':
    self.start()
    return self

  def __exit__(self, *exception: object) -> None:
    self.stop()


class LocalRuntime(Runtime):
  """TFF's C++ runtime in a worker process of its own, on this machine."""

  def __init__(self, num_threads: int | None = None):
    """Initializes the runtime; nothing is started yet.

    Args:
      num_threads: How many clients compute at once, each on one thread, which is
        faster than several threads a client. None stands for one a core. With fewer
        clients a round than cores, set TF_NUM_INTRAOP_THREADS in the environment to
        the number of threads of each client.
    """
    self._num_threads = _checked_num_threads(num_threads)
    self._worker: _WorkerProcess | None = None
    self._channel = None

  @property
  def worker_pid(self) -> int | None:
    """The process id of the worker, None while there is none."""
    return self._worker.pid if self._worker else None

  def launch(self) -> None:
    """Starts the worker process without waiting for it. Call from the main thread."""
    self._launched_worker()

  def start(self) -> None:
    """Starts the worker unless launched, waits for it, makes it TFF's default context.

    May be called again, when another runtime has become the default meanwhile.

    Raises:
      RuntimeFailure: If no worker could be started.
    """
    importing.import_tff()
    import tensorflow_federated as tff

    from training_loops import worker_context

    for attempt in range(_START_ATTEMPTS):
      worker = self._launched_worker()
      try:
        if self._channel is None:
          self._channel = _connect(worker)
        break
      except RuntimeFailure:
        self.stop()
        if attempt == _START_ATTEMPTS - 1:
          raise
    tff.framework.set_default_context(
      worker_context.WorkerContext(self._channel, worker.failure)
    )

  def stop(self) -> None:
    """Ends the worker; computations called from now on raise `RuntimeFailure`."""
    worker, self._worker = self._worker, None
    if worker is None or not worker.is_ours():
      return
    atexit.unregister(self.stop)
    worker.kill()
    if self._channel is not None:
      # Not closed but dropped: closing it makes gRPC's polling thread print an error.
      self._channel = None
      _refuse_work()

  def _launched_worker(self) -> '_WorkerProcess':
    if self._worker is None:
      self._worker = _WorkerProcess(self._num_threads)
      atexit.register(self.stop)
    return self._worker


class InProcessRuntime(Runtime):
  """TensorFlow in this process: no worker to start, and nothing to be sent to one."""

  def __init__(
    self,
    num_threads: int | None = None,
    device: str | None = None,
    xla: bool = False,
  ):
    """Initializes the runtime; nothing is started yet.

    Args:
      num_threads: How many clients compute at once, as in `LocalRuntime`.
      device: Where all is computed that can be computed there, as TensorFlow names it,
        such as '/GPU:0'; None where TensorFlow would.
      xla: Whether XLA compiles what it finds worth it. Of the whole process, from the
        import of TensorFlow on.
    """
    self._num_threads = _checked_num_threads(num_threads)
    self._device = device
    self._xla = xla
    self._context: Any = None

  def launch(self) -> None:
    """Has TensorFlow give each client one thread, unless it is imported already."""
    for name, value in _ENVIRONMENT.items():
      os.environ.setdefault(name, value)
    if self._xla:
      flags = os.environ.get('TF_XLA_FLAGS', '')
      os.environ['TF_XLA_FLAGS'] = f'{_XLA_FLAGS} {flags}'
    _keep_memory()

  def start(self) -> None:
    """Makes this process TFF's default context, again if another has become it.

    Raises:
      UserError: If there is no such device.
    """
    self.launch()
    importing.import_tff()
    import tensorflow_federated as tff

    from training_loops import in_process_context

    if self._context is None:
      self._context = in_process_context.InProcessContext(
        self._num_threads, known_device(self._device)
      )
      atexit.register(self.stop)
    tff.framework.set_default_context(self._context)

  def stop(self) -> None:
    """Ends the threads; computations called from now on raise `RuntimeFailure`."""
    context, self._context = self._context, None
    if context is None:
      return
    atexit.unregister(self.stop)
    # A thread that is in TensorFlow when the interpreter ends makes it abort.
    context.wait(_STOP_TIMEOUT_SECONDS)
    _refuse_work()


def _keep_memory() -> None:
  """Has this process keep the memory of tensors, as a worker is told to in words."""
  library = ctypes.CDLL(None)
  if not hasattr(library, 'mallopt'):  # Another C library than glibc.
    return
  for name, parameter in _MALLOC_PARAMETERS.items():
    if name not in os.environ:
      library.mallopt(parameter, int(_WORKER_ENVIRONMENT[name]))


def known_device(device: str | None) -> str | None:
  """TensorFlow's full name of a device, which is there.

  Raises:
    UserError: If it is not.
  """
  import tensorflow as tf

  if device is None:
    return None
  there = [found.name for found in tf.config.list_logical_devices()]
  try:
    wanted = tf.DeviceSpec.from_string(device)
    matching = [
      name
      for name in there
      if tf.DeviceSpec.from_string(name).make_merged_spec(wanted).to_string() == name
    ]
  except ValueError:
    matching = []
  if not matching:
    raise UserError(f'there is no device {device!r}; there are {", ".join(there)}.')
  return matching[0]


class _WorkerProcess:
  """TFF's worker binary as a child process that cannot outlive this one."""

  def __init__(self, num_threads: int):
    if threading.current_thread() is not threading.main_thread():
      # Linux's "parent" is the thread that forked: the worker would die with it.
      raise RuntimeFailure('A worker must be launched from the main thread.')
    self._owner_pid = os.getpid()
    self._reservation = _reserve_port()
    self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed by kill)
    self._process = subprocess.Popen(
      processes.ending_with_parent(
        [
          str(_worker_binary()),
          f'--port={self.port}',
          f'--max_concurrent_computation_calls={num_threads}',
        ]
      ),
      stdin=subprocess.DEVNULL,
      # An inherited stdout would keep a pipe open as long as the worker lives.
      stdout=self._log,
      stderr=self._log,
      env={**_WORKER_ENVIRONMENT, **os.environ},
      # Ctrl-C is for the program, which may want to save its state with the worker.
      start_new_session=True,
    )

  @property
  def pid(self) -> int:
    return self._process.pid

  @property
  def port(self) -> int:
    return self._reservation.getsockname()[1]

  def is_ours(self) -> bool:
    """Whether this process started the worker, rather than one it was forked from."""
    return os.getpid() == self._owner_pid

  def is_alive(self) -> bool:
    return self._process.poll() is None

  def kill(self) -> None:
    self._process.kill()
    self._process.wait()
    self._reservation.close()
    self._log.close()

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


def _checked_num_threads(num_threads: int | None) -> int:
  if num_threads is not None and num_threads < 1:
    raise ValueError(f'num_threads must be positive, found {num_threads}.')
  return num_threads or len(os.sched_getaffinity(0))


def _refuse_work() -> None:
  """Has TFF's default context, by whomever it was set, raise an error when called."""
  import tensorflow_federated as tff

  from training_loops import worker_context

  # TFF's context joins a thread when it is deleted, which must not be left to the end
  # of the interpreter, where that thread no longer runs.
  tff.framework.set_default_context(
    worker_context.FailedContext(RuntimeFailure('The runtime is stopped.'))
  )


def _worker_binary() -> pathlib.Path:
  spec = importlib.util.find_spec('tensorflow_federated')  # Imports nothing.
  if spec is None or spec.origin is None:
    raise RuntimeFailure('tensorflow_federated is not installed.')
  path = pathlib.Path(spec.origin).parent / 'data' / 'worker_binary'
  if not path.is_file():
    raise RuntimeFailure(f"TFF's worker is missing: expected a file {path}.")
  return path


def _reserve_port() -> socket.socket:
  """A socket bound to a free port, which keeps it from others as long as it is open.

  The worker (as all of gRPC) binds with SO_REUSEPORT, so it can share the port; it
  would also share it with another worker, silently, had both chosen the same one.
  """
  reservation = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
  reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
  reservation.bind(('', 0))
  return reservation


def _connect(worker: _WorkerProcess) -> Any:
  """A gRPC channel to the worker, once that answers."""
  import grpc

  channel = grpc.insecure_channel(f'127.0.0.1:{worker.port}', _CHANNEL_OPTIONS)
  ready = grpc.channel_ready_future(channel)
  deadline = time.monotonic() + _START_TIMEOUT_SECONDS
  while True:
    try:
      ready.result(timeout=0.1)
      return channel
    except grpc.FutureTimeoutError:
      if not worker.is_alive() or time.monotonic() > deadline:
        ready.cancel()
        raise worker.failure('No worker could be started.') from None


_RUNTIMES: dict[str, type[Runtime]] = {
  'local': LocalRuntime,
  'in_process': InProcessRuntime,
}


def names() -> tuple[str, ...]:
  """The names that `create` knows."""
  return tuple(_RUNTIMES)


def create(name: str, **options: Any) -> Runtime:
  """Makes the runtime of that name, not yet started.

  Args:
    name: One of `names()`.
    **options: Arguments of the runtime's constructor.

  Raises:
    ValueError: If there is no runtime of that name.
  """
  if name not in _RUNTIMES:
    raise ValueError(f'Unknown runtime {name!r}; known are {", ".join(names())}.')
  return _RUNTIMES[name](**options)
