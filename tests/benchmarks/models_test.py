"""Tests that the benchmark's models are the same ones in different words."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import models
from tff_algorithms.models import ModelWeights

_X = tf.constant(np.random.default_rng(0).random([6, 28, 28], np.float32))


@pytest.mark.parametrize(
  ('make', 'make_keras'),
  [(models.logistic, models.keras_logistic), (models.cnn, models.keras_cnn)],
  ids=['logistic', 'cnn'],
)
def test_keras_model_with_the_same_weights_predicts_the_same(make, make_keras):
  model, keras_model = make(), make_keras()
  generator = np.random.default_rng(1)
  weights = [
    generator.normal(scale=0.05, size=w.shape).astype(np.float32)
    for w in keras_model.get_weights()
  ]
  ours = model.initialize(tf.constant([1, 2])).trainable
  assert [w.shape for w in weights] == [w.shape for w in ours]
  keras_model.set_weights(weights)
  outputs = model.predict(ModelWeights(tuple(weights), ()), _X, None)
  np.testing.assert_allclose(outputs, keras_model(_X, training=False), atol=1e-5)


def test_dropout_is_determined_by_the_seed_and_off_in_inference():
  model = models.cnn()
  weights = model.initialize(tf.constant([0, 0]))

  def predict(seed):
    return model.predict(weights, _X, seed).numpy()

  one, two = tf.constant([1, 1]), tf.constant([1, 2])
  np.testing.assert_array_equal(predict(one), predict(one))
  assert not np.allclose(predict(one), predict(two))
  assert not np.allclose(predict(one), predict(None))


def test_functional_model_trains_with_dropout_that_changes_from_call_to_call():
  functional = models.functional(models.cnn())
  outputs = [
    functional.predict_on_batch(functional.initial_weights, _X, training=True)
    for _ in range(2)
  ]
  assert not np.allclose(*outputs)
