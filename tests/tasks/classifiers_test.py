"""Tests of what classifiers have in common."""

import numpy as np
import pytest
import sklearn.metrics
import tensorflow as tf

from tasks import classifiers


def test_classifier_has_the_mean_cross_entropy_and_the_accuracy_of_its_logits():
  spec = tf.TensorSpec([None, 3], tf.float32)
  model = classifiers.classifier(
    spec, lambda seed: (tf.eye(3),), lambda weights, x, seed: tf.matmul(x, weights[0])
  )
  assert list(model.input_spec.items()) == [
    ('x', spec),
    ('y', tf.TensorSpec([None], tf.int32)),
  ]
  x, y = tf.constant([[2.0, 1.0, 0.0], [0.0, 0.0, 5.0]]), tf.constant([1, 2])
  weights = model.initialize(tf.constant([0, 0]))
  logits = model.predict(weights, x, None)
  probabilities = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True)
  expected = -np.log([probabilities[0, 1], probabilities[1, 2]]).mean()
  np.testing.assert_allclose(model.loss(y, logits), expected, rtol=1e-6)
  assert model.finalize_metrics(model.metrics(y, logits)) == {'accuracy': 0.5}


def test_classifier_hands_on_the_seeds():
  model = classifiers.classifier(
    tf.TensorSpec([None], tf.float32),
    lambda seed: (seed,),
    lambda weights, x, seed: (weights, x, seed),
  )
  weights = model.initialize('seed')
  assert weights.trainable == ('seed',)
  assert weights.non_trainable == ()
  assert model.predict(weights, 'x', 'another') == (('seed',), 'x', 'another')
  assert model.predict(weights, 'x', None) == (('seed',), 'x', None)


@pytest.fixture
def binary():
  return classifiers.binary_classifier(
    tf.TensorSpec([None], tf.float32),
    lambda seed: (tf.constant(2.0),),
    lambda weights, x, seed: weights[0] * x,
  )


def _metrics(model, y, logits):
  sums = model.metrics(tf.constant(y, tf.int32), tf.constant(logits, tf.float32))
  return model.finalize_metrics(sums)


def _labels_and_logits(seed, size=4_000):
  generator = np.random.default_rng(seed)
  y = generator.integers(0, 2, size)
  return y, generator.normal(y, 1.5, size).astype(np.float32)


def _sigmoid(logits):
  return tf.sigmoid(logits).numpy()


def test_binary_classifier_has_the_mean_cross_entropy_and_the_accuracy(binary):
  x, y = tf.constant([1.0, 3.0, -1.0]), tf.constant([1, 0, 0])
  weights = binary.initialize(tf.constant([0, 0]))
  logits = binary.predict(weights, x, None)
  np.testing.assert_array_equal(logits, [2, 6, -2])
  chances = 1 / (1 + np.exp([-2.0, 6.0, -2.0]))
  np.testing.assert_allclose(binary.loss(y, logits), -np.log(chances).mean(), rtol=1e-6)
  assert binary.finalize_metrics(binary.metrics(y, logits))['accuracy'] == np.float32(
    2 / 3
  )


def test_binary_classifier_is_the_same_in_a_graph_as_tff_traces_it(binary):
  y, logits = [1, 0, 0], [2.0, 6.0, -2.0]
  with tf.Graph().as_default():  # Where == compares tensors as objects.
    given = tf.constant(y), tf.constant(logits)
    results = binary.loss(*given), binary.finalize_metrics(binary.metrics(*given))
    with tf.compat.v1.Session() as session:
      loss, metrics = session.run(results)
  assert loss == binary.loss(tf.constant(y), tf.constant(logits))
  assert metrics == _metrics(binary, y, logits)


def test_binary_classifier_has_a_finite_loss_at_large_logits(binary):
  y, logits = tf.constant([0, 1, 1]), tf.constant([300.0, -300.0, 300.0])
  assert binary.loss(y, logits) == 200


@pytest.mark.parametrize('label', [-1, 2])
def test_a_label_that_is_neither_0_nor_1_makes_the_loss_nan_and_is_not_right(
  binary, label
):
  logits = tf.constant([5.0, -5.0, 5.0])
  assert np.isnan(binary.loss(tf.constant([1, 0, label]), logits))
  metrics = _metrics(binary, [1, 0, label], logits)
  assert metrics['accuracy'] == np.float32(2 / 3)
  assert metrics['auc'] == 1


@pytest.mark.parametrize('seed', range(3))
def test_auc_is_that_of_scores_rounded_to_the_bins(binary, seed):
  y, logits = _labels_and_logits(seed)
  rounded = (np.floor(_sigmoid(logits) * 500) + 0.5) / 500
  expected = sklearn.metrics.roc_auc_score(y, rounded)
  np.testing.assert_allclose(_metrics(binary, y, logits)['auc'], expected, rtol=1e-5)


@pytest.mark.parametrize('seed', range(3))
def test_auc_is_nearly_that_of_the_scores_themselves(binary, seed):
  y, logits = _labels_and_logits(seed)
  expected = sklearn.metrics.roc_auc_score(y, logits)
  assert 0.6 < expected < 0.8
  np.testing.assert_allclose(_metrics(binary, y, logits)['auc'], expected, atol=0.01)


def test_auc_counts_equal_scores_by_half(binary):
  assert _metrics(binary, [0, 1, 1, 0], [0.0, 0.0, 0.0, 0.0])['auc'] == 0.5
  assert _metrics(binary, [0, 1, 1], [0.0, 0.0, 1.0])['auc'] == 0.75


def test_auc_is_1_or_0_where_labels_are_apart_at_any_logits(binary):
  logits = [-1e30, -800.0, 800.0, np.inf]
  assert _metrics(binary, [0, 0, 1, 1], logits)['auc'] == 1
  assert _metrics(binary, [1, 1, 0, 0], logits)['auc'] == 0


@pytest.mark.parametrize('y', [[1, 1], [0, 0], []])
def test_auc_is_nan_without_examples_of_both_labels(binary, y):
  assert np.isnan(_metrics(binary, y, [0.5] * len(y))['auc'])


def test_auc_is_nan_where_the_scores_are(binary):
  assert np.isnan(_metrics(binary, [0, 1], [np.nan, np.nan])['auc'])


def test_binary_metrics_of_parts_add_up_to_those_of_the_whole(binary):
  y, logits = _labels_and_logits(0, size=100)
  parts = [
    binary.metrics(tf.constant(y[part], tf.int32), tf.constant(logits[part]))
    for part in (slice(0, 30), slice(30, 30), slice(30, 100))
  ]
  sums = tf.nest.map_structure(lambda *terms: tf.add_n(terms), *parts)
  assert binary.finalize_metrics(sums) == _metrics(binary, y, logits)
