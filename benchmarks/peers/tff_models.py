"""The work's models and rows for TFF, ours and in Keras."""

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from benchmarks.peers.peer import Work
from tasks import image_models, text_models
from tff_algorithms.models import Model

_IMAGE_SHAPE = (28, 28)
_NUM_SPECIAL_IDS = 4  # Of text_models.
_NUM_UNITS = 256


def model(work: Work) -> Model:
  """The model as this package's tasks have it."""
  num_classes = len(work.weights[-1])
  match work.model:
    case 'logistic':
      return image_models.logistic(_IMAGE_SHAPE, num_classes)
    case 'cnn':
      return image_models.cnn_dropout(num_classes)
    case 'lstm':
      length = work.clients[0].x.shape[1]
      return text_models.next_character(num_classes - _NUM_SPECIAL_IDS, length, 2)
  raise ValueError(f'There is no {work.model} here.')


def keras_model(work: Work, exact: bool) -> tf.keras.Model:
  """The same in Keras.

  Args:
    work: The work.
    exact: Whether nothing is dropped out.
  """
  layers = tf.keras.layers
  num_classes = len(work.weights[-1])
  match work.model:
    case 'logistic':
      hidden = [layers.InputLayer(_IMAGE_SHAPE), layers.Flatten()]
    case 'cnn':
      hidden = [
        layers.InputLayer(_IMAGE_SHAPE),
        layers.Reshape([*_IMAGE_SHAPE, 1]),
        layers.Conv2D(32, 3, activation='relu'),
        layers.Conv2D(64, 3, activation='relu'),
        layers.MaxPool2D(2),
        layers.Dropout(0.0 if exact else 0.25),
        layers.Flatten(),
        layers.Dense(128, activation='relu'),
        layers.Dropout(0.0 if exact else 0.5),
      ]
    case 'lstm':
      hidden = [
        layers.InputLayer(work.clients[0].x.shape[1:]),
        layers.Embedding(*work.weights[0].shape),
        layers.LSTM(_NUM_UNITS, return_sequences=True),
        layers.LSTM(_NUM_UNITS, return_sequences=True),
      ]
    case _:
      raise ValueError(f'There is no {work.model} here.')
  return tf.keras.Sequential([*hidden, layers.Dense(num_classes)])


def rows(work: Work, client: int) -> dict[str, np.ndarray]:
  """A client's rows as models take them."""
  x, y = work.clients[client].x, work.clients[client].y
  return {'x': x if work.model == 'lstm' else x.astype(np.float32) / 255, 'y': y}


def dataset(
  own: Mapping[str, np.ndarray], batch_size: int | None, shuffle: bool = False
) -> tf.data.Dataset:
  """A client's rows as a data set.

  Args:
    own: The rows.
    batch_size: None for all in one batch.
    shuffle: Whether each pass has an order of its own.
  """
  size = len(own['y'])
  data = tf.data.Dataset.from_tensor_slices(dict(own))
  data = data.shuffle(size) if shuffle else data
  return data.batch(batch_size or size)
