"""Tests of running computations in this process."""

import collections
import pathlib
import threading
import time
from typing import NamedTuple

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_algorithms import problems
from tests.training_loops import rounds
from tff_algorithms.fed_avg import build_fed_avg
from training_loops import algorithms, graph_functions, round_plan, runtimes

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('runtime')]


@pytest.fixture
def in_process(runtime):
  """The in-process runtime as the default; that of the other tests afterwards."""
  own = runtimes.create('in_process', num_threads=2)
  with own:
    yield own
  runtime.start()


# Every algorithm.


@pytest.mark.parametrize('algorithm', algorithms.branches())
def test_every_algorithm_gives_what_it_gives_on_the_worker(
  algorithm, runtime, in_process, tmp_path
):
  flags, found = rounds.on_first_task(algorithm, tmp_path)
  runtime.start()
  rounds.assert_equal(found, rounds.outputs(flags, tmp_path / 'local'), 1e-6)


@pytest.mark.parametrize('algorithm', ['fed_avg', 'scaffold', 'mime'])
def test_elastic_aggregation_gives_what_it_gives_on_the_worker(
  algorithm, runtime, in_process, tmp_path
):
  elastic = dict(elastic_sensitivity='momentum', elastic_batch_size=2)
  flags, found = rounds.on_first_task(algorithm, tmp_path, **elastic)
  runtime.start()
  rounds.assert_equal(found, rounds.outputs(flags, tmp_path / 'local'), 1e-6)


# What goes in and comes out.


@tff.tensorflow.computation
def _all_kinds():
  return collections.OrderedDict(
    flag=True,
    flags=[True, False],
    small=tf.constant(7, tf.int8),
    number=tf.constant(-(2**40), tf.int64),
    half=tf.constant([0.5, -2.0], tf.bfloat16),
    real=tf.constant(1e-300, tf.float64),
    matrix=tf.reshape(tf.range(6, dtype=tf.float32), [2, 3]),
    none=tf.zeros([0, 3], tf.int32),
    text='Zoë',
    texts=tf.constant(['a', 'bc']),
    complex=tf.constant(1 + 2j, tf.complex64),
    nothing=(),
  )


def test_values_of_every_kind_are_those_of_the_worker_and_may_be_given_again(
  runtime, in_process
):
  there = _all_kinds()
  back = tff.tensorflow.computation(
    lambda value: tf.nest.map_structure(tf.identity, value),
    _all_kinds.type_signature.result,
  )(there)
  runtime.start()
  for found in (there, back):
    for name, value in _all_kinds().items():
      expected, got = np.asarray(value), np.asarray(found[name])
      assert (got.dtype, got.shape) == (expected.dtype, expected.shape), name
      np.testing.assert_array_equal(got, expected)
  assert type(there['text']) is bytes
  assert type(there['matrix']) is np.ndarray
  assert type(there['real']) is np.float64


class _Point(NamedTuple):
  x: np.float32
  y: collections.OrderedDict


def test_structures_come_back_in_their_containers(in_process):
  value_type = tff.types.to_type(
    _Point(
      np.float32, collections.OrderedDict(z=[np.int32], a=(np.int32, np.int32, []))
    )
  )

  @tff.federated_computation(tff.FederatedType(value_type, tff.SERVER))
  def same(value):
    return value

  value = _Point(
    np.float32(1),
    collections.OrderedDict(z=[np.int32(2)], a=(np.int32(3), np.int32(4), [])),
  )
  back = same(value)
  assert back == value
  assert isinstance(back, _Point)
  assert isinstance(back.y['z'], list)
  assert isinstance(back.y['a'], tuple)


def test_what_is_given_may_be_changed_afterwards_and_what_comes_back_may_not(
  in_process,
):
  @tff.federated_computation(tff.FederatedType((np.float32, [1000]), tff.SERVER))
  def same(value):
    return value

  given = np.zeros(1000, np.float32)
  back = same(given)
  given[:] = 1
  assert not back.any()
  with pytest.raises(ValueError, match='read-only'):
    back[:] = 1


