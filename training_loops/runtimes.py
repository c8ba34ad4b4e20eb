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
from collections.abc import Sequence
import ctypes
import os
from typing import Any

from training_loops import certificates as certificates_module
from training_loops import cores, importing, worker_process
from training_loops.failures import RuntimeFailure
from training_loops.options import UserError
from training_loops.worker_process import PortWorker

_START_ATTEMPTS = 3

# What an interrupted computation may take to notice that: a step of a client.
_STOP_TIMEOUT_SECONDS = 10.0

# What glibc calls them for a process that is running already.
_MALLOC_PARAMETERS = {
  'MALLOC_ARENA_MAX': -8,
  'MALLOC_MMAP_THRESHOLD_': -3,
  'MALLOC_TRIM_THRESHOLD_': -1,
}

# Whatever is worth it, on CPUs too.
_XLA_FLAGS = '--tf_xla_auto_jit=2 --tf_xla_cpu_global_jit'


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
    self._worker: PortWorker | None = None
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
          self._channel = worker.connect()
        break
      except RuntimeFailure:
        self.stop()
        if attempt == _START_ATTEMPTS - 1:
          _refuse_work()
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

  def _launched_worker(self) -> PortWorker:
    if self._worker is None:
      self._worker = PortWorker(self._num_threads)
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
    for name, value in worker_process.ENVIRONMENT.items():
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
      try:
        device = known_device(self._device)
      except UserError:
        _refuse_work()
        raise
      self._context = in_process_context.InProcessContext(self._num_threads, device)
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
      library.mallopt(parameter, int(worker_process.WORKER_ENVIRONMENT[name]))


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


class RemoteRuntime(Runtime):
  """Workers on other machines compute the clients, this process does the rest.

  Attributes:
    links: Those to the workers, once started.
  """

  def __init__(self, workers: Sequence[str], certificates: str, worker_timeout: float):
    """Initializes the runtime; nothing is started yet.

    Args:
      workers: Where they are, each as host:port.
      certificates: A directory of certificates: see `certificates`.
      worker_timeout: How many seconds a worker may take for a client: it is lost when
        it has taken so many times the clients that it was given, by how many it
        computes at once.

    Raises:
      UserError: If there are no such certificates.
    """
    self._addresses = workers
    self._certificates = certificates_module.read(certificates)
    self._timeout = worker_timeout
    self.links: list[Any] = []
    self._context: Any = None

  def launch(self) -> None:
    """Has TensorFlow do as in a worker, unless it is imported already."""
    for name, value in worker_process.ENVIRONMENT.items():
      os.environ.setdefault(name, value)
    _keep_memory()

  def start(self) -> None:
    """Connects to the workers; what is there of them is TFF's default context.

    May be called again, when another runtime has become the default meanwhile.

    Raises:
      WorkersLost: If none can be reached.
      RuntimeFailure: If one is of another version.
    """
    self.launch()
    importing.import_tff()
    import tensorflow_federated as tff

    from training_loops import remote_context, worker_link

    if self._context is None:
      atexit.register(self.stop)
      self.links = [
        worker_link.WorkerLink(address, self._certificates, self._timeout)
        for address in self._addresses
      ]
      try:
        remote_context.wait_until_connected(self.links)
      except BaseException:
        self.stop()
        _refuse_work()
        raise
      self._context = remote_context.RemoteContext(self.links)
    tff.framework.set_default_context(self._context)

  def stop(self) -> None:
    """Leaves the workers; computations called from now on raise `RuntimeFailure`."""
    links, self.links = self.links, []
    context, self._context = self._context, None
    atexit.unregister(self.stop)
    for link in links:
      link.close()
    if context is None:
      return
    context.wait(_STOP_TIMEOUT_SECONDS)
    _refuse_work()


def _checked_num_threads(num_threads: int | None) -> int:
  if num_threads is not None and num_threads < 1:
    raise ValueError(f'num_threads must be positive, found {num_threads}.')
  return num_threads or cores.number()


def _refuse_work() -> None:
  """Has TFF's default context, by whomever it was set, raise an error when called.

  Also where none could be started: TFF's own complains at the end of the program.
  """
  import tensorflow_federated as tff

  from training_loops import worker_context

  # TFF's context joins a thread when it is deleted, which must not be left to the end
  # of the interpreter, where that thread no longer runs.
  tff.framework.set_default_context(
    worker_context.FailedContext(RuntimeFailure('The runtime is stopped.'))
  )


_RUNTIMES: dict[str, type[Runtime]] = {
  'local': LocalRuntime,
  'in_process': InProcessRuntime,
  'remote': RemoteRuntime,
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
