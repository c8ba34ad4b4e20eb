"""States laid out as files for a round, and taken back."""

import os
import pathlib

import numpy as np
import pytest

from tff_algorithms import client_state_files
from tff_algorithms.client_states import ClientState
from training_loops.client_state_exchange import ClientStateExchange
from training_loops.client_state_store import ClientStateStore

_FIRST = {'c': np.zeros(3, np.float32)}


@pytest.fixture(name='store')
def an_empty_store(tmp_path):
  store = ClientStateStore(tmp_path / 'states.sqlite', _FIRST, {})
  store.restore(0, None)
  yield store
  store.close()


@pytest.fixture(name='exchange')
def an_exchange(store, tmp_path):
  (tmp_path / 'files').mkdir()
  return ClientStateExchange(store, tmp_path / 'files')


def _path(state) -> pathlib.Path:
  return pathlib.Path(os.fsdecode(state.value))


def _return(state, values) -> ClientState:
  """What a client returns that keeps these values."""
  new = pathlib.Path(f'{_path(state)}.new')
  new.write_bytes(np.array(values, np.float32).tobytes())
  return ClientState(state.client_id, bytes(new))


def test_who_has_never_taken_part_finds_the_first_state(exchange):
  states = exchange.read(['b', 'ä'])
  assert [state.client_id.decode() for state in states] == ['b', 'ä']
  assert all(_path(s).read_bytes() == bytes(12) for s in states)
  assert _path(states[0]) != _path(states[1])


def test_who_has_finds_what_it_returned_whatever_the_order(exchange):
  a, b = exchange.read(['a', 'b'])
  exchange.write([_return(b, [2, 2, 2]), _return(a, [1, 1, 1])])
  found = [
    np.frombuffer(_path(s).read_bytes(), 'f4') for s in exchange.read(['b', 'a'])
  ]
  np.testing.assert_array_equal(found, [[2, 2, 2], [1, 1, 1]])


def test_the_first_state_stays_what_it_is(exchange):
  (a,) = exchange.read(['a'])
  exchange.write([_return(a, [1, 1, 1])])
  exchange.read(['a'])  # Now its own state is in the file where the first one was.
  (c,) = exchange.read(['c'])
  assert _path(c).read_bytes() == bytes(12)


def test_the_store_has_the_values(exchange, store):
  (a,) = exchange.read(['a'])
  exchange.write([_return(a, [1, 2, 3])])
  ((_, value),) = store.read(['a'])
  np.testing.assert_array_equal(value['c'], [1, 2, 3])
  assert store.get('a') == client_state_files.to_bytes(value)


def test_what_was_taken_can_be_taken_again_until_the_next_round(exchange, store):
  (a,) = exchange.read(['a'])
  returned = _return(a, [1, 2, 3])
  for _ in range(2):  # The first may have been interrupted.
    exchange.write([returned])
  exchange.read(['b'])
  assert not _path(returned).exists()
  np.testing.assert_array_equal(store.read(['a'])[0].value['c'], [1, 2, 3])


def test_a_file_that_is_not_whole_is_not_kept(exchange, store):
  (a,) = exchange.read(['a'])
  with pytest.raises(OSError, match='is not whole'):
    exchange.write([_return(a, [1, 2])])
  assert store.get('a') is None


def test_a_client_twice_in_what_comes_back_is_refused(exchange):
  (a,) = exchange.read(['a'])
  with pytest.raises(ValueError, match='Client a is twice in one round'):
    exchange.write([_return(a, [1, 2, 3])] * 2)


def test_a_client_twice_in_a_round_is_refused(exchange):
  with pytest.raises(ValueError, match='Client a is twice in one round'):
    exchange.read(['a', 'b', 'a'])
