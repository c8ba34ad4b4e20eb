"""CelebA: whether a face smiles, by celebrity, from TFF's own data.

As in Mixed Federated Learning, section 4.1 and appendix B.2.1.
"""

import collections
import itertools
import math
import os

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

from tasks import federated_data, layers, sql_data, tff_files
from tasks.classifiers import binary_classifier
from tasks.federated_data import FederatedData, Rows
from tasks.task import Central, Task
from tff_algorithms.models import Model

SHAPE = (84, 84, 3)
_HIDDEN = 64
_CELEBRITIES_PER_CLIENT = 3
_KINDS = ('unsmiling', 'smiling')  # By label.
_LABEL_FEATURES = {'smiling': tf.io.FixedLenFeature([], tf.int64)}
_FEATURES = {'image': tf.io.FixedLenFeature(SHAPE, tf.int64), **_LABEL_FEATURES}


def smile(name: str, seed: int, data_dir: str | None) -> Task:
  """One hidden layer of 64; the clients have smiling faces, the server the others.

  Three celebrities for training, neighbours when their ids are sorted as text, make one
  client; one or two that are left over at the end take no part. The celebrities for
  testing are other people, each a client, with faces of both kinds.

  Args:
    name: The name of the task.
    seed: Not used.
    data_dir: TFF's cache directory; its default if None.

  Raises:
    ValueError: If the file cannot be had, or has too few faces.
  """
  del seed  # The celebrities are the clients.
  load_data = tff.simulation.datasets.celeba.load_data
  path = tff_files.fetch(data_dir, 'celeba.sqlite', load_data)
  _, train = _read(name, path, 'train', _CELEBRITIES_PER_CLIENT)
  test, test_parts = _read(name, path, 'test', 1)
  return Task(
    name,
    _model(),
    train['smiling'],
    test,
    show=_show,
    central=Central(federated_weight=0.5, central_weight=0.5, data=train['unsmiling']),
    test_parts=test_parts,
  )


def _show(rows: Rows) -> list[str]:
  return [_KINDS[label] for label in rows['y']]


def _read(
  name: str, path: str | os.PathLike, which: str, group_size: int
) -> tuple[FederatedData, dict[str, FederatedData]]:
  """The faces for `train` or `test`, and those of each kind, by groups of celebrities.

  A client without a face of a kind is not among the clients of this kind.
  """
  split = f'split_by_clients_{which}'
  faces = _grouped(sql_data.read(path, split, _FEATURES, _rows), group_size)
  # Read once, without the pictures, so that rows are counted without making them.
  labels = _grouped(sql_data.read(path, split, _LABEL_FEATURES, _labels), group_size)
  ids = tqdm.tqdm(labels.client_ids, 'Reading', delay=2, leave=False, disable=None)
  counts = {c: np.bincount(labels.rows(c)['y'], minlength=len(_KINDS)) for c in ids}

  def of_kind(label):
    kept = [client_id for client_id, count in counts.items() if count[label]]
    if not kept:
      face = 'a smiling' if label else 'an unsmiling'
      raise ValueError(f'{name}: no client holds {face} face in {split!r} of {path}.')

    def load(client_id):
      rows = faces.rows(client_id)
      return federated_data.chosen(rows, rows['y'] == label)

    return FederatedData(
      kept,
      load,
      lambda client_id: int(counts[client_id][label]),
      faces.origin and faces.origin.then('of kind', label),
    )

  return faces, {'smiling': of_kind(1), 'unsmiling': of_kind(0)}


def _grouped(data: FederatedData, size: int) -> FederatedData:
  """Data with so many clients, one after the other, made one; a rest is left out."""
  starts = range(0, len(data.client_ids) - size + 1, size)
  groups = [data.client_ids[start : start + size] for start in starts]
  if not groups:
    raise ValueError(f'{len(data.client_ids)} celebrities do not make a client.')
  members = {'+'.join(group): group for group in groups}

  def load(client_id):
    parts = [data.rows(member) for member in members[client_id]]
    return collections.OrderedDict(
      (name, np.concatenate([part[name] for part in parts])) for name in parts[0]
    )

  def count(client_id):
    return sum(map(data.num_examples, members[client_id]))

  origin = data.origin and data.origin.then('grouped', size)
  return FederatedData(tuple(members), load, count, origin)


def _rows(examples: sql_data.Examples) -> Rows:
  return collections.OrderedDict(
    x=examples['image'].astype(np.uint8), **_labels(examples)
  )


def _labels(examples: sql_data.Examples) -> Rows:
  return collections.OrderedDict(y=(examples['smiling'] != 0).astype(np.int32))


def _model() -> Model:
  """Its inputs are of 0 to 255."""
  num_in = math.prod(SHAPE)

  def initialize(seed):
    sizes = [num_in, _HIDDEN, 1]
    return layers.kernels_and_biases(itertools.pairwise(sizes), seed)

  def logits(weights, x, seed):
    del seed
    x = tf.reshape(tf.cast(x, tf.float32) / 255, [-1, num_in])
    x = tf.nn.relu(layers.dense(x, *weights[:2]))
    return tf.squeeze(layers.dense(x, *weights[2:]), axis=1)

  return binary_classifier(tf.TensorSpec([None, *SHAPE], tf.uint8), initialize, logits)
