"""Gradient oracles of models."""

import collections

import numpy as np
import tensorflow as tf

from tests.tff_algorithms import problems
from tff_algorithms import models, oracles

_SEED = tf.constant([0, 0], tf.int64)


def test_a_models_oracle_gives_loss_gradient_and_metrics_of_the_batch():
  problem, rows = problems.mlp(), problems.classification_rows(7)
  oracle = oracles.as_oracle(problem.model)
  found = oracle.evaluate(oracle.initial_weights(_SEED), rows, None)
  loss, gradient = problem.oracle.loss_and_gradient(problem.weights, rows)
  np.testing.assert_allclose(found.loss, loss, rtol=1e-6)
  problems.assert_close(found.gradient, gradient)
  accuracy = oracle.finalize_metrics(found.metrics)['accuracy']
  right = problem.oracle.num_correct(problem.weights, rows)
  np.testing.assert_allclose(accuracy, right / 7, rtol=1e-6)


def test_a_batch_may_be_a_pair():
  problem, rows = problems.mlp(), problems.classification_rows(7)
  oracle = oracles.as_oracle(problem.model)
  weights = oracle.initial_weights(_SEED)
  pair = (rows['x'], rows['y'])
  assert (
    oracle.evaluate(weights, pair, None).loss
    == oracle.evaluate(weights, rows, None).loss
  )


def test_an_oracle_is_taken_as_it_is():
  oracle = oracles.ModelLoss(problems.mlp().model)
  assert oracles.as_oracle(oracle) is oracle


def test_an_embeddings_gradient_is_dense_and_an_unused_weights_zero():
  model = models.Model(
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None], tf.int32), y=tf.TensorSpec([None], tf.int32)
    ),
    initialize=lambda seed: models.ModelWeights(
      collections.OrderedDict(table=tf.ones([4, 2]), unused=tf.ones([3])), ()
    ),
    predict=lambda w, x, seed: tf.gather(w.trainable['table'], x),
    loss=lambda y, outputs: tf.reduce_sum(outputs),
    metrics=lambda y, outputs: collections.OrderedDict(),
    finalize_metrics=lambda sums: collections.OrderedDict(),
  )
  oracle = oracles.as_oracle(model)
  batch = collections.OrderedDict(x=tf.constant([1, 1, 3]), y=tf.constant([0, 0, 0]))
  gradient = oracle.evaluate(oracle.initial_weights(_SEED), batch, None).gradient
  assert isinstance(gradient['table'], tf.Tensor)
  np.testing.assert_array_equal(gradient['table'], [[0, 0], [2, 2], [0, 0], [1, 1]])
  np.testing.assert_array_equal(gradient['unused'], [0, 0, 0])
