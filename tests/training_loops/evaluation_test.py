"""Tests of evaluation."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf

import tasks
from tff_algorithms import models, saddle_point
from tff_algorithms.saddle_point import SaddlePoint
from training_loops import evaluation

_SPEC = collections.OrderedDict(
  x=tf.TensorSpec([None, 3], tf.float32), y=tf.TensorSpec([None], tf.int32)
)


def _model(predict) -> models.Model:
  return models.Model(
    input_spec=_SPEC,
    initialize=lambda seed: models.ModelWeights((tf.zeros([3, 4]),), ()),
    predict=predict,
    loss=models.cross_entropy,
    metrics=models.accuracy_sums,
    finalize_metrics=models.accuracy_from_sums,
  )


def _linear(weights, x, seed):
  assert seed is None  # Evaluation is inference.
  return x @ weights.trainable[0]


def _rows(num_rows: int):
  generator = np.random.default_rng(num_rows)
  return collections.OrderedDict(
    x=generator.normal(size=(num_rows, 3)).astype(np.float32),
    y=generator.integers(4, size=num_rows).astype(np.int32),
  )


_WEIGHTS = models.ModelWeights(
  (np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32),), ()
)


def test_the_metrics_are_those_of_all_rows_whatever_the_chunks():
  evaluate = evaluation.Evaluator(_model(_linear))
  for num_rows in (1, 255, 256, 257, 1300):
    rows = _rows(num_rows)
    logits = rows['x'] @ _WEIGHTS.trainable[0]
    log_sum = np.log(np.exp(logits).sum(axis=1))
    losses = log_sum - logits[np.arange(num_rows), rows['y']]
    metrics = evaluate(_WEIGHTS, rows)
    assert list(metrics) == ['loss', 'accuracy']
    np.testing.assert_allclose(metrics['loss'], losses.mean(), rtol=1e-5)
    right = logits.argmax(axis=1) == rows['y']
    np.testing.assert_allclose(metrics['accuracy'], right.mean(), rtol=1e-6)


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_a_distance_is_that_of_all_weights_together_in_their_own_dtype(dtype):
  a = {'k': np.array([[3.0, 1.0]], dtype), 'b': dtype(4.0)}
  b = {'k': np.array([[0.0, 1.0]], dtype), 'b': dtype(0.0)}
  assert evaluation.distance(a, b) == 5.0
  assert evaluation.distance(a, a) == 0.0
  assert evaluation.distance(a, b).dtype == dtype


def test_a_distance_smaller_than_single_precision_is_told():
  found = evaluation.distance([np.array([1 + 1e-12, 0.0])], [np.array([1.0, 0.0])])
  np.testing.assert_allclose(found, 1e-12, rtol=1e-3)


def test_it_is_not_traced_again_for_other_weights_and_sizes():
  num_traces = []

  def predict(weights, x, seed):
    num_traces.append(1)
    return _linear(weights, x, seed)

  evaluate = evaluation.Evaluator(_model(predict))
  for num_rows in (3, 5, 260, 520):
    evaluate(_WEIGHTS, _rows(num_rows))
  few = len(num_traces)
  for num_rows in range(7, 40):
    evaluate(
      models.ModelWeights((_WEIGHTS.trainable[0] + num_rows,), ()), _rows(num_rows)
    )
  assert len(num_traces) == few


def test_a_functional_model_of_tff_is_evaluated_alike():
  task = tasks.load('digits_logistic', seed=0)
  weights = task.model.initialize(tf.constant([0, 0]))
  ours = evaluation.Evaluator(task.model)(weights, task.test.all_rows())
  functional = models.as_functional_model(task.model)
  theirs = evaluation.Evaluator(functional)(weights, task.test.all_rows())
  np.testing.assert_allclose(ours['loss'], theirs['loss'], rtol=1e-6)
  np.testing.assert_allclose(ours['accuracy'], theirs['accuracy'], rtol=1e-6)


def test_a_loss_among_the_metrics_of_the_model_comes_first():
  model = _model(_linear)
  model = dataclasses.replace(
    model, finalize_metrics=lambda sums: collections.OrderedDict(loss=tf.constant(7.0))
  )
  assert evaluation.Evaluator(model)(_WEIGHTS, _rows(3))['loss'] == 7


# Saddle-point problems.


def _bilinear(dtype):
  """f(x, y) = x'x / 2 + y (a'x) - y^2 / 2 with a row a, and its gradient mapping."""

  def f(x, y, batch, seed):
    assert seed is None  # Evaluation is inference.
    products = tf.linalg.matvec(batch['x'], x)
    return (tf.reduce_sum(x * x) - y * y) / 2 + tf.reduce_mean(products) * y

  spec = {'x': tf.TensorSpec([None, 3], dtype)}
  return saddle_point.saddle_objective(f, initialize=lambda seed: None, batch_spec=spec)


def _z(dtype):
  x = np.random.default_rng(1).normal(size=3).astype(dtype)
  return models.ModelWeights(SaddlePoint(x, np.array(0.7, dtype)), ())


@pytest.mark.parametrize(('dtype', 'rtol'), [(np.float64, 1e-12), (np.float32, 1e-5)])
@pytest.mark.parametrize('num_rows', [1, 256, 700])
def test_a_saddle_point_problem_is_measured_on_all_rows(dtype, rtol, num_rows):
  rows = np.random.default_rng(num_rows).normal(size=(num_rows, 3)).astype(dtype)
  optimum = models.ModelWeights(SaddlePoint(np.zeros(3, dtype), dtype(0)), ())
  evaluate = evaluation.SaddleEvaluator(_bilinear(dtype), {'x': rows}, optimum)
  z, a = _z(dtype), rows.mean(axis=0)
  x, y = z.trainable
  metrics = evaluate(z)
  assert list(metrics) == ['distance_of_x', 'duality_gap', 'gradient_mapping_norm']
  assert all(value.dtype == dtype for value in metrics.values())
  np.testing.assert_allclose(metrics['distance_of_x'], np.linalg.norm(x), rtol=rtol)
  gap = (x @ x + y * y) / 2
  np.testing.assert_allclose(metrics['duality_gap'], gap, rtol=rtol)
  norm = np.linalg.norm([*(x + y * a), y - a @ x])
  np.testing.assert_allclose(metrics['gradient_mapping_norm'], norm, rtol=rtol)
  assert not any(evaluate(optimum).values())


def test_without_a_known_saddle_point_there_is_the_norm_of_the_gradient_mapping():
  rows = {'x': np.ones((4, 3), np.float32)}
  evaluate = evaluation.SaddleEvaluator(_bilinear(np.float32), rows)
  assert list(evaluate(_z(np.float32))) == ['gradient_mapping_norm']
