"""Tests that our models and Keras's are the same ones in different words."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import works
from benchmarks.peers import tff_models
from tff_algorithms.models import ModelWeights


@pytest.mark.parametrize('name', ['logistic', 'cnn', 'lstm'])
def test_with_the_same_weights_both_predict_the_same(name):
  work = works.make('fed_avg', name, 1, seed=0)
  generator = np.random.default_rng(1)
  weights = [
    array + generator.normal(scale=0.05, size=array.shape).astype(np.float32)
    for array in work.weights
  ]
  x = tff_models.rows(work, 0)['x'][:6]
  model = tff_models.model(work)
  like = model.initialize(tf.constant([0, 0])).trainable
  own = ModelWeights(tf.nest.pack_sequence_as(like, weights), ())
  keras_model = tff_models.keras_model(work, exact=False)
  keras_model.set_weights(weights)
  outputs = model.predict(own, tf.constant(x), None)
  np.testing.assert_allclose(outputs, keras_model(x, training=False), atol=1e-5)


def test_only_what_is_not_exact_drops_out():
  work = works.make('fed_avg', 'cnn', 1, seed=0)
  x = tff_models.rows(work, 0)['x'][:6]
  for exact in (True, False):
    model = tff_models.keras_model(work, exact)
    outputs = [model(x, training=training) for training in (True, False)]
    assert np.allclose(*outputs) == exact


def test_a_data_set_has_all_rows_in_batches():
  rows = {'x': np.arange(7), 'y': np.arange(7) % 3}

  def sizes(batch_size):
    return [len(batch['y']) for batch in tff_models.dataset(rows, batch_size)]

  assert sizes(3) == [3, 3, 1]
  assert sizes(None) == [7]


def test_a_shuffled_data_set_has_another_order_in_each_pass():
  rows = {'x': np.arange(50), 'y': np.arange(50)}
  dataset = tff_models.dataset(rows, None, shuffle=True)
  passes = [next(iter(dataset))['x'].numpy() for _ in range(2)]
  assert passes[0].tolist() != passes[1].tolist()
  for order in passes:
    assert sorted(order) == list(range(50))
