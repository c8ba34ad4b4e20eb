"""The benchmarks' models on 28x28 images of 62 classes (EMNIST), ours and in Keras."""

import dataclasses

import tensorflow as tf
import tensorflow_federated as tff

from tasks import image_models
from tff_algorithms.models import Model, as_functional_model

NUM_CLASSES = 62
IMAGE_SHAPE = (28, 28)


def logistic() -> Model:
  """Multinomial logistic regression from zero."""
  return image_models.logistic(IMAGE_SHAPE, NUM_CLASSES)


def cnn() -> Model:
  """The convolutional network with dropout of Reddi et al. 2021, appendix C.2."""
  return image_models.cnn_dropout(NUM_CLASSES)


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
      layers.Reshape([*IMAGE_SHAPE, 1]),
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
