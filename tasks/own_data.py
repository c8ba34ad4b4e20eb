"""Data of one's own as federated data; `docs/own_data.md` shows how."""

import collections
from collections.abc import Callable, Hashable, Sequence
import os
import pathlib
from typing import Any

import numpy as np
import tensorflow as tf

from tasks import csv_table, scaling
from tasks.federated_data import FederatedData, Rows, chosen

_IMAGE_SUFFIXES = ('.png', '.jpg', '.jpeg')
_LARGEST = np.iinfo(np.int32).max


def from_arrays(client_ids: Sequence[Hashable], *, x: Any, y: Any) -> FederatedData:
  """Examples in arrays, with the client that each belongs to.

  Args:
    client_ids: Whose each example is. Clients are told apart, and sorted, by their ids
      as text.
    x: The inputs, the leading axis being examples.
    y: The labels or targets, likewise.

  Returns:
    The rows of each client, in the order of the arrays. Numbers of 64 bits, numpy's
    default, are float32 and int32 in them, TensorFlow's.

  Raises:
    ValueError: If the arrays are of different lengths or empty, or hold whole numbers
      beyond 32 bits.
  """
  names = np.array([str(client_id) for client_id in client_ids])
  rows = collections.OrderedDict(
    (name, _in_32_bits(name, array)) for name, array in (('x', x), ('y', y))
  )
  lengths = {'client_ids': len(names), **{name: len(a) for name, a in rows.items()}}
  if len(set(lengths.values())) > 1:
    raise ValueError(f'The arrays must be of one length, found {lengths}.')
  if not len(names):
    raise ValueError('There are no examples.')
  clients, owners, counts = np.unique(names, return_inverse=True, return_counts=True)
  indices = dict(
    zip(
      clients.tolist(),
      np.split(np.argsort(owners, kind='stable'), np.cumsum(counts)[:-1]),
      strict=True,
    )
  )
  return FederatedData(
    tuple(indices),
    lambda client_id: chosen(rows, indices[client_id]),
    lambda client_id: len(indices[client_id]),
  )


def _in_32_bits(name: str, array: Any) -> np.ndarray:
  array = np.asarray(array)
  if array.dtype == np.float64:
    return array.astype(np.float32)
  if array.dtype in (np.int64, np.uint32, np.uint64):
    narrow = array.astype(np.int32)
    if (narrow != array).any():
      raise ValueError(f'{name} has whole numbers beyond 32 bits.')
    return narrow
  return array


def from_csv(
  path: str | os.PathLike,
  *,
  client: str,
  label: str,
  features: Sequence[str] | None = None,
) -> FederatedData:
  """A table in a CSV file, an example a line below a header that names the columns.

  Args:
    path: The file, in UTF-8.
    client: The column that says whose an example is.
    label: The column to predict. If its first entry is a number, all must be: whole
      ones are classes as they stand, int32; if any is not whole, all are targets,
      float32. If it is text, all are names of classes, numbered in sorted order.
    features: The columns to predict from, all others by default, of numbers.

  Returns:
    The rows of each client: `x`, float32, a vector of the features as they are in the
    file; and `y`. Clients are sorted by their ids.

  Raises:
    ValueError: If the file is not such a table, with its name, the line and the column.
  """
  table = csv_table.Table(pathlib.Path(path))
  of_client, of_label = table.position(client), table.position(label)
  if features is None:
    features = [name for name in table.header if name not in (client, label)]
  of_features = [table.position(name) for name in features]
  if not of_features:
    raise ValueError(f'{path}, line 1: there are no columns to predict from.')
  x = np.column_stack([table.numbers(column) for column in of_features])
  return from_arrays(table.texts(of_client), x=x, y=_labels(table, of_label))


def _labels(table: csv_table.Table, column: int) -> np.ndarray:
  texts = table.texts(column)
  if not csv_table.is_number(texts[0]):
    return np.unique(np.array(texts), return_inverse=True)[1]
  numbers = table.numbers(column)
  are_classes = (numbers == np.round(numbers)).all() and abs(numbers).max() <= _LARGEST
  return numbers.astype(np.int32 if are_classes else np.float32)


