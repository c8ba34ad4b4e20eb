"""Files that are either the old ones or the new ones, never something in between."""

from collections.abc import Iterator
import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
import re
from typing import IO, Any

from training_loops.options import UserError

_MAX_NAME_BYTES = 100


@contextlib.contextmanager
def replacing(path: pathlib.Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
  """Opens a file for writing that takes its place, whole, at the end of the block.

  Killed at any instant, this leaves what was there before, and perhaps a temporary
  file that `remove_leftovers` takes away.

  Args:
    path: Where the file goes.
    durable: Whether it must survive a power failure too, which costs a few
      milliseconds; what can be made again from a checkpoint need not.
  """
  temporary = path.with_name(f'.{path.name}.tmp')
  try:
    with open(temporary, 'wb') as file:
      yield file
      if durable:
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
  except BaseException as error:
    temporary.unlink(missing_ok=True)
    if isinstance(error, OSError) and error.filename is None:
      error.filename = str(path)  # A full disk does not say whose.
    raise
  if durable:
    sync_directory(path.parent)


def sync_directory(path: pathlib.Path) -> None:
  """Makes the renames and removals in a directory survive a power failure."""
  descriptor = os.open(path, os.O_RDONLY)
  try:
    os.fsync(descriptor)
  finally:
    os.close(descriptor)


def write_bytes(path: pathlib.Path, content: bytes, *, durable: bool = True) -> None:
  """Replaces a file's content."""
  with replacing(path, durable=durable) as file:
    file.write(content)


def write_json(path: pathlib.Path, content: Any) -> None:
  """Replaces a file's content by a readable JSON text."""
  write_bytes(path, (json.dumps(content, indent=2) + '\n').encode())


class InUse(UserError):
  """Another process is in a directory."""


@contextlib.contextmanager
def locked(directory: pathlib.Path) -> Iterator[None]:
  """Keeps other processes out of a directory.

  Raises:
    InUse: If one of them is in it.
  """
  with open(lock_file(directory), 'a') as lock:
    try:
      # Released by the kernel whichever way this process ends.
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise InUse(f'{directory} is in use by another process.') from None
    yield


def lock_file(directory: pathlib.Path) -> pathlib.Path:
  """The file that `locked` holds."""
  return directory / '.lock'


def as_name(text: str) -> str:
  """A name for a file or directory that is like the text.

  Letters, digits and some signs stay, and blanks become underscores; what else there
  is, or a great length, is made up for by a few digits of its hash.
  """
  name = re.sub(r'[^\w.,=+-]+', '_', text).strip('_.')
  size = len(name.encode())
  if 0 < size <= _MAX_NAME_BYTES and name == re.sub(r'\s+', '_', text):
    return name
  digest = hashlib.sha256(text.encode()).hexdigest()[:8]
  begin = name.encode()[:_MAX_NAME_BYTES].decode(errors='ignore')
  return f'{begin}-{digest}'.lstrip('-')


def check_writable(path: pathlib.Path) -> None:
  """Makes sure that a directory is there or can be made; nothing is written.

  Raises:
    UserError: If not.
  """
  existing = next(p for p in (path, *path.absolute().parents) if p.exists())
  if not existing.is_dir():
    raise UserError(f'{existing} is not a directory.')
  if not os.access(existing, os.W_OK | os.X_OK):
    raise UserError(f'{existing} is not writable.')


@contextlib.contextmanager
def written_by_tensorflow() -> Iterator[None]:
  """Turns TensorFlow's errors into the OSErrors that they are where it writes files."""
  import tensorflow as tf

  try:
    yield
  except tf.errors.OpError as error:
    # Before the braces' end stands the operation, after the first line more of it.
    raise OSError(error.message.splitlines()[0].rpartition('}} ')[2]) from error


def remove_leftovers(directory: pathlib.Path) -> None:
  """Removes the temporary files of a program that was killed while writing."""
  for path in directory.glob('.*.tmp'):
    path.unlink(missing_ok=True)
