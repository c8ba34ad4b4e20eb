"""Generated quadratics against their definition in numpy."""

import itertools

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks.quadratics import quadratics
from tests.tff_algorithms import problems
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.models import ModelWeights
from tff_algorithms.server_only import build_server_only
from training_loops import evaluation

_DEFAULTS = {
  'dimension': 6,
  'num_clients': 5,
  'gradient_dissimilarity': 1.0,
  'hessian_dissimilarity': 0.5,
  'smoothness': 2.0,
  'convexity': 0.1,
}

_options = st.fixed_dictionaries(
  {
    'dimension': st.integers(1, 12),
    'num_clients': st.integers(2, 9),
    'gradient_dissimilarity': st.just(0.0) | st.floats(1e-6, 10),
    'convexity': st.floats(0, 1),
  }
)


def _make(seed, **options):
  return quadratics('q', seed, **{**_DEFAULTS, **options})


def _parts(task):
  """A_i, g_i and w* of a task, in double precision."""
  x = task.train.all_rows()['x'].astype(np.float64)
  (optimum,) = task.optimum.trainable
  return x[:, :, :-1], x[:, :, -1], optimum.astype(np.float64)


def _norms(matrices):
  return np.abs(np.linalg.eigvalsh(matrices)).max(axis=-1)


def _client_rows(task):
  return [task.train.rows(client_id) for client_id in task.train.client_ids]


def _distances(task, process, rounds):
  """How far from the optimum each round's weights are, beginning with the start."""
  weights, _ = problems.run(process, [_client_rows(task)] * rounds)
  optimum = task.optimum.trainable[0]
  return [1.0] + [float(np.linalg.norm(w - optimum)) for (w,) in weights]


def _fed_avg(task, local_steps, rate):
  return build_fed_avg(
    task.model, client_learning_rate=rate, batch_size=1, epochs=local_steps
  )


def _fed_avg_limit(task, local_steps, rate):
  """Where mean y_i = w, as y_i - w* = S_i^K (w - w*) - rate (I + ... + S_i^(K-1)) g_i.

  Here S_i = I - rate A_i is what a local step multiplies with.
  """
  hessians, gradients, optimum = _parts(task)
  identity = np.eye(len(optimum))
  matrices, vectors = [], []
  for hessian, gradient in zip(hessians, gradients, strict=True):
    powers = [
      np.linalg.matrix_power(identity - rate * hessian, k)
      for k in range(local_steps + 1)
    ]
    matrices.append(powers[-1])
    vectors.append(-rate * sum(powers[:-1]) @ gradient)
  return optimum + np.linalg.solve(
    identity - np.mean(matrices, axis=0), np.mean(vectors, axis=0)
  )


