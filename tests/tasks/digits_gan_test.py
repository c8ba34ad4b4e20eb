"""The adversarial network on the digits against its definition in numpy."""

import numpy as np
import pytest
import tensorflow as tf

import tasks
from tasks import digits_gan
from tests.tff_algorithms import problems
from tff_algorithms.fed_avg_s import build_fed_avg_s
from tff_algorithms.models import ModelWeights
from tff_algorithms.saddle_point import SaddlePoint
from training_loops import evaluation

_SEED = tf.constant([5, 7], tf.int64)


@pytest.fixture(scope='module')
def task():
  return tasks.load('digits_gan', seed=3)


def _weights(task):
  """Weights with biases other than zero."""
  rng = np.random.default_rng(0)
  return tf.nest.map_structure(
    lambda w: w + tf.constant(rng.normal(scale=0.1, size=w.shape), w.dtype),
    task.model.initialize(_SEED),
  )


def _lrelu(x):
  return np.where(x > 0, x, 0.2 * x)


def _generate(generator, noise):
  kernel, bias, last_kernel, last_bias = (w.numpy().astype(float) for w in generator)
  return 1 / (1 + np.exp(-(_lrelu(noise @ kernel + bias) @ last_kernel + last_bias)))


def _logit(discriminator, x):
  kernel, bias, last_kernel, last_bias = (
    w.numpy().astype(float) for w in discriminator
  )
  return (_lrelu(x @ kernel + bias) @ last_kernel + last_bias)[..., 0]


def _f(task, weights, images, noise):
  """f from its definition, the gradients by the pixels from differences."""
  mean_image = task.train.all_rows()['x'].mean(axis=0, dtype=float).ravel()
  generator, discriminator = weights.trainable
  real = images.reshape(-1, 64) - mean_image
  made = _generate(generator, noise) - mean_image
  d_real = 1 / (1 + np.exp(-_logit(discriminator, real)))
  d_made = 1 / (1 + np.exp(-_logit(discriminator, made)))
  steps = 1e-6 * np.eye(64)
  ahead = _logit(discriminator, real[:, np.newaxis] + steps)
  slopes = (ahead - _logit(discriminator, real[:, np.newaxis] - steps)) / 2e-6
  of_weights = sum(np.square(w.numpy().astype(float)).sum() for w in discriminator)
  value = np.log(d_real) + np.log(1 - d_made) - 0.05 * np.square(slopes).sum(axis=1)
  return value.mean() - 0.005 * of_weights, d_real, d_made


@pytest.mark.parametrize('seed', [None, [11, 12]])
def test_f_is_that_of_the_definition(task, seed):
  weights, rows = _weights(task), task.train.rows('client_000')
  noise = tf.random.stateless_normal([len(rows['x']), 16], seed or [0, 0]).numpy()
  given = None if seed is None else tf.constant(seed)
  outputs = task.model.predict(weights, tf.constant(rows['x']), given)
  value, d_real, d_made = _f(task, weights, rows['x'], noise)
  np.testing.assert_allclose(task.model.loss(rows['y'], outputs), value, rtol=1e-4)
  np.testing.assert_allclose(outputs[:, 1], d_real, rtol=1e-4)
  np.testing.assert_allclose(outputs[:, 2], d_made, rtol=1e-4)


def test_the_generator_descends_on_what_the_discriminator_ascends(task):
  weights, rows = _weights(task), task.train.rows('client_000')
  found = task.objective.evaluate(weights, rows, _SEED)

  def value(z):
    return task.objective.evaluate(ModelWeights(z, ()), rows, _SEED).loss

  z, step = weights.trainable, 1e-2
  for part, sign in (('min', 1), ('max', -1)):
    g = getattr(found.gradient, part)
    squares = sum(np.square(w).sum() for w in g)
    moved = tuple(w - step * d for w, d in zip(getattr(z, part), g, strict=True))
    change = value(z._replace(**{part: moved})) - found.loss
    np.testing.assert_allclose(change, -sign * step * squares, rtol=0.2)


def test_the_noise_is_that_of_the_seed(task):
  weights, x = (
    task.model.initialize(_SEED),
    tf.constant(task.train.rows('client_000')['x']),
  )

  def made(seed):
    return task.model.predict(weights, x, seed).numpy()[:, 2]

  np.testing.assert_array_equal(made(_SEED), made(_SEED))
  np.testing.assert_array_equal(made(None), made(None))
  assert not np.allclose(made(_SEED), made(tf.constant([5, 8])))


def test_weights_are_of_two_players(task):
  weights = task.model.initialize(_SEED).trainable
  assert isinstance(weights, SaddlePoint)
  shapes = [tuple(w.shape) for w in tf.nest.flatten(weights)]
  assert shapes == [
    *[(16, 128), (128,), (128, 64), (64,)],
    *[(64, 128), (128,), (128, 1), (1,)],
  ]


def test_the_data_are_those_of_the_other_digits_tasks(task):
  other = tasks.load('digits_mlp', seed=3)
  for mine, others in ((task.train, other.train), (task.test, other.test)):
    assert mine.client_ids == others.client_ids
    for name, array in mine.all_rows().items():
      np.testing.assert_array_equal(array, others.all_rows()[name])
      assert task.model.input_spec[name].is_compatible_with(tf.constant(array))


def test_samples_are_pictures_of_the_seed(task):
  weights = task.model.initialize(_SEED)
  images = digits_gan.sample(weights, 7, seed=4)
  assert images.shape == (7, 8, 8)
  assert images.min() >= 0
  assert images.max() <= 1
  noise = tf.random.stateless_normal([7, 16], [4, 0]).numpy()
  made = _generate(weights.trainable.min, noise)
  np.testing.assert_allclose(images.reshape(7, 64), made, rtol=1e-4)


def test_scores_are_means_over_pictures(task):
  rows = task.test.all_rows()
  weights = _weights(task)
  found = evaluation.Evaluator(task.model)(weights, rows)
  assert list(found) == ['loss', 'score_of_real', 'score_of_made']
  outputs = task.model.predict(weights, tf.constant(rows['x'][:256]), None)
  assert abs(found['score_of_real'] - outputs[:, 1].numpy().mean()) < 0.05
  assert 0 < found['score_of_made'] < 1


@pytest.mark.usefixtures('runtime')
@pytest.mark.slow
def test_fed_avg_s_learns_the_shape_of_the_digits():
  task = tasks.load('digits_gan', seed=3, partitioner='iid', num_clients=5)
  process = build_fed_avg_s(
    task.objective, client_learning_rate=0.1, batch_size=20, local_steps=20
  )
  cohort = [task.train.rows(client_id) for client_id in task.train.client_ids]
  weights, _ = problems.run(process, [cohort] * 30)
  mean = task.test.all_rows()['x'].mean(axis=0)

  def distance(weights):
    images = digits_gan.sample(ModelWeights(weights, ()), 500)
    return np.linalg.norm(images.mean(axis=0) - mean)

  start = task.model.initialize(_SEED).trainable
  assert distance(weights[-1]) < distance(start) / 3
