"""Files that are either the old ones or the new ones, never something in between."""

from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
from typing import IO, Any


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