@hypothesis.given(
  seed=st.integers(0, 2**31 - 1), options=_options, share=st.floats(0, 1)
)
def test_hessians_have_the_mean_the_deviations_and_the_range_asked_for(
  seed, options, share
):
  mu, big_l = options['convexity'], 2.0
  delta = share * (big_l - mu) / 2
  task = _make(seed, hessian_dissimilarity=delta, **options)
  hessians, _, _ = _parts(task)
  np.testing.assert_array_equal(hessians, np.swapaxes(hessians, 1, 2))
  mean = hessians.mean(axis=0)
  eigenvalues = np.linalg.eigvalsh(mean)
  np.testing.assert_allclose(eigenvalues[0], mu + delta, atol=2e-6)
  if options['dimension'] > 1:
    np.testing.assert_allclose(eigenvalues[-1], big_l - delta, atol=2e-6)
  num_clients = options['num_clients']
  deviations = [delta] * (num_clients // 2 * 2) + [0] * (num_clients % 2)
  np.testing.assert_allclose(_norms(hessians - mean), deviations, atol=2e-6)
  everywhere = np.linalg.eigvalsh(hessians)
  assert everywhere.min() > mu - 2e-6
  assert everywhere.max() < big_l + 2e-6


@hypothesis.given(seed=st.integers(0, 2**31 - 1), options=_options)
def test_gradients_at_the_optimum_cancel_and_have_the_mean_square_asked_for(
  seed, options
):
  task = _make(seed, **options)
  _, gradients, _ = _parts(task)
  big_g = options['gradient_dissimilarity']
  np.testing.assert_allclose(gradients.mean(axis=0), 0, atol=1e-6 * big_g)
  mean_square = np.square(gradients).sum(axis=1).mean()
  np.testing.assert_allclose(mean_square, big_g**2, rtol=1e-6)


@hypothesis.given(seed=st.integers(0, 2**31 - 1), options=_options)
def test_the_optimum_is_at_distance_one_from_the_start(seed, options):
  task = _make(seed, **options)
  (start,) = task.model.initialize(tf.constant([0, 0])).trainable
  (optimum,) = task.optimum.trainable
  assert optimum.shape == start.shape == (options['dimension'],)
  assert optimum.dtype == start.numpy().dtype == np.float32
  np.testing.assert_allclose(np.linalg.norm(optimum - start), 1, rtol=1e-6)


def test_every_client_has_one_row_that_matches_what_the_model_expects():
  task = _make(0)
  assert task.train is task.test
  assert len(task.train.client_ids) == 5
  for rows in _client_rows(task):
    for name, spec in task.model.input_spec.items():
      assert len(rows[name]) == 1
      assert spec.is_compatible_with(tf.convert_to_tensor(rows[name]))


@pytest.mark.parametrize('where', [0.0, 1.0, 10.0])
def test_values_and_gradients_are_those_of_the_formula(where):
  task = _make(1)
  hessians, gradients, optimum = _parts(task)
  direction = np.random.default_rng(2).normal(size=6)
  point = (optimum + where * direction).astype(np.float32)
  away = point.astype(np.float64) - optimum
  weights = ModelWeights((tf.constant(point),), ())
  for i, rows in enumerate(_client_rows(task)):
    with tf.GradientTape() as tape:
      tape.watch(weights.trainable)
      (output,) = task.model.predict(weights, rows['x'], None)
      loss = task.model.loss(rows['y'], output[tf.newaxis])
    (gradient,) = tape.gradient(loss, weights.trainable)
    value = away @ hessians[i] @ away / 2 + gradients[i] @ away
    scale = np.linalg.norm(gradients[i]) + np.linalg.norm(away)
    np.testing.assert_allclose(output, value, atol=1e-6 * scale**2)
    assert loss == output
    np.testing.assert_allclose(
      gradient, hessians[i] @ away + gradients[i], atol=1e-6 * scale
    )


def test_the_evaluation_loss_is_what_is_left_to_gain():
  task = _make(3)
  hessians, _, optimum = _parts(task)
  evaluate, rows = evaluation.Evaluator(task.model), task.test.all_rows()
  start = evaluate(task.model.initialize(tf.constant([0, 0])), rows)
  expected = optimum @ hessians.mean(axis=0) @ optimum / 2
  np.testing.assert_allclose(start['loss'], expected, rtol=1e-5)
  assert evaluate(task.optimum, rows) == {'loss': 0}


def test_options_and_seed_determine_everything():
  def made(seed=0, **options):
    task = _make(seed, **options)
    return task.train.all_rows()['x'].tobytes(), task.optimum.trainable[0].tobytes()

  assert made() == made()
  assert made()[0] != made(seed=1)[0]
  assert made()[1] != made(seed=1)[1]
  for option in ('gradient_dissimilarity', 'hessian_dissimilarity', 'convexity'):
    assert made()[0] != made(**{option: 0.3})[0]


def test_a_single_client_is_the_mean():
  task = _make(0, num_clients=1, gradient_dissimilarity=0.0, hessian_dissimilarity=0.0)
  hessians, gradients, _ = _parts(task)
  np.testing.assert_allclose(
    np.linalg.eigvalsh(hessians[0]), np.linspace(0.1, 2.0, 6), atol=2e-6
  )
  assert not gradients.any()


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'dimension': 0}, 'dimension and num_clients'),
    ({'num_clients': 0}, 'dimension and num_clients'),
    ({'convexity': 3.0}, 'convexity must be from 0 to smoothness'),
    ({'convexity': -1.0}, 'convexity must be from 0 to smoothness'),
    ({'smoothness': float('inf')}, 'convexity must be from 0 to smoothness'),
    ({'gradient_dissimilarity': -1.0}, 'gradient_dissimilarity must be at least 0'),
    (
      {'hessian_dissimilarity': 1.0},
      r'from 0 to \(smoothness - convexity\) / 2 = 0.95, found 1.0',
    ),
    ({'num_clients': 1, 'hessian_dissimilarity': 0.0}, 'with a single client'),
    ({'num_clients': 1, 'gradient_dissimilarity': 0.0}, 'with a single client'),
  ],
)
def test_quadratics_that_there_are_not_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    _make(0, **options)


@pytest.mark.usefixtures('runtime')
@pytest.mark.slow
def test_gradient_descent_contracts_to_the_optimum():
  mu, big_l = 0.5, 2.0
  task = _make(4, convexity=mu, smoothness=big_l)
  optimizer = tff.learning.optimizers.build_sgdm(1 / big_l)
  process = build_server_only(task.model, optimizer=optimizer)
  distances = _distances(task, process, 40)
  for before, after in itertools.pairwise(distances):
    assert after <= (1 - mu / big_l) * before + 1e-6
  assert distances[-1] < 3e-6


@pytest.mark.usefixtures('runtime')
@pytest.mark.slow
def test_fed_avg_stalls_where_clients_differ_in_both_ways():
  task = _make(5, convexity=0.5)
  limit = _fed_avg_limit(task, local_steps=5, rate=0.25)
  weights, _ = problems.run(_fed_avg(task, 5, 0.25), [_client_rows(task)] * 40)
  np.testing.assert_allclose(weights[-1][0], limit, atol=3e-6)
  assert np.linalg.norm(limit - task.optimum.trainable[0]) > 0.01


@pytest.mark.usefixtures('runtime')
@pytest.mark.slow
@pytest.mark.parametrize('alike', ['gradient_dissimilarity', 'hessian_dissimilarity'])
def test_fed_avg_reaches_the_optimum_where_clients_differ_in_one_way(alike):
  task = _make(6, convexity=0.5, **{alike: 0.0})
  distances = _distances(task, _fed_avg(task, 5, 0.25), 40)
  assert distances[-1] < 3e-6


@pytest.mark.usefixtures('runtime')
def test_fed_avg_measures_the_loss_and_nothing_of_the_models_own():
  task = _make(7)
  process = _fed_avg(task, 2, 0.1)
  _, metrics = problems.run(process, [_client_rows(task)] * 2)
  assert metrics[1]['loss'] < metrics[0]['loss']
  assert metrics[1]['num_clients'] == 5
