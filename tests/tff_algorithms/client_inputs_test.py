"""The client's input: the same rows, and keys of their own, whichever way they come."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tests.tff_algorithms import problems
from tff_algorithms import client_inputs
from tff_algorithms.fed_avg import build_fed_avg

_SPEC = problems.logistic().model.input_spec


def _load(rows, batch_size):
  load = client_inputs.from_dataset(_SPEC).load
  return tf.function(lambda: load(problems.dataset(rows, batch_size)))()


@pytest.mark.parametrize('n', [0, 1, 6, 7])
@pytest.mark.parametrize('batch_size', [1, 3, 100])
def test_a_data_set_is_gathered_whole_and_in_order(n, batch_size):
  rows = problems.classification_rows(n)
  gathered = _load(rows, batch_size).rows
  for name in rows:
    np.testing.assert_array_equal(gathered[name], rows[name])


def test_the_key_follows_the_first_row_and_not_the_batching():
  rows = problems.classification_rows(7, seed=1)
  other = problems.classification_rows(7, seed=2)
  assert _load(rows, 2).key == _load(rows, 5).key
  assert _load(rows, 2).key != _load(other, 2).key


@pytest.mark.slow
def test_a_client_by_id_trains_as_its_data_set_does(runtime, tmp_path):
  cohort = {f'client {n}': problems.classification_rows(n) for n in (9, 0, 4)}
  for client_id, rows in cohort.items():
    rows['x'].tofile(tmp_path / f'{client_id}.x')
    rows['y'].tofile(tmp_path / f'{client_id}.y')

  def load_rows(client_id):
    path = tf.strings.join([str(tmp_path), '/', client_id])
    x = tf.io.decode_raw(tf.io.read_file(path + '.x'), tf.float32)
    y = tf.io.decode_raw(tf.io.read_file(path + '.y'), tf.int32)
    return collections.OrderedDict(x=tf.reshape(x, [-1, 5]), y=y)

  arguments = dict(client_learning_rate=0.1, batch_size=4, shuffle=False)
  model = problems.logistic().model
  by_id = build_fed_avg(
    model, client_input=client_inputs.from_id(load_rows), **arguments
  )
  output = by_id.next(by_id.initialize(), list(cohort))
  by_dataset, _ = problems.run(build_fed_avg(model, **arguments), [cohort.values()])
  problems.assert_close(output.state.server.weights.trainable, by_dataset[0], 1e-6)


@pytest.mark.slow
def test_a_client_with_a_limit_takes_so_many_steps_and_others_all(runtime):
  cohort = {f'client {n}': problems.classification_rows(n) for n in (9, 11, 4)}
  arguments = dict(client_learning_rate=0.1, batch_size=2, epochs=2, shuffle=False)
  model = problems.logistic().model

  def load_rows(client_id):
    branches = [
      (tf.equal(client_id, name), lambda rows=rows: _constants(rows))
      for name, rows in cohort.items()
    ]
    return tf.case(branches, exclusive=True)

  def trained(client_input, values, **limits):
    process = build_fed_avg(model, client_input=client_input, **arguments, **limits)
    state = process.next(process.initialize(), values).state
    return state.server.weights.trainable

  both = client_inputs.from_id_and_max_steps(load_rows)
  alone = client_inputs.from_id(load_rows)
  for limit in (1, 3):
    values = [{'client_id': 'client 9', 'max_steps': np.int32(limit)}]
    expected = trained(alone, ['client 9'], max_steps=limit)
    problems.assert_close(trained(both, values), expected, 1e-6)
  unlimited = [{'client_id': name, 'max_steps': np.int32(1000)} for name in cohort]
  problems.assert_close(trained(both, unlimited), trained(alone, list(cohort)), 1e-6)


def _constants(rows):
  return collections.OrderedDict((n, tf.constant(a)) for n, a in rows.items())


def test_rows_of_no_fixed_shape_are_refused():
  with pytest.raises(ValueError, match='All rows must be of one shape'):
    client_inputs.from_dataset((tf.TensorSpec([None, None]), tf.TensorSpec([None])))
