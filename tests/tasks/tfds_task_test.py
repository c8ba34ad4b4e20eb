"""Tests of tasks on data sets of TFDS."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from tasks import tfds_task
from tests.tasks.data_files import write_tfds, write_tfds_images

_LABELS = np.arange(12) % 3


def _halves(labels, seed):
  """Takes the seed as the number of the first row of the second client."""
  return [np.arange(seed), np.arange(seed, len(labels))]


@pytest.fixture(scope='module')
def directory(tmp_path_factory):
  """Data sets of grey images, of colour images and of vectors."""
  path = tmp_path_factory.mktemp('tfds')
  generator = np.random.default_rng(0)
  for name, channels in (('grey', 1), ('colour', 3)):
    images = generator.integers(0, 256, [12, 16, 16, channels]).astype(np.uint8)
    splits = {'train': (images, _LABELS), 'test': (images[:5], _LABELS[:5])}
    write_tfds_images(path, name, splits, num_classes=3)
  examples = [{'features': generator.normal(size=4), 'label': y} for y in _LABELS]
  write_tfds(
    path,
    'vectors',
    {
      'features': tfds.features.Tensor(shape=(4,), dtype=np.float64),
      'label': tfds.features.ClassLabel(num_classes=3),
    },
    ('features', 'label'),
    {'train': examples, 'test': examples[:5]},
  )
  return str(path)


def _make(directory, tfds_name, tfds_model, image_size=None):
  return tfds_task.classification(
    'tfds', 4, directory, _halves, tfds_name, tfds_model, image_size
  )


@pytest.mark.parametrize(
  ('tfds_name', 'tfds_model', 'shape'),
  [
    ('grey', 'logistic', (16, 16)),
    ('grey', 'mlp', (16, 16)),
    ('grey', 'cnn', (16, 16)),
    ('colour', 'logistic', (16, 16, 3)),
    ('colour', 'mlp', (16, 16, 3)),
    ('colour', 'cnn', (16, 16, 3)),
    ('vectors', 'logistic', (4,)),
    ('vectors', 'mlp', (4,)),
  ],
)
def test_every_model_takes_the_rows_that_it_is_for(
  directory, tfds_name, tfds_model, shape
):
  task = _make(directory, tfds_name, tfds_model)
  assert task.name == 'tfds'
  assert [task.train.num_examples(i) for i in task.train.client_ids] == [4, 8]
  assert task.test.client_ids == ('test',)
  np.testing.assert_array_equal(task.test.rows('test')['y'], _LABELS[:5])
  rows = task.train.rows('client_001')
  assert rows['x'].shape == (8, *shape)
  for name, spec in task.model.input_spec.items():
    assert spec.is_compatible_with(tf.convert_to_tensor(rows[name]))
  weights = task.model.initialize(tf.constant([0, 0]))
  logits = task.model.predict(weights, tf.constant(rows['x']), None)
  assert logits.shape == [8, 3]


def test_images_are_resized_if_asked(directory):
  task = _make(directory, 'colour', 'cnn', image_size=24)
  assert task.train.rows('client_000')['x'].shape == (4, 24, 24, 3)


def test_a_convolution_is_for_images(directory):
  with pytest.raises(ValueError, match='--tfds_model=cnn is for images'):
    _make(directory, 'vectors', 'cnn')
