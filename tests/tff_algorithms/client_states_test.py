"""Tests of what clients keep, in memory."""

import collections

import numpy as np
import pytest
import tree

from tff_algorithms.client_states import ClientState, InMemoryClientStates


class _Process:
  """As much of a `StatefulProcess` as states need."""

  def __init__(self, cohort_limit=None):
    self.cohort_limit = cohort_limit

  def initialize_client(self):
    return collections.OrderedDict(
      control=[np.zeros([2, 3], np.float32), np.float32(0)], steps=np.int64(0)
    )


def _state(value: float):
  return collections.OrderedDict(
    control=[np.full([2, 3], value, np.float32), np.float32(-value)],
    steps=np.int64(value),
  )


def _assert_same(a, b):
  tree.assert_same_structure(a, b)
  for x, y in zip(tree.flatten(a), tree.flatten(b), strict=True):
    x, y = np.asarray(x), np.asarray(y)
    assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


@pytest.fixture
def states():
  return InMemoryClientStates(_Process())


def _read(states, client_ids) -> dict[str, int]:
  """How many steps clients have in their states, by id."""
  return {c.decode(): int(value['steps']) for c, value in states.read(client_ids)}


def test_what_is_written_is_read(states):
  states.write([ClientState(b'a', _state(1)), ClientState(b'b', _state(2))])
  (a,) = states.read(['a'])
  assert a.client_id == b'a'
  _assert_same(a.value, _state(1))
  states.write([ClientState(b'a', _state(3))])
  assert _read(states, ['a', 'b']) == {'a': 3, 'b': 2}


def test_a_round_has_no_more_clients_than_there_are():
  states = InMemoryClientStates(_Process(cohort_limit=2))
  assert _read(states, ['a', 'b']) == {'a': 0, 'b': 0}
  with pytest.raises(ValueError, match=r'A round of 3 clients.* num_clients=2 in all'):
    states.read(['a', 'b', 'c'])


def test_a_client_never_seen_gets_the_first_state(states):
  states.write([ClientState(b'a', _state(1))])
  for _ in range(2):
    never_seen, seen = states.read(['b', 'a'])
    _assert_same(never_seen.value, _Process().initialize_client())
    _assert_same(seen.value, _state(1))


def test_states_are_read_in_the_order_asked_for(states):
  states.write([ClientState(c, _state(i)) for i, c in enumerate([b'c', b'a', b'b'])])
  assert [s.client_id for s in states.read(['b', 'x', 'c'])] == [b'b', b'x', b'c']
  assert _read(states, ['b', 'x', 'c']) == {'b': 2, 'x': 0, 'c': 0}


def test_the_order_in_which_results_come_back_does_not_matter(states):
  """It is that in which clients finish, another one each time."""
  results = [ClientState(b'%d' % i, _state(i)) for i in range(20)]
  expected = {str(i): i for i in range(20)}
  for seed in range(3):
    shuffled = np.random.default_rng(seed).permutation(20)
    other = InMemoryClientStates(_Process())
    other.write([results[i] for i in shuffled])
    assert _read(other, [str(i) for i in range(20)]) == expected


def test_any_text_is_an_id_and_every_character_counts(states):
  ids = ['', ' ', 'a', 'A', 'a\0', 'é', 'e\u0301', '客户', '🙂']
  read = states.read(ids)
  assert [state.client_id.decode() for state in read] == ids
  states.write([s._replace(value=_state(i)) for i, s in enumerate(read)])
  assert _read(states, ids) == {c: i for i, c in enumerate(ids)}


def test_no_client_at_all_is_no_mistake(states):
  assert states.read([]) == []
  states.write([])
  assert _read(states, ['a']) == {'a': 0}


def test_a_client_twice_in_a_cohort_is_refused(states):
  with pytest.raises(ValueError, match='Client a is twice'):
    states.read(['b', 'a', 'c', 'a'])


def test_a_client_that_comes_back_twice_is_refused_and_nothing_is_written(states):
  results = [ClientState(c, _state(1)) for c in (b'b', b'a', b'c', b'a')]
  with pytest.raises(ValueError, match='Client a is twice'):
    states.write(results)
  assert _read(states, ['a', 'b', 'c']) == {'a': 0, 'b': 0, 'c': 0}


def _changed(**changes):
  return collections.OrderedDict({**_state(1), **changes})


@pytest.mark.parametrize(
  'value',
  [
    _changed(steps=np.int32(1)),
    _changed(steps=np.float64(1)),
    _changed(steps=np.ones([1], np.int64)),
    _changed(control=[np.zeros([3, 2], np.float32), np.float32(0)]),
    _changed(control=[np.zeros([6], np.float32), np.float32(0)]),
    _changed(control=[np.zeros([2, 3], np.float32)]),
    _changed(control=[np.zeros([2, 3], np.float32)] + [np.float32(0)] * 2),
    _changed(control=[np.float32(0), np.zeros([2, 3], np.float32)]),
    _changed(control={'x': np.zeros([2, 3], np.float32), 'y': np.float32(0)}),
    _changed(more=np.int64(1)),
    collections.OrderedDict(control=_state(1)['control'], other=np.int64(1)),
    _state(1)['control'],
    np.float32(1),
    (),
  ],
  ids=str,
)
def test_a_state_of_another_structure_is_refused_and_nothing_is_written(states, value):
  with pytest.raises(ValueError, match='state of client b'):
    states.write([ClientState(b'a', _state(1)), ClientState(b'b', value)])
  assert _read(states, ['a', 'b']) == {'a': 0, 'b': 0}


def test_numbers_that_are_no_arrays_are_taken_by_their_type():
  class Process(_Process):
    def initialize_client(self):
      return np.float32(0)

  states = InMemoryClientStates(Process())
  states.write([ClientState(b'a', np.ones([], np.float32))])
  assert states.read(['a'])[0].value == 1
  with pytest.raises(ValueError, match='float64'):
    states.write([ClientState(b'a', 2.0)])
  assert states.read(['a'])[0].value == 1
