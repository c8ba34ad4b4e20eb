"""Data split over clients, in memory."""

import collections
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

Rows = collections.OrderedDict[str, np.ndarray]


class FederatedData:
  """The rows of each client: `x` and `y`, the leading axis being examples.

  A client may be without examples: its arrays then have length 0.
  """

  def __init__(self, clients: Mapping[str, Mapping[str, np.ndarray]]):
    """Checks and keeps the data; the arrays are not copied.

    Args:
      clients: Client id -> its rows, arrays of equal length by feature. All clients
        have the same features, with the same dtypes and shapes of an example.

    Raises:
      ValueError: If there are no clients, or their rows do not match.
    """
    if not clients:
      raise ValueError('Federated data need at least one client.')
    self._clients = {
      client_id: collections.OrderedDict(rows) for client_id, rows in clients.items()
    }
    first_id, first = next(iter(self._clients.items()))
    for client_id, rows in self._clients.items():
      if len({len(array) for array in rows.values()}) != 1:
        lengths = {name: len(array) for name, array in rows.items()}
        raise ValueError(f'Client {client_id!r} has features of lengths {lengths}.')
      if _example_spec(rows) != _example_spec(first):
        raise ValueError(
          f'Client {client_id!r} has examples of {_example_spec(rows)}, '
          f'client {first_id!r} of {_example_spec(first)}.'
        )

  @property
  def client_ids(self) -> tuple[str, ...]:
    """The ids of all clients, in the order given."""
    return tuple(self._clients)

  def rows(self, client_id: str) -> Rows:
    """All the rows of a client."""
    return self._clients[client_id]

  def num_examples(self, client_id: str) -> int:
    """How many rows a client has."""
    return len(next(iter(self._clients[client_id].values())))

  def all_rows(self) -> Rows:
    """The rows of all clients one after the other, in the order of `client_ids`."""
    features = self._clients[self.client_ids[0]]
    return collections.OrderedDict(
      (name, np.concatenate([rows[name] for rows in self._clients.values()]))
      for name in features
    )

  def client_dataset(self, client_id: str) -> tf.data.Dataset:
    """A client's rows as a data set of a single batch, the cheapest to ship."""
    return tf.data.Dataset.from_tensors(self._clients[client_id])


def _example_spec(rows: Mapping[str, np.ndarray]) -> dict[str, str]:
  return {name: f'{array.dtype}{list(array.shape[1:])}' for name, array in rows.items()}
