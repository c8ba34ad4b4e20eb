"""Learning-rate schedules over rounds, as factors on a base rate.

A schedule maps the round's number, an integer tensor from 0, to a float factor. The
base rate stays a hyperparameter of the process: rate of a round = base rate * factor.
"""

from collections.abc import Callable

import tensorflow as tf

from tff_algorithms import checks

Schedule = Callable[[tf.Tensor], tf.Tensor]


def constant() -> Schedule:
  """1 in every round."""
  return lambda round_num: tf.ones([], tf.float32)


def exponential(half_life_rounds: float) -> Schedule:
  """Halves every so many rounds: 2^(-t / half_life)."""
  checks.positive(half_life_rounds, 'half_life_rounds')
  return lambda t: tf.pow(2.0, -tf.cast(t, tf.float32) / half_life_rounds)


def inverse_sqrt(offset_rounds: float = 1.0) -> Schedule:
  """Decays as one over the root of time: sqrt(offset / (offset + t))."""
  checks.positive(offset_rounds, 'offset_rounds')
  return lambda t: tf.sqrt(offset_rounds / (offset_rounds + tf.cast(t, tf.float32)))


def linear_warmup(rounds: float) -> Schedule:
  """Rises linearly over the first rounds, then stays: min(1, (t + 1) / rounds)."""
  checks.positive(rounds, 'rounds')
  return lambda t: tf.minimum(1.0, (tf.cast(t, tf.float32) + 1) / rounds)
