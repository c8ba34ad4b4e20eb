"""How many local steps there are: fixed, or geometric from (seed, round)."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.tff_algorithms import saddle_problems
from tff_algorithms import synchronization

_ROUNDS = 20_000


@functools.cache
def _drawn(p, seed=0, num_rounds=_ROUNDS):
  """The steps of all rounds, in one call of TensorFlow."""
  steps = synchronization.geometric(p, seed)

  @tf.function(autograph=False)
  def all_rounds():
    return tf.map_fn(steps, tf.range(num_rounds), parallel_iterations=1)

  return all_rounds().numpy()


@pytest.mark.parametrize('p', [0.05, 0.5, 0.9])
def test_the_mean_is_one_by_p(p):
  """Of N draws with variance (1 - p) / p^2, within 4 sigma."""
  drawn = _drawn(p)
  assert drawn.dtype == np.int32
  sigma = np.sqrt((1 - p) / p**2 / _ROUNDS)
  assert abs(drawn.mean() - 1 / p) <= 4 * sigma


@pytest.mark.parametrize('p', [0.05, 0.5, 0.9])
def test_each_number_of_steps_has_its_probability(p):
  """P(k) = p (1 - p)^(k - 1), k from 1; counts are binomial, so within 4 sigma."""
  drawn = _drawn(p)
  assert drawn.min() == 1
  for k in range(1, 30):
    share = p * (1 - p) ** (k - 1)
    if share * _ROUNDS < 10:  # Few are not nearly normal.
      break
    sigma = np.sqrt(share * (1 - share) / _ROUNDS)
    assert abs(np.mean(drawn == k) - share) <= 4 * sigma
  rest = (1 - p) ** 20
  sigma = np.sqrt(rest * (1 - rest) / _ROUNDS)
  assert abs(np.mean(drawn > 20) - rest) <= max(4 * sigma, 10 / _ROUNDS)


def test_rounds_are_independent():
  """The covariance of neighbours has standard deviation var / sqrt(N)."""
  drawn = _drawn(0.5)
  variance = (1 - 0.5) / 0.5**2
  covariance = np.mean((drawn[1:] - 2) * (drawn[:-1] - 2))
  assert abs(covariance) <= 4 * variance / np.sqrt(_ROUNDS)


def test_seed_and_round_determine_the_number_of_steps():
  few = saddle_problems.drawn_steps(0.1, 0, 12)
  np.testing.assert_array_equal(few, _drawn(0.1, 0, 100)[:12])
  assert few != saddle_problems.drawn_steps(0.1, 1, 12)
  assert few != saddle_problems.drawn_steps(0.1, -1, 12)
  # Pinned, so that a change is noticed.
  assert few == [1, 14, 10, 7, 13, 7, 8, 18, 28, 11, 9, 7]


def test_next_to_never_is_the_most_that_there_is():
  for p in (1e-12, 1e-300, 5e-324):
    drawn = saddle_problems.drawn_steps(p, 0, 20)
    assert max(drawn) == tf.int32.max
    assert min(drawn) >= 1


def test_always_is_one_step():
  steps = synchronization.geometric(1.0, 0)
  assert [int(steps(tf.constant(t))) for t in range(5)] == [1] * 5


@pytest.mark.parametrize('p', [0.0, -0.1, 1.1, float('nan')])
def test_a_probability_is_in_its_range(p):
  with pytest.raises(ValueError, match=r'sync_probability must be in \(0, 1\]'):
    synchronization.geometric(p, 0)


@pytest.mark.parametrize('tau', [0, -1, 2.5, True])
def test_the_number_of_steps_is_a_count(tau):
  with pytest.raises(ValueError, match='local_steps must be a whole number'):
    synchronization.every(tau)


def test_a_fixed_number_of_steps_is_fixed():
  steps = synchronization.every(7)
  assert [int(steps(tf.constant(t))) for t in (0, 3)] == [7, 7]
