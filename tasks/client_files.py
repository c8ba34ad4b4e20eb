"""Federated data on disk, for clients that read their own rows by their id.

Then only the id travels into a round, and a round is several times faster than with
the rows as its argument. A directory holds one raw file for each client and feature:
the bytes of the array, little-endian, in row-major order.
"""

import base64
import collections
from collections.abc import Callable, Iterable, Mapping
import dataclasses
import os
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from tasks.federated_data import FederatedData

_MAX_NAME_BYTES = 255  # Of a file, on Linux.

Rows = collections.OrderedDict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Feature:
  """An array that each client has: the dtype, and the shape of a single example."""

  name: str
  dtype: str
  shape: tuple[int, ...]


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
    stem = tf.strings.join([f'{self.directory}/', tf.io.encode_base64(client_id)])
    rows = collections.OrderedDict()
    for feature in self.features:
      content = tf.io.read_file(tf.strings.join([stem, f'.{feature.name}']))
      flat = tf.io.decode_raw(content, tf.as_dtype(feature.dtype))
      rows[feature.name] = tf.reshape(flat, [-1, *feature.shape])
    return rows if self.decode is None else self.decode(rows)

  def add(self, client_id: str, rows: Mapping[str, np.ndarray]) -> None:
    """Writes the files of one client.

    Raises:
      ValueError: If its rows are not those of `features`, or its id is too long.
      OSError: If there is no room for them.
    """
    check_features(rows, self.features, f'client {client_id!r}')
    for name, array in rows.items():
      path = self.directory / _file_name(client_id, name)
      try:
        array.astype(array.dtype.newbyteorder('<'), copy=False).tofile(path)
      except OSError as error:
        raise OSError(f'{path} cannot be written: {error}') from error

  def remove(self, client_id: str) -> None:
    """Removes the files of one client."""
    for feature in self.features:
      (self.directory / _file_name(client_id, feature.name)).unlink()


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
  check_ids(data.client_ids, features)
  files = ClientFiles(pathlib.Path(directory).absolute(), features, decode)
  files.directory.mkdir(parents=True)
  for client_id in data.client_ids:
    files.add(client_id, data.rows(client_id))
  return files


def check_ids(client_ids: Iterable[str], features: tuple[Feature, ...]) -> None:
  """Raises a ValueError if an id is too long for the names of its files."""
  longest = max((feature.name for feature in features), key=len)
  for client_id in client_ids:
    _file_name(client_id, longest)


def _file_name(client_id: str, feature: str) -> str:
  stem = base64.urlsafe_b64encode(client_id.encode()).decode().rstrip('=')
  name = f'{stem}.{feature}'
  if len(name.encode()) > _MAX_NAME_BYTES:
    raise ValueError(f'The client id {client_id!r} is too long for a file name.')
  return name
