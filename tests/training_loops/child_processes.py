"""Looking at the processes of programs under test."""

from collections.abc import Callable
import pathlib
import time
from typing import Any


def children(pid: int) -> list[int]:
  """The processes that a process has started, in order."""
  text = pathlib.Path(f'/proc/{pid}/task/{pid}/children').read_text()
  return [int(child) for child in text.split()]


def descendants(pid: int) -> list[int]:
  """Its children, their children and so on."""
  found = []
  for child in children(pid):
    try:
      found += [child, *descendants(child)]
    except FileNotFoundError:
      continue  # It has ended meanwhile.
  return found


def is_alive(pid: int) -> bool:
  """Whether a process is there and has not ended."""
  try:
    return 'State:\tZ' not in pathlib.Path(f'/proc/{pid}/status').read_text()
  except FileNotFoundError:
    return False


def wait_for(condition: Callable[[], Any], seconds: float = 100) -> Any:
  """Waits until a condition holds, and returns what it gave."""
  deadline = time.monotonic() + seconds
  while not (value := condition()):
    assert time.monotonic() < deadline, 'It never came.'
    time.sleep(0.005)
  return value
