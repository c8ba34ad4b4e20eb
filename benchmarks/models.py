"""The benchmarks' models on 28x28 images of 62 classes (EMNIST), ours and in Keras."""

import dataclasses

import tensorflow as tf
import tensorflow_federated as tff

from tasks.classifiers import classifier
from tasks.layers import glorot_uniform
from tff_algorithms.models import Model, as_functional_model

NUM_CLASSES = 62
IMAGE_SHAPE = (28, 28, 1)
_NUM_PIXELS = 28 * 28
_X_SPEC = tf.TensorSpec([None, *IMAGE_SHAPE], tf.float32)


def logistic() -> Model:
  """Multinomial logistic regression from zero."""

  def initialize(seed):
    del seed
    return tf.zeros([_NUM_PIXELS, NUM_CLASSES]), tf.zeros([NUM_CLASSES])

  def logits(weights, x, seed):
    del seed
    kernel, bias = weights
    return tf.matmul(tf.reshape(x, [-1, _NUM_PIXELS]), kernel) + bias

  return classifier(_X_SPEC, initialize, logits)


def cnn() -> Model:
  """The convolutional network with dropout of Reddi et al. 2021, appendix C.2."""

  def initialize(seed):
    kernels = [(3, 3, 1, 32), (3, 3, 32, 64), (12 * 12 * 64, 128), (128, NUM_CLASSES)]
    weights = []
    for layer, shape in enumerate(kernels):
      weights += [glorot_uniform(shape, seed, layer), tf.zeros(shape[-1:])]
    return tuple(weights)

  def logits(weights, x, seed):
    conv_1, bias_1, conv_2, bias_2, dense_1, bias_3, dense_2, bias_4 = weights
    x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, conv_1, 1, 'VALID'), bias_1))
    x = tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, conv_2, 1, 'VALID'), bias_2))
    x = _dropout(tf.nn.max_pool2d(x, 2, 2, 'VALID'), 0.25, seed, 0)
    x = tf.nn.relu(tf.matmul(tf.reshape(x, [-1, 12 * 12 * 64]), dense_1) + bias_3)
    return tf.matmul(_dropout(x, 0.5, seed, 1), dense_2) + bias_4

  return classifier(_X_SPEC, initialize, logits)


def _dropout(x, rate, seed, layer):
  if seed is None:
    return x
  layer_seed = tf.random.experimental.stateless_fold_in(seed, layer)
  return tf.nn.experimental.stateless_dropout(x, rate, layer_seed)


def functional(model: Model) -> tff.learning.models.FunctionalModel:
  """A model as a functional model for training, its dropout seeded at random.

  `tff.learning.models.functional_model_from_keras` cannot be used: with dropout the
  client's graph asks for a placeholder that nobody feeds.
  """

  def predict(weights, x, seed):
    del seed  # Functional models have none.
    seed = tf.random.uniform([2], maxval=tf.int32.max, dtype=tf.int32)
    return model.predict(weights, x, seed)

  return as_functional_model(dataclasses.replace(model, predict=predict))


def keras_logistic() -> tf.keras.Model:
  """`logistic` in Keras."""
  return tf.keras.Sequential(
    [
      tf.keras.layers.InputLayer(IMAGE_SHAPE),
      tf.keras.layers.Flatten(),
      tf.keras.layers.Dense(NUM_CLASSES, kernel_initializer='zeros'),
    ]
  )


def keras_cnn() -> tf.keras.Model:
  """`cnn` in Keras."""
  layers = tf.keras.layers
  return tf.keras.Sequential(
    [
      layers.InputLayer(IMAGE_SHAPE),
      layers.Conv2D(32, 3, activation='relu'),
      layers.Conv2D(64, 3, activation='relu'),
      layers.MaxPool2D(2),
      layers.Dropout(0.25),
      layers.Flatten(),
      layers.Dense(128, activation='relu'),
      layers.Dropout(0.5),
      layers.Dense(NUM_CLASSES),
    ]
  )
