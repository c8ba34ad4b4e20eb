"""States as files: their bytes on both sides, and a process that reads and writes."""

import collections
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tree

from tests.tff_algorithms import problems, stateful
from tff_algorithms import client_state_files, client_states
from tff_algorithms.client_states import ClientState
from tff_algorithms.scaffold import build_scaffold

_STATE = collections.OrderedDict(
  kernel=np.array([[1.5, -2.0], [np.pi, 1e-30]], np.float32),
  deep=(np.array(7, np.int64), np.array([True, False, True])),
  wide=np.arange(5, dtype=np.float64),
  nothing=np.zeros([0, 3], np.float32),
  keys=np.array([2**32 - 1, 7], np.uint32),
  bits=np.array([2**63], np.uint64),
  small=np.array([-1, 1], np.int8),
  half=np.array([1.5], np.float16),
)


def _assert_equal(actual, expected):
  tree.assert_same_structure(actual, expected)
  for a, b in zip(tree.flatten(actual), tree.flatten(expected), strict=True):
    np.testing.assert_array_equal(a, b)
    assert np.asarray(a).dtype == b.dtype


def test_a_state_comes_back_from_its_bytes():
  content = client_state_files.to_bytes(_STATE)
  assert len(content) == 4 * 4 + 8 + 3 + 5 * 8 + 2 * 4 + 8 + 2 + 2
  _assert_equal(client_state_files.from_bytes(content, _STATE), _STATE)


def _specs():
  return tree.map_structure(lambda a: tf.TensorSpec(a.shape, a.dtype), _STATE)


def test_a_client_reads_the_bytes_of_a_state(tmp_path):
  (tmp_path / 'c').write_bytes(client_state_files.to_bytes(_STATE))
  _assert_equal(client_state_files.read(str(tmp_path / 'c'), _specs()), _STATE)


def test_a_client_writes_the_bytes_of_a_state_beside_the_old_one(tmp_path):
  (tmp_path / 'c').write_bytes(b'the old one')
  state = tree.map_structure(tf.constant, _STATE)
  path = client_state_files.write(tf.constant(str(tmp_path / 'c')), state).numpy()
  written = pathlib.Path(path.decode())
  assert written.read_bytes() == client_state_files.to_bytes(_STATE)
  assert (tmp_path / 'c').read_bytes() == b'the old one'


@pytest.mark.usefixtures('runtime')
@pytest.mark.parametrize('option', [1, 2])
def test_by_file_a_process_is_the_same_to_the_last_bit(option, tmp_path):
  arguments = dict(
    num_clients=6, option=option, client_learning_rate=0.2, batch_size=4, epochs=2
  )
  model = problems.logistic().model
  rounds = stateful.sampled_rounds(4, (5, 6, 0, 7), 3)
  weights, all_c, of_clients, _ = stateful.run(
    build_scaffold(model, **arguments), rounds
  )
  process = build_scaffold(model, client_states_by_file=True, **arguments)
  first = process.initialize_client()
  files, state = {}, process.initialize()
  for cohort in rounds:
    given = []
    for client_id, _ in cohort:
      path = tmp_path / client_id
      content = files.get(client_id.encode(), client_state_files.to_bytes(first))
      path.write_bytes(content)
      given.append(ClientState(client_id, str(path)))
    datasets = [problems.dataset(rows) for _, rows in cohort]
    output = process.next(state, datasets, given)
    state = output.state
    for client_id, path in output.client_states:
      files[client_id] = pathlib.Path(path.decode()).read_bytes()
  _assert_equal(state.server.weights.trainable, weights[-1])
  _assert_equal(state.server.terms[0], all_c[-1])
  for client_id, content in files.items():
    kept = client_state_files.from_bytes(content, first)['control_variates']
    _assert_equal(kept, of_clients[-1][client_id.decode()])


def test_its_type_is_that_of_paths():
  process = build_scaffold(
    problems.logistic().model,
    num_clients=2,
    client_learning_rate=0.1,
    batch_size=4,
    client_states_by_file=True,
  )
  kept = '{<client_id=str,value=str>}@CLIENTS'
  assert str(process.next.type_signature.parameter.client_states) == kept
  assert str(process.next.type_signature.result.proposed) == kept


def test_a_client_state_is_a_pair_of_an_id_and_a_value():
  assert client_states.ClientState._fields == ('client_id', 'value')
