"""Directories for what a process needs while it runs, and nobody after it."""

from collections.abc import Iterator
import contextlib
import fcntl
import pathlib
import shutil
import tempfile

_PREFIX = '.tff_algorithms_scratch_'
_LOCK = 'lock'


@contextlib.contextmanager
def directory(parent: pathlib.Path | None = None) -> Iterator[pathlib.Path]:
  """A directory of its own, removed at the end of the block.

  What processes that were killed have left behind goes too: a directory whose lock is
  free belongs to nobody.

  Args:
    parent: Where to make it; by default where the system keeps temporary files, which
      the environment variable TMPDIR names.
  """
  parent = parent or pathlib.Path(tempfile.gettempdir())
  _remove_leftovers(parent)
  path = pathlib.Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
  try:
    with open(path / f'{_LOCK}.new', 'w') as lock:
      # Locked before it has its name: no other process sees it free.
      fcntl.flock(lock, fcntl.LOCK_EX)
      (path / f'{_LOCK}.new').rename(path / _LOCK)
      yield path
  finally:
    shutil.rmtree(path, ignore_errors=True)


def _remove_leftovers(parent: pathlib.Path) -> None:
  for lock_file in parent.glob(f'{_PREFIX}*/{_LOCK}'):
    # It may be another user's, or be removed at this very moment by another process.
    with contextlib.suppress(OSError), open(lock_file, 'a') as lock:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
      shutil.rmtree(lock_file.parent, ignore_errors=True)
