"""Tests of the models of images, against TFF's own and Keras."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks import image_models
from tests.tasks import tff_baselines
from tests.tasks.tff_baselines import assert_close
from tff_algorithms import models
from tff_algorithms.models import ModelWeights

_MODELS = {
  'logistic': lambda: image_models.logistic((28, 28), 62),
  'mlp': lambda: image_models.mlp((28, 28), 62, (100, 100)),
  'cnn_dropout': lambda: image_models.cnn_dropout(62),
  'small_cnn': lambda: image_models.small_cnn((32, 32, 3), 10),
  'autoencoder': image_models.autoencoder,
  'resnet18': lambda: image_models.resnet18((24, 24, 3), 100),
}
_SEED = tf.constant([1, 2])


def _rows(model, num_rows):
  """Random images, in float64, and labels."""
  generator = np.random.default_rng(0)
  shape = model.input_spec['x'].shape[1:]
  labels = generator.integers(0, 10, [num_rows]).astype(np.int32)
  return generator.random([num_rows, *shape]), labels


def _tff_classifier(model_id):
  return tff.simulation.baselines.emnist.create_character_recognition_task(
    tff_baselines.CLIENT_SPEC, model_id=model_id, use_synthetic_data=True
  ).model_fn()


def _tff_autoencoder():
  return tff.simulation.baselines.emnist.create_autoencoder_task(
    tff_baselines.CLIENT_SPEC, use_synthetic_data=True
  ).model_fn()


def _tff_resnet():
  return tff.simulation.baselines.cifar100.create_image_classification_task(
    tff_baselines.CLIENT_SPEC, use_synthetic_data=True
  ).model_fn()


@pytest.mark.parametrize(
  ('model', 'model_id'),
  [
    (image_models.cnn_dropout(62), 'cnn_dropout'),
    (image_models.mlp((28, 28), 62, (200, 200)), '2nn'),
  ],
  ids=['cnn_dropout', 'mlp'],
)
def test_network_for_emnist_is_that_of_tff(model, model_id):
  with tff_baselines.keras_in_float64():
    tff_model = _tff_classifier(model_id)
  tff_baselines.assert_starts_alike(model, tff_model)
  x, y = _rows(model, 5)
  weights = tff_baselines.random_weights(model)
  ours = tff_baselines.our_results(model, weights, x, y)
  theirs = tff_baselines.tff_results(tff_model, weights, x[..., np.newaxis], y)
  assert_close(tf.nn.softmax(ours.outputs), theirs.outputs)
  assert_close(ours.loss, theirs.loss)
  assert_close(ours.gradient, theirs.gradient)


def test_autoencoder_is_that_of_tff():
  model = image_models.autoencoder()
  with tff_baselines.keras_in_float64():
    tff_model = _tff_autoencoder()
  tff_baselines.assert_starts_alike(model, tff_model)
  x, y = _rows(model, 5)
  weights = tff_baselines.random_weights(model)
  ours = tff_baselines.our_results(model, weights, x, y)
  flat = x.reshape(5, 784)
  theirs = tff_baselines.tff_results(tff_model, weights, flat, flat)
  assert_close(ours.outputs['reconstruction'], theirs.outputs)
  np.testing.assert_array_equal(ours.outputs['pixels'], flat)
  assert_close(ours.loss, theirs.loss)
  assert_close(ours.gradient, theirs.gradient)


@pytest.mark.slow
def test_resnet_is_that_of_tff_with_its_penalty():
  model = image_models.resnet18((24, 24, 3), 100)
  with tff_baselines.keras_in_float64():
    tff_model = _tff_resnet()
  tff_baselines.assert_starts_alike(model, tff_model)
  x, y = _rows(model, 3)
  y = y.astype(np.int64)
  weights = tff_baselines.random_weights(model)
  ours = tff_baselines.our_results(model, weights, x, y)
  theirs = tff_baselines.tff_results(tff_model, weights, x, y)
  assert_close(tf.nn.softmax(ours.outputs['logits']), theirs.outputs)
  assert_close(ours.loss, theirs.loss)
  assert_close(ours.gradient, theirs.gradient)


@pytest.mark.parametrize('shape', [(28, 28), (32, 32, 3), (9, 14, 2)])
def test_small_cnn_is_what_it_says(shape):
  keras_layers = tf.keras.layers
  with tff_baselines.keras_in_float64():
    keras_model = tf.keras.Sequential(
      [
        keras_layers.Input(shape if len(shape) == 3 else (*shape, 1)),
        keras_layers.Conv2D(32, 3, padding='same', activation='relu'),
        keras_layers.MaxPool2D(),
        keras_layers.Conv2D(64, 3, padding='same', activation='relu'),
        keras_layers.MaxPool2D(),
        keras_layers.Flatten(),
        keras_layers.Dense(128, activation='relu'),
        keras_layers.Dense(7),
      ]
    )
  model = image_models.small_cnn(shape, 7)
  weights = tff_baselines.random_weights(model)
  keras_model.set_weights(weights.trainable)
  x, _ = _rows(model, 3)
  keras_x = x if len(shape) == 3 else x[..., np.newaxis]
  assert_close(model.predict(weights, tf.constant(x), None), keras_model(keras_x))


def test_logistic_regression_starts_at_zero_and_is_linear():
  model = image_models.logistic((2, 3), 4)
  kernel, bias = model.initialize(_SEED).trainable
  assert not np.any(kernel) and not np.any(bias)
  assert kernel.shape == [6, 4] and bias.shape == [4]
  generator = np.random.default_rng(0)
  kernel, bias = generator.normal(size=[6, 4]), generator.normal(size=[4])
  x, _ = _rows(model, 5)
  weights = ModelWeights((tf.constant(kernel), tf.constant(bias)), ())
  assert_close(model.predict(weights, x, None), x.reshape(5, 6) @ kernel + bias)


@pytest.mark.parametrize('name', _MODELS)
def test_seed_determines_the_initial_weights(name):
  model = _MODELS[name]()

  def kernels(seed):
    weights = model.initialize(tf.constant(seed)).trainable
    return [w.numpy() for w in weights if w.shape.rank > 1]

  one, again, other = kernels([1, 2]), kernels([1, 2]), kernels([1, 3])
  for a, b in zip(one, again, strict=True):
    np.testing.assert_array_equal(a, b)
  if name == 'logistic':
    return  # It starts at zero.
  assert not any(map(np.array_equal, one, other))
  assert not any(itertools.starmap(np.array_equal, itertools.combinations(one, 2)))


def test_cnn_drops_a_quarter_and_then_half_and_only_in_training():
  """With weights that let through to the logits 128 of what is dropped first."""
  model = image_models.cnn_dropout(128)
  shapes = [w.shape for w in model.initialize(_SEED).trainable]
  weights = [np.zeros(shape, np.float32) for shape in shapes]
  weights[3][:] = 1  # The second convolution gives ones.
  np.fill_diagonal(weights[4], 1)
  np.fill_diagonal(weights[6], 1)
  weights = ModelWeights(tuple(map(tf.constant, weights)), ())

  def predict(seed):
    return model.predict(weights, tf.zeros([1, 28, 28]), seed).numpy()

  # One image, where two equal streams of random numbers would be in step.
  logits = np.concatenate([predict(tf.constant([1, i])) for i in range(100)])
  values, counts = np.unique(logits, return_counts=True)
  np.testing.assert_allclose(values, [0, 1 / 0.75 / 0.5], rtol=1e-6)
  share = 0.75 * 0.5
  deviation = np.sqrt(share * (1 - share) / logits.size)
  assert abs(counts[1] / logits.size - share) < 4 * deviation
  assert len(np.unique(logits, axis=0)) == 100
  np.testing.assert_array_equal(predict(tf.constant([1, 0])), logits[:1])
  np.testing.assert_array_equal(predict(None), np.ones([1, 128]))


def test_autoencoder_measures_as_keras_does_and_ignores_labels():
  model = image_models.autoencoder()
  weights = tff_baselines.random_weights(model)
  x, y = _rows(model, 5)
  metrics = [tf.keras.metrics.MeanSquaredError(), tf.keras.metrics.MeanAbsoluteError()]
  sums = None
  for rows in (slice(0, 2), slice(2, 5)):
    outputs = model.predict(weights, x[rows], None)
    for metric in metrics:
      metric.update_state(outputs['pixels'], outputs['reconstruction'])
    batch_sums = model.metrics(y[rows], outputs)
    sums = tf.nest.map_structure(tf.add, sums, batch_sums) if sums else batch_sums
    assert model.loss(y[rows], outputs) == model.loss(y[rows] + 1, outputs)
  values = model.finalize_metrics(sums)
  assert list(values) == [metric.name for metric in metrics]
  for value, metric in zip(values.values(), metrics, strict=True):
    np.testing.assert_allclose(value, metric.result(), rtol=1e-6)


def test_accuracy_of_the_resnet_is_that_of_its_logits():
  model = image_models.resnet18((24, 24, 3), 3)
  logits = tf.constant([[1.0, 2.0, 0.0], [3.0, 1.0, 0.0]])
  outputs = {'logits': logits, 'penalty': tf.constant(7.0)}
  y = tf.constant([1, 2])
  assert model.finalize_metrics(model.metrics(y, outputs))['accuracy'] == 0.5
  np.testing.assert_allclose(
    model.loss(y, outputs), models.cross_entropy(y, logits) + 7.0
  )


@pytest.mark.slow
@pytest.mark.parametrize('name', _MODELS)
def test_metrics_of_no_images_are_zero(name):
  functional = models.as_functional_model(_MODELS[name]())
  assert all(value == 0 for value in functional.initialize_metrics_state().values())
