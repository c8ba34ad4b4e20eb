"""The memory of processes, as Linux counts it."""

import contextlib
import pathlib


def descendants(pid: int) -> list[int]:
  """The processes that a process has started, those that they have, and so on."""
  found = []
  for path in pathlib.Path(f'/proc/{pid}/task').glob('*/children'):
    with contextlib.suppress(OSError):  # It may have ended since.
      for child in map(int, path.read_text().split()):
        found += [child, *descendants(child)]
  return found


def resident_megabytes(pid: int) -> float:
  """What a process has resident; 0 if there is none."""
  return _megabytes(pid, 'VmRSS:')


def peak_megabytes(pid: int) -> float:
  """The most that a process has had resident so far; 0 if there is none."""
  return _megabytes(pid, 'VmHWM:')


def _megabytes(pid: int, name: str) -> float:
  with contextlib.suppress(OSError):
    for line in pathlib.Path(f'/proc/{pid}/status').read_text().splitlines():
      if line.startswith(name):
        return int(line.split()[1]) / 1000
  return 0.0
