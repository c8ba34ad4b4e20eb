"""The quadratic game against its definition in numpy."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tasks.quadratic_game import quadratic_game
from tff_algorithms import saddle_point
from tff_algorithms.models import ModelWeights
from tff_algorithms.saddle_point import SaddlePoint
from training_loops import evaluation

_LAMBDA = 1e-5
_DEFAULTS = {
  'num_clients': 10,
  'dimension': 10,
  'heterogeneity': 5.0,
  'threshold': 'raise',
  'coupling': 0.5,
  'initial_value': 1.0,
  'precision': 'float64',
}

_options = st.fixed_dictionaries(
  {
    'num_clients': st.integers(1, 12),
    'dimension': st.integers(1, 12),
    'heterogeneity': st.just(0.0) | st.floats(0.1, 15),
    'coupling': st.sampled_from([0.5, 1.0, -0.5]),
  }
)


def _make(seed=0, **options):
  return quadratic_game('game', seed, **{**_DEFAULTS, **options})


def _parts(task):
  """a and b of all clients, and z*."""
  x = task.train.all_rows()['x']
  return x[:, 0], x[:, 1], task.optimum.trainable


def _point(seed, dimension=10):
  x, y = np.random.default_rng(seed).normal(size=(2, dimension))
  return SaddlePoint(x, y)


def _value(a, b, z, h):
  """f_i of one client."""
  coupled = b @ z.max - z.max @ np.diag(a) @ z.min
  return h * coupled - z.max @ z.max / 2 + _LAMBDA / 2 * z.min @ z.min


def _mapping(a, b, z, h):
  """(df/dx, -df/dy) of one client."""
  return _LAMBDA * z.min - h * a * z.max, z.max - h * (b - a * z.min)


def _evaluate(task, z, rows):
  weights = ModelWeights(tf.nest.map_structure(tf.constant, z), ())
  return task.objective.evaluate(weights, rows, None)


@hypothesis.given(seed=st.integers(0, 2**31 - 1), options=_options)
def test_the_clients_are_drawn_as_the_paper_says(seed, options):
  task = _make(seed, **options)
  a, b, _ = _parts(task)
  shape = options['num_clients'], options['dimension']
  s = options['heterogeneity']
  rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
  drawn_b, drawn_a = rng.normal(0, s, shape), rng.normal(1, s, shape)
  np.testing.assert_allclose(b, drawn_b - drawn_b.mean(axis=0), atol=1e-13)
  np.testing.assert_allclose(a, np.where(drawn_a < 1, 1, drawn_a), rtol=1e-14)
  assert a.min() >= 1
  np.testing.assert_allclose(b.mean(axis=0), 0, atol=1e-13)


def test_entries_drawn_again_are_those_below_the_threshold_and_have_the_same_law():
  size = {'num_clients': 100, 'dimension': 200}
  raised, _, _ = _parts(_make(heterogeneity=3.0, **size))
  drawn, b, _ = _parts(_make(heterogeneity=3.0, threshold='redraw', **size))
  was_below = raised == 1
  np.testing.assert_array_equal(drawn[~was_below], raised[~was_below])
  assert drawn.min() >= 1 and len(np.unique(drawn)) == drawn.size
  np.testing.assert_allclose(b.mean(axis=0), 0, atol=1e-13)
  # Half a normal distribution above 1: its mean is 1 + s sqrt(2 / pi), and the
  # standard deviation s sqrt(1 - 2 / pi).
  for entries in (drawn, drawn[was_below]):
    error = 3 * np.sqrt(1 - 2 / np.pi) / np.sqrt(entries.size)
    assert abs(entries.mean() - 1 - 3 * np.sqrt(2 / np.pi)) < 4 * error


def test_the_opposite_coupling_is_the_same_game_in_x_and_minus_y():
  task, opposite = _make(coupling=0.5), _make(coupling=-0.5)
  rows, z = task.train.all_rows(), _point(11)
  found = _evaluate(opposite, SaddlePoint(z.min, -z.max), rows)
  expected = _evaluate(task, z, rows)
  np.testing.assert_allclose(found.loss, expected.loss, rtol=1e-12)
  np.testing.assert_allclose(found.gradient.min, expected.gradient.min, rtol=1e-12)
  np.testing.assert_allclose(found.gradient.max, -expected.gradient.max, rtol=1e-12)


@hypothesis.given(seed=st.integers(0, 2**31 - 1), options=_options)
def test_the_optimum_is_zero_and_a_saddle_point(seed, options):
  task = _make(seed, **options)
  z_star = task.optimum.trainable
  for part in z_star:
    assert part.dtype == np.float64
    np.testing.assert_allclose(part, np.zeros(options['dimension']), atol=1e-12)
  gradient = _evaluate(task, z_star, task.train.all_rows()).gradient
  np.testing.assert_allclose(np.hstack(gradient), 0, atol=1e-13)


def test_homogeneous_clients_are_all_the_same():
  a, b, _ = _parts(_make(heterogeneity=0.0))
  np.testing.assert_array_equal(a, 1)
  np.testing.assert_array_equal(b, 0)


@pytest.mark.parametrize('h', [0.5, 1.0])
@pytest.mark.parametrize(('precision', 'rtol'), [('float64', 1e-12), ('float32', 1e-5)])
def test_values_and_gradient_mappings_are_those_of_the_formula(h, precision, rtol):
  task = _make(1, coupling=h, precision=precision)
  a, b, _ = _parts(task)
  z = _point(2)
  given_z = tf.nest.map_structure(lambda w: w.astype(precision), z)
  values = []
  for i, client_id in enumerate(task.train.client_ids):
    found = _evaluate(task, given_z, task.train.rows(client_id))
    values.append(_value(a[i], b[i], z, h))
    np.testing.assert_allclose(found.loss, values[i], rtol=rtol)
    for part, expected in zip(found.gradient, _mapping(a[i], b[i], z, h), strict=True):
      assert part.dtype == precision
      np.testing.assert_allclose(part, expected, rtol=rtol, atol=10 * rtol)
  # The mean over all rows is f.
  found = _evaluate(task, given_z, task.train.all_rows())
  np.testing.assert_allclose(found.loss, np.mean(values), rtol=rtol)


def test_with_full_coupling_the_maximum_is_the_regression():
  task = _make(3, coupling=1.0)
  a, b, _ = _parts(task)
  x = _point(4).min
  residual = a.mean(axis=0) * x - b.mean(axis=0)
  found = _evaluate(task, SaddlePoint(x, -residual), task.train.all_rows())
  np.testing.assert_allclose(found.gradient.max, 0, atol=1e-12)
  np.testing.assert_allclose(
    found.loss, residual @ residual / 2 + _LAMBDA / 2 * x @ x, rtol=1e-12
  )


@pytest.mark.parametrize('theta', [0.1, 1.0, 30.0])
def test_the_prox_is_where_the_regularized_gradient_mapping_is_zero(theta):
  task = _make(5)
  z0 = _point(6)
  z = task.objective.prox(tf.nest.map_structure(tf.constant, z0), theta)
  assert isinstance(z, SaddlePoint)
  gradient = _evaluate(task, z, task.train.all_rows()).gradient
  for g, new, old in zip(gradient, z, z0, strict=True):
    np.testing.assert_allclose(g + theta * (new - old), 0, atol=1e-12)


def test_the_prox_is_computed_in_the_weights_own_dtype():
  task = _make(precision='float32')
  z = task.objective.prox(task.model.initialize(None).trainable, 1.0)
  assert {part.dtype for part in z} == {tf.float32}


def test_the_modulus_is_that_of_the_weakest_direction():
  assert _make().objective.convexity == _LAMBDA


def test_the_duality_gap_is_the_distance_in_the_norm_of_the_moduli():
  task = _make(7)
  rows, z, z_star = task.train.all_rows(), _point(8), task.optimum.trainable
  gap = saddle_point.duality_gap(lambda z: _evaluate(task, z, rows).loss, z, z_star)
  expected = _LAMBDA / 2 * z.min @ z.min + z.max @ z.max / 2
  np.testing.assert_allclose(gap, expected, rtol=1e-10)


def test_it_starts_where_it_is_told():
  start = _make(initial_value=-2.5).model.initialize(tf.constant([0, 0]))
  for part in start.trainable:
    np.testing.assert_array_equal(part, np.full(10, -2.5))
  tf.nest.assert_same_structure(start, _make().optimum)


@pytest.mark.parametrize('precision', ['float64', 'float32'])
def test_every_client_has_one_row_that_matches_what_the_model_expects(precision):
  task = _make(precision=precision)
  assert task.train is task.test
  assert len(task.train.client_ids) == 10
  for client_id in task.train.client_ids:
    rows = task.train.rows(client_id)
    for name, spec in task.model.input_spec.items():
      assert len(rows[name]) == 1
      assert spec.dtype == precision
      assert spec.is_compatible_with(tf.convert_to_tensor(rows[name]))
  assert {part.dtype.name for part in task.optimum.trainable} == {precision}


def test_evaluation_is_that_of_f():
  task = _make(9)
  a, b, _ = _parts(task)
  z = task.model.initialize(None)
  found = evaluation.Evaluator(task.model)(z, task.test.all_rows())
  ones = SaddlePoint(np.ones(10), np.ones(10))
  expected = np.mean([_value(*row, ones, 0.5) for row in zip(a, b, strict=True)])
  assert list(found) == ['loss']
  np.testing.assert_allclose(found['loss'], expected, rtol=1e-6)


def test_options_and_seed_determine_everything():
  def made(seed=0, **options):
    return _make(seed, **options).train.all_rows()['x'].tobytes()

  assert made() == made()
  assert made() != made(seed=1)
  assert made() != made(heterogeneity=4.0)
  assert made() != made(threshold='redraw')
  # What does not change the data.
  assert made() == made(coupling=1.0) == made(initial_value=0.0)


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'num_clients': 0}, 'num_clients and dimension must be at least 1'),
    ({'dimension': 0}, 'num_clients and dimension must be at least 1'),
    ({'heterogeneity': -1.0}, 'heterogeneity must be at least 0, found -1.0'),
    ({'heterogeneity': float('nan')}, 'heterogeneity must be at least 0'),
    ({'heterogeneity': float('inf')}, 'heterogeneity must be at least 0'),
    ({'coupling': 0.0}, 'coupling must be finite and not 0, found 0.0'),
    ({'coupling': float('inf')}, 'coupling must be finite'),
    ({'threshold': 'clip'}, "threshold must be one of raise, redraw; found 'clip'"),
    ({'initial_value': float('nan')}, 'initial_value must be finite'),
    ({'precision': 'float16'}, "must be one of float64, float32; found 'float16'"),
  ],
)
def test_games_that_there_are_not_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    _make(**options)
