"""The way of the server's own rows into a round of mixed federated learning.

The server reads the rows of a round from a file, as clients do, which is written while
the round before is computed and removed after it. Which rows they are is a function of
the seed and the round: the data are gone through in an order of their own again and
again, each time in another, and a round takes up where the one before it ended.
"""

import collections
from collections.abc import Sequence
import concurrent.futures
import functools
import pathlib
from typing import Any

import numpy as np

from tasks import client_files, federated_data
from tasks.client_files import Feature
from tasks.federated_data import Rows
from tff_algorithms import client_inputs


class Stream:
  """Rows of one data set, shuffled, without end."""

  def __init__(self, rows: Rows, seed: int, use: int):
    """Initializes the stream.

    Args:
      rows: All the rows.
      seed: The run's seed.
      use: What the stream is for; no two uses have the same orders.
    """
    self._rows = rows
    self._seed = (seed, use)
    self._num_rows = len(next(iter(rows.values())))
    self._order = functools.lru_cache(maxsize=2)(self._make_order)

  def _make_order(self, epoch: int) -> np.ndarray:
    keys = np.random.PCG64(np.random.SeedSequence([*self._seed, epoch]))
    return np.argsort(keys.random_raw(self._num_rows), kind='stable')

  def take(self, start: int, size: int) -> Rows:
    """So many rows from position `start` on."""
    positions = np.arange(start, start + size)
    epochs, places = np.divmod(positions, self._num_rows)
    indices = np.concatenate(
      [self._order(int(e))[places[epochs == e]] for e in np.unique(epochs)]
    )
    return federated_data.chosen(self._rows, indices)


class Batches:
  """The rows of each round: batches with a fixed number of rows of each stream."""

  def __init__(self, streams: Sequence[tuple[Stream, int]], num_batches: int):
    """Initializes the batches.

    Args:
      streams: Each with how many of its rows a batch has.
      num_batches: How many batches a round has.
    """
    self._streams = list(streams)
    self._num_batches = num_batches

  def __call__(self, round_num: int) -> Rows:
    """The rows of a round, numbered from 1."""
    first = (round_num - 1) * self._num_batches
    batches = [
      stream.take(size * batch, size)
      for batch in range(first, first + self._num_batches)
      for stream, size in self._streams
    ]
    return collections.OrderedDict(
      (name, np.concatenate([batch[name] for batch in batches])) for name in batches[0]
    )


class CentralFeed:
  """Feeds the server's rows to a process, round by round."""

  def __init__(
    self, rows_of: Batches, directory: pathlib.Path, features: tuple[Feature, ...]
  ):
    """Initializes the feed.

    Args:
      rows_of: The rows of a round.
      directory: Where the files go, empty.
      features: What a row must have for the loss.
    """
    self._rows_of = rows_of
    self._files = client_files.ClientFiles(directory, features)
    self._thread = concurrent.futures.ThreadPoolExecutor(max_workers=1)
    self._written: dict[int, concurrent.futures.Future] = {}

  @property
  def central_input(self) -> client_inputs.ClientInput:
    """What the server's argument is."""
    return client_inputs.from_id(self._files.load)

  def prepare(self, round_num: int) -> None:
    """Begins to write the rows of a round, and returns."""
    if round_num not in self._written:
      self._written[round_num] = self._thread.submit(self._write, round_num)

  def _write(self, round_num: int) -> None:
    rows = self._rows_of(round_num)
    client_files.check_features(rows, self._files.features, "the server's data")
    self._files.add(f'{round_num}', rows)

  def argument(self, round_num: int) -> Any:
    """What to give the process in a round; the files of those before it are removed.

    Raises:
      ValueError: If the rows do not fit the loss.
      OSError: If there is no room for them.
    """
    self.prepare(round_num)
    self._written[round_num].result()
    for old in [number for number in self._written if number < round_num]:
      self._written.pop(old).result()
      self._files.remove(f'{old}')
    return f'{round_num}'.encode()

  def close(self) -> None:
    """Waits for what is being written."""
    self._thread.shutdown(cancel_futures=True)
