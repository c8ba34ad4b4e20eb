"""What clients keep from one round that they take part in to the next.

A process whose clients keep something (`process.StatefulProcess`) takes their states
beside their data, and returns new ones. Here is what hands them out and takes them
back:

    states = client_states.InMemoryClientStates(process)
    state = process.initialize()
    for client_ids, datasets in cohorts:
      output = process.next(state, datasets, states.read(client_ids))
      state = output.state
      states.write(output.client_states)
"""

import abc
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tree


class ClientState(NamedTuple):
  """What a client keeps, with its name on it.

  Results come back from TFF's runtime in the order in which clients finish: it is the
  id that says whose they are.

  Attributes:
    client_id: The client, a string scalar; bytes in Python.
    value: Any structure of tensors.
  """

  client_id: Any
  value: Any


class ClientStates(abc.ABC):
  """The states of all clients of a process, by id."""

  def __init__(self, first: Any, cohort_limit: int | None = None):
    """Initializes the states.

    Args:
      first: What a client starts with that has never taken part. It stands for all of
        these, none of which is kept.
      cohort_limit: How many clients a round may have, None for any number.
    """
    self._first = tree.map_structure(np.asarray, first)
    self._cohort_limit = cohort_limit

  def read(self, client_ids: Sequence[str]) -> list[ClientState]:
    """The states of a round's clients, in their order, for `next`.

    Raises:
      ValueError: If a client is there twice, or there are too many.
    """
    check_all_different(client_ids)
    if self._cohort_limit is not None and len(client_ids) > self._cohort_limit:
      raise ValueError(
        f'A round of {len(client_ids)} clients, where the process was built for '
        f'num_clients={self._cohort_limit} in all.'
      )
    kept = self._get(client_ids)
    # TFF takes text in ASCII only, but any bytes.
    return [ClientState(c.encode(), kept.get(c, self._first)) for c in client_ids]

  def write(self, states: Sequence[ClientState]) -> None:
    """Keeps what clients came back with.

    Raises:
      ValueError: If a client is there twice, or a state is not like the first.
    """
    client_ids = [state.client_id.decode() for state in states]
    check_all_different(client_ids)
    values = [tree.map_structure(np.asarray, state.value) for state in states]
    for client_id, value in zip(client_ids, values, strict=True):
      if _types(value) != _types(self._first):
        raise ValueError(
          f'The state of client {client_id} is {_types(value)}, where '
          f'{_types(self._first)} are kept.'
        )
    self._put(dict(zip(client_ids, values, strict=True)))

  @abc.abstractmethod
  def _get(self, client_ids: Sequence[str]) -> Mapping[str, Any]:
    """The states of those clients that have one."""

  @abc.abstractmethod
  def _put(self, states: Mapping[str, Any]) -> None:
    """Keeps states in the place of those before."""


class InMemoryClientStates(ClientStates):
  """States in memory, for notebooks and small problems."""

  def __init__(self, process: Any):
    """Initializes the states.

    Args:
      process: The `StatefulProcess` whose clients' they are.
    """
    super().__init__(process.initialize_client(), process.cohort_limit)
    self._states: dict[str, Any] = {}

  def _get(self, client_ids: Sequence[str]) -> Mapping[str, Any]:
    return {c: self._states[c] for c in client_ids if c in self._states}

  def _put(self, states: Mapping[str, Any]) -> None:
    self._states.update(states)


def check_all_different(client_ids: Sequence[str]) -> None:
  """Raises a ValueError if a client is there twice."""
  seen: set[str] = set()
  for client_id in client_ids:
    if client_id in seen:
      raise ValueError(
        f'Client {client_id} is twice in one round: its state can have only one future.'
      )
    seen.add(client_id)


def _types(value: Any) -> list[str]:
  """Of each tensor its path, its dtype and its shape, as text."""
  return [
    f'{"/".join(map(str, path))} {leaf.dtype}{list(leaf.shape)}'
    for path, leaf in tree.flatten_with_path(value)
  ]
