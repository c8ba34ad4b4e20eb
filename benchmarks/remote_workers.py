"""Workers of the remote runtime as processes of this machine."""

from collections.abc import Iterator
import contextlib
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from typing import Any

from training_loops import certificates, processes

_START_SECONDS = 60.0
_TIMEOUT_SECONDS = 600.0
_STARTED = re.compile(r'Port (\d+),')


@contextlib.contextmanager
def started(number: int, num_threads: int) -> Iterator[dict[str, Any]]:
  """Starts workers for the time of a block; call from the main thread.

  Args:
    number: How many.
    num_threads: How many clients each computes at once.

  Returns:
    The options of a remote runtime that has them.
  """
  with contextlib.ExitStack() as stack:
    directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    certificates.make(directory, ['localhost'], days=1)
    logs = []
    for i in range(number):
      log = directory / f'{i}.log'
      with open(log, 'wb') as output:
        process = subprocess.Popen(
          processes.ending_with_parent(
            [
              *(sys.executable, '-m', 'training_loops.worker', '--port=0'),
              f'--num_threads={num_threads}',
              f'--certificates={directory / "worker"}',
            ]
          ),
          stdin=subprocess.DEVNULL,
          stdout=output,
          stderr=output,
        )
      stack.enter_context(process)
      stack.callback(process.terminate)
      logs.append(log)
    yield {
      'workers': [f'localhost:{_port(log)}' for log in logs],
      'certificates': str(directory / 'driver'),
      'worker_timeout': _TIMEOUT_SECONDS,
    }


def _port(log: pathlib.Path) -> int:
  deadline = time.monotonic() + _START_SECONDS
  while time.monotonic() < deadline:
    if match := _STARTED.search(log.read_text()):
      return int(match[1])
    time.sleep(0.05)
  raise RuntimeError(f'A worker did not start: {log.read_text()}')
