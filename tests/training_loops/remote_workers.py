"""Workers as processes of this machine, for tests of what is remote."""

import functools
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

from tests.training_loops import child_processes
from training_loops import certificates, processes

ROOT = pathlib.Path(__file__).parents[2]
_STARTED = re.compile(r'Port (\d+), (\d+) clients at once')


class Worker:
  """A worker with two threads, in a process of its own.

  Attributes:
    process: The process.
    port: Where it listens.
  """

  def __init__(self, directory, port=0, prefix=(), environment=None, flags=()):
    """Starts it, without waiting for it.

    Args:
      directory: Of its certificates.
      port: Where it is to listen; 0 for any.
      prefix: What its command line begins with.
      environment: Variables of its own.
      flags: More flags.
    """
    self._log = tempfile.TemporaryFile('w+')  # noqa: SIM115
    self.process = subprocess.Popen(
      [
        *prefix,
        *(sys.executable, '-m', 'training_loops.worker'),
        *(f'--port={port}', '--num_threads=2'),
        f'--certificates={directory / "worker"}',
        *flags,
      ],
      cwd=ROOT,
      env={**os.environ, **(environment or {})},
      stdin=subprocess.DEVNULL,
      stdout=self._log,
      stderr=self._log,
    )

  @property
  def log(self):
    """What it has said."""
    return processes.last_words(self._log.fileno(), 10_000)

  @functools.cached_property
  def port(self):
    """Where it listens, once it does."""

    def started():
      assert self.process.poll() is None, self.log
      return _STARTED.search(self.log)

    return int(child_processes.wait_for(started)[1])

  @property
  def binary(self):
    """The process id of TFF's worker."""
    (pid,) = child_processes.children(self.process.pid)
    return pid

  def stop(self, signal_number=signal.SIGTERM):
    """Ends it, and returns its exit code."""
    for pid in (self.process.pid, *child_processes.children(self.process.pid)):
      os.kill(pid, signal.SIGCONT)
    self.process.send_signal(signal_number)
    return self.process.wait(timeout=60)

  def close(self):
    """Ends it if it is running."""
    if self.process.poll() is None:
      self.stop(signal.SIGKILL)
    self._log.close()


def make_certificates(directory, hosts=('localhost',)):
  """A directory with those of a driver and of workers."""
  certificates.make(directory, hosts, days=1)
  return directory


def options(directory, workers, worker_timeout=30):
  """The options of a remote runtime."""
  return {
    'workers': [f'localhost:{worker.port}' for worker in workers],
    'certificates': str(directory / 'driver'),
    'worker_timeout': worker_timeout,
  }
