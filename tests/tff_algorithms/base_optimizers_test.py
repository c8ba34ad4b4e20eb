"""Base optimizers: Table 5 of the Mime paper, and how they differ from TFF's."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.oracles import numpy_optimizers
from tff_algorithms import base_optimizers

_PAIRS = {
  'sgd': (base_optimizers.sgd(), numpy_optimizers.Sgd()),
  'momentum': (base_optimizers.momentum(0.8), numpy_optimizers.Momentum(0.8)),
  'adagrad': (
    base_optimizers.adagrad(1e-2, 0.3),
    numpy_optimizers.AdaGrad(1e-2, 0.3),
  ),
  'adam': (
    base_optimizers.adam(0.7, 0.9, 1e-2, 0.2),
    numpy_optimizers.Adam(0.7, 0.9, 1e-2, 0.2),
  ),
}
every_pair = pytest.mark.parametrize('name', _PAIRS)


def _random(seed):
  rng = np.random.default_rng(seed)
  return collections.OrderedDict(
    kernel=rng.normal(size=(3, 2)).astype(np.float32),
    bias=rng.normal(size=2).astype(np.float32),
  )


def _specs(weights):
  return tf.nest.map_structure(lambda w: tf.TensorSpec(w.shape, w.dtype), weights)


def _close(actual, expected, rtol=1e-6):
  for name in expected:
    np.testing.assert_allclose(actual[name], expected[name], rtol=rtol, atol=1e-7)


@every_pair
def test_steps_and_tracks_as_table_5(name):
  base, oracle = _PAIRS[name]
  weights = _random(0)
  s, numpy_s = base.init(_specs(weights)), oracle.init(weights)
  for t in range(4):
    g = _random(t + 1)
    _close(base.U(g, s), oracle.U(g, numpy_s))
    s, numpy_s = base.V(g, s), oracle.V(g, numpy_s)


@every_pair
def test_u_is_linear_in_the_gradient_for_fixed_statistics(name):
  """So that a client may apply the server's statistics to many steps."""
  base, _ = _PAIRS[name]
  a, b, zero = _random(1), _random(2), tf.nest.map_structure(np.zeros_like, _random(0))
  s = base.V(_random(4), base.init(_specs(a)))
  mean = tf.nest.map_structure(lambda x, y: 0.25 * x + 0.75 * y, a, b)
  offset = base.U(zero, s)
  expected = tf.nest.map_structure(
    lambda x, y: 0.25 * x + 0.75 * y, base.U(a, s), base.U(b, s)
  )
  _close(base.U(mean, s), expected, rtol=1e-4)
  assert set(offset) == set(mean)


def test_the_first_adam_step_from_v_zero_is_finite_and_bounded_by_eps():
  """|U| <= (1 - beta_1) |g| / eps while v = 0."""
  base = base_optimizers.adam(eps=1e-3)
  g = _random(1)
  u = base.U(g, base.init(_specs(g)))
  for name in g:
    np.testing.assert_allclose(u[name], 0.1 * g[name] / 1e-3, rtol=1e-5)


@every_pair
def test_as_tff_optimizer_steps_then_tracks(name):
  base, oracle = _PAIRS[name]
  optimizer = base_optimizers.as_tff_optimizer(base, 0.3)
  server = numpy_optimizers.BaseServer(oracle, 0.3)
  weights = numpy_weights = _random(0)
  state, numpy_state = optimizer.initialize(_specs(weights)), server.init(weights)
  for t in range(4):
    g = _random(t + 1)
    state, weights = optimizer.next(state, weights, g)
    numpy_state, numpy_weights = server.next(numpy_state, numpy_weights, g)
    _close(weights, numpy_weights, rtol=1e-5)


def _first_two_steps(optimizer):
  # TFF's optimizers ask their arguments for TensorFlow's shapes.
  weights = tf.nest.map_structure(tf.constant, _random(0))
  state = optimizer.initialize(_specs(weights))
  for t in range(2):
    gradient = tf.nest.map_structure(tf.constant, _random(t + 1))
    state, weights = optimizer.next(state, weights, gradient)
  return weights['kernel']


def test_averaged_momentum_is_tffs_at_a_rate_lower_by_one_minus_beta():
  ours = base_optimizers.as_tff_optimizer(base_optimizers.momentum(0.9), 1.0)
  theirs = tff.learning.optimizers.build_sgdm(0.1, 0.9)
  np.testing.assert_allclose(
    _first_two_steps(ours), _first_two_steps(theirs), rtol=1e-5
  )


def test_adam_steps_with_the_old_v_where_tffs_steps_with_the_new():
  ours = base_optimizers.as_tff_optimizer(
    base_optimizers.adam(0.9, 0.99, 1e-3, initial_accumulator=1.0), 0.1
  )
  theirs = tff.learning.optimizers.build_adam(0.1, 0.9, 0.99, 1e-3)
  assert np.abs(_first_two_steps(ours) - _first_two_steps(theirs)).max() > 1e-2


@pytest.mark.parametrize(
  ('make', 'name'),
  [
    (lambda: base_optimizers.momentum(1.0), 'beta'),
    (lambda: base_optimizers.adam(beta_2=-0.1), 'beta_2'),
    (lambda: base_optimizers.adam(eps=0.0), 'eps'),
    (lambda: base_optimizers.adagrad(initial_accumulator=-1.0), 'initial_accumulator'),
    (
      lambda: base_optimizers.as_tff_optimizer(base_optimizers.sgd(), -1.0),
      'learning_rate',
    ),
  ],
)
def test_a_bad_value_is_refused_by_name(make, name):
  with pytest.raises(ValueError, match=name):
    make()
