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


def _limited(load_rows):
  return client_inputs.with_max_steps(client_inputs.from_id(load_rows))


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

  both = _limited(load_rows)
  alone = client_inputs.from_id(load_rows)
  for limit in (1, 3):
    values = [{'client': 'client 9', 'max_steps': np.int32(limit)}]
    expected = trained(alone, ['client 9'], max_steps=limit)
    problems.assert_close(trained(both, values), expected, 1e-6)
  unlimited = [{'client': name, 'max_steps': np.int32(1000)} for name in cohort]
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
  both = client_inputs.of_halves(_limited(lambda _: ()))
  given = both.load(
    {
      'client': {'client': tf.constant('a'), 'max_steps': tf.constant(3)},
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
  both = client_inputs.of_populations(_limited(lambda _: ()))
  given = both.load(
    {
      'client': {'client': tf.constant('a'), 'max_steps': tf.constant(3)},
      'population': tf.constant(1),
    }
  )
  assert (given.max_steps, given.population) == (3, 1)


# Rows that are held back.


def _numbered(n, first=0):
  """Rows that are their own numbers, from `first` on."""
  return collections.OrderedDict(x=np.arange(first, first + n, dtype=np.int32))


_NUMBERED_SPEC = collections.OrderedDict(x=tf.TensorSpec([None], tf.int32))


def _held_back(rows, fraction=0.3, batch_size=1, seed=0, rows_at_a_time=3):
  """The numbers of the rows that a client trains on, and of those it holds back."""
  client_input = client_inputs.holding_back(
    client_inputs.from_dataset(_NUMBERED_SPEC), fraction, batch_size, seed
  )
  given = client_input.load(problems.dataset(rows, rows_at_a_time))
  return given.rows['x'].numpy().tolist(), given.held_back['x'].numpy().tolist()


@pytest.mark.parametrize(('n', 'num_held'), [(0, 0), (1, 0), (4, 1), (9, 2), (40, 12)])
def test_each_row_is_trained_on_or_held_back_in_the_order_it_came(n, num_held):
  trained, held = _held_back(_numbered(n))
  assert sorted(trained + held) == list(range(n))
  assert (trained, held) == (sorted(trained), sorted(held))
  assert len(held) == num_held


def test_all_columns_are_split_alike():
  rows = problems.classification_rows(20)
  client_input = client_inputs.holding_back(
    client_inputs.from_dataset(_SPEC), 0.4, 1, seed=0
  )
  given = client_input.load(problems.dataset(rows))
  found = {tuple(x): y for x, y in zip(rows['x'], rows['y'], strict=True)}
  for part, n in ((given.rows, 12), (given.held_back, 8)):
    assert len(part['y']) == n
    for x, y in zip(part['x'].numpy(), part['y'].numpy(), strict=True):
      assert found[tuple(x)] == y


def test_the_split_does_not_change_and_not_with_the_batches_of_the_data_set():
  split = _held_back(_numbered(40))
  for rows_at_a_time in (1, 3, 100):
    assert _held_back(_numbered(40), rows_at_a_time=rows_at_a_time) == split


def test_clients_and_seeds_have_splits_of_their_own():
  numbers = set()
  for first in (0, 100, 200):
    for seed in (0, 1, 2):
      _, held = _held_back(_numbered(40, first), seed=seed)
      numbers.add(tuple(number - first for number in held))
  assert len(numbers) == 9


def test_every_row_may_be_held_back():
  """The draw does not prefer some places: 100 clients, 12 of 40 rows each."""
  by_id = client_inputs.from_id(lambda client_id: tf.range(40))
  load = tf.function(client_inputs.holding_back(by_id, 0.3, 1, seed=0).load)
  counts = np.zeros(40)
  for client in range(100):
    counts[load(tf.constant(f'client {client}')).held_back] += 1
  assert counts.sum() == 1200
  assert counts.min() > 10  # Of 30, with a standard deviation of 4.6.
  assert counts.max() < 50


@pytest.mark.parametrize(
  ('n', 'num_held'), [(13, 0), (14, 4), (16, 4), (17, 5), (40, 12)]
)
def test_less_than_a_batch_is_not_held_back(n, num_held):
  trained, held = _held_back(_numbered(n), batch_size=4)
  assert len(held) == num_held
  assert len(trained) == n - num_held


@pytest.mark.parametrize('hundredths', [1, 7, 10, 29, 30, 57, 58, 90])
def test_the_number_is_that_of_the_decimal_fraction(hundredths):
  """0.29 of 100 rows are 29, though 0.29 * 100 is 28.999999999999996."""
  client_input = client_inputs.holding_back(
    client_inputs.from_id(lambda text: tf.range(tf.strings.to_number(text, tf.int32))),
    hundredths / 100,
    batch_size=1,
    seed=0,
  )

  @tf.function
  def num_held(text):
    return tf.size(client_input.load(text).held_back)

  for n in [*range(101), 200, 999, 1000, 99_900, 100_000]:
    assert num_held(tf.constant(str(n))) == hundredths * n // 100, n


def test_the_key_is_that_of_the_client_with_all_its_rows():
  by_id = client_inputs.from_id(lambda client_id: tf.range(10))
  held = client_inputs.holding_back(by_id, 0.5, 1, seed=0)
  text = tf.constant('a client')
  assert held.load(text).key == by_id.load(text).key
  assert held.type == by_id.type
  assert by_id.load(text).held_back is None


def test_a_limit_of_steps_a_half_and_a_population_go_with_rows_held_back():
  limited = _limited(lambda client_id: tf.range(10))
  value = {'client': tf.constant('a'), 'max_steps': tf.constant(3)}
  for outer in (
    client_inputs.of_halves(client_inputs.holding_back(limited, 0.3, 1, seed=0)),
    client_inputs.holding_back(client_inputs.of_halves(limited), 0.3, 1, seed=0),
  ):
    given = outer.load({'client': value, 'only_gradient': tf.constant(True)})
    assert (given.max_steps, given.only_gradient) == (3, True)
    assert (len(given.rows), len(given.held_back)) == (7, 3)
    assert len(given.rows_for_gradient) == 7
  of_several = client_inputs.of_populations(
    client_inputs.holding_back(limited, 0.3, 1, seed=0)
  )
  given = of_several.load({'client': value, 'population': tf.constant(2)})
  assert (given.population, len(given.rows), len(given.held_back)) == (2, 7, 3)


def test_of_a_stream_nothing_can_be_held_back():
  client_input = client_inputs.holding_back(
    client_inputs.from_stream(_SPEC, 4), 0.3, 1, seed=0
  )
  with pytest.raises(ValueError, match='Of a stream nothing can be held back'):
    client_input.load(problems.dataset(problems.classification_rows(7)))


@pytest.mark.parametrize('fraction', [0, 1, -0.1, 1.5, float('nan')])
def test_a_part_that_is_nothing_or_all_is_refused(fraction):
  with pytest.raises(ValueError, match='fraction must be between 0 and 1'):
    client_inputs.holding_back(client_inputs.from_dataset(_SPEC), fraction, 1, seed=0)


@pytest.mark.parametrize('batch_size', [0, -1, 1.5, True])
def test_the_least_number_of_rows_to_hold_back_is_a_count(batch_size):
  with pytest.raises(ValueError, match='batch_size must be a whole number'):
    client_inputs.holding_back(client_inputs.from_dataset(_SPEC), 0.1, batch_size, 0)
