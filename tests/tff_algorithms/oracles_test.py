"""Gradient oracles of models, and those made of others."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.oracles import elastic
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


# The squared norm of a model's outputs.


@pytest.mark.parametrize(
  ('make', 'gradient'),
  [
    (problems.logistic, elastic.linear_norm_gradient),
    (problems.mlp, elastic.mlp_norm_gradient),
  ],
  ids=['logistic', 'mlp'],
)
@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_the_norm_of_the_outputs_and_its_gradient(make, gradient, dtype):
  problem = make(dtype=dtype)
  rows = problems.classification_rows(7, dtype=dtype)
  oracle = oracles.output_norm(problem.model)
  weights = oracle.initial_weights(_SEED)
  found = oracle.evaluate(weights, rows, None)
  outputs = np.asarray(problem.model.predict(weights, rows['x'], None))
  tolerance = 1e-5 if dtype == np.float32 else 1e-12
  np.testing.assert_allclose(found.loss, (outputs**2).sum() / 7, rtol=tolerance)
  problems.assert_close(found.gradient, gradient(problem.weights, rows), tolerance)
  assert found.metrics == oracle.finalize_metrics(found.metrics) == {}
  assert oracle.batch_spec == problem.model.input_spec


def test_the_norm_of_the_outputs_does_not_look_at_labels():
  problem, rows = problems.mlp(), problems.classification_rows(7)
  oracle = oracles.output_norm(problem.model)
  weights = oracle.initial_weights(_SEED)
  found = oracle.evaluate(weights, rows, None)
  for batch in (rows | {'y': rows['y'] + 100}, (rows['x'], rows['y'])):
    problems.assert_close(
      oracle.evaluate(weights, batch, None).gradient, found.gradient, 0
    )


def test_the_norm_of_the_outputs_is_without_dropout():
  rows = problems.classification_rows(7)
  plain = oracles.output_norm(problems.mlp().model)
  dropping = oracles.output_norm(_with_dropout(problems.mlp()))
  weights = plain.initial_weights(_SEED)
  expected = plain.evaluate(weights, rows, None)
  for seed in (None, _SEED, _SEED + 1):
    found = dropping.evaluate(weights, rows, seed)
    assert found.loss == expected.loss
    problems.assert_close(found.gradient, expected.gradient, 0)


def test_the_norm_of_the_outputs_of_a_keras_model_is_without_dropout():
  problem, rows = problems.logistic(), problems.classification_rows(7)
  keras = tf.keras.Sequential(
    [tf.keras.layers.Dropout(0.5, input_shape=(5,)), tf.keras.layers.Dense(3)]
  )
  keras.set_weights([problem.weights['kernel'], problem.weights['bias']])
  functional = tff.learning.models.functional_model_from_keras(
    keras,
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=problem.model.input_spec,
  )
  oracle = oracles.output_norm(functional)
  assert oracle.is_repeatable
  with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    seed = tf.constant([0, 0], tf.int64)
    weights = oracle.initial_weights(seed)
    gradient = oracle.evaluate(weights, _tensors(rows), seed).gradient
    found = [session.run(gradient) for _ in range(2)]
  for kernel, bias in found:
    problems.assert_close(
      {'kernel': kernel, 'bias': bias},
      elastic.linear_norm_gradient(problem.weights, rows),
    )


def _tensors(rows):
  return {name: tf.constant(column) for name, column in rows.items()}


def test_the_norm_is_over_all_outputs_of_an_example():
  """Two outputs, one of them a matrix for each example."""
  model = dataclasses.replace(
    problems.logistic().model,
    predict=lambda w, x, seed: {
      'logits': x @ w.trainable['kernel'] + w.trainable['bias'],
      'pairs': tf.einsum('bi,bj,k->bijk', x, x, w.trainable['bias']),
    },
  )
  oracle, rows = oracles.output_norm(model), problems.classification_rows(4)
  weights = oracle.initial_weights(_SEED)
  x, w = rows['x'], problems.logistic().weights
  squares = [np.sum((x @ w['kernel'] + w['bias']) ** 2)]
  squares += [np.sum(np.outer(row, row) ** 2) * np.sum(w['bias'] ** 2) for row in x]
  found = oracle.evaluate(weights, rows, None)
  np.testing.assert_allclose(found.loss, sum(squares) / 4, rtol=1e-5)


# Oracles made of others.


def _evaluated(oracle, rows=None, seed=None):
  """What an oracle tells at the weights of the network."""
  weights = oracles.as_oracle(problems.mlp().model).initial_weights(_SEED)
  return oracle.evaluate(weights, rows or problems.classification_rows(7), seed)


def _scaled(factor, gradient):
  return {name: factor * np.asarray(value) for name, value in gradient.items()}


def _norm(gradient):
  return np.sqrt(sum(np.sum(np.square(g)) for g in gradient.values()))


def test_a_loss_of_the_weights_alone_needs_no_rows_and_has_no_metrics():
  """The gradient of 0.5 ||w||^2 is w."""
  oracle, weights = oracles.WeightLoss(problems.half_square), problems.mlp().weights
  assert oracle.batch_spec == ()
  found = oracle.evaluate(
    oracles.as_oracle(problems.mlp().model).initial_weights(_SEED), (), _SEED
  )
  problems.assert_close(found.gradient, weights, 1e-6)
  np.testing.assert_allclose(found.loss, 0.5 * _norm(weights) ** 2, rtol=1e-6)
  assert found.metrics == oracle.finalize_metrics(found.metrics) == {}
  assert oracle.is_repeatable


def test_a_loss_of_the_weights_alone_has_none_to_start_from():
  with pytest.raises(ValueError, match='has none to start from'):
    oracles.WeightLoss(problems.half_square).initial_weights(_SEED)


def test_a_loss_of_one_of_the_weights_leaves_the_others_with_gradients_of_zero():
  oracle = oracles.WeightLoss(lambda w: tf.reduce_sum(w.trainable['bias_1']))
  gradient = _evaluated(oracle).gradient
  np.testing.assert_array_equal(gradient['bias_1'], np.ones(4))
  np.testing.assert_array_equal(gradient['kernel_2'], np.zeros((4, 3)))


def test_a_weight_multiplies_the_gradient_and_what_is_told_stays():
  plain = oracles.as_oracle(problems.mlp().model)
  found, expected = _evaluated(oracles.Weighted(0.25, plain)), _evaluated(plain)
  problems.assert_close(found.gradient, _scaled(0.25, expected.gradient), 1e-6)
  assert found.loss == expected.loss
  assert found.metrics == expected.metrics


@pytest.mark.parametrize('share', [0.1, 0.99, 1.01, 10.0])
def test_a_gradient_is_clipped_where_its_norm_is_larger(share):
  plain = oracles.as_oracle(problems.mlp().model)
  expected = _evaluated(plain)
  norm = _norm(expected.gradient)
  found = _evaluated(oracles.Clipped(float(share * norm), plain))
  problems.assert_close(found.gradient, _scaled(min(1, share), expected.gradient), 1e-6)
  assert _norm(found.gradient) <= min(1, share) * norm * (1 + 1e-6)
  assert found.loss == expected.loss


def test_a_gradient_of_zero_can_be_clipped():
  zero = oracles.WeightLoss(lambda w: 0 * problems.half_square(w))
  gradient = _evaluated(oracles.Clipped(0.1, zero)).gradient
  assert _norm(gradient) == 0


def test_a_sum_adds_the_gradients_and_tells_of_the_first_alone():
  model, h = (
    oracles.as_oracle(problems.mlp().model),
    oracles.WeightLoss(problems.half_square),
  )
  found, of_model = _evaluated(oracles.Sum(model, h)), _evaluated(model)
  weights = problems.mlp().weights
  expected = {k: np.asarray(of_model.gradient[k]) + weights[k] for k in weights}
  problems.assert_close(found.gradient, expected, 1e-6)
  assert found.loss == of_model.loss
  assert found.metrics == of_model.metrics


_MADE = {
  'weighted': lambda oracle: oracles.Weighted(0.5, oracle),
  'clipped': lambda oracle: oracles.Clipped(0.5, oracle),
  'sum': lambda oracle: oracles.Sum(oracle, oracles.WeightLoss(problems.half_square)),
}


@pytest.mark.parametrize('make', _MADE.values(), ids=_MADE)
def test_an_oracle_made_of_another_has_its_rows_weights_metrics_and_randomness(make):
  model = _with_dropout(problems.mlp())
  plain, made = oracles.as_oracle(model), make(oracles.as_oracle(model))
  assert made.batch_spec == plain.batch_spec
  weights = plain.initial_weights(_SEED).trainable
  problems.assert_close(made.initial_weights(_SEED).trainable, weights, 0)
  sums = _evaluated(plain, seed=_SEED).metrics
  assert made.finalize_metrics(sums) == plain.finalize_metrics(sums)
  # The seed gets through.
  assert _evaluated(made, seed=_SEED).loss == _evaluated(plain, seed=_SEED).loss
  assert made.is_repeatable
  assert not make(_Unrepeatable(problems.mlp().model)).is_repeatable


def test_weights_and_sums_nest():
  """0.5 (f + 0.2 h)."""
  model, h = (
    oracles.as_oracle(problems.mlp().model),
    oracles.WeightLoss(problems.half_square),
  )
  nested = oracles.Weighted(0.5, oracles.Sum(model, oracles.Weighted(0.2, h)))
  weights, gradient = problems.mlp().weights, _evaluated(model).gradient
  expected = {k: 0.5 * np.asarray(gradient[k]) + 0.1 * weights[k] for k in weights}
  problems.assert_close(_evaluated(nested).gradient, expected, 1e-6)
