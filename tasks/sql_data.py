"""Federated data in TFF's SQLite format, read with one short query a client.

`tff.simulation.datasets.SqlClientData` reads the same file through a `tf.data` set that
it makes anew for each client, which takes tens of times longer.
"""

import collections
from collections.abc import Callable, Iterator, Mapping
import contextlib
import hashlib
import inspect
import os
import pathlib
import sqlite3
import types
from typing import Any

import numpy as np
import tensorflow as tf

from tasks.federated_data import FederatedData, Origin, Rows

_SELECT = 'SELECT serialized_example_proto FROM examples'
_BY_CLIENT = f'{_SELECT} WHERE client_id = ? AND split_name = ? ORDER BY rowid'
_BY_ROW = f'{_SELECT} WHERE rowid = ?'

Examples = dict[str, np.ndarray]


def read(
  path: str | os.PathLike,
  split: str,
  features: Mapping[str, Any],
  preprocess: Callable[[Examples], Rows],
  *,
  keeps_count: bool = True,
  max_examples: int | None = None,
) -> FederatedData:
  """The clients of one split of a data base, in the order of their ids.

  Args:
    path: The SQLite file.
    split: The name of the split.
    features: What is in an example, for `tf.io.parse_example`.
    preprocess: A client's examples as arrays by feature -> its rows.
    keeps_count: Whether a row is made of each example, so that rows can be counted
      without making them.
    max_examples: How many of a client's examples to take, the first in the file.

  Raises:
    ValueError: If the file is no such data base, or has no such split.
  """
  database = _Database(path, split)

  def load(client_id: str) -> Rows:
    try:
      protos = database.protos(client_id)[:max_examples]
      parsed = tf.io.parse_example(tf.constant(protos, tf.string), features)
    except tf.errors.InvalidArgumentError as error:
      raise ValueError(f'{path}, client {client_id!r}: {error.message}') from error
    return preprocess({name: value.numpy() for name, value in parsed.items()})

  def count(client_id: str) -> int:
    return len(range(database.counts[client_id])[:max_examples])

  closed_over = _closed_over(preprocess)
  origin = None
  if closed_over is not None:
    made_by = f'{preprocess.__module__}.{preprocess.__qualname__}'
    origin = Origin(pathlib.Path(path).absolute(), ()).then(
      split, dict(features), made_by, closed_over, max_examples
    )
  return FederatedData(
    sorted(database.counts), load, count if keeps_count else None, origin
  )


def _closed_over(preprocess: Callable) -> str | None:
  """A hash of what a function of this package depends on besides its source.

  None if that cannot be told for sure.
  """
  if not isinstance(preprocess, types.FunctionType):
    return None
  # Of another package, its own imports would have to be known, too.
  if preprocess.__module__.partition('.')[0] != __name__.partition('.')[0]:
    return None
  if preprocess.__defaults__ or preprocess.__kwdefaults__:
    return None
  values = dict(inspect.getclosurevars(preprocess).nonlocals)
  if not _is_plain(values):
    return None
  return hashlib.sha256(repr(sorted(values.items())).encode()).hexdigest()


def _is_plain(value: Any) -> bool:
  """Whether `repr` tells all of a value."""
  if isinstance(value, dict):
    return all(map(_is_plain, value)) and all(map(_is_plain, value.values()))
  if isinstance(value, list | tuple):
    return all(map(_is_plain, value))
  return value is None or isinstance(value, bool | int | float | str | bytes)


class _Database:
  """One split of a data base.

  Attributes:
    counts: Client id -> how many examples it has.
  """

  def __init__(self, path: str | os.PathLike, split: str):
    self._uri = f'{pathlib.Path(path).absolute().as_uri()}?mode=ro'
    self._split = split
    self._row_ids: dict[str, list[int]] | None = None
    try:
      with self._opened() as database:
        self.counts: dict[str, int] = dict(
          database.execute(
            'SELECT client_id, num_examples FROM client_metadata WHERE split_name = ?',
            [split],
          )
        )
        if not _is_indexed(database):
          self._row_ids = self._all_row_ids(database)
    except sqlite3.DatabaseError as error:
      raise ValueError(
        f'{path} is not a data base as TFF makes them ({error}); if it was downloaded, '
        'remove it to have it downloaded again.'
      ) from error
    if not self.counts:
      raise ValueError(f'{path} has no clients in a split named {split!r}.')

  @contextlib.contextmanager
  def _opened(self) -> Iterator[sqlite3.Connection]:
    # A connection belongs to one thread; opening one takes a tenth of a millisecond.
    with contextlib.closing(sqlite3.connect(self._uri, uri=True)) as database:
      yield database

  def _all_row_ids(self, database: sqlite3.Connection) -> dict[str, list[int]]:
    """Which rows are whose: without an index every query would read the whole file."""
    row_ids: dict[str, list[int]] = collections.defaultdict(list)
    for row_id, client_id in database.execute(
      'SELECT rowid, client_id FROM examples WHERE split_name = ? ORDER BY rowid',
      [self._split],
    ):
      row_ids[client_id].append(row_id)
    return row_ids

  def protos(self, client_id: str) -> list[bytes]:
    """The serialized examples of a client, in the order of the file."""
    with self._opened() as database:
      if self._row_ids is None:
        found = database.execute(_BY_CLIENT, [client_id, self._split])
        return [proto for (proto,) in found]
      return [
        database.execute(_BY_ROW, [row_id]).fetchone()[0]
        for row_id in self._row_ids.get(client_id, ())
      ]


def _is_indexed(database: sqlite3.Connection) -> bool:
  """Whether SQLite has a way to the examples of a client past all others."""
  plan = database.execute(f'EXPLAIN QUERY PLAN {_BY_CLIENT}', ['', '']).fetchall()
  return any('client_id=?' in step[-1] for step in plan)
