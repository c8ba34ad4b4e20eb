"""Small files in TFF's format, of TFF's own synthetic data."""

from collections.abc import Mapping, Sequence
import json
import pathlib
import sqlite3
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff


def write_all(directory: pathlib.Path) -> None:
  """Writes TFF's synthetic data under the names that its loaders look for."""
  datasets = tff.simulation.datasets
  emnist = datasets.emnist.get_synthetic()
  names = ('all_train', 'all_test', 'digits_only_train', 'digits_only_test')
  write(directory / 'emnist_all.sqlite', dict.fromkeys(names, emnist))
  for name in ('cifar100', 'shakespeare', 'stackoverflow'):
    clients = getattr(datasets, name).get_synthetic()
    splits = dict.fromkeys(('train', 'heldout', 'test'), clients)
    write(directory / f'{name}.sqlite', splits)
  splits = {
    'split_by_clients_train': celebrities(dict.fromkeys('01234567', (0, 1, 1))),
    'split_by_clients_test': celebrities(dict.fromkeys('abc', (1, 0))),
  }
  write(directory / 'celeba.sqlite', splits)
  counts = directory / 'datasets'
  counts.mkdir()
  words = datasets.stackoverflow.get_synthetic_word_counts()
  lines = [f'{word} {count}\n' for word, count in words.items()]
  (counts / 'stackoverflow.word_count').write_text(''.join(lines))
  tags = datasets.stackoverflow.get_synthetic_tag_counts()
  (counts / 'stackoverflow.tag_count').write_text(json.dumps(tags))


def celebrities(
  smiling: Mapping[str, Sequence[int]],
) -> tff.simulation.datasets.TestClientData:
  """Noise in place of CelebA's faces, of which TFF has no synthetic data.

  Args:
    smiling: Client id -> for each of its faces whether it smiles, 1 or 0.
  """
  generator = np.random.default_rng(0)
  clients = {}
  for client_id, labels in smiling.items():
    clients[client_id] = {
      name: generator.integers(0, 2, len(labels))
      for name in tff.simulation.datasets.celeba.ATTRIBUTE_NAMES
    }
    clients[client_id]['smiling'] = np.array(labels)
    clients[client_id]['image'] = generator.integers(0, 256, [len(labels), 84, 84, 3])
  return tff.simulation.datasets.TestClientData(clients)


def write(
  path: pathlib.Path, splits: dict[str, Any], *, is_indexed: bool = True
) -> None:
  """Writes a data base as TFF's published ones are.

  Args:
    path: The file.
    splits: Split name -> a `tff.simulation.datasets.ClientData`.
    is_indexed: Whether examples can be found by client without reading all.
  """
  with sqlite3.connect(path) as database:
    database.execute(
      'CREATE TABLE examples (split_name TEXT, client_id TEXT, '
      'serialized_example_proto BLOB)'
    )
    database.execute(
      'CREATE TABLE client_metadata (client_id TEXT, split_name TEXT, '
      'num_examples INTEGER)'
    )
    if is_indexed:
      database.execute('CREATE INDEX by_client ON examples (client_id, split_name)')
    for split, clients in splits.items():
      # Examples of different clients are mixed in the file, to see them sorted out.
      protos = {c: _protos(clients, c) for c in clients.client_ids}
      for i in range(max(map(len, protos.values()))):
        for client_id, own in protos.items():
          if i < len(own):
            row = [split, client_id, own[i]]
            database.execute('INSERT INTO examples VALUES (?, ?, ?)', row)
      for client_id, own in protos.items():
        row = [client_id, split, len(own)]
        database.execute('INSERT INTO client_metadata VALUES (?, ?, ?)', row)


def _protos(clients: Any, client_id: str) -> list[bytes]:
  dataset = clients.create_tf_dataset_for_client(client_id)
  return [_proto(example) for example in dataset.as_numpy_iterator()]


def _proto(example: dict[str, Any]) -> bytes:
  features = {}
  for name, value in example.items():
    if isinstance(value, bytes):
      features[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
    elif value.dtype.kind == 'f':
      floats = tf.train.FloatList(value=value.ravel())
      features[name] = tf.train.Feature(float_list=floats)
    else:
      integers = tf.train.Int64List(value=value.ravel())
      features[name] = tf.train.Feature(int64_list=integers)
  example_proto = tf.train.Example(features=tf.train.Features(feature=features))
  return example_proto.SerializeToString()
