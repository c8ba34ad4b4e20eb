"""Our models beside TFF's own, with the same weights on the same batch, in float64."""

import contextlib
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import oracles

CLIENT_SPEC = tff.simulation.baselines.ClientSpec(
  num_epochs=1, batch_size=1, shuffle_buffer_size=1
)


class Results(NamedTuple):
  """What a model makes of a batch in inference."""

  outputs: Any
  loss: tf.Tensor
  gradient: tuple[tf.Tensor, ...]


@contextlib.contextmanager
def keras_in_float64():
  """Has Keras make models in float64, which tell rounding from a mistake."""
  tf.keras.utils.set_random_seed(0)
  before = tf.keras.backend.floatx()
  tf.keras.backend.set_floatx('float64')
  try:
    yield
  finally:
    tf.keras.backend.set_floatx(before)


def random_weights(model):
  """Initial weights in float64, with noise on those that start at zero or one."""
  generator = np.random.default_rng(0)

  def noisy(w):
    w = w.numpy().astype(np.float64)
    is_random = w.ndim > 1 and w.any()
    return tf.constant(w if is_random else w + 0.1 * generator.normal(size=w.shape))

  return tf.nest.map_structure(noisy, model.initialize(tf.constant([1, 2])))


def our_results(model, weights, x, y):
  batch = {'x': tf.constant(x), 'y': tf.constant(y)}
  evaluation = oracles.ModelLoss(model).evaluate(weights, batch, None)
  outputs = model.predict(weights, batch['x'], None)
  return Results(outputs, evaluation.loss, evaluation.gradient)


def tff_results(tff_model, weights, x, y):
  """The same of a `tff.learning.models.VariableModel`, set to our weights."""
  variables = tff_model.trainable_variables
  for variable, value in zip(variables, weights.trainable, strict=True):
    variable.assign(tf.cast(value, variable.dtype))
  with tf.GradientTape() as tape:
    result = tff_model.forward_pass((tf.constant(x), tf.constant(y)), training=False)
  gradient = map(tf.convert_to_tensor, tape.gradient(result.loss, variables))
  return Results(result.predictions, result.loss, tuple(gradient))


def assert_starts_alike(model, tff_model):
  """Compares the distributions of initial weights by their standard deviations."""
  weights = model.initialize(tf.constant([1, 2])).trainable
  for ours, theirs in zip(weights, tff_model.trainable_variables, strict=True):
    assert ours.shape == theirs.shape
    # Of a sample of n; that of a normal distribution is the most uncertain.
    uncertainty = np.std(theirs) / np.sqrt(2 * np.size(theirs))
    assert abs(np.std(ours) - np.std(theirs)) <= 6 * uncertainty
    assert abs(np.mean(ours) - np.mean(theirs)) <= 9 * uncertainty


def assert_close(actual, expected, relative=1e-12):
  """Compares tensors, or tuples of them, by the norm of each."""
  tf.nest.assert_same_structure(actual, expected)
  for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
    error = np.linalg.norm(np.ravel(a) - np.ravel(b))
    assert error <= relative * np.linalg.norm(np.ravel(b))
