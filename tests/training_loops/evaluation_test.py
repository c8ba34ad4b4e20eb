"""Tests of evaluation."""

import collections
import dataclasses

import numpy as np
import tensorflow as tf

import tasks
from tff_algorithms import models
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


def test_a_distance_is_that_of_all_trainable_weights_together():
  a = models.ModelWeights({'k': np.array([[3.0, 1.0]]), 'b': np.float32(4.0)}, (7.0,))
  b = models.ModelWeights({'k': np.array([[0.0, 1.0]]), 'b': np.float32(0.0)}, (9.0,))
  assert evaluation.distance(a, b) == 5.0
  assert evaluation.distance(a, a) == 0.0


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
