"""Child processes that cannot outlive this one.

Importing this module does not import TensorFlow.
"""

from collections.abc import Sequence
import os
import signal
import sys

# Run as `python -c _SHIM parent_pid signal command...`. Asks Linux for that signal when
# the parent dies (PR_SET_PDEATHSIG = 1; it outlasts exec), then becomes the command. A
# parent that died before the request is noticed by getppid.
_SHIM = """
import ctypes, os, sys
if ctypes.CDLL(None).prctl(1, int(sys.argv[2])) != 0:
  sys.exit('prctl(PR_SET_PDEATHSIG) failed')
if os.getppid() != int(sys.argv[1]):
  sys.exit('the parent process has gone')
os.execv(sys.argv[3], sys.argv[3:])
"""


def ending_with_parent(
  command: Sequence[str], signal_number: signal.Signals = signal.SIGKILL
) -> list[str]:
  """A command that is sent a signal as soon as this process is gone.

  Linux's "parent" is the thread that starts it: use the main thread.

  Args:
    command: The path of a binary, and its arguments.
    signal_number: The signal.
  """
  # Without site-packages and environment this Python starts in 20 ms.
  start = (sys.executable, '-I', '-S', '-c', _SHIM)
  return [*start, str(os.getpid()), str(int(signal_number)), *command]


def describe_exit(code: int) -> str:
  """How a process ended, from the code that `subprocess` gives."""
  if code >= 0:
    return f'exited with code {code}'
  known = {int(s): s.name for s in signal.Signals}
  status = f'was killed by {known.get(-code, f"signal {-code}")}'
  if code == -signal.SIGKILL:
    status += ' (often for want of memory)'
  return status


def last_words(descriptor: int, num_bytes: int = 2000) -> str:
  """The end of a file that another process may be writing."""
  size = os.fstat(descriptor).st_size
  # pread leaves alone the position at which the other writes.
  text = os.pread(descriptor, num_bytes, max(0, size - num_bytes))
  return text.decode(errors='replace')
