"""The trip around a phase: guards, randomness, bytes."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.tff_algorithms import algorithms, problems

pytestmark = [pytest.mark.usefixtures('runtime'), pytest.mark.slow]

# Guards.


_BAD = pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])


@algorithms.every_algorithm_stateful_ones_too
@_BAD
def test_a_client_with_bad_data_leaves_the_others_as_if_it_were_not_there(build, value):
  _assert_left_out(build, value)


@pytest.mark.parametrize(
  'build', [algorithms.mime, algorithms.scaffold, algorithms.scaffold_elastic]
)
@_BAD
def test_so_it_does_on_either_runtime(build, value, each_runtime):
  _assert_left_out(build, value)


def _assert_left_out(build, value):
  learning_process = build()
  state = learning_process.initialize()
  with_it = algorithms.next_round(
    learning_process, state, [*algorithms.COHORT, algorithms.poisoned(value)]
  )
  without = algorithms.next_round(learning_process, state, algorithms.COHORT)
  algorithms.assert_states_close(with_it.state, without.state, rtol=1e-6)
  train = with_it.metrics['client_work']['train']
  assert train['num_clients'] == 3
  assert train['num_clients_left_out'] == 1
  assert np.isfinite(train['loss'])


def test_a_client_whose_update_overflows_is_left_out(each_runtime):
  learning_process = algorithms.fed_avg(epochs=3)
  huge = problems.classification_rows(4, seed=5)
  huge['x'] *= 1e37
  output = algorithms.next_round(
    learning_process, learning_process.initialize(), [*algorithms.COHORT, huge]
  )
  assert output.metrics['client_work']['train']['num_clients_left_out'] == 1
  assert np.isfinite(output.state.server.weights.trainable['kernel']).all()


def test_a_client_with_a_label_out_of_range_is_left_out(each_runtime):
  wrong = problems.classification_rows(4, seed=5)
  wrong['y'][2] = 17
  learning_process = algorithms.fed_avg()
  output = algorithms.next_round(
    learning_process, learning_process.initialize(), [*algorithms.COHORT, wrong]
  )
  assert output.metrics['client_work']['train']['num_clients_left_out'] == 1


@algorithms.every_algorithm_stateful_ones_too
def test_a_round_without_a_usable_client_changes_nothing_but_its_number(build):
  arguments = dict(
    aggregator=tff.learning.robust_aggregator(zeroing=True, clipping=True)
  )
  learning_process = build(**arguments)
  state = algorithms.next_round(
    learning_process, learning_process.initialize(), algorithms.COHORT
  ).state
  output = algorithms.next_round(
    learning_process,
    state,
    [algorithms.poisoned(np.nan), problems.classification_rows(0)],
  )
  expected = state._replace(server=state.server._replace(round_num=2))
  algorithms.assert_states_close(output.state, expected, rtol=0)
  train = output.metrics['client_work']['train']
  assert (train['num_clients'], train['num_clients_left_out']) == (0, 1)
  assert train['update_norm'] == 0


def test_goes_on_learning_after_a_poisoned_round(each_runtime):
  learning_process = algorithms.fed_avg(
    server_optimizer=tff.learning.optimizers.build_adam(0.1)
  )
  state = learning_process.initialize()
  losses = []
  for t in range(12):
    cohort = (
      [algorithms.poisoned(np.nan)]
      if t % 3 == 1
      else [*algorithms.COHORT, algorithms.poisoned(np.inf)]
    )
    output = algorithms.next_round(learning_process, state, cohort)
    state = output.state
    losses.append(output.metrics['client_work']['train']['loss'])
  assert losses[-1] < losses[0]


@algorithms.every_algorithm_stateful_ones_too
def test_a_client_without_examples_counts_for_nothing(build):
  learning_process = build(weighting='uniform')
  state = learning_process.initialize()
  with_it = algorithms.next_round(
    learning_process,
    state,
    [
      *algorithms.COHORT,
      problems.classification_rows(0),
      problems.classification_rows(0),
    ],
  )
  without = algorithms.next_round(learning_process, state, algorithms.COHORT)
  algorithms.assert_states_close(with_it.state, without.state, rtol=1e-6)
  train = with_it.metrics['client_work']['train']
  assert (train['num_clients'], train['num_clients_left_out']) == (3, 0)


@algorithms.every_algorithm_stateful_ones_too
def test_an_empty_cohort_is_a_clear_error(build):
  learning_process = build()
  with pytest.raises(Exception, match='Empty cohort'):
    algorithms.next_round(learning_process, learning_process.initialize(), [])


# Randomness.


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others():
  def final(seed):
    learning_process = algorithms.fed_avg(epochs=2, seed=seed)
    weights, _ = problems.run(learning_process, [algorithms.COHORT] * 2)
    return weights[-1]['kernel']

  np.testing.assert_array_equal(final(1), final(1))
  assert np.abs(final(1) - final(2)).max() > 1e-6


def test_a_client_is_shuffled_alike_wherever_it_stands_in_the_cohort():
  learning_process = algorithms.fed_avg(epochs=2)
  state = learning_process.initialize()
  one = algorithms.next_round(
    learning_process, state, algorithms.COHORT
  ).state.server.weights.trainable
  other = algorithms.next_round(
    learning_process, state, algorithms.COHORT[::-1]
  ).state.server.weights.trainable
  problems.assert_close(one, other, 1e-6)


# Metrics.


def test_bytes_are_those_of_the_weights_and_what_goes_with_them():
  _, metrics = problems.run(algorithms.fed_avg(), [algorithms.COHORT])
  weights = 4 * (5 * 3 + 3)
  # Down: the round's number and the learning rate; up: the client's weight.
  assert metrics[0]['bytes_down'] == weights + 4 + 4
  assert metrics[0]['bytes_up'] == weights + 4
  unweighted = algorithms.fed_avg(
    aggregator=tff.aggregators.UnweightedMeanFactory(), weighting='uniform'
  )
  _, metrics = problems.run(unweighted, [algorithms.COHORT])
  assert metrics[0]['bytes_up'] == weights
