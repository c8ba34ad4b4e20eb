"""SIGTERM and Ctrl-C: where there is something to save, an exception; else the end.

An exception raised by a signal handler can get lost: Python drops it in finalizers and
callbacks of the garbage collector, libraries catch it while they are being imported.
So it is raised again until somebody has taken notice, and outside of the blocks that
ask for it there is none: the program ends at once, which harms no file.
"""

from collections.abc import Iterator
import contextlib
import os
import signal
import sys
import time
from types import FrameType
from typing import NoReturn

_AGAIN_AFTER_SECONDS = 1.0
# The same signal again so soon is the same event: Linux tells a child of its parent's
# death once for each thread that the parent had.
_ONE_EVENT_SECONDS = 0.5

# Whether signals are raised now, the one that has been, and when it came.
_are_raised = False
_pending: int | None = None
_pending_since = 0.0


class Interrupted(KeyboardInterrupt):
  """A signal arrived: what is running stops where it is."""

  def __init__(self, signal_number: int):
    super().__init__(signal.Signals(signal_number).name)
    self.exit_code = 128 + signal_number

  def exit(self) -> NoReturn:
    """Ends the program with its exit code, whatever its threads are doing.

    One that the signal left within a call of TensorFlow or gRPC would make the program
    abort when Python finalizes itself.
    """
    for stream in (sys.stdout, sys.stderr):
      with contextlib.suppress(OSError):  # Nobody may be reading any more.
        stream.flush()
    os._exit(self.exit_code)


def install() -> None:
  """Makes SIGTERM and SIGINT end this program, with 143 and 130.

  Within `raised` they raise `Interrupted`; a second one ends it at once.
  """
  for signal_number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(signal_number, _handle)
  signal.signal(signal.SIGALRM, _raise_again)
  default_hook = sys.unraisablehook

  def hook(dropped: 'sys.UnraisableHookArgs') -> None:
    if not isinstance(dropped.exc_value, Interrupted):
      default_hook(dropped)

  sys.unraisablehook = hook


@contextlib.contextmanager
def raised() -> Iterator[None]:
  """Raises `Interrupted` in this block, if `install` was called and a signal comes."""
  global _are_raised
  _are_raised = True
  try:
    yield
  finally:
    _are_raised = False
    if _pending is not None:
      signal.setitimer(signal.ITIMER_REAL, 0)


def _handle(signal_number: int, frame: FrameType | None) -> None:
  del frame
  global _pending, _pending_since
  is_soon = time.monotonic() - _pending_since < _ONE_EVENT_SECONDS
  if signal_number == _pending and is_soon:
    return
  if not _are_raised or _pending is not None:
    os._exit(128 + signal_number)
  _pending, _pending_since = signal_number, time.monotonic()
  signal.setitimer(signal.ITIMER_REAL, _AGAIN_AFTER_SECONDS, _AGAIN_AFTER_SECONDS)
  raise Interrupted(signal_number)


def _raise_again(signal_number: int, frame: FrameType | None) -> None:
  del signal_number, frame
  if _are_raised and _pending is not None:
    raise Interrupted(_pending)
