"""Gradient oracles of models."""

import collections
import dataclasses

import numpy as np
import pytest
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


def _with_dropout(problem):
  def predict(weights, x, seed):
    if seed is not None:
      x = tf.nn.experimental.stateless_dropout(x, rate=0.5, seed=seed)
    return problem.model.predict(weights, x, seed)

  return dataclasses.replace(problem.model, predict=predict)


def test_a_seed_gives_a_mask_and_the_same_seed_the_same():
  oracle = oracles.as_oracle(_with_dropout(problems.mlp()))
  weights, rows = oracle.initial_weights(_SEED), problems.classification_rows(7)

  def gradient(seed):
    return oracle.evaluate(weights, rows, seed).gradient['kernel_1']

  np.testing.assert_array_equal(gradient(_SEED), gradient(_SEED))
  assert np.abs(gradient(_SEED) - gradient(_SEED + 1)).max() > 1e-4
  assert np.abs(gradient(_SEED) - gradient(None)).max() > 1e-4
  assert oracle.is_repeatable


def test_without_dropout_an_oracle_is_in_training_what_it_is_in_inference():
  model = _with_dropout(problems.mlp())
  plain, without = oracles.as_oracle(model), oracles.without_dropout(model)
  weights, rows = plain.initial_weights(_SEED), problems.classification_rows(7)
  expected = plain.evaluate(weights, rows, None)
  for seed in (None, _SEED):
    found = without.evaluate(weights, rows, seed)
    problems.assert_close(found.gradient, expected.gradient, 0)
    assert found.loss == expected.loss
  accuracy = plain.finalize_metrics(expected.metrics)['accuracy']
  assert without.finalize_metrics(expected.metrics)['accuracy'] == accuracy
  assert without.batch_spec == plain.batch_spec
  problems.assert_close(without.initial_weights(_SEED).trainable, weights.trainable, 0)


class _Unrepeatable(oracles.ModelLoss):
  is_repeatable = False


def test_an_oracle_that_cannot_be_repeated_is_refused_with_two_ways_out():
  oracle = _Unrepeatable(problems.mlp().model)
  with pytest.raises(
    ValueError, match=r'oracles\.without_dropout\(model\), or a tff_algorithms\.Model'
  ):
    oracles.check_repeatable(oracle)
  oracles.check_repeatable(oracles.without_dropout(oracle))
  oracles.check_repeatable(oracles.as_oracle(problems.mlp().model))
