"""Directories for what a process needs while it runs, and nobody after it."""

from collections.abc import Iterator
import contextlib
import fcntl
import pathlib
import shutil
import tempfile

_PREFIX = '.tff_algorithms_scratch_'
_LOCK, _NEW_LOCK = 'lock', 'lock.new'


@contextlib.contextmanager
def directory(parent: pathlib.Path | None = None) -> Iterator[pathlib.Path]:
  """A directory of its own, removed at the end of the block.

  What others have left behind goes too: a directory whose lock is free, because its
  process was killed, or that has none, because something was still written there while
  it was removed, belongs to nobody.

  Args:
    parent: Where to make it; by default where the system keeps temporary files, which
      the environment variable TMPDIR names.
  """
  parent = parent or pathlib.Path(tempfile.gettempdir())
  _remove_leftovers(parent)
  path = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
  try:
    with open(path / _NEW_LOCK, 'w') as lock:
      # Locked before it has its name: no other process sees it free.
      fcntl.flock(lock, fcntl.LOCK_EX)
      (path / _NEW_LOCK).rename(path / _LOCK)
      yield path
  finally:
    shutil.rmtree(path, ignore_errors=True)


def _remove_leftovers(parent: pathlib.Path) -> None:
  for path in parent.glob(f'{_PREFIX}*'):
    # It may be another user's, or be removed at this very moment by another process.
    with contextlib.suppress(OSError):
      names = {child.name for child in path.iterdir()}
      if _LOCK in names:
        with open(path / _LOCK, 'a') as lock:
          fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
          shutil.rmtree(path, ignore_errors=True)
      elif names - {_NEW_LOCK}:  # It is not just being made.
        shutil.rmtree(path, ignore_errors=True)
