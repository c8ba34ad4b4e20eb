"""Clients' rows on disk from run to run, as clients read them.

A layout is a directory with a file for each client (`client_files`), made when the
client is first asked for:

    PARENT/emnist_all-IDENTITY/VERSION/clients/

IDENTITY is a hash of where the rows come from and how they are read; VERSION one of the
source's size and time, of all code of this package, and of the libraries that compute.
Another version takes the place of the one before it, which is removed when nobody uses
it. A process may be killed at any instant, and others may use the same layout.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import shutil
from typing import Any, TextIO

import numpy as np
import tensorflow as tf

from tasks.client_files import ClientFiles, Condition, Feature
from tasks.federated_data import FederatedData, Origin

_VARIABLE = 'TFF_ALGORITHMS_CLIENT_DATA_DIR'
_LOCK = 'lock'
_MANIFEST = 'manifest.json'


def default_parent() -> pathlib.Path:
  """Where layouts are unless told otherwise.

  That is what the environment variable TFF_ALGORITHMS_CLIENT_DATA_DIR names, or else
  `tff_algorithms/client_data` in the user's directory for caches.

  Raises:
    OSError: If there is no such directory.
  """
  if given := os.environ.get(_VARIABLE):
    return pathlib.Path(given)
  caches = pathlib.Path(os.environ.get('XDG_CACHE_HOME') or '~/.cache')
  try:
    caches = caches.expanduser()
  except RuntimeError as error:
    raise OSError(str(error)) from error
  return caches / 'tff_algorithms' / 'client_data'


class Layout:
  """The layout of one data set, in use by this process until it is closed."""

  def __init__(self, data: FederatedData, directory: pathlib.Path, files: ClientFiles):
    """Keeps what `opened` has made; the lock is entered afterwards."""
    self._data = data
    self._directory = directory
    self._files = files
    self._stack = contextlib.ExitStack()

  @property
  def files(self) -> ClientFiles:
    """The clients' files."""
    return self._files

  def provide(self, client_id: str) -> Condition:
    """Makes sure that a client's file is there and whole.

    Returns:
      How it was found.

    Raises:
      ValueError: If the rows cannot be had, or are not those expected.
      OSError: If there is no room for them.
    """
    found = self._files.condition(client_id)
    if found != Condition.WHOLE:
      rows = self._data.rows(client_id)
      self._files.add(client_id, rows, self._directory / 'unfinished')
    return found

  def close(self) -> None:
    """Lets others remove it."""
    self._stack.close()

  def lock(self) -> None:
    """Keeps others from removing it."""
    lock = (self._directory / _LOCK).open('a')
    self._stack.callback(lock.close)
    fcntl.flock(lock, fcntl.LOCK_SH)


def opened(
  data: FederatedData, features: tuple[Feature, ...], parent: pathlib.Path | None = None
) -> Layout:
  """Opens the layout of data that have an origin, or begins one.

  Args:
    data: The data.
    features: What a row is expected to have.
    parent: Where layouts are, see `default_parent`.

  Raises:
    OSError: If nothing can be written there.
  """
  assert data.origin is not None
  home = (parent or default_parent()).expanduser().absolute() / _identity(data.origin)
  described = _description(data.origin, features)
  directory = home / _hash(described)
  home.mkdir(parents=True, exist_ok=True)
  files = ClientFiles(directory / 'clients', features)
  layout = Layout(data, directory, files)
  with open(home / _LOCK, 'a') as lock:
    # While it is held no other process begins or removes a layout of the same data.
    fcntl.flock(lock, fcntl.LOCK_EX)
    for other in home.iterdir():
      if other.is_dir() and other != directory:
        _remove_if_unused(other)
    for needed in (files.directory, directory / 'unfinished'):
      needed.mkdir(parents=True, exist_ok=True)
    _remove_unfinished(directory)
    manifest = directory / _MANIFEST
    if not manifest.exists():
      unfinished = directory / 'unfinished' / _MANIFEST
      unfinished.write_text(json.dumps(described, indent=2) + '\n')
      unfinished.rename(manifest)
    # A disk that is read-only says so here at the latest.
    (directory / 'unfinished' / 'probe').write_bytes(b'')
    layout.lock()
  return layout


def _identity(origin: Origin) -> str:
  where = str(origin.path.resolve())
  return f'{origin.path.stem}-{_hash([where, origin.steps])}'


def _description(origin: Origin, features: tuple[Feature, ...]) -> dict[str, Any]:
  """All that the rows depend on."""
  status = origin.path.stat()
  return {
    'source': str(origin.path.resolve()),
    'size': status.st_size,
    'time': status.st_mtime_ns,
    'steps': origin.steps,
    'features': [[f.name, f.dtype, f.shape] for f in features],
    'code': code_hash(),
    'numpy': np.__version__,
    'tensorflow': tf.__version__,
  }


@functools.cache
def code_hash() -> str:
  """A hash of the source code of this package."""
  paths = sorted(pathlib.Path(__file__).parent.glob('*.py'))
  return _hash([[path.name, path.read_text(encoding='utf-8')] for path in paths])


def _hash(value: Any) -> str:
  return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _is_unused(lock: TextIO) -> bool:
  try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
  except BlockingIOError:
    return False
  return True


def _remove_if_unused(directory: pathlib.Path) -> None:
  # It may be another user's.
  with contextlib.suppress(OSError), open(directory / _LOCK, 'a') as lock:
    if _is_unused(lock):
      shutil.rmtree(directory, ignore_errors=True)


def _remove_unfinished(directory: pathlib.Path) -> None:
  """Removes what processes that were killed have left behind."""
  with open(directory / _LOCK, 'a') as lock:
    if _is_unused(lock):
      for path in (directory / 'unfinished').iterdir():
        path.unlink(missing_ok=True)
