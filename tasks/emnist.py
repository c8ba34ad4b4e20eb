"""EMNIST-62: handwritten characters by writer, from TFF's own loader.

Pixels are inverted as in the Mime paper's experiments: ink 1, background 0.
"""

import collections
import contextlib
import os
import sqlite3

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks.classifiers import classifier
from tasks.federated_data import FederatedData
from tasks.task import Task

_SIDE = 28
_NUM_CLASSES = 62
_FILE = 'emnist_all.sqlite'


def logistic(name: str, seed: int, data_dir: str | None) -> Task:
  """Multinomial logistic regression, started at zero."""
  del seed  # The writers are the clients.

  def initialize(seed):
    del seed  # The start of a convex problem need not be random.
    return tf.zeros([_SIDE**2, _NUM_CLASSES]), tf.zeros([_NUM_CLASSES])

  def logits(weights, x, seed):
    del seed
    kernel, bias = weights
    return tf.matmul(tf.reshape(x, [-1, _SIDE**2]), kernel) + bias

  x_spec = tf.TensorSpec([None, _SIDE, _SIDE], tf.float32)
  return Task(name, classifier(x_spec, initialize, logits), *_data(data_dir))


def _data(data_dir: str | None) -> tuple[FederatedData, FederatedData]:
  directory = data_dir or os.path.join(os.path.expanduser('~'), '.tff')  # TFF's own.
  path = os.path.join(directory, _FILE)
  if data_dir and not os.path.isdir(data_dir):
    raise ValueError(f'--data_dir={data_dir} is not a directory.')
  try:
    # Downloads the file if it is not there.
    tff.simulation.datasets.emnist.load_data(only_digits=False, cache_dir=directory)
  except OSError as error:
    raise ValueError(
      f'{path} is not there and could not be downloaded ({error}). Name the directory '
      'that has it with --data_dir; --task=digits_logistic needs no download.'
    ) from error
  try:
    return _read(path, 'all_train'), _read(path, 'all_test')
  except (sqlite3.DatabaseError, ValueError, tf.errors.InvalidArgumentError) as error:
    raise ValueError(
      f'{path} is not the data base that TFF made ({error}). Remove it to have it '
      'downloaded again.'
    ) from error


def _read(path: str, split: str) -> FederatedData:
  """All clients of a split; one query is many times faster than TFF's one a client."""
  query = (
    'SELECT client_id, serialized_example_proto FROM examples '
    'WHERE split_name = ? ORDER BY client_id, rowid'
  )
  with contextlib.closing(sqlite3.connect(path)) as database:
    ids, protos = zip(*database.execute(query, [split]), strict=True)
  features = {
    'pixels': tf.io.FixedLenFeature([_SIDE, _SIDE], tf.float32),
    'label': tf.io.FixedLenFeature([], tf.int64),
  }
  examples = tf.io.parse_example(protos, features)
  x = 1 - examples['pixels'].numpy()
  y = examples['label'].numpy().astype(np.int32)
  client_ids, starts = np.unique(ids, return_index=True)
  return FederatedData(
    {
      str(client_id): collections.OrderedDict(x=x[a:b], y=y[a:b])
      for client_id, a, b in zip(client_ids, starts, [*starts[1:], len(y)], strict=True)
    }
  )
