"""EMNIST: handwritten characters by writer, from TFF's own data.

Pixels are inverted, ink 1 on background 0 (Mime, appendix C.2).
"""

import collections
import functools
import string

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import image_models, sql_data, tff_files
from tasks.federated_data import FederatedData, Rows
from tasks.task import Task
from tff_algorithms.models import Model

SHAPE = (28, 28)
_CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase
_NUM_CLASSES = len(_CHARACTERS)
_FEATURES = {
  'pixels': tf.io.FixedLenFeature(SHAPE, tf.float32),
  'label': tf.io.FixedLenFeature([], tf.int64),
}


def logistic(name: str, seed: int, data_dir: str | None) -> Task:
  """Multinomial logistic regression (Mime, appendix C.2)."""
  return _task(name, seed, data_dir, image_models.logistic(SHAPE, _NUM_CLASSES))


def mlp(name: str, seed: int, data_dir: str | None) -> Task:
  """Two hidden layers of 300 and 100 (Mime, appendix C.1)."""
  return _task(name, seed, data_dir, image_models.mlp(SHAPE, _NUM_CLASSES, (300, 100)))


def cnn(name: str, seed: int, data_dir: str | None) -> Task:
  """Two convolutions, two dense layers, dropout (Reddi et al. 2020; Mime C.2)."""
  return _task(name, seed, data_dir, image_models.cnn_dropout(_NUM_CLASSES))


def autoencoder(name: str, seed: int, data_dir: str | None) -> Task:
  """A bottleneck of 30 units, to give back the picture."""
  return _task(name, seed, data_dir, image_models.autoencoder())


def _task(name: str, seed: int, data_dir: str | None, model: Model) -> Task:
  del seed  # The writers are the clients.
  return Task(name, model, *by_writer(data_dir, only_digits=False), show=_show)


def _show(rows: Rows) -> list[str]:
  return [_CHARACTERS[label] for label in rows['y']]


def by_writer(
  data_dir: str | None, only_digits: bool
) -> tuple[FederatedData, FederatedData]:
  """Train and test data of the same writers.

  Args:
    data_dir: TFF's cache directory; its default if None.
    only_digits: Whether to take the writers and labels of the digits alone.
  """
  load_data = functools.partial(
    tff.simulation.datasets.emnist.load_data, only_digits=only_digits
  )
  path = tff_files.fetch(data_dir, 'emnist_all.sqlite', load_data)
  which = 'digits_only' if only_digits else 'all'
  return (
    sql_data.read(path, f'{which}_train', _FEATURES, _preprocess),
    sql_data.read(path, f'{which}_test', _FEATURES, _preprocess),
  )


def _preprocess(examples: sql_data.Examples) -> Rows:
  return collections.OrderedDict(
    x=1 - examples['pixels'], y=examples['label'].astype(np.int32)
  )
