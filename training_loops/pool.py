"""Runs in processes of their own, several at a time.

    with pool.Pool(jobs) as runs:
      runs.start('a', flags)
      while runs.running:
        for key, event in runs.wait():
          ...  # A row of metrics.csv, or the run's `Outcome`.

A run that dies takes nothing with it. When this process is killed, or leaves the block,
the runs end too, each saving where it was.

Importing this module does not import TensorFlow.
"""

from collections.abc import Hashable
import contextlib
import dataclasses
import logging
import multiprocessing
from multiprocessing import connection
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from typing import Any

from training_loops import cores, processes

# TensorFlow keeps a few megabytes of every run, so that its process is changed for a
# new one now and then.
_MAX_RUNS_OF_A_PROCESS = 20
# A round may have to end before a run can be saved.
_STOP_TIMEOUT_SECONDS = 60.0

_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Outcome:
  """How a run ended.

  Attributes:
    state: 'done'; 'refused', if the run was the user's mistake; or 'failed'.
    reason: Why it was refused or failed, in one line.
    details: All that is known of a failure.
  """

  state: str
  reason: str = ''
  details: str = ''


Event = dict[str, Any] | Outcome


class Pool:
  """Processes that train, a run each at a time."""

  def __init__(self, jobs: int):
    """Initializes the pool; a process is started when a run is.

    Args:
      jobs: How many runs may be made at once. They share the cores.
    """
    self._jobs = jobs
    self.num_threads = max(1, cores.number() // jobs)
    self._idle: list[_Runner] = []
    self._busy: dict[Hashable, _Runner] = {}
    self._stopping: list[_Runner] = []

  def __enter__(self) -> 'Pool':
    return self

  def __exit__(self, kind: type | None, *exception: object) -> None:
    self.close()
    if kind is not None and issubclass(kind, KeyboardInterrupt):
      _logger.warning('Interrupted; all is saved. The same command continues.')

  @property
  def running(self) -> list[Hashable]:
    """The keys of the runs that are being made."""
    return list(self._busy)

  @property
  def has_room(self) -> bool:
    """Whether one more run can be started."""
    return len(self._busy) < self._jobs

  def start(self, key: Hashable, flags: dict[str, Any]) -> None:
    """Starts a run, with its share of the cores. Call from the main thread.

    Args:
      key: What its events are marked with.
      flags: From `train_flags`; `num_threads` may be left out.
    """
    self._busy[key] = runner = self._runner_for(flags)
    if 'num_threads' in flags:  # Of clients on this machine.
      flags = {**flags, 'num_threads': flags['num_threads'] or self.num_threads}
    runner.start(flags)

  def _runner_for(self, flags: dict[str, Any]) -> '_Runner':
    xla = flags.get('xla', False)
    runner = next((own for own in self._idle if own.xla == xla), None)
    if runner is None:
      return _Runner(xla)
    self._idle.remove(runner)
    return runner

  def wait(self, timeout: float | None = None) -> list[tuple[Any, Event]]:
    """What the runs have sent, each with its key; waits until one has.

    Args:
      timeout: How long, in seconds; then the list is empty. None is as long as it
        takes.
    """
    self._stopping = [runner for runner in self._stopping if runner.is_alive()]
    keys: dict[Any, Any] = {runner.pipe: key for key, runner in self._busy.items()}
    if not keys:
      return []
    events = []
    for pipe in connection.wait(list(keys), timeout):
      key = keys[pipe]
      event = self._busy[key].receive()
      events.append((key, event))
      if isinstance(event, Outcome):
        self._release(self._busy.pop(key))
    return events

  def _release(self, runner: '_Runner') -> None:
    if runner.can_go_on():
      self._idle.append(runner)
    else:
      self._dismiss(runner)

  def _dismiss(self, runner: '_Runner') -> None:
    runner.pipe.close()  # It takes that for the end.
    self._stopping.append(runner)

  def stop(self, key: Hashable) -> None:
    """Stops a run, which saves its last round; it sends nothing more."""
    runner = self._busy.pop(key)
    runner.interrupt()
    self._stopping.append(runner)

  def close(self) -> None:
    """Stops everything, and waits until it is gone."""
    for key in self.running:
      self.stop(key)
    while self._idle:
      self._dismiss(self._idle.pop())
    deadline = time.monotonic() + _STOP_TIMEOUT_SECONDS
    while self._stopping:
      self._stopping.pop().wait_until_gone(deadline)


class _Runner:
  """A `runner` as a child process, and the pipe to it."""

  def __init__(self, xla: bool):
    self.xla = xla  # Of the whole process, whatever it runs.
    self.pipe, theirs = multiprocessing.Pipe()
    self._num_runs = 0
    self._log = tempfile.TemporaryFile()  # noqa: SIM115 (closed when it is gone)
    # Modules are found there as here, also if this is a notebook somewhere else.
    search = [path for path in sys.path if path and pathlib.Path(path).is_dir()]
    root = str(pathlib.Path(__file__).resolve().parents[1])
    command = [sys.executable, '-m', 'training_loops.runner']
    self._process = subprocess.Popen(
      processes.ending_with_parent(
        [*command, str(theirs.fileno()), *(['xla'] if xla else [])], signal.SIGTERM
      ),
      stdin=subprocess.DEVNULL,
      stdout=self._log,
      stderr=self._log,
      pass_fds=[theirs.fileno()],
      env={
        'TF_CPP_MIN_LOG_LEVEL': '1',
        **os.environ,
        'PYTHONPATH': os.pathsep.join(dict.fromkeys([root, *search])),
      },
      # Ctrl-C is for this process, which stops the others one by one.
      start_new_session=True,
    )
    theirs.close()

  def start(self, flags: dict[str, Any]) -> None:
    self._num_runs += 1
    # If it has died, that is what will be received from it.
    with contextlib.suppress(OSError):
      self.pipe.send(flags)

  def receive(self) -> Event:
    """A row, or how the run ended, by its own words or by the process's end."""
    try:
      return self.pipe.recv()
    except (EOFError, OSError):
      how = processes.describe_exit(self._process.wait())
      words = processes.last_words(self._log.fileno())
      last = words.strip().rpartition('\n')[2]
      return Outcome(
        'failed', ': '.join(filter(None, [f'its process {how}', last])), words
      )

  def is_alive(self) -> bool:
    return self._process.poll() is None

  def can_go_on(self) -> bool:
    return self.is_alive() and self._num_runs < _MAX_RUNS_OF_A_PROCESS

  def interrupt(self) -> None:
    self._process.terminate()

  def wait_until_gone(self, deadline: float) -> None:
    try:
      self._process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
      self._process.kill()
      self._process.wait()
    self.pipe.close()
    self._log.close()
