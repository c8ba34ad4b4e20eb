"""The way of the clients' states from their store into a round and back: through files.

Only paths travel, as only ids do for the clients' rows: the states of a large model
would otherwise cost a round as much as its training.
"""

from collections.abc import Mapping, Sequence
import os
import pathlib
from typing import Any

from tff_algorithms.client_states import ClientState, check_all_different
from training_loops.client_state_store import ClientStateStore


class ClientStateExchange:
  """Hands out the states in a store to a round, as files, and takes back the new ones.

  What a round returned must be written before the next one's are read.
  """

  def __init__(self, store: ClientStateStore, directory: pathlib.Path):
    """Initializes the exchange.

    Args:
      store: Where the states are kept.
      directory: Where the files go, empty.
    """
    self._store = store
    self._directory = directory
    self._first = store.first
    self._taken: set[pathlib.Path] = set()

  def restore(self, round_num: int, record: Mapping[str, Any] | None) -> None:
    """Opens the store: see `ClientStateStore.restore`."""
    self._store.restore(round_num, record)

  def commit(self, round_num: int) -> dict[str, Any]:
    """Makes what was written last for good: see `ClientStateStore.commit`."""
    return self._store.commit(round_num)

  def close(self) -> None:
    """Closes the store; what was not committed is taken back."""
    self._store.close()

  def read(self, client_ids: Sequence[str]) -> list[ClientState]:
    """What to give `next` for a round's clients, in their order.

    Raises:
      ValueError: If a client is there twice.
      OSError: If there is no room for the files.
    """
    check_all_different(client_ids)
    # Written to again, they would first have to get to the disk. Not removed when they
    # are taken: that may be interrupted, and is then done again.
    while self._taken:
      self._taken.pop().unlink(missing_ok=True)
    states = []
    for i, client_id in enumerate(client_ids):
      path = self._directory / str(i)
      content = self._store.get(client_id)
      # All are of one size: not truncated first, it takes a third of the time.
      with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666), 'wb') as file:
        file.write(self._first if content is None else content)
      states.append(ClientState(client_id.encode(), bytes(path)))
    return states

  def write(self, states: Sequence[ClientState]) -> None:
    """Keeps what `next` returned for the clients.

    Raises:
      ValueError: If a client is there twice.
      OSError: If a client's file is not whole, or there is no room in the store.
    """
    check_all_different([client_id.decode() for client_id, _ in states])
    for client_id, path in states:
      file = pathlib.Path(os.fsdecode(path))
      content = file.read_bytes()
      if len(content) != len(self._first):
        raise OSError(f'{file} is not whole.')
      self._store.put(client_id.decode(), content)
      self._taken.add(file)
