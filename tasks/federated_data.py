"""Data split over clients, each client's rows made when they are asked for."""

import collections
from collections.abc import Callable, Mapping, Sequence
import dataclasses
import math
import os
import pathlib
import tempfile
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm

# Rows gathered in one place are in memory up to this size, beyond it on disk.
_MAX_BYTES_IN_MEMORY = 2 << 30

Rows = collections.OrderedDict[str, np.ndarray]


def chosen(all_rows: Mapping[str, np.ndarray], indices: np.ndarray) -> Rows:
  """Copies of the rows with these indices, in their order."""
  return collections.OrderedDict((k, array[indices]) for k, array in all_rows.items())


@dataclasses.dataclass(frozen=True)
class Origin:
  """What rows are made of, where it is known: the same gives the same rows.

  The code that makes them is not part of it, and must be this package's own.

  Attributes:
    path: The file that they are read from.
    steps: How they are read, and what is done to them, with all that it depends on.
  """

  path: pathlib.Path
  steps: tuple[str, ...]

  def then(self, *step: Any) -> 'Origin':
    """The origin of rows made of these.

    Args:
      *step: What is done, and with which parameters; their `repr` has to tell them.
    """
    return Origin(self.path, (*self.steps, repr(step)))


class FederatedData:
  """The rows of each client: `x` and `y`, the leading axis being examples.

  A client may be without examples: its arrays then have length 0.
  """

  def __init__(
    self,
    client_ids: Sequence[str],
    load: Callable[[str], Mapping[str, np.ndarray]],
    count: Callable[[str], int] | None = None,
    origin: Origin | None = None,
  ):
    """Keeps how to get the rows; nothing is loaded yet.

    Args:
      client_ids: The ids of all clients.
      load: Client id -> its rows, arrays of equal length by feature. All clients have
        the same features, with the same dtypes and shapes of an example. Called
        whenever the rows are asked for, so what is slow to make is best kept.
      count: Client id -> how many rows it has, where that is known without loading.
      origin: What the rows are made of, where making them takes so long that they are
        worth keeping from run to run (see `layouts`).

    Raises:
      ValueError: If there are no clients, or two of the same id.
    """
    client_ids = tuple(client_ids)
    if not client_ids:
      raise ValueError('Federated data need at least one client.')
    for client_id in client_ids:
      if not isinstance(client_id, str):
        raise ValueError(f'Client ids must be text, found {client_id!r}.')
    if len(set(client_ids)) < len(client_ids):
      twice, _ = collections.Counter(client_ids).most_common(1)[0]
      raise ValueError(f'Client {twice!r} is there twice.')
    self._client_ids = client_ids
    self._load = load
    self._count = count
    self._origin = origin
    self._counted: dict[str, int] = {}  # What was learnt by loading.
    self._spec: tuple[str, dict[str, str]] | None = None  # Of the first client loaded.

  @classmethod
  def from_clients(
    cls, clients: Mapping[str, Mapping[str, np.ndarray]]
  ) -> 'FederatedData':
    """Data that are in memory: client id -> its rows. They are checked, not copied.

    Raises:
      ValueError: If there are no clients, or their rows do not match.
    """
    data = cls(tuple(clients), clients.__getitem__)
    for client_id in clients:
      data.rows(client_id)
    return data

  @classmethod
  def from_partition(
    cls, rows: Mapping[str, np.ndarray], parts: Sequence[np.ndarray]
  ) -> 'FederatedData':
    """The rows of one data set in memory, dealt out over clients.

    Args:
      rows: All the rows.
      parts: For each client the indices of its rows, as `partitioners` give them.
    """
    width = max(3, len(str(len(parts) - 1)))
    indices = {f'client_{i:0{width}d}': part for i, part in enumerate(parts)}
    return cls(
      tuple(indices),
      lambda client_id: chosen(rows, indices[client_id]),
      lambda client_id: len(indices[client_id]),
    )

  @property
  def client_ids(self) -> tuple[str, ...]:
    """The ids of all clients, in the order given."""
    return self._client_ids

  @property
  def origin(self) -> Origin | None:
    """What the rows are made of, where that is known."""
    return self._origin

  def rows(self, client_id: str) -> Rows:
    """All the rows of a client.

    Raises:
      ValueError: If they do not match each other, or those of another client.
    """
    rows = collections.OrderedDict(
      (name, np.asarray(array)) for name, array in self._load(client_id).items()
    )
    if len({len(array) for array in rows.values()}) != 1:
      lengths = {name: len(array) for name, array in rows.items()}
      raise ValueError(f'Client {client_id!r} has features of lengths {lengths}.')
    spec = {name: f'{a.dtype}{list(a.shape[1:])}' for name, a in rows.items()}
    first_id, first = self._spec = self._spec or (client_id, spec)
    if spec != first:
      raise ValueError(
        f'Client {client_id!r} has examples of {spec}, client {first_id!r} of {first}.'
      )
    return rows

  def num_examples(self, client_id: str) -> int:
    """How many rows a client has."""
    if self._count:
      return self._count(client_id)
    if client_id not in self._counted:
      self._counted[client_id] = len(next(iter(self.rows(client_id).values())))
    return self._counted[client_id]

  def all_rows(self, numbers: np.ndarray | None = None) -> Rows:
    """The rows of all clients one after the other, in the order of `client_ids`.

    More than fit in memory are kept in a file that goes away with them.

    Args:
      numbers: Of those wanted, ascending; all by default. Clients without any are not
        loaded.

    Raises:
      ValueError: If rows do not match each other, or their count.
      OSError: If there is no room for them.
    """
    counts = [self.num_examples(client_id) for client_id in self._client_ids]
    if numbers is None:
      numbers = np.arange(sum(counts))
    bounds: np.ndarray = np.cumsum([0, *counts])
    # Where each client's rows begin and end in the result.
    cuts: Any = np.searchsorted(numbers, bounds)
    gathered: Rows | None = None
    wanted = [i for i in range(len(counts)) if cuts[i] < cuts[i + 1]]
    for i in tqdm.tqdm(wanted or [0], 'Reading', delay=2, leave=False, disable=None):
      rows = self.rows(self._client_ids[i])
      num_rows = len(next(iter(rows.values())))
      if num_rows != counts[i]:
        raise ValueError(
          f'Client {self._client_ids[i]!r} has {num_rows} rows, where {counts[i]} were '
          'counted.'
        )
      if gathered is None:
        gathered = allocate(
          {
            n: ((len(numbers), *array.shape[1:]), array.dtype)
            for n, array in rows.items()
          }
        )
      a, b = cuts[i], cuts[i + 1]
      own = numbers[a:b] - bounds[i]
      for name, array in rows.items():
        gathered[name][a:b] = array[own]
    assert gathered is not None  # There is at least one client.
    return gathered

  def client_dataset(self, client_id: str) -> tf.data.Dataset:
    """A client's rows as a data set of a single batch, the cheapest to ship."""
    return tf.data.Dataset.from_tensors(self.rows(client_id))


def allocate(shapes: Mapping[str, tuple[tuple[int, ...], Any]]) -> Rows:
  """Arrays to be filled: in memory up to a bound, beyond it in a file without a name.

  Args:
    shapes: The shape and dtype of each, by name.

  Raises:
    OSError: If the disk has no room for them.
  """
  size = sum(
    math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in shapes.values()
  )
  make = np.empty if size <= _MAX_BYTES_IN_MEMORY else _empty_on_disk
  return collections.OrderedDict(
    (name, make(shape, dtype)) for name, (shape, dtype) in shapes.items()
  )


def _empty_on_disk(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
  size = math.prod(shape) * np.dtype(dtype).itemsize
  with tempfile.TemporaryFile() as file:  # The mapping outlives the closed file.
    if size:
      # Without its room taken beforehand, a full disk would kill the process later.
      os.posix_fallocate(file.fileno(), 0, size)
    return np.memmap(file, dtype, 'w+', shape=shape)
