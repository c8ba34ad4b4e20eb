"""Tests of the tasks with digits of 28x28 pixels."""

import numpy as np
import pytest
import tensorflow as tf

from tasks import emnist, image_sources, mnist
from tasks.federated_data import FederatedData
from tests.tasks.data_files import write_idx, write_tfds_images

_TASKS = [mnist.mlp, mnist.cnn]


def _by_parity(labels, seed):
  del seed
  return [np.flatnonzero(labels % 2 == parity) for parity in (0, 1)]


def _digits(num_digits, seed):
  generator = np.random.default_rng(seed)
  images = generator.integers(0, 256, [num_digits, 28, 28]).astype(np.uint8)
  return images, np.arange(num_digits) % 10


def _write(directory):
  contents = [*_digits(23, 0), *_digits(11, 1)]
  for name, array in zip(image_sources.MNIST.file_names, contents, strict=True):
    write_idx(directory / name, array)


def _write_for_tfds(directory):
  splits = {}
  for split, (images, labels) in {
    'train': _digits(23, 0),
    'test': _digits(11, 1),
  }.items():
    splits[split] = images[..., None], labels
  write_tfds_images(directory, 'mnist', splits, num_classes=10, version='3.0.1')


@pytest.mark.parametrize('make', _TASKS)
@pytest.mark.parametrize('write', [_write, _write_for_tfds])
def test_mnist_is_dealt_out_and_its_test_set_held_out(tmp_path, make, write):
  write(tmp_path)
  task = make('digits', 0, str(tmp_path), _by_parity)
  assert task.name == 'digits'
  images, labels = _digits(23, 0)
  assert task.train.client_ids == ('client_000', 'client_001')
  for parity, client_id in enumerate(task.train.client_ids):
    rows = task.train.rows(client_id)
    np.testing.assert_array_equal(rows['x'], np.float32(images[parity::2]) / 255)
    np.testing.assert_array_equal(rows['y'], labels[parity::2])
  images, labels = _digits(11, 1)
  assert task.test.client_ids == ('test',)
  np.testing.assert_array_equal(task.test.rows('test')['x'], np.float32(images) / 255)
  np.testing.assert_array_equal(task.test.rows('test')['y'], labels)


@pytest.mark.parametrize('make', _TASKS)
def test_partition_is_drawn_from_the_seed(tmp_path, make):
  seeds = []

  def partition(labels, seed):
    seeds.append(seed)
    return [np.arange(len(labels))]

  _write(tmp_path)
  make('digits', 17, str(tmp_path), partition)
  assert seeds == [17]


@pytest.mark.parametrize('make', _TASKS)
def test_without_a_partition_the_clients_are_the_writers(make, monkeypatch):
  data = tuple(FederatedData([split], None) for split in ('train', 'test'))
  calls = []

  def by_writer(data_dir, only_digits):
    calls.append((data_dir, only_digits))
    return data

  monkeypatch.setattr(emnist, 'by_writer', by_writer)
  task = make('digits', 0, 'somewhere', None)
  assert calls == [('somewhere', True)]
  assert (task.train, task.test) == data


@pytest.mark.parametrize('make', _TASKS)
def test_the_model_takes_the_rows(tmp_path, make):
  _write(tmp_path)
  task = make('digits', 0, str(tmp_path), _by_parity)
  rows = task.train.rows('client_001')
  for name, spec in task.model.input_spec.items():
    assert spec.is_compatible_with(tf.convert_to_tensor(rows[name]))
  weights = task.model.initialize(tf.constant([0, 0]))
  logits = task.model.predict(weights, tf.constant(rows['x']), None)
  assert logits.shape == [11, 10]


def test_hidden_layers_have_300_and_100_units(tmp_path):
  _write(tmp_path)
  task = mnist.mlp('digits', 0, str(tmp_path), _by_parity)
  weights = task.model.initialize(tf.constant([0, 0])).trainable
  shapes = [w.shape.as_list() for w in tf.nest.flatten(weights) if len(w.shape) == 2]
  assert shapes == [[784, 300], [300, 100], [100, 10]]


@pytest.mark.slow
def test_real_mnist_is_as_published(data_dir):
  """Its size, and the mean pixel that is commonly subtracted, 0.1307."""
  task = mnist.mlp('digits', 0, str(data_dir), _by_parity)
  train, test = task.train.all_rows(), task.test.all_rows()
  assert train['x'].shape == (60_000, 28, 28)
  assert test['x'].shape == (10_000, 28, 28)
  assert train['x'].mean(dtype=np.float64) == pytest.approx(0.1307, abs=5e-5)
  assert train['x'].min() == 0
  assert train['x'].max() == 1
  assert set(train['y']) == set(test['y']) == set(range(10))
