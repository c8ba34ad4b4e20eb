"""Federated data on disk, for clients that read their own rows by their id.

Then only the id travels into a round, and a round is several times faster than with
the rows as its argument. A directory holds one file for each client: a header of 64-bit
integers (a checksum of what follows, the number of rows, and for each feature how it is
stored), then the arrays, one after the other, typed as small as they go (`row_codecs`).
"""

import base64
import collections
from collections.abc import Callable, Iterable, Mapping
import dataclasses
import enum
import math
import os
import pathlib
from typing import Any
import uuid
import zlib

import numpy as np
import tensorflow as tf

from tasks import row_codecs
from tasks.federated_data import FederatedData

_MAX_NAME_BYTES = 255  # Of a file, on Linux.
_SUFFIX = '.rows'
_INTEGER = np.dtype('<i8')  # Of the header.

Rows = collections.OrderedDict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Feature:
  """An array that each client has: the dtype, and the shape of a single example."""

  name: str
  dtype: str
  shape: tuple[int, ...]


class Condition(enum.Enum):
  """How a client's file is."""

  WHOLE = 'whole'
  DAMAGED = 'damaged'
  MISSING = 'missing'


@dataclasses.dataclass(frozen=True)
class ClientFiles:
  """A directory of client files.

  Attributes:
    directory: Where they are; clients on other machines need it at the same place.
    features: What each client has, in order.
    decode: A TensorFlow function that makes rows of those in the files, such as floats
      of bytes; or None.
  """

  directory: pathlib.Path
  features: tuple[Feature, ...]
  decode: Callable[[Rows], Any] | None = None

  def load(self, client_id: tf.Tensor) -> Any:
    """The rows of a client, in TensorFlow operations.

    Args:
      client_id: A string scalar. An unknown id fails when the operations run, with an
        error that names the missing file.
    """
    # Base64 of an id is a safe file name, and never that of another id.
    name = tf.io.encode_base64(client_id)
    path = tf.strings.join([f'{self.directory}/', name, _SUFFIX])
    return self.parse(tf.io.read_file(path))

  def parse(self, content: tf.Tensor) -> Any:
    """The rows in the content of a client's file, in TensorFlow operations.

    Args:
      content: A string scalar.
    """
    position = tf.constant(self._header_size, tf.int64)
    header = tf.io.decode_raw(
      tf.strings.substr(content, tf.zeros([], tf.int64), position), tf.int64
    )
    num_rows = header[1]
    rows = collections.OrderedDict()
    for i, feature in enumerate(self.features):
      dtype = tf.as_dtype(feature.dtype)
      code, divisor = header[2 + 2 * i], header[3 + 2 * i]
      width = tf.constant(row_codecs.widths(dtype), tf.int64)[code]
      size = num_rows * math.prod(feature.shape) * width
      part = tf.strings.substr(content, position, size)
      flat = row_codecs.decode(part, code, divisor, dtype)
      rows[feature.name] = tf.reshape(flat, [-1, *feature.shape])
      position += size
    return rows if self.decode is None else self.decode(rows)

  @property
  def _header_size(self) -> int:
    return _INTEGER.itemsize * (2 + 2 * len(self.features))

  def add(
    self,
    client_id: str,
    rows: Mapping[str, np.ndarray],
    unfinished: pathlib.Path | None = None,
  ) -> None:
    """Writes the file of one client.

    Args:
      client_id: The client.
      rows: Its rows.
      unfinished: A directory on the same disk where the file is until it is whole, so
        that nobody ever sees a part; by default it is written in its place.

    Raises:
      ValueError: If its rows are not those of `features`, or its id is too long.
      OSError: If there is no room for them.
    """
    check_features(rows, self.features, f'client {client_id!r}')
    path = self.path(client_id)
    num_rows = len(next(iter(rows.values())))
    encoded = [row_codecs.encode(array) for array in rows.values()]
    numbers = [num_rows, *(n for own in encoded for n in (own.code, own.divisor))]
    body = np.array(numbers, _INTEGER).tobytes()
    body += b''.join(own.content for own in encoded)
    content = np.array([zlib.crc32(body)], _INTEGER).tobytes() + body
    # Others may be writing the rows of the same client.
    first = path if unfinished is None else unfinished / uuid.uuid4().hex
    try:
      first.write_bytes(content)
      if unfinished is not None:
        first.rename(path)
    except OSError as error:
      first.unlink(missing_ok=True)
      raise OSError(f'{path} cannot be written: {error}') from error

  def condition(self, client_id: str) -> Condition:
    """Reads a client's file and compares it with its checksum."""
    try:
      content = self.path(client_id).read_bytes()
    except FileNotFoundError:
      return Condition.MISSING
    except OSError:
      return Condition.DAMAGED
    if len(content) < self._header_size:
      return Condition.DAMAGED
    (checksum,) = np.frombuffer(content, _INTEGER, count=1)
    body = memoryview(content)[_INTEGER.itemsize :]
    return Condition.WHOLE if zlib.crc32(body) == checksum else Condition.DAMAGED

  def remove(self, client_id: str) -> None:
    """Removes the file of one client."""
    self.path(client_id).unlink()

  def path(self, client_id: str) -> pathlib.Path:
    """Where the file of a client is, or would be.

    Raises:
      ValueError: If its id is too long.
    """
    return self.directory / _file_name(client_id)


def features_of(rows: Mapping[str, np.ndarray]) -> tuple[Feature, ...]:
  """The features that rows have."""
  return tuple(
    Feature(name, array.dtype.name, tuple(array.shape[1:]))
    for name, array in rows.items()
  )


def check_features(
  rows: Mapping[str, np.ndarray], expected: tuple[Feature, ...], whose: str
) -> None:
  """Raises a ValueError unless rows have these features."""

  def described(features):
    return ', '.join(f'{f.name} {f.dtype}{list(f.shape)}' for f in features)

  if features_of(rows) != expected:
    raise ValueError(
      f'{whose} has rows of {described(features_of(rows))}, where '
      f'{described(expected)} is expected.'
    )


def write(
  data: FederatedData,
  directory: str | os.PathLike,
  decode: Callable[[Rows], Any] | None = None,
) -> ClientFiles:
  """Writes the files of all clients.

  Args:
    data: The rows of the clients, in the dtypes to be stored.
    directory: Where to write, not yet there; its parents are made if need be.
    decode: As in `ClientFiles`.

  Raises:
    FileExistsError: If the directory is there.
    ValueError: If an id is too long for a file name.
  """
  features = features_of(data.rows(data.client_ids[0]))
  check_ids(data.client_ids)
  files = ClientFiles(pathlib.Path(directory).absolute(), features, decode)
  files.directory.mkdir(parents=True)
  for client_id in data.client_ids:
    files.add(client_id, data.rows(client_id))
  return files


def check_ids(client_ids: Iterable[str]) -> None:
  """Raises a ValueError if an id is too long for the name of its file."""
  for client_id in client_ids:
    _file_name(client_id)


def _file_name(client_id: str) -> str:
  stem = base64.urlsafe_b64encode(client_id.encode()).decode().rstrip('=')
  name = f'{stem}{_SUFFIX}'
  if len(name) > _MAX_NAME_BYTES:
    raise ValueError(f'The client id {client_id!r} is too long for a file name.')
  return name
