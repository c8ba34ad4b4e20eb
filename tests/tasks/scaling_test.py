"""Tests of means and deviations."""

import numpy as np

from tasks import scaling


def test_moments_make_mean_zero_and_deviation_one():
  x = np.random.default_rng(0).normal([5, -100], [0.1, 30], [50, 2])
  mean, deviation = scaling.moments(x)
  scaled = (x - mean) / deviation
  np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-13)
  np.testing.assert_allclose(np.square(scaled).mean(axis=0), 1, rtol=1e-13)


def test_what_is_the_same_everywhere_becomes_zero():
  x = np.array([[0.1, 1.0], [0.1, 3.0]], np.float32)
  mean, deviation = scaling.moments(x)
  np.testing.assert_array_equal(deviation, [1, 1])
  np.testing.assert_array_equal((x - mean) / deviation, [[0, -1], [0, 1]])


def test_moments_are_those_of_the_leading_axis():
  x = np.arange(24.0).reshape(2, 3, 4)
  mean, deviation = scaling.moments(x)
  np.testing.assert_array_equal(mean, x[0] + 6)
  np.testing.assert_array_equal(deviation, np.full([3, 4], 6))
  # Targets have no other axis.
  mean, deviation = scaling.moments(np.array([1.0, 3.0, 5.0, 7.0]))
  assert mean == 4
  np.testing.assert_allclose(deviation, np.sqrt(5), rtol=1e-15)


def test_many_numbers_of_single_precision_are_summed_in_double():
  x = np.tile(np.float32([2**24, 2**24 + 2]), 1000)
  mean, deviation = scaling.moments(x)
  assert mean == 2**24 + 1
  assert deviation == 1
