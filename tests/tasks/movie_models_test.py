"""Tests of the dual encoder, of its regularizer and of the selection of movies."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks import movie_models
from tests.tasks import tff_baselines
from tests.tasks.tff_baselines import assert_close
from tff_algorithms import models, oracles
from tff_algorithms.models import ModelWeights

_NUM_MOVIES = 40
_NUM_SEEN = 4
_MAX_MOVIES = 12
_SEED = tf.constant([1, 2])
_X = np.array(
  [[-1, -1, -1, 7], [-1, 7, 30, 2], [7, 30, 2, 39], [30, 2, 39, 0]], np.int32
)
_Y = np.array([30, 39, 0, 11], np.int32)


@pytest.fixture(scope='module')
def model():
  return movie_models.dual_encoder(_NUM_MOVIES, _NUM_SEEN)


@pytest.fixture(scope='module')
def weights(model):
  """In float64, with a bias that is not zero."""
  return tff_baselines.random_weights(model)


def _unit(vectors):
  return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def _cosines(weights):
  """The scores of all movies for the examples, in the words of the docstring."""
  table, kernel, bias = weights
  means = np.array([table[seen[seen >= 0]].mean(axis=0) for seen in _X])
  return _unit(np.maximum(means @ kernel + bias, 0)) @ _unit(table).T


def _hinge_loss(weights):
  scores = _cosines(weights)[range(len(_Y)), _Y]
  return np.mean(np.maximum(0, 0.9 - scores) ** 2)


def _spreadout(table):
  cosines = _unit(table) @ _unit(table).T
  return 0.01 * np.sqrt(np.sum(cosines**2 * (1 - np.eye(len(table)))))


def _slope(function, weights, direction, step=1e-6):
  """The derivative of a function in a direction, by central differences."""
  moved = [
    [w + sign * step * v for w, v in zip(weights, direction, strict=True)]
    for sign in (1, -1)
  ]
  return (function(moved[0]) - function(moved[1])) / (2 * step)


def _direction(weights):
  generator = np.random.default_rng(5)
  return [generator.normal(size=w.shape) for w in weights]


def _along(gradient, direction):
  return sum(np.sum(g * v) for g, v in zip(gradient, direction, strict=True))


def test_loss_is_the_hinge_loss_of_the_next_movie_alone(model, weights):
  arrays = [w.numpy() for w in weights.trainable]
  results = tff_baselines.our_results(model, weights, _X, _Y)
  np.testing.assert_allclose(results.loss, _hinge_loss(arrays), rtol=1e-12)
  direction = _direction(arrays)
  np.testing.assert_allclose(
    _along(results.gradient, direction),
    _slope(_hinge_loss, arrays, direction),
    rtol=1e-6,
  )


def test_a_score_above_the_margin_costs_nothing(model, weights):
  outputs = model.predict(weights, tf.constant(_X[:1]), None)
  table = outputs['table'].numpy()
  for towards, expected in ((1.0, 0.0), (-1.0, 1.9**2)):
    table[3] = towards * outputs['user'][0]
    loss = model.loss(tf.constant([3]), {**outputs, 'table': tf.constant(table)})
    np.testing.assert_allclose(loss, expected, rtol=1e-12)


def test_padding_counts_for_nothing_wherever_it_is(model, weights):
  expected = tff_baselines.our_results(model, weights, _X, _Y)
  elsewhere = [np.roll(_X, 2, axis=1), np.pad(_X, [(0, 0), (3, 2)], constant_values=-1)]
  for x in elsewhere:
    results = tff_baselines.our_results(model, weights, x, _Y)
    assert_close(results.loss, expected.loss)
    assert_close(results.gradient, expected.gradient)


def test_nobody_who_saw_nothing_makes_the_gradient_infinite(model, weights):
  results = tff_baselines.our_results(
    model, weights, np.full([1, 4], -1, np.int32), _Y[:1]
  )
  assert all(np.isfinite(g).all() for g in results.gradient)


@pytest.mark.parametrize(
  ('name', 'movie'), [('x', -2), ('x', _NUM_MOVIES), ('y', -1), ('y', _NUM_MOVIES)]
)
def test_id_out_of_range_makes_the_loss_nan(model, weights, name, movie):
  batch = {'x': _X.copy(), 'y': _Y.copy()}
  batch[name][..., -1:] = movie
  assert np.isnan(tff_baselines.our_results(model, weights, **batch).loss)


def test_recall_is_of_the_ten_best_scores_of_all_movies(model, weights):
  table, kernel, bias = (w.numpy() for w in weights.trainable)
  table[11], table[39] = table[7], -table[7]
  arrays = (table, kernel, bias)
  scores = _cosines(arrays)
  # The movies in the tenth and in the eleventh place, and two whatever theirs.
  ranking = np.argsort(-scores, axis=1)
  y = np.array([ranking[0, 9], ranking[1, 10], *_Y[2:]], np.int32)
  expected = [y[i] in ranking[i, :10] for i in range(len(y))]
  changed = ModelWeights(tuple(map(tf.constant, arrays)), ())
  outputs = model.predict(changed, tf.constant(_X), None)
  np.testing.assert_allclose(outputs['scores'], scores, rtol=1e-12)
  sums = model.metrics(tf.constant(y), outputs)
  assert sums == {'num_in_top_10': sum(expected), 'num_ranked': 4}
  values = model.finalize_metrics(sums)
  assert values == {'recall_at_10': sum(expected) / 4}


def test_movies_that_are_all_the_same_have_the_recall_of_ten_movies(model):
  start = model.initialize(_SEED)
  weights = ModelWeights((tf.ones([_NUM_MOVIES, 16]), *start.trainable[1:]), ())
  every = np.arange(_NUM_MOVIES, dtype=np.int32)
  outputs = model.predict(weights, tf.constant(every[:, np.newaxis]), None)
  sums = model.metrics(tf.constant(every), outputs)
  assert sums['num_in_top_10'] == 10


def test_nothing_is_ranked_in_training(model, weights):
  batch = {'x': tf.constant(_X), 'y': tf.constant(_Y)}
  assert model.predict(weights, batch['x'], _SEED)['scores'].shape == (4, 0)
  oracle = oracles.ModelLoss(model)
  training = oracle.evaluate(weights, batch, _SEED)
  inference = oracle.evaluate(weights, batch, None)
  assert_close(training.loss, inference.loss)
  assert_close(training.gradient, inference.gradient)
  tf.nest.assert_same_structure(training.metrics, inference.metrics)
  assert all(value == 0 for value in training.metrics.values())
  assert np.isnan(oracle.finalize_metrics(training.metrics)['recall_at_10'])


def test_spreadout_is_over_all_pairs_of_different_movies(weights):
  arrays = [w.numpy() for w in weights.trainable]
  evaluation = movie_models.spreadout().evaluate(weights, (), None)
  np.testing.assert_allclose(evaluation.loss, _spreadout(arrays[0]), rtol=1e-12)
  of_table, of_kernel, of_bias = evaluation.gradient
  direction = _direction(arrays[:1])
  np.testing.assert_allclose(
    _along([of_table], direction),
    _slope(lambda moved: _spreadout(*moved), arrays[:1], direction),
    rtol=1e-6,
  )
  assert not np.any(of_kernel)
  assert not np.any(of_bias)


def test_spreadout_in_float32_is_that_in_float64():
  model = movie_models.dual_encoder(3952, 10)
  single = model.initialize(_SEED)
  double = tf.nest.map_structure(lambda w: tf.cast(w, tf.float64), single)
  evaluate = movie_models.spreadout().evaluate
  actual, expected = (evaluate(w, (), None) for w in (single, double))
  np.testing.assert_allclose(actual.loss, expected.loss, rtol=1e-5)
  difference = tf.norm(tf.cast(actual.gradient[0], tf.float64) - expected.gradient[0])
  assert difference < 1e-4 * tf.norm(expected.gradient[0])


@pytest.mark.parametrize('table', [np.eye(16), np.eye(20, 16), np.eye(3, 16) / 7])
def test_spreadout_is_least_where_movies_are_orthogonal(table):
  weights = ModelWeights((tf.constant(table, tf.float32),), ())
  evaluation = movie_models.spreadout().evaluate(weights, (), None)
  assert 0 <= evaluation.loss < 1e-4
  np.testing.assert_array_equal(evaluation.gradient[0], 0)


def _trained(model, objective, batch):
  weights = model.initialize(_SEED)

  @tf.function
  def step(weights):
    gradient = objective.evaluate(weights, batch, _SEED).gradient
    moved = [w - 0.1 * g for w, g in zip(weights.trainable, gradient, strict=True)]
    return ModelWeights(tuple(moved), ())

  for _ in range(400):
    weights = step(weights)
  return weights


def test_movies_collapse_without_spreadout_and_not_with_it():
  """Four kinds of movies, of which people see only one each."""
  model = movie_models.dual_encoder(_NUM_MOVIES, _NUM_SEEN)
  generator = np.random.default_rng(0)
  kinds = generator.integers(0, 4, [400, 1])
  movies = (4 * generator.integers(0, 10, [400, _NUM_SEEN + 1]) + kinds).astype('int32')
  batch = {'x': tf.constant(movies[:, :-1]), 'y': tf.constant(movies[:, -1])}
  hinge = oracles.ModelLoss(model)
  both = oracles.Sum(hinge, movie_models.spreadout())
  of_kind = {}
  for name, objective in (('hinge', hinge), ('both', both)):
    weights = _trained(model, objective, batch)
    scores = model.predict(weights, batch['x'], None)['scores']
    best = tf.math.top_k(scores, k=10).indices.numpy()
    of_kind[name] = np.mean(best % 4 == kinds)
  assert of_kind['both'] > 0.95
  assert of_kind['hinge'] < 0.6


def _rows(x, y):
  return collections.OrderedDict(x=tf.constant(x, tf.int32), y=tf.constant(y, tf.int32))


@pytest.fixture(scope='module')
def selection():
  return movie_models.selection(_NUM_MOVIES, _MAX_MOVIES)


def test_keys_are_the_movies_that_a_client_has_each_once(model, selection):
  assert selection.table_shape == model.initialize(_SEED).trainable[0].shape
  assert selection.max_keys == _MAX_MOVIES
  keys = selection.keys(_rows(_X, _Y))
  assert keys.dtype == tf.int32
  np.testing.assert_array_equal(keys, [0, 2, 7, 11, 30, 39] + [-1] * 6)


def test_keys_have_a_shape_that_is_known_and_may_be_of_no_rows(model, selection):
  keys = tf.function(selection.keys, input_signature=[model.input_spec])
  traced = keys.get_concrete_function()
  assert traced.structured_outputs.shape == (_MAX_MOVIES,)
  none = keys(_rows(np.zeros([0, _NUM_SEEN]), np.zeros([0])))
  np.testing.assert_array_equal(none, [-1] * _MAX_MOVIES)


def test_rows_are_localized_but_for_padding(model, selection):
  rows = _rows(_X, _Y)
  local = selection.localize(rows, selection.keys(rows))
  assert list(local) == ['x', 'y']
  np.testing.assert_array_equal(
    local['x'], [[-1, -1, -1, 2], [-1, 2, 4, 1], [2, 4, 1, 5], [4, 1, 5, 0]]
  )
  np.testing.assert_array_equal(local['y'], [4, 5, 0, 3])
  traced = tf.function(
    lambda rows: selection.localize(rows, selection.keys(rows)),
    input_signature=[model.input_spec],
  ).get_concrete_function()
  for name, spec in model.input_spec.items():
    assert traced.structured_outputs[name].dtype == spec.dtype
    assert traced.structured_outputs[name].shape.as_list() == spec.shape.as_list()


def test_the_model_of_a_selection_has_the_same_loss_and_gradient(
  model, weights, selection
):
  rows = _rows(_X, _Y)
  keys = selection.keys(rows)
  table, *others = weights.trainable
  # What is sent for -1 does not matter.
  sent = tf.where(keys[:, tf.newaxis] >= 0, tf.gather(table, tf.maximum(keys, 0)), 9)
  oracle = oracles.ModelLoss(model)
  whole = oracle.evaluate(weights, rows, _SEED)
  part = oracle.evaluate(
    ModelWeights((sent, *others), ()), selection.localize(rows, keys), _SEED
  )
  assert_close(part.loss, whole.loss)
  of_sent, *of_others = part.gradient
  scattered = tf.math.unsorted_segment_sum(of_sent, keys, _NUM_MOVIES)
  assert_close((scattered, *of_others), whole.gradient)
  assert np.any(whole.gradient[0])


@pytest.mark.parametrize('movie', [-2, _NUM_MOVIES, 2**31 - 1])
def test_an_id_out_of_range_stays_so_in_a_selection(model, weights, selection, movie):
  y = np.array([*_Y[:-1], movie])
  rows = _rows(_X, y)
  keys = selection.keys(rows)
  np.testing.assert_array_equal(keys, [0, 2, 7, 30, 39] + [-1] * 7)
  local = selection.localize(rows, keys)
  sent = ModelWeights((tf.zeros([_MAX_MOVIES, 16]), tf.eye(16), tf.ones([16])), ())
  for w, batch in ((weights, rows), (sent, local)):
    assert np.isnan(oracles.ModelLoss(model).evaluate(w, batch, _SEED).loss)


def test_more_movies_than_may_be_selected_make_the_loss_nan(model, selection):
  rows = _rows(np.arange(20).reshape(5, 4), [0, 1, 2, 3, 4])
  keys = selection.keys(rows)
  np.testing.assert_array_equal(keys, np.arange(_MAX_MOVIES))
  local = selection.localize(rows, keys)
  sent = ModelWeights((tf.ones([_MAX_MOVIES, 16]), tf.eye(16), tf.ones([16])), ())
  assert np.isnan(oracles.ModelLoss(model).evaluate(sent, local, _SEED).loss)


def test_seed_determines_the_initial_weights(model):
  def start(seed):
    return [w.numpy() for w in model.initialize(tf.constant(seed)).trainable]

  assert [w.shape for w in start([1, 2])] == [(_NUM_MOVIES, 16), (16, 16), (16,)]
  for one, again, other in zip(
    start([1, 2]), start([1, 2]), start([1, 3]), strict=True
  ):
    np.testing.assert_array_equal(one, again)
    assert one.ndim == 1 or not np.array_equal(one, other)


def test_metrics_of_no_rows_are_zero(model):
  functional = models.as_functional_model(model)
  assert all(value == 0 for value in functional.initialize_metrics_state().values())


@pytest.mark.slow
def test_model_and_selection_run_in_a_loop_on_tffs_worker(runtime, model, selection):
  """Their operations are there, and take batches of any size."""
  hinge, spread = oracles.ModelLoss(model), movie_models.spreadout()

  def losses(x, y):
    keys = selection.keys(collections.OrderedDict(x=x, y=y))
    table, *others = model.initialize([1, 2]).trainable
    sent = tf.gather(table, tf.maximum(keys, 0))

    def step(t, weights, losses):
      rows = collections.OrderedDict(x=x[: t + 1], y=y[: t + 1])
      of_hinge = hinge.evaluate(weights, selection.localize(rows, keys), _SEED)
      of_spread = spread.evaluate(weights, (), _SEED)
      moved = [
        w - g - h
        for w, g, h in zip(
          weights.trainable, of_hinge.gradient, of_spread.gradient, strict=True
        )
      ]
      return t + 1, ModelWeights(tuple(moved), ()), losses.write(t, of_hinge.loss)

    start = 0, ModelWeights((sent, *others), ()), tf.TensorArray(tf.float32, 3)
    return tf.while_loop(lambda t, *_: t < 3, step, start)[-1].stack()

  spec = model.input_spec
  types = tff.types.tensorflow_to_type([spec['x'], spec['y']])
  x, y = _X.astype(np.int32), _Y.astype(np.int32)
  on_worker = tff.tensorflow.computation(losses, types)(x, y)
  assert len(set(on_worker)) == 3
  np.testing.assert_allclose(on_worker, tf.function(losses)(x, y), rtol=1e-5)