def test_arguments_of_another_shape_or_number_are_refused(in_process):
  @tff.federated_computation(
    tff.FederatedType(np.int32, tff.CLIENTS), tff.FederatedType(np.int32, tff.CLIENTS)
  )
  def both(a, b):
    return tff.federated_sum(a), tff.federated_sum(b)

  assert both([1, 2], [3, 4]) == (3, 7)
  with pytest.raises(ValueError, match='Conflicting numbers of clients: \\[1, 2\\]'):
    both([1, 2], [3])
  with pytest.raises(TypeError, match='a list with a value a client'):
    both(1, 2)
  with pytest.raises(TypeError):
    both([1.5, 2], [3, 4])
  assert both([], []) == (0, 0)


_NUMBERS = tff.SequenceType(np.int64)


def test_clients_may_be_data_sets_or_lists(in_process):
  @tff.tensorflow.computation(_NUMBERS)
  def total(numbers):
    return numbers.reduce(np.int64(0), lambda a, b: a + b)

  @tff.federated_computation(tff.FederatedType(_NUMBERS, tff.CLIENTS))
  def totals(clients):
    each = tff.federated_map(total, clients)
    return each, tff.federated_sum(each)

  assert totals([tf.data.Dataset.range(n) for n in (3, 0, 5)]) == ([3, 0, 10], 13)
  assert totals([[np.int64(2), np.int64(5)]]) == ([7], 7)
  with pytest.raises(TypeError, match='a data set'):
    totals([3])
  with pytest.raises(TypeError, match='a data set of'):
    totals([tf.data.Dataset.from_tensors(1.0)])


# Clients.


def _summed(work, client_type=np.float32):
  @tff.federated_computation(tff.FederatedType(client_type, tff.CLIENTS))
  def total(values):
    return tff.federated_sum(
      tff.federated_map(tff.tensorflow.computation(work, client_type), values)
    )

  return total


def _slow(value):
  """The value, after a time that is shorter for later clients."""
  turns = tf.cast(tf.random.stateless_uniform([], [1, 2], 1, 9), tf.int32)
  end = 20_000 // tf.cast(tf.abs(value) + 1, tf.int32)
  count = tf.while_loop(lambda i: i < end, lambda i: [i + turns], [0])[0]
  return value + 0 * tf.cast(count, tf.float32)


def test_clients_are_accumulated_in_their_order_whoever_is_first(in_process):
  generator = np.random.default_rng(0)
  values = [np.float32(v) for v in generator.normal(size=50) * 10 ** np.arange(50) % 97]
  expected = np.float32(0)
  for value in values:
    expected += value
  total = _summed(_slow)
  for _ in range(3):
    assert total(values) == expected


def test_each_client_keeps_its_own_result_in_order(in_process):
  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def squares(values):
    return tff.federated_map(
      tff.tensorflow.computation(lambda x: (_slow(x), x * x), np.float32), values
    )

  values = [np.float32(i) for i in range(20)]
  assert squares(values) == [(v, v * v) for v in values]


def test_there_may_be_more_threads_than_clients_and_none_at_all(runtime):
  for num_threads in (1, 8):
    with runtimes.create('in_process', num_threads=num_threads):
      assert _summed(_slow)([1.0, 2.0]) == 3
      assert _summed(_slow)([]) == 0
  runtime.start()


def _checked(value):
  check = tf.debugging.assert_non_negative(value, message='too low')
  with tf.control_dependencies([check]):
    return value + 100


def test_a_computation_works_again_after_an_error_of_a_client(in_process):
  total = _summed(_checked)
  for _ in range(3):
    assert total([1.0, 2.0]) == 203
    with pytest.raises(Exception, match='too low'):
      total([1.0] * 5 + [-2.0] + [1.0] * 50)


def test_values_cross_over_from_one_aggregation_to_the_next(in_process):
  """As in Mime: what is summed goes out again, and clients keep what they have made."""

  @tff.federated_computation(
    tff.FederatedType(np.float32, tff.SERVER),
    tff.FederatedType(np.float32, tff.CLIENTS),
  )
  def twice(start, values):
    add = tff.tensorflow.computation(lambda a, b: a + b, np.float32, np.float32)
    first = tff.federated_map(add, (values, tff.federated_broadcast(start)))
    total = tff.federated_sum(first)
    second = tff.federated_map(add, (first, tff.federated_broadcast(total)))
    return total, tff.federated_sum(second), second

  # 10 + 1, 10 + 2: 23; 11 + 23, 12 + 23: 69.
  assert twice(10.0, [1.0, 2.0]) == (23, 69, [34, 35])


