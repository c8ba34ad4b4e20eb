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
  'adam, bias corrected': (
    base_optimizers.adam(0.7, 0.9, 1e-2, 0.2, bias_correction=True),
    numpy_optimizers.Adam(0.7, 0.9, 1e-2, 0.2, bias_correction=True),
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


def test_a_corrected_adam_divides_by_one_minus_beta_to_the_t_each_time():
  """Algorithm 4 by hand for g = 1 and 2: the m and v that are kept are corrected."""
  base = base_optimizers.adam(0.5, 0.75, 1e-3, bias_correction=True)
  s = base.init(tf.TensorSpec([]))
  assert (float(s.m), float(s.v), float(s.t)) == (0, 0, 1)
  u = base.U(tf.constant(1.0), s)
  np.testing.assert_allclose(u, 0.5 / (1 - 0.5) / 1e-3, rtol=1e-5)
  s = base.V(tf.constant(1.0), s)
  np.testing.assert_allclose([s.m, s.v, s.t], [1, 1, 2], rtol=1e-6)
  u = base.U(tf.constant(2.0), s)
  m = (0.5 * 2 + 0.5 * 1) / (1 - 0.5**2)
  np.testing.assert_allclose(u, m / (1e-3 + 1), rtol=1e-5)
  s = base.V(tf.constant(2.0), s)
  v = (0.25 * 4 + 0.75 * 1) / (1 - 0.75**2)
  np.testing.assert_allclose([s.m, s.v, s.t], [m, v, 3], rtol=1e-5)


def test_without_a_correction_no_step_is_counted():
  base = base_optimizers.adam()
  s = base.V(tf.constant(1.0), base.init(tf.TensorSpec([])))
  assert s.t == ()
  np.testing.assert_allclose([s.m, s.v], [0.1, 0.01], rtol=1e-5)


def test_the_corrected_adam_is_not_that_of_kingma_and_ba():
  """Theirs keeps m and v as they are, and takes the new v."""
  ours = base_optimizers.as_tff_optimizer(
    base_optimizers.adam(0.9, 0.99, 1e-3, 1.0, bias_correction=True), 0.1
  )
  theirs = tff.learning.optimizers.build_adam(0.1, 0.9, 0.99, 1e-3)
  assert np.abs(_first_two_steps(ours) - _first_two_steps(theirs)).max() > 1e-2


_optimizers = tff.learning.optimizers


@pytest.mark.parametrize(
  'optimizer',
  [
    *(base_optimizers.as_tff_optimizer(base, 0.1) for base, _ in _PAIRS.values()),
    _optimizers.build_sgdm(0.1),
    _optimizers.build_sgdm(0.1, 0.9),
    _optimizers.build_adam(0.1),
    _optimizers.build_adagrad(0.1),
    _optimizers.build_yogi(0.1),
    _optimizers.build_rmsprop(0.1),
  ],
  ids=[*_PAIRS, 'tff_sgd', 'sgdm', 'tff_adam', 'tff_adagrad', 'yogi', 'rmsprop'],
)
def test_an_optimizer_of_ours_or_of_tffs_fits(optimizer):
  assert base_optimizers.check_fits(optimizer, _specs(_random(0)), 'some_name') is None


@pytest.mark.parametrize('name', ['sgd', 'momentum', 'adagrad', 'adam'])
def test_a_pair_fits_weights_of_float64(name):
  optimizer = base_optimizers.as_tff_optimizer(_PAIRS[name][0], 0.1)
  specs = (tf.TensorSpec([3, 2], tf.float64), tf.TensorSpec([], tf.float64))
  assert base_optimizers.check_fits(optimizer, specs, 'some_name') is None


class _Statistics(base_optimizers.BaseOptimizer):
  """U = g; its statistics are what it is told, before and after."""

  def __init__(self, before, after):
    self._before, self._after = before, after

  def init(self, specs):
    return self._before

  def U(self, g, s):
    return g

  def V(self, g, s):
    return self._after


@pytest.mark.parametrize(
  ('before', 'after'),
  [
    (np.zeros([], np.float32), np.zeros([3], np.float32)),
    (np.zeros([3], np.float32), np.zeros([3], np.float64)),
    ((), np.zeros([3], np.float32)),
  ],
  ids=['shape', 'dtype', 'structure'],
)
def test_statistics_that_change_their_type_are_refused_by_name(before, after):
  optimizer = base_optimizers.as_tff_optimizer(_Statistics(before, after), 0.1)
  with pytest.raises(ValueError, match='some_name does not fit the weights'):
    base_optimizers.check_fits(optimizer, _specs(_random(0)), 'some_name')


def test_a_step_that_changes_the_weights_type_is_refused_by_name():
  class Wide(_Statistics):
    def U(self, g, s):
      return tf.nest.map_structure(lambda t: tf.stack([t, t]), g)

  optimizer = base_optimizers.as_tff_optimizer(Wide((), ()), 0.1)
  with pytest.raises(ValueError, match='some_name does not fit the weights'):
    base_optimizers.check_fits(optimizer, _specs(_random(0)), 'some_name')


def test_statistics_of_another_structure_than_the_gradient_are_refused_by_name():
  class OfTheFirst(type(base_optimizers.momentum())):
    def init(self, specs):
      return [tf.zeros([3, 2])]

  optimizer = base_optimizers.as_tff_optimizer(OfTheFirst(0.9), 0.1)
  with pytest.raises(ValueError, match='some_name does not fit the weights'):
    base_optimizers.check_fits(optimizer, _specs(_random(0)), 'some_name')