def from_image_folders(
  directory: str | os.PathLike, size: tuple[int, int], channels: int = 3
) -> FederatedData:
  """Pictures in folders: `directory/<client>/<label>/*.png`, or .jpg, .jpeg.

  They are read when a client's rows are asked for, not before.

  Args:
    directory: The folder that has a folder for each client.
    size: The height and width that pictures are brought to.
    channels: 3 for colours, `x` being `[height, width, 3]`; 1 for grey, and
      `[height, width]`. Pictures of the other kind are converted.

  Returns:
    The rows of each client: `x`, float32 from 0 to 1, and `y`, int32, the labels of all
    clients together numbered in sorted order. Clients are sorted, and their pictures by
    label and file name.

  Raises:
    ValueError: If there are no pictures, or not where they should be. So do the rows of
      a client with a file that is no picture, naming it.
  """
  if channels not in (1, 3):
    raise ValueError(f'channels must be 1 or 3, found {channels}.')
  paths = {folder.name: _pictures(folder) for folder in _folders(directory)}
  if not paths:
    raise ValueError(f'{directory} has no folders, where one a client is expected.')
  labels = sorted({path.parent.name for own in paths.values() for path in own})

  def load(client_id: str) -> Rows:
    own = paths[client_id]
    return collections.OrderedDict(
      x=np.stack([_read_picture(path, size, channels) for path in own]),
      y=np.array([labels.index(path.parent.name) for path in own], np.int32),
    )

  return FederatedData(tuple(paths), load, lambda client_id: len(paths[client_id]))


def _folders(directory: str | os.PathLike) -> list[pathlib.Path]:
  """The folders in a folder, sorted, but for hidden ones."""
  path = pathlib.Path(directory)
  if not path.is_dir():
    raise ValueError(f'{path} is not a folder.')
  return sorted(f for f in path.iterdir() if f.is_dir() and not f.name.startswith('.'))


def _pictures(folder: pathlib.Path) -> list[pathlib.Path]:
  """The pictures of a client, by label and name."""
  found = [
    path
    for label in _folders(folder)
    for path in sorted(label.iterdir())
    if path.suffix.lower() in _IMAGE_SUFFIXES and not path.name.startswith('.')
  ]
  if not found:
    raise ValueError(
      f'{folder} has no pictures, where {folder.name}/<label>/*.png or *.jpg are '
      'expected.'
    )
  return found


def _read_picture(
  path: pathlib.Path, size: tuple[int, int], channels: int
) -> np.ndarray:
  try:
    picture = tf.io.decode_image(
      path.read_bytes(), channels=channels, expand_animations=False
    )
  except (OSError, tf.errors.InvalidArgumentError) as error:
    reason = getattr(error, 'message', error)
    raise ValueError(f'{path} cannot be read as a picture ({reason}).') from error
  resized = tf.image.resize(picture, size, antialias=True).numpy()
  x = np.clip(resized / 255, 0, 1)  # Resizing rounds, beyond white too.
  return x if channels == 3 else x[..., 0]


def standardized(
  train: FederatedData, test: FederatedData
) -> tuple[FederatedData, FederatedData]:
  """Moves and scales `x` to mean 0 and deviation 1 over all training examples.

  A feature that is the same in all of them becomes 0 there.

  Args:
    train: What means and deviations are taken of.
    test: What is moved and scaled likewise.
  """
  mean, deviation = scaling.moments(train.all_rows()['x'])

  def changed(data: FederatedData) -> FederatedData:
    def load(client_id):
      rows = data.rows(client_id)
      rows['x'] = ((rows['x'] - mean) / deviation).astype(np.float32)
      return rows

    return FederatedData(data.client_ids, load, data.num_examples)

  return changed(train), changed(test)


def hold_out(
  data: FederatedData, share: float, seed: int | np.random.SeedSequence
) -> tuple[FederatedData, FederatedData]:
  """Splits every client's rows at random into train and test data.

  Args:
    data: The rows of the clients.
    share: The share of a client's rows that is for testing, rounded: of a share of a
      fifth, a client with one or two rows trains on them all.
    seed: What the split is drawn from.
  """
  if not 0 < share < 1:
    raise ValueError(f'share must be above 0 and below 1, found {share}.')
  entropy = (
    seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
  )
  seeds = dict(zip(data.client_ids, entropy.spawn(len(data.client_ids)), strict=True))

  def num_test(client_id: str) -> int:
    return round(share * data.num_examples(client_id))

  def part(cut: Callable[[str], slice]) -> Callable[[str], Rows]:
    def load(client_id):
      generator = np.random.Generator(np.random.PCG64(seeds[client_id]))
      order = generator.permutation(data.num_examples(client_id))[cut(client_id)]
      return chosen(data.rows(client_id), order)

    return load

  train = FederatedData(
    data.client_ids,
    part(lambda client_id: slice(num_test(client_id), None)),
    lambda client_id: data.num_examples(client_id) - num_test(client_id),
  )
  test = FederatedData(
    data.client_ids, part(lambda client_id: slice(num_test(client_id))), num_test
  )
  return train, test