# What TensorFlow keeps.


def test_each_call_has_variables_of_its_own(in_process):
  def count(value):
    variable = tf.Variable(0.0)
    with tf.control_dependencies([variable.assign_add(value)]):
      return variable.read_value()

  total = _summed(count)
  for _ in range(3):
    assert total([1.0, 2.0, 3.0, 4.0]) == 10


def test_rows_that_clients_select_are_theirs(in_process):
  keys_type = tff.TensorType(np.int32, [2])
  rows_type = tff.TensorType(np.float32, [5, 3])

  @tff.tensorflow.computation(rows_type, np.int32)
  def row(rows, key):
    return tf.gather(rows, key)

  @tff.tensorflow.computation(tff.SequenceType(tff.TensorType(np.float32, [3])))
  def stacked(rows):
    return rows.batch(10).get_single_element()

  @tff.federated_computation(
    tff.FederatedType(rows_type, tff.SERVER), tff.FederatedType(keys_type, tff.CLIENTS)
  )
  def selected(rows, keys):
    max_key = tff.federated_value(5, tff.SERVER)
    return tff.federated_map(stacked, tff.federated_select(keys, max_key, rows, row))

  rows = np.arange(15, dtype=np.float32).reshape(5, 3)
  keys = [np.array(pair, np.int32) for pair in ([0, 4], [2, 2])]
  for found, own in zip(selected(rows, keys), keys, strict=True):
    np.testing.assert_array_equal(found, rows[own])


def test_what_cannot_be_planned_is_said(in_process):
  with pytest.raises(round_plan.UnsupportedError, match='federated_secure_sum'):

    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def total(values):
      return tff.federated_secure_sum(values, 10)

    total([1, 2])


def test_a_round_is_two_calls_a_client_and_builds_nothing_after_the_first(
  in_process, monkeypatch
):
  counts = collections.Counter()

  class Counted(graph_functions.GraphFunction):
    def __init__(self, *arguments):
      counts['built'] += 1
      super().__init__(*arguments)

    def __call__(self, *arguments):
      counts['called'] += 1
      return super().__call__(*arguments)

  monkeypatch.setattr(graph_functions, 'GraphFunction', Counted)
  problem = problems.logistic()
  process = build_fed_avg(problem.model, client_learning_rate=0.1, batch_size=4)
  state = process.initialize()
  found = []
  for num_clients in (3, 3, 5, 8, 1):
    counts.clear()
    rows = [problems.classification_rows(5 + i, seed=i) for i in range(num_clients)]
    state = process.next(state, [problems.dataset(own) for own in rows]).state
    found.append((num_clients, counts['built'], counts['called']))
  _, built, called = found[0]
  of_server = called - 2 * 3
  assert built == of_server + 2  # A client's work, and what is accumulated of it.
  assert found[1:] == [(n, 0, 2 * n + of_server) for n in (3, 5, 8, 1)]


def test_memory_and_threads_stay_as_they_are_from_call_to_call(in_process):
  total = _summed(lambda x: tf.reduce_sum(tf.fill([10_000], x)))
  total([1.0] * 10)
  num_threads, size = threading.active_count(), _resident_megabytes()
  for _ in range(300):
    total([1.0] * 10)
  assert threading.active_count() == num_threads
  assert _resident_megabytes() < size + 30


def _resident_megabytes() -> float:
  pages = int(pathlib.Path('/proc/self/statm').read_text().split()[1])
  return pages * 4096 / 2**20


def test_threads_end_with_the_runtime(runtime):
  before = threading.active_count()
  with runtimes.create('in_process', num_threads=4):
    assert _summed(_slow)([1.0]) == 1
    assert threading.active_count() > before
  deadline = time.monotonic() + 10
  while threading.active_count() > before and time.monotonic() < deadline:
    time.sleep(0.01)
  assert threading.active_count() <= before
  with pytest.raises(runtimes.RuntimeFailure, match='stopped'):
    _summed(_slow)([1.0])
  runtime.start()
