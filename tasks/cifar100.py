"""CIFAR-100: 100 kinds of small colour pictures, from TFF's own data.

As in TFF's baseline each picture is standardised to mean 0 and variance 1. That
baseline cuts out the middle 24x24 of the 32x32 pixels, and so do we.
"""

import collections
from collections.abc import Callable

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import image_models, sql_data, tff_files
from tasks.federated_data import FederatedData, Rows
from tasks.task import Task
from tff_algorithms.models import Model

SHAPE = (24, 24, 3)
_NUM_CLASSES = 100
_FEATURES = {
  'image': tf.io.FixedLenFeature([32, 32, 3], tf.int64),
  'label': tf.io.FixedLenFeature([], tf.int64),
  'coarse_label': tf.io.FixedLenFeature([], tf.int64),
}
_MODELS: dict[str, Callable[..., Model]] = {
  'resnet18': image_models.resnet18,
  'cnn': image_models.small_cnn,
}


def by_client(name: str, seed: int, data_dir: str | None, cifar_model: str) -> Task:
  """The clients of TFF's file, 100 pictures each, by Pachinko allocation."""
  del seed  # The clients are given.
  train, test = _read(data_dir, _preprocess)
  return Task(name, _MODELS[cifar_model](SHAPE, _NUM_CLASSES), train, test)


def partitioned(
  name: str, seed: int, data_dir: str | None, cifar_model: str, partition: Callable
) -> Task:
  """All pictures of those clients in one pool, dealt out anew."""
  pool, test = _read(data_dir, _with_coarse_labels)
  rows = pool.all_rows()
  coarse_labels = rows.pop('coarse_label')
  parts = partition(rows['y'], seed, coarse_labels=coarse_labels)
  train = FederatedData.from_partition(rows, parts)
  return Task(name, _MODELS[cifar_model](SHAPE, _NUM_CLASSES), train, test)


def _read(
  data_dir: str | None, preprocess: Callable[[sql_data.Examples], Rows]
) -> tuple[FederatedData, FederatedData]:
  load_data = tff.simulation.datasets.cifar100.load_data
  path = tff_files.fetch(data_dir, 'cifar100.sqlite', load_data)
  return (
    sql_data.read(path, 'train', _FEATURES, preprocess),
    sql_data.read(path, 'test', _FEATURES, _preprocess),
  )


def _preprocess(examples: sql_data.Examples) -> Rows:
  pictures = examples['image'][:, 4:28, 4:28].astype(np.float32)
  return collections.OrderedDict(
    x=tf.image.per_image_standardization(pictures).numpy(),
    y=examples['label'].astype(np.int32),
  )


def _with_coarse_labels(examples: sql_data.Examples) -> Rows:
  return collections.OrderedDict(
    _preprocess(examples), coarse_label=examples['coarse_label'].astype(np.int32)
  )
