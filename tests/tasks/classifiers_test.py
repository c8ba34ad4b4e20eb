"""Tests of what classifiers have in common."""

import numpy as np
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
