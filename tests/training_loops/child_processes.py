"""Looking at the processes of programs under test."""

from collections.abc import Callable
import contextlib
import pathlib
import time
from typing import Any


def children(pid: int) -> list[int]:
  """The processes that the threads of a process have started."""
  lists = pathlib.Path(f'/proc/{pid}/task').glob('*/children')
  return [int(child) for path in lists for child in path.read_text().split()]


def descendants(pid: int) -> list[int]:
  """Its children, their children and so on."""
  found = []
  for child in children(pid):
    with contextlib.suppress(OSError):  # It may have ended since.
      found += [child, *descendants(child)]
  return found


def is_alive(pid: int) -> bool:
  """Whether a process is there and has not ended."""
  try:
    return 'State:\tZ' not in pathlib.Path(f'/proc/{pid}/status').read_text()
  except (FileNotFoundError, ProcessLookupError):
    return False


def wait_for(condition: Callable[[], Any], seconds: float = 100) -> Any:
  """Waits until a condition holds, and returns what it gave."""
  deadline = time.monotonic() + seconds
  while not (value := condition()):
    assert time.monotonic() < deadline, 'It never came.'
    time.sleep(0.005)
  return value
