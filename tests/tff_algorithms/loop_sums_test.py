"""Tests of what a loop over batches adds up."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tff_algorithms import oracles, structures
from tff_algorithms.loop_sums import LoopSums
from tff_algorithms.models import ModelWeights
from tff_algorithms.oracles import Evaluation

_ROWS = tf.constant([[1.0], [2.0], [4.0]])


class _Counting(oracles.FunctionLoss):
  """Has metrics of every kind."""

  def evaluate(self, weights, batch, seed) -> Evaluation:
    evaluation = super().evaluate(weights, batch, seed)
    metrics = collections.OrderedDict(
      vector=tf.reduce_sum(batch, axis=0),
      scalar=tf.reduce_sum(batch),
      nested=collections.OrderedDict(
        count=tf.size(batch), double=tf.cast(tf.reduce_sum(batch), tf.float64)
      ),
    )
    return evaluation._replace(metrics=metrics)


@pytest.fixture(name='oracle')
def an_oracle():
  return _Counting(
    lambda weights, batch, seed: tf.reduce_mean(batch @ weights.trainable),
    lambda seed: ModelWeights(tf.constant([[3.0]]), ()),
    tf.TensorSpec([None, 1]),
  )


@pytest.mark.parametrize('with_gradients', [True, False])
def test_everything_is_added_up(oracle, with_gradients):
  x = oracle.initial_weights(None)
  loop_sums = LoopSums(oracle, x, _ROWS, with_gradients)
  sums = loop_sums.zero()
  for batch in (_ROWS[:2], _ROWS[2:]):
    sums = loop_sums.add(sums, oracle.evaluate(x, batch, None), tf.shape(batch)[0])
  gradient, num_seen, loss_sum, metrics = loop_sums.result(sums)
  assert num_seen == 3
  assert loss_sum == 3.0 * (1 + 2 + 4)
  # The means of both batches, one after the other.
  assert gradient == (tf.constant([[1.5 + 4.0]]) if with_gradients else ())
  found = tf.nest.map_structure(lambda t: t.numpy().tolist(), metrics)
  assert found == {
    'vector': [7.0],
    'scalar': 7.0,
    'nested': {'count': 3, 'double': 7.0},
  }
  assert metrics['nested']['double'].dtype == tf.float64


def test_of_no_batch_everything_is_zero(oracle):
  loop_sums = LoopSums(oracle, oracle.initial_weights(None), _ROWS, True)
  for part in tf.nest.flatten(loop_sums.result(loop_sums.zero())):
    np.testing.assert_array_equal(part, np.zeros(part.shape))


def test_all_scalars_are_one_tensor(oracle):
  zero = LoopSums(oracle, oracle.initial_weights(None), _ROWS, False).zero()
  shapes = [t.shape for t in tf.nest.flatten(structures.tensor_specs(zero))]
  # Rows, losses and one metric; then the other metrics.
  assert shapes == [[3], [], [], [1]]
