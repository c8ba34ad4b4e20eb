"""How many local steps there are between two synchronisations.

Functions of the round's number, so that a run can be taken up anywhere. All clients of
a round take the same number.
"""

from collections.abc import Callable

import tensorflow as tf

from tff_algorithms import checks

# Round -> tau, an int32 scalar.
LocalSteps = Callable[[tf.Tensor], tf.Tensor]


def every(tau: int) -> LocalSteps:
  """tau steps in every round."""
  checks.count(tau, 'local_steps')
  return lambda round_num: tf.constant(tau)


def geometric(p: float, seed: int) -> LocalSteps:
  """tau ~ Geometric(p) on {1, 2, ...}: after each step all synchronise with chance p.

  Args:
    p: The probability, above 0 and at most 1.
    seed: The run's seed.
  """
  checks.share(p, 'sync_probability')
  if p == 1:
    return every(1)

  def steps(round_num):
    # [seed, 0] seeds the clients, and [seed, 1] the weights.
    key = tf.random.experimental.stateless_fold_in(
      tf.constant([seed, 2], tf.int64), round_num
    )
    u = tf.random.stateless_uniform([], key, dtype=tf.float64)  # In [0, 1).
    failures = tf.floor(tf.math.log1p(-u) / tf.math.log1p(tf.constant(-p, tf.float64)))
    most = tf.constant(tf.int32.max - 1, tf.float64)
    return tf.cast(tf.minimum(failures, most), tf.int32) + 1

  return steps
