"""Tests of having clients computed by workers, where nothing goes wrong."""

import collections
import contextlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.training_loops import remote_workers, rounds
from training_loops import algorithms, round_plan, runtimes

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('runtime')]


@pytest.fixture(scope='module')
def workers(tmp_path_factory):
  """The options of a runtime with three workers."""
  directory = tmp_path_factory.mktemp('workers') / 'certificates'
  remote_workers.make_certificates(directory)
  with contextlib.ExitStack() as stack:
    started = [remote_workers.Worker(directory) for _ in range(3)]
    for worker in started:
      stack.callback(worker.close)
    yield remote_workers.options(directory, started)


@pytest.fixture
def remote(workers, runtime):
  """The remote runtime as the default; that of the other tests afterwards."""
  with runtimes.create('remote', **workers) as own:
    yield own
  runtime.start()


def _flags(workers, **flags):
  return {
    'runtime': 'remote',
    'workers': ','.join(workers['workers']),
    'certificates': workers['certificates'],
    **flags,
  }


@pytest.mark.parametrize('algorithm', algorithms.branches())
def test_every_algorithm_gives_what_it_gives_on_this_machine(
  algorithm, workers, remote, runtime, tmp_path
):
  flags, found = rounds.on_first_task(algorithm, tmp_path, **_flags(workers))
  runtime.start()
  rounds.assert_equal(found, _outputs_here(flags, tmp_path), 1e-5)


def _outputs_here(flags, directory):
  flags = {**flags, 'runtime': 'local', 'client_rows': 'read'}
  return rounds.outputs(flags, directory / 'here')


def test_workers_may_read_the_rows_where_the_files_are(
  workers, remote, runtime, tmp_path
):
  flags = _flags(workers, client_rows='read', straggler_rate=0.5, straggler_steps=1)
  flags, found = rounds.on_first_task('fed_avg', tmp_path, **flags)
  runtime.start()
  rounds.assert_equal(found, _outputs_here(flags, tmp_path), 1e-5)


@pytest.mark.parametrize(
  ('algorithm', 'own'),
  [
    ('fed_avg', {'straggler_rate': 0.5, 'straggler_steps': 1}),
    ('fed_avg', {'aggregator': 'adaptive_clipping'}),
    ('scaffold', {'elastic_sensitivity': 'momentum', 'elastic_batch_size': 2}),
    ('mime', {'mime_split_cohort': True, 'straggler_rate': 0.5, 'straggler_steps': 1}),
  ],
)
def test_what_goes_with_a_client_goes_with_rows_that_are_sent(
  algorithm, own, workers, remote, runtime, tmp_path
):
  flags, found = rounds.on_first_task(algorithm, tmp_path, **_flags(workers, **own))
  runtime.start()
  rounds.assert_equal(found, _outputs_here(flags, tmp_path), 1e-5)


# Clients.


def _mapped(work, client_type=np.float32):
  @tff.federated_computation(tff.FederatedType(client_type, tff.CLIENTS))
  def each(values):
    return tff.federated_map(tff.tensorflow.computation(work, client_type), values)

  return each


def test_all_workers_compute_at_once(remote, tmp_path):
  """Six clients, two for each worker, none of which ends before all have begun."""

  def meet(name):
    write = tf.io.write_file(tf.strings.join([f'{tmp_path}/', name]), '')
    with tf.control_dependencies([write]):

      def num_there():
        return tf.size(tf.io.matching_files(f'{tmp_path}/*'))

      return tf.while_loop(lambda n: n < 6, lambda n: [num_there()], [num_there()])[0]

  names = [f'client {i}'.encode() for i in range(6)]
  assert _mapped(meet, np.str_)(names) == [6] * 6


def test_results_are_those_of_their_clients_and_sums_are_in_their_order(remote):
  generator = np.random.default_rng(0)
  values = [
    np.float32(v) for v in generator.normal(size=101) * 10 ** np.arange(101) % 97
  ]

  @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
  def squares(values):
    square = tff.tensorflow.computation(lambda x: x * x, np.float32)
    return tff.federated_map(square, values), tff.federated_sum(values)

  expected = np.float32(0)
  for value in values:
    expected += value
  found, total = squares(values)
  assert found == [v * v for v in values]
  assert total == expected
  assert squares([]) == ([], 0)


def test_values_cross_over_from_one_aggregation_to_the_next(remote):
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


def test_data_sets_are_sent(remote):
  numbers = tff.SequenceType(np.int64)
  total = _mapped(lambda own: own.reduce(np.int64(0), lambda a, b: a + b), numbers)
  assert total([tf.data.Dataset.range(n) for n in (3, 0, 5)]) == [3, 0, 10]
  assert total([[np.int64(2), np.int64(5)]]) == [7]


def test_values_of_every_kind_come_back_as_they_were_sent(remote):
  @tff.tensorflow.computation
  def kinds():
    return collections.OrderedDict(
      flag=True,
      small=tf.constant(7, tf.int8),
      half=tf.constant([0.5, -2.0], tf.bfloat16),
      real=tf.constant(1e-300, tf.float64),
      matrix=tf.reshape(tf.range(6, dtype=tf.float32), [2, 3]),
      none=tf.zeros([0, 3], tf.int32),
      texts=tf.constant(['a', 'bc']),
      nothing=(),
    )

  there = kinds()

  def same(value):
    return tf.nest.map_structure(tf.identity, value)

  for back in _mapped(same, kinds.type_signature.result)([there, there]):
    for name, value in there.items():
      np.testing.assert_array_equal(back[name], value)


def test_each_client_has_variables_of_its_own(remote):
  def count(value):
    variable = tf.Variable(0.0)
    with tf.control_dependencies([variable.assign_add(value)]):
      return variable.read_value()

  for _ in range(3):
    assert _mapped(count)([1.0, 2.0, 3.0, 4.0]) == [1, 2, 3, 4]


def test_a_data_set_that_would_have_to_come_back_is_refused(remote):
  @tff.federated_computation(tff.FederatedType(np.int64, tff.CLIENTS))
  def ranges(limits):
    return tff.federated_map(
      tff.tensorflow.computation(lambda n: tf.data.Dataset.range(n), np.int64), limits
    )

  with pytest.raises(round_plan.UnsupportedError, match='data set'):
    ranges([3])


def test_a_computation_works_again_after_an_error_of_a_client(remote):
  def checked(value):
    check = tf.debugging.assert_non_negative(value, message='too low')
    with tf.control_dependencies([check]):
      return value + 100

  each = _mapped(checked)
  for _ in range(2):
    assert each([1.0, 2.0]) == [101, 102]
    with pytest.raises(Exception, match='too low'):
      each([1.0] * 5 + [-2.0] + [1.0] * 50)
