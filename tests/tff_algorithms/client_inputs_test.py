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


# Halves.


def _in_half(rows, only_gradient):
  load = client_inputs.of_halves(client_inputs.from_dataset(_SPEC)).load
  value = collections.OrderedDict(
    client=problems.dataset(rows), only_gradient=tf.constant(only_gradient)
  )
  return tf.function(lambda: load(value))()


@pytest.mark.parametrize('only_gradient', [False, True])
def test_a_client_of_a_half_has_the_rows_and_the_key_that_it_has_without(only_gradient):
  rows = problems.classification_rows(7)
  given, plain = _in_half(rows, only_gradient), _load(rows, 3)
  assert given.only_gradient == only_gradient
  assert plain.only_gradient is None
  assert given.key == plain.key
  for name in rows:
    np.testing.assert_array_equal(given.rows[name], rows[name])


@pytest.mark.parametrize(('only_gradient', 'n'), [(False, 0), (True, 7)])
def test_only_a_client_for_the_gradient_has_rows_for_it(only_gradient, n):
  rows = problems.classification_rows(7)
  for_gradient = _in_half(rows, only_gradient).rows_for_gradient
  for name in rows:
    np.testing.assert_array_equal(for_gradient[name], rows[name][:n])


def test_without_halves_all_rows_are_for_the_gradient():
  rows = problems.classification_rows(7)
  np.testing.assert_array_equal(_load(rows, 3).rows_for_gradient['x'], rows['x'])


def test_the_type_of_a_half_holds_that_of_the_client():
  by_id = client_inputs.of_halves(client_inputs.from_id(lambda client_id: ()))
  assert str(by_id.type) == '<client=str,only_gradient=bool>'


def test_a_limit_of_steps_goes_with_a_half():
  both = client_inputs.of_halves(client_inputs.from_id_and_max_steps(lambda _: ()))
  given = both.load(
    {
      'client': {'client_id': tf.constant('a'), 'max_steps': tf.constant(3)},
      'only_gradient': tf.constant(True),
    }
  )
  assert (given.max_steps, given.only_gradient) == (3, True)


def test_every_second_client_is_for_the_gradient():
  halves = client_inputs.in_halves(['a', 'b', 'c', 'd', 'e'])
  assert [half['client'] for half in halves] == ['a', 'b', 'c', 'd', 'e']
  assert [half['only_gradient'] for half in halves] == [False, True, False, True, False]
  # The order that the type's fields have: TFF matches them by position.
  assert [list(half) for half in halves] == [['client', 'only_gradient']] * 5


@pytest.mark.parametrize('clients', [[], ['a']])
def test_fewer_than_two_clients_cannot_be_split(clients):
  with pytest.raises(
    ValueError,
    match=f'split_cohort needs at least two clients in a round, found {len(clients)}',
  ):
    client_inputs.in_halves(clients)


# Populations.


@pytest.mark.parametrize('population', [0, 2])
def test_a_client_of_a_population_has_the_rows_and_the_key_that_it_has_without(
  population,
):
  rows = problems.classification_rows(7)
  load = client_inputs.of_populations(client_inputs.from_dataset(_SPEC)).load
  value = collections.OrderedDict(
    client=problems.dataset(rows), population=tf.constant(population)
  )
  given, plain = tf.function(lambda: load(value))(), _load(rows, 3)
  assert given.population == population
  assert plain.population is None
  assert given.key == plain.key
  for name in rows:
    np.testing.assert_array_equal(given.rows[name], rows[name])


def test_the_type_of_a_population_holds_that_of_the_client():
  by_id = client_inputs.of_populations(client_inputs.from_id(lambda client_id: ()))
  assert str(by_id.type) == '<client=str,population=int32>'


def test_a_limit_of_steps_goes_with_a_population():
  both = client_inputs.of_populations(client_inputs.from_id_and_max_steps(lambda _: ()))
  given = both.load(
    {
      'client': {'client_id': tf.constant('a'), 'max_steps': tf.constant(3)},
      'population': tf.constant(1),
    }
  )
  assert (given.max_steps, given.population) == (3, 1)
