"""The gradient mapping, against finite differences and under what may be around it."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tests.oracles import saddle_point as oracle
from tests.tff_algorithms import problems, saddle_problems
from tff_algorithms import oracles, saddle_point
from tff_algorithms.models import ModelWeights
from tff_algorithms.saddle_point import GradientMapping, SaddlePoint

_ROWS = saddle_problems.regression_rows(7, dtype=np.float64)
_PROBLEM = saddle_problems.regression(np.float64)
_MODEL = saddle_problems.regression_model(np.float64)


def _weights(seed=0):
  rng = np.random.default_rng(seed)
  start = saddle_problems.regression_start(np.float64)
  z = tf.nest.map_structure(
    lambda t: tf.constant(t + rng.normal(size=t.shape) / 2), start
  )
  return ModelWeights(z, ())


def _evaluate(objective, weights, seed=None):
  return saddle_point.as_gradient_mapping(objective).evaluate(weights, _ROWS, seed)


@pytest.mark.parametrize('seed', range(3))
def test_it_descends_in_x_and_ascends_in_y(seed):
  """Against central differences of f in numpy, with an error of order 1e-10."""
  weights = _weights(seed)
  x, y = saddle_problems.z_of(weights.trainable)
  parts, h = [*x, *y], 1e-5
  differences = []
  for i, part in enumerate(parts):
    for j in range(len(part)):
      values = []
      for step in (h, -h):
        moved = [p.copy() for p in parts]
        moved[i][j] += step
        z = (moved[: len(x)], moved[len(x) :])
        values.append(saddle_problems.regression_value(z, _ROWS))
      slope = (values[0] - values[1]) / (2 * h)
      differences.append(slope if i < len(x) else -slope)
  found = _evaluate(_PROBLEM.objective, weights)
  vector = saddle_problems.vector(found.gradient)
  np.testing.assert_allclose(vector, differences, rtol=1e-7, atol=1e-8)
  assert isinstance(found.gradient, SaddlePoint)
  # And as the oracle has it.
  loss, mapping = _PROBLEM.mapping((x, y), _ROWS)
  saddle_problems.assert_close(found.gradient, mapping, 1e-13)
  np.testing.assert_allclose(found.loss, loss, rtol=1e-13)


def test_a_model_and_a_pure_function_give_the_same():
  weights = _weights()
  of_function = _evaluate(_PROBLEM.objective, weights)
  of_model = _evaluate(_MODEL, weights)
  saddle_problems.assert_close(of_model.gradient, of_function.gradient, 1e-14)
  np.testing.assert_allclose(of_model.loss, of_function.loss, rtol=1e-14)
  initial = saddle_point.as_gradient_mapping(_MODEL).initial_weights(None)
  start = _PROBLEM.objective.initial_weights(None)
  saddle_problems.assert_close(initial.trainable, start.trainable, 0)


def test_the_metrics_of_a_model_are_told():
  objective = saddle_point.as_gradient_mapping(_MODEL)
  found = objective.evaluate(_weights(), _ROWS, None)
  metrics = objective.finalize_metrics(found.metrics)
  np.testing.assert_allclose(metrics['mean_target'], _ROWS['y'].mean())


def test_an_objective_draws_from_the_seed_of_the_step():
  spec = collections.OrderedDict(y=tf.TensorSpec([None], tf.float64))

  def noisy(x, y, batch, seed):
    noise = 0.0
    if seed is not None:
      noise = tf.random.stateless_normal([], seed, dtype=tf.float64)
    return tf.reduce_mean(batch['y']) * x[0] * y[0] + noise * x[0]

  def ones(seed):
    return SaddlePoint([tf.ones([], tf.float64)], [tf.ones([], tf.float64)])

  objective = saddle_point.saddle_objective(noisy, initialize=ones, batch_spec=spec)
  assert objective.is_repeatable
  weights = objective.initial_weights(None)
  (a,), (b,), (c,), (plain,) = (
    _evaluate(objective, weights, seed).gradient.min
    for seed in ([1, 2], [1, 2], [1, 3], None)
  )
  assert a == b != c
  assert plain == _ROWS['y'].mean()


# What may be around it.

_WRAPPERS = {
  'Clipped': lambda oracle: oracles.Clipped(0.3, oracle),
  'Weighted': lambda oracle: oracles.Weighted(0.3, oracle),
  'without_dropout': oracles.without_dropout,
  'Extrapolated': lambda oracle: oracles.Extrapolated(0.1, oracle),
}


@pytest.mark.parametrize('name', _WRAPPERS)
def test_what_is_around_a_mapping_is_not_mapped_again(name):
  wrapped = _WRAPPERS[name](_PROBLEM.objective)
  assert wrapped.is_gradient_mapping
  assert saddle_point.as_gradient_mapping(wrapped) is wrapped


@pytest.mark.parametrize('name', ['Clipped', 'Weighted', 'without_dropout'])
def test_a_mapping_of_the_outside_is_that_of_the_inside(name):
  """Signs do not matter to what these do."""
  plain = _WRAPPERS[name](oracles.as_oracle(_MODEL))
  assert not plain.is_gradient_mapping
  inside = _WRAPPERS[name](saddle_point.as_gradient_mapping(_MODEL))
  weights = _weights()
  ours, theirs = (_evaluate(f, weights).gradient for f in (plain, inside))
  saddle_problems.assert_close(ours, theirs, 1e-14)
  scale = {'Weighted': 0.3, 'without_dropout': 1.0}.get(name)
  mapping = saddle_problems.vector(_evaluate(_MODEL, weights).gradient)
  scale = scale or 0.3 / np.linalg.norm(mapping)
  # A clipping norm is a float32.
  np.testing.assert_allclose(
    saddle_problems.vector(ours),
    scale * mapping,
    rtol=1e-6 if name == 'Clipped' else 1e-14,
  )


def test_an_extrapolated_mapping_is_that_a_step_ahead():
  weights = _weights()
  mapping = _evaluate(_MODEL, weights).gradient
  ahead = tf.nest.map_structure(lambda z, g: z - 0.1 * g, weights.trainable, mapping)
  found = _evaluate(oracles.Extrapolated(0.1, _PROBLEM.objective), weights)
  expected = _evaluate(_MODEL, ModelWeights(ahead, ())).gradient
  saddle_problems.assert_close(found.gradient, expected, 1e-14)


def test_a_mapping_of_a_mapping_is_itself():
  assert saddle_point.as_gradient_mapping(_PROBLEM.objective) is _PROBLEM.objective
  assert not oracles.as_oracle(_MODEL).is_gradient_mapping


def test_what_is_known_of_f_is_told():
  def prox(z, theta):
    return z

  f = oracles.as_oracle(_MODEL)
  known = GradientMapping(f, prox=prox, convexity=0.5)
  assert (known.prox, known.convexity) == (prox, 0.5)
  unknown = saddle_point.as_gradient_mapping(_MODEL)
  assert (unknown.prox, unknown.convexity) == (None, None)


# What is no saddle objective.


def _with_weights(trainable):
  objective = saddle_point.saddle_objective(
    lambda x, y, batch, seed: tf.zeros([]),
    initialize=lambda seed: trainable,
    batch_spec=saddle_problems.regression_spec(),
  )
  return objective.initial_weights(None)


@pytest.mark.parametrize('nothing', [(), [], {}, collections.OrderedDict()], ids=str)
@pytest.mark.parametrize('missing', ['min', 'max'])
def test_weights_of_one_kind_only_are_refused(missing, nothing):
  z = SaddlePoint(tf.ones([2]), tf.ones([2]))._replace(**{missing: nothing})
  with pytest.raises(
    ValueError, match=rf'needs weights to {missing}imise over.* no `{missing}` weights'
  ):
    _with_weights(z)


def test_weights_that_are_no_saddle_point_are_refused():
  with pytest.raises(ValueError, match=r'a SaddlePoint\(min=.*, found OrderedDict'):
    saddle_point.as_gradient_mapping(problems.logistic().model).initial_weights(None)


# The duality gap.


def _game():
  a, b = [[1.0, 1.5], [2.0, 1.0]], [[1.0, 0.0], [-1.0, 0.5]]
  clients = list(enumerate(saddle_problems.game_clients(a, b)))
  game = oracle.QuadraticGame(h=1.0, lam=0.75)
  f = game.f(clients)
  return lambda z: f([z.min], [z.max]), SaddlePoint(
    *(p for (p,) in game.optimum(clients))
  )


def test_the_duality_gap_is_zero_at_the_saddle_point():
  f, z_star = _game()
  assert saddle_point.duality_gap(f, z_star, z_star) == 0


@pytest.mark.parametrize('seed', range(5))
def test_the_duality_gap_is_positive_elsewhere(seed):
  """By strong convex-concavity it is at least mu/2 ||z - z*||^2."""
  f, z_star = _game()
  rng = np.random.default_rng(seed)
  for scale in (1e-3, 1.0, 100.0):
    away = SaddlePoint(*scale * rng.normal(size=(2, 2)))
    z = tf.nest.map_structure(np.add, z_star, away)
    bound = 0.75 / 2 * np.sum(np.square(saddle_problems.vector(away)))
    assert saddle_point.duality_gap(f, z, z_star) >= bound * (1 - 1e-9) > 0


def test_the_duality_gap_of_tensors_is_a_tensor():
  weights, z_star = _weights(0), _weights(1)

  def f(z):
    return _PROBLEM.objective.evaluate(ModelWeights(z, ()), _ROWS, None).loss

  gap = saddle_point.duality_gap(f, weights.trainable, z_star.trainable)
  (x, y), (x_star, y_star) = (
    saddle_problems.z_of(w.trainable) for w in (weights, z_star)
  )
  expected = oracle.duality_gap(
    lambda x, y: saddle_problems.regression_value((x, y), _ROWS),
    (x, y),
    (x_star, y_star),
  )
  np.testing.assert_allclose(gap, expected, rtol=1e-12)
