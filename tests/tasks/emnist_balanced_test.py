"""Tests of the balanced split of EMNIST."""

import numpy as np
import pytest
import tensorflow as tf

from tasks import emnist_balanced, image_sources
from tests.tasks.data_files import write_idx, write_tfds_images

_ONE = 1
_T = 29  # Ten digits, then the letters: T is the twentieth.


def _all_together(labels, seed):
  del seed
  return [np.arange(len(labels))]


def _characters(num_characters, seed):
  """Slanted strokes as ones, noise for the rest."""
  generator = np.random.default_rng(seed)
  images = generator.integers(0, 256, [num_characters, 28, 28]).astype(np.uint8)
  labels = np.arange(num_characters) % 47
  for i in np.flatnonzero(labels == _ONE):
    images[i] = 0
    top, slant = generator.integers(1, 6), generator.uniform(-0.4, 0.4)
    for row in range(top, 28 - top):
      column = round(14 + slant * (row - 14))
      images[i, row, column : column + 3] = 255
  return images, labels


def _write(directory, splits):
  arrays = [array for split in splits for array in split]
  for name, array in zip(image_sources.EMNIST_BALANCED.file_names, arrays, strict=True):
    write_idx(directory / name, array)


def _write_for_tfds(directory, splits):
  named = {
    name: (images[..., None], labels)
    for name, (images, labels) in zip(('train', 'test'), splits, strict=True)
  }
  write_tfds_images(directory, 'emnist', named, num_classes=47, config='balanced')


def _swapped(splits):
  return [(images.swapaxes(1, 2), labels) for images, labels in splits]


def _load(directory):
  return emnist_balanced.logistic('characters', 0, str(directory), _all_together)


@pytest.mark.parametrize('write', [_write, _write_for_tfds])
@pytest.mark.parametrize('store', [list, _swapped])
def test_images_are_upright_whichever_way_they_are_stored(tmp_path, write, store):
  splits = [_characters(200, 0), _characters(60, 1)]
  write(tmp_path, store(splits))
  task = _load(tmp_path)
  for data, (images, labels) in zip((task.train, task.test), splits, strict=True):
    rows = data.all_rows()
    np.testing.assert_array_equal(rows['x'], np.float32(images) / 255)
    np.testing.assert_array_equal(rows['y'], labels)


def test_without_ones_images_stay_as_they_are(tmp_path):
  images, labels = _characters(200, 0)
  kept = labels != _ONE
  _write(tmp_path, [(images[kept], labels[kept])] * 2)
  rows = _load(tmp_path).train.all_rows()
  np.testing.assert_array_equal(rows['x'], np.float32(images[kept]) / 255)


def test_the_model_takes_the_rows(tmp_path):
  _write(tmp_path, [_characters(200, 0), _characters(60, 1)])
  task = _load(tmp_path)
  rows = task.test.rows('test')
  for name, spec in task.model.input_spec.items():
    assert spec.is_compatible_with(tf.convert_to_tensor(rows[name]))
  weights = task.model.initialize(tf.constant([0, 0]))
  logits = task.model.predict(weights, tf.constant(rows['x']), None)
  assert logits.shape == [60, 47]


def test_pictures_are_titled_with_their_characters(tmp_path):
  _write(tmp_path, [_characters(200, 0), _characters(47, 1)])
  task = _load(tmp_path)
  shown = task.show(task.test.rows('test'))
  assert len(set(shown)) == 47
  assert [shown[label] for label in (0, _ONE, 10, _T, 35)] == ['0', '1', 'A', 'T', 'Z']


def test_the_characters_are_those_of_the_publishers_table(tmp_path, data_dir):
  name = 'emnist-balanced-mapping.txt'
  images, *_ = image_sources.find(image_sources.EMNIST_BALANCED, data_dir) or [data_dir]
  if not images.with_name(name).is_file():
    pytest.skip(f'needs {name} beside the images')
  labels, codes = np.loadtxt(images.with_name(name), dtype=int).T
  _write(tmp_path, [_characters(47, 0)] * 2)
  assert _load(tmp_path).show({'y': labels}) == [chr(code) for code in codes]


@pytest.fixture(scope='module')
def real(data_dir):
  task = _load(data_dir)
  return task.train.all_rows(), task.test.all_rows()


@pytest.mark.slow
def test_real_classes_are_balanced(real):
  for rows in real:
    counts = np.bincount(rows['y'], minlength=47)
    assert len(counts) == 47
    assert len(set(counts)) == 1
    assert rows['x'].shape[1:] == (28, 28)
    assert rows['x'].min() == 0
    assert rows['x'].max() == 1
    assert np.median(rows['x']) == 0


@pytest.mark.slow
def test_a_real_t_has_its_bar_on_top(real):
  for rows in real:
    ink = rows['x'][rows['y'] == _T].mean(axis=0)
    above, below = ink[:14].sum(), ink[14:].sum()
    left, right = ink[:, :14].sum(), ink[:, 14:].sum()
    assert above / below > left / right


@pytest.mark.slow
def test_real_images_stored_either_way_are_the_same(real, tmp_path):
  splits = [(np.rint(rows['x'] * 255).astype(np.uint8), rows['y']) for rows in real]
  _write(tmp_path, _swapped(splits))
  task = _load(tmp_path)
  for data, rows in zip((task.train, task.test), real, strict=True):
    np.testing.assert_array_equal(data.all_rows()['x'], rows['x'])
