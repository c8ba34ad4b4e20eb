"""How many cores there are to compute on.

Importing this module does not import TensorFlow.
"""

import contextlib
import math
import os
import pathlib

# What a container may use of the cores that it sees: microseconds in a period, and the
# period (cgroup v2); "max" where there is no limit.
_LIMIT = pathlib.Path('/sys/fs/cgroup/cpu.max')


def number() -> int:
  """The cores that this process may use, also where a container limits them."""
  cores = len(os.sched_getaffinity(0))
  with contextlib.suppress(OSError, ValueError):
    used, period = map(int, _LIMIT.read_text().split())
    cores = min(cores, math.ceil(used / period))
  return cores
