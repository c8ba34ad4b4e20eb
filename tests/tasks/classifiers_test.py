"""Tests of what classifiers have in common."""

import numpy as np
import pytest
import tensorflow as tf

from tasks import classifiers


@pytest.mark.parametrize('shape', [(300, 500), (3, 3, 50, 100)])
def test_glorot_uniform_fills_its_range_evenly(shape):
  weights = classifiers.glorot_uniform(shape, tf.constant([1, 2]), 0).numpy()
  fan_in, fan_out = np.prod(shape[:-1]), np.prod(shape[:-2]) * shape[-1]
  limit = np.sqrt(6 / (fan_in + fan_out))
  assert weights.shape == shape
  assert 0.999 * limit < np.abs(weights).max() <= limit
  # The variance of a uniform distribution on [-l, l] is l^2 / 3.
  assert abs(weights.mean()) < 0.02 * limit
  np.testing.assert_allclose(weights.var(), limit**2 / 3, rtol=0.02)


def test_glorot_uniform_differs_by_layer_and_seed_and_by_nothing_else():
  def draw(seed, layer):
    return classifiers.glorot_uniform((4, 4), tf.constant([seed, 0]), layer).numpy()

  np.testing.assert_array_equal(draw(1, 0), draw(1, 0))
  assert not np.array_equal(draw(1, 0), draw(1, 1))
  assert not np.array_equal(draw(1, 0), draw(2, 0))
