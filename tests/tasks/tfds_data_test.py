"""Tests of data from TFDS, prepared by TFDS in the test."""

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tasks import federated_data, image_sources, tfds_data
from tests.tasks.data_files import write_idx, write_tfds, write_tfds_images

_GENERATOR = np.random.default_rng(0)
_LABELS = np.arange(7) % 3
_LABEL = tfds.features.ClassLabel(num_classes=3)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
  monkeypatch.setattr('tasks.downloads.is_reachable', lambda url: False)


def _images(*shape, dtype=np.uint8):
  return _GENERATOR.integers(0, np.iinfo(dtype).max + 1, shape).astype(dtype)


def _write_numbers(
  directory, features, examples, keys=('features', 'label'), **options
):
  """A data set of examples as they are, the same for training and testing."""
  splits = {'train': examples, 'test': examples}
  write_tfds(directory, 'numbers', features, keys, splits, **options)


def _load(directory, name, **options):
  return tfds_data.load(name, str(directory), seed=0, **options)


def test_grey_images_have_two_axes_and_pixels_up_to_one(tmp_path):
  train, test = _images(7, 5, 4, 1), _images(7, 5, 4, 1)
  splits = {'train': (train, _LABELS), 'test': (test, _LABELS[::-1])}
  write_tfds_images(tmp_path, 'grey', splits, num_classes=3)
  data = _load(tmp_path, 'grey')
  assert data.num_classes == 3
  np.testing.assert_array_equal(data.train['x'], np.float32(train[..., 0]) / 255)
  np.testing.assert_array_equal(data.train['y'], _LABELS)
  np.testing.assert_array_equal(data.test['x'], np.float32(test[..., 0]) / 255)
  np.testing.assert_array_equal(data.test['y'], _LABELS[::-1])
  for rows in (data.train, data.test):
    assert rows['x'].dtype == np.float32
    assert rows['y'].dtype == np.int32


def test_more_rows_than_are_read_at_once_keep_their_order(tmp_path, monkeypatch):
  monkeypatch.setattr(tfds_data, '_BATCH_SIZE', 3)
  images = _images(7, 5, 4, 1)
  splits = {'train': (images, _LABELS), 'test': (images[:6], _LABELS[:6])}
  write_tfds_images(tmp_path, 'grey', splits, num_classes=3)
  data = _load(tmp_path, 'grey')
  np.testing.assert_array_equal(data.train['x'], np.float32(images[..., 0]) / 255)
  np.testing.assert_array_equal(data.test['y'], _LABELS[:6])


def test_rows_that_do_not_fit_in_memory_are_on_disk(tmp_path, monkeypatch):
  monkeypatch.setattr(federated_data, '_MAX_BYTES_IN_MEMORY', 10)
  examples = [{'features': 1.0 * i, 'label': i % 3} for i in range(7)]
  _write_numbers(tmp_path, {'features': np.float32, 'label': _LABEL}, examples)
  data = _load(tmp_path, 'numbers')
  for rows in (data.train, data.test):
    assert isinstance(rows['x'], np.memmap)
    # The numbers from 0 to 6 are of variance 4.
    np.testing.assert_allclose(rows['x'][:, 0], np.arange(-3, 4) / 2, rtol=1e-6)
    np.testing.assert_array_equal(rows['y'], _LABELS)


def test_colour_images_keep_their_channels(tmp_path):
  images = _images(7, 5, 4, 3)
  write_tfds_images(tmp_path, 'colour', {'train': (images, _LABELS)}, num_classes=3)
  data = _load(tmp_path, 'colour')
  both = np.concatenate([data.train['x'], data.test['x']])
  assert both.shape == images.shape
  np.testing.assert_array_equal(
    sorted(both.ravel()), sorted((np.float32(images) / 255).ravel())
  )


def test_deep_pixels_are_scaled_by_their_own_white(tmp_path):
  images = _images(7, 5, 4, 1, dtype=np.uint16)
  examples = [{'image': x, 'label': y} for x, y in zip(images, _LABELS, strict=True)]
  write_tfds(
    tmp_path,
    'deep',
    {'image': tfds.features.Image(shape=(5, 4, 1), dtype=np.uint16), 'label': _LABEL},
    ('image', 'label'),
    {'train': examples, 'test': examples},
  )
  data = _load(tmp_path, 'deep')
  np.testing.assert_array_equal(data.train['x'], np.float32(images[..., 0]) / 65535)


def test_images_of_varying_size_are_resized_if_told_to_which(tmp_path):
  shades = [0, 51, 255]
  examples = [
    {'image': np.full([4 + shade % 7, 9, 1], shade, np.uint8), 'label': i}
    for i, shade in enumerate(shades)
  ]
  write_tfds(
    tmp_path,
    'vary',
    {'image': tfds.features.Image(shape=(None, None, 1)), 'label': _LABEL},
    ('image', 'label'),
    {'train': examples, 'test': examples},
  )
  with pytest.raises(ValueError, match=r'vary of TFDS: .*vary in size: .*--image_size'):
    _load(tmp_path, 'vary')
  data = _load(tmp_path, 'vary', image_size=6)
  expected = np.broadcast_to(np.float32([0, 0.2, 1])[:, None, None], [3, 6, 6])
  np.testing.assert_allclose(data.train['x'], expected, rtol=1e-6)


def test_tests_are_on_the_split_test_else_on_validation(tmp_path):
  images = _images(7, 5, 4, 1)
  for name in ('test', 'validation'):
    splits = {
      'train': (images, _LABELS),
      'validation': (images[:3], _LABELS[:3]),
      name: (images[3:5], _LABELS[3:5]),
    }
    write_tfds_images(tmp_path, f'with_{name}', splits, num_classes=3)
    data = _load(tmp_path, f'with_{name}')
    np.testing.assert_array_equal(data.train['y'], _LABELS)
    np.testing.assert_array_equal(data.test['y'], _LABELS[3:5])


def test_without_a_test_split_a_fifth_is_held_out_by_seed(tmp_path):
  images = _images(40, 3, 3, 1)
  labels = np.arange(40)
  write_tfds_images(tmp_path, 'alone', {'train': (images, labels)}, num_classes=40)

  def held_out(seed):
    data = tfds_data.load('alone', str(tmp_path), seed)
    assert sorted([*data.train['y'], *data.test['y']]) == list(range(40))
    return data.test['y'].tolist()

  assert len(held_out(0)) == 8
  assert held_out(0) == held_out(0)
  assert held_out(0) != held_out(1)


def test_a_data_set_without_a_training_split_is_refused(tmp_path):
  write_tfds_images(
    tmp_path, 'only', {'test': (_images(7, 5, 4, 1), _LABELS)}, num_classes=3
  )
  with pytest.raises(ValueError, match="no split 'train', only test"):
    _load(tmp_path, 'only')


def test_a_vector_is_standardized_by_the_training_rows(tmp_path):
  x = np.float32(_GENERATOR.normal([5, -100, 3], [0.1, 30, 0], [20, 3]))
  labels = np.arange(20) % 3
  examples = [{'features': v, 'label': y} for v, y in zip(x, labels, strict=True)]
  write_tfds(
    tmp_path,
    'iris_like',
    {'features': tfds.features.Tensor(shape=(3,), dtype=np.float32), 'label': _LABEL},
    ('features', 'label'),
    {'train': examples[:15], 'test': examples[15:]},
  )
  data = _load(tmp_path, 'iris_like')
  mean, deviation = x[:15].mean(0), np.array([*x[:15, :2].std(0), 1])
  np.testing.assert_allclose(data.train['x'], (x[:15] - mean) / deviation, atol=1e-4)
  np.testing.assert_allclose(data.test['x'], (x[15:] - mean) / deviation, atol=1e-4)
  np.testing.assert_array_equal(data.test['y'], labels[15:])
  assert data.train['x'].dtype == np.float32


_PARTS = {
  'weight': np.float32,
  'count': np.int64,
  'is_round': np.bool_,
}


@pytest.mark.parametrize('nested', [True, False])
def test_numbers_of_a_dictionary_become_one_vector(tmp_path, nested):
  """Columns in the order of the keys; a class among the inputs is one-hot."""
  features = {
    **_PARTS,
    'colour': tfds.features.ClassLabel(num_classes=3),
    'grid': tfds.features.Tensor(shape=(2, 2), dtype=np.float64),
  }
  generator = np.random.default_rng(1)
  rows = [
    {
      'weight': generator.normal(),
      'count': i,
      'is_round': i % 2 == 0,
      'colour': i % 3,
      'grid': generator.normal(size=[2, 2]),
    }
    for i in range(9)
  ]
  columns = np.array(
    [
      [
        *np.eye(3)[row['colour']],
        row['count'],
        *row['grid'].ravel(),
        row['is_round'],
        row['weight'],
      ]
      for row in rows
    ]
  )
  if nested:
    examples = [{'features': row, 'label': i % 3} for i, row in enumerate(rows)]
    _write_numbers(tmp_path, {'features': features, 'label': _LABEL}, examples)
  else:
    examples = [{**row, 'label': i % 3} for i, row in enumerate(rows)]
    keys = ({key: key for key in features}, 'label')
    _write_numbers(tmp_path, {**features, 'label': _LABEL}, examples, keys)
  expected = (columns - columns.mean(0)) / columns.std(0)
  np.testing.assert_allclose(_load(tmp_path, 'numbers').train['x'], expected, atol=1e-5)


def test_labels_may_be_integers(tmp_path):
  features = {'features': np.float32, 'label': np.int64}
  _write_numbers(tmp_path, features, [{'features': i, 'label': i} for i in (5, 0, 2)])
  data = _load(tmp_path, 'numbers')
  np.testing.assert_array_equal(data.train['y'], [5, 0, 2])
  assert data.num_classes == 6


def test_the_one_class_is_the_label_if_nothing_is_said(tmp_path):
  features = {'a': np.float32, 'kind': _LABEL}
  _write_numbers(tmp_path, features, [{'a': i, 'kind': i} for i in (2, 0)], keys=None)
  np.testing.assert_array_equal(_load(tmp_path, 'numbers').train['y'], [2, 0])


@pytest.mark.parametrize(
  ('features', 'example', 'message'),
  [
    ({'features': tfds.features.Text(), 'label': _LABEL}, 'a', 'features is a Text'),
    (
      {
        'features': tfds.features.Tensor(shape=(None,), dtype=np.int64),
        'label': _LABEL,
      },
      [1, 2],
      r'features is a Tensor of shape \(None,\); supported are an image, a numeric',
    ),
    (
      {'features': {'b': np.float32, 'c': np.str_}, 'label': _LABEL},
      {'b': 1.0, 'c': 'x'},
      'features/c is a ',
    ),
    (
      {
        'features': {'b': np.float32, 'c': tfds.features.Image(shape=(2, 2, 1))},
        'label': _LABEL,
      },
      {'b': 1.0, 'c': np.zeros([2, 2, 1], np.uint8)},
      'features/c is a Image',
    ),
    ({'features': np.float32, 'label': np.float32}, 1.0, "label 'label' is neither"),
    ({'features': np.float32, 'label': _LABEL}, np.nan, 'not finite'),
  ],
)
def test_what_is_not_supported_is_said(tmp_path, features, example, message):
  _write_numbers(tmp_path, features, [{'features': example, 'label': 1}])
  with pytest.raises(ValueError, match=f'numbers of TFDS: .*{message}'):
    _load(tmp_path, 'numbers')


def test_examples_without_a_label_are_refused(tmp_path):
  examples = [{'features': 1.0, 'label': -1}]
  _write_numbers(tmp_path, {'features': np.float32, 'label': _LABEL}, examples)
  with pytest.raises(ValueError, match="split 'train' has examples without a label"):
    _load(tmp_path, 'numbers')


def test_two_classes_without_a_word_are_ambiguous(tmp_path):
  examples = [{'a': 1.0, 'b': 1, 'c': 1}]
  features = {'a': np.float32, 'b': _LABEL, 'c': _LABEL}
  _write_numbers(tmp_path, features, examples, keys=None)
  with pytest.raises(ValueError, match='does not say which feature is the label'):
    _load(tmp_path, 'numbers')


def test_a_size_is_for_images_only(tmp_path):
  examples = [{'features': 1.0, 'label': 1}]
  _write_numbers(tmp_path, {'features': np.float32, 'label': _LABEL}, examples)
  with pytest.raises(ValueError, match='--image_size is for images'):
    _load(tmp_path, 'numbers', image_size=8)


def test_data_that_are_prepared_are_not_prepared_again(tmp_path, monkeypatch):
  def refuse(*args, **kwargs):
    raise AssertionError('asked for the code that prepares the data')

  images = _images(7, 28, 28, 1)
  splits = {'train': (images, _LABELS), 'test': (images, _LABELS)}
  # A version that TFDS does not know of its own data set.
  write_tfds_images(tmp_path, 'mnist', splits, num_classes=10, version='1.2.3')
  monkeypatch.setattr(tfds, 'builder', refuse)
  assert len(_load(tmp_path, 'mnist').train['y']) == 7
  assert len(_load(tmp_path, 'mnist:1.2.3').train['y']) == 7


def test_without_data_and_network_nothing_is_prepared(tmp_path, monkeypatch):
  monkeypatch.setattr(tfds, 'builder', None)
  with pytest.raises(ValueError, match=r'cifar10.*--data_dir.*digits_logistic'):
    _load(tmp_path, 'cifar10')
  assert not list(tmp_path.iterdir())


def test_a_name_that_tfds_does_not_know_is_refused_with_near_ones(
  tmp_path, monkeypatch
):
  monkeypatch.setattr('tasks.downloads.is_reachable', lambda url: True)
  with pytest.raises(ValueError, match=r"named 'cifar_10'\. Did you mean .*cifar10"):
    _load(tmp_path, 'cifar_10')


def test_a_failed_download_says_where_data_may_be(tmp_path, monkeypatch):
  def fail(self):
    raise OSError('connection reset')

  monkeypatch.setattr('tasks.downloads.is_reachable', lambda url: True)
  monkeypatch.setattr(tfds.core.DatasetBuilder, 'download_and_prepare', fail)
  with pytest.raises(ValueError, match=r'iris in .*connection reset.*--data_dir'):
    _load(tmp_path, 'iris')


def test_broken_data_are_named(tmp_path):
  images = _images(7, 5, 4, 1)
  write_tfds_images(tmp_path, 'grey', {'train': (images, _LABELS)}, num_classes=3)
  (records,) = (tmp_path / 'grey' / '1.0.0').glob('*.tfrecord*')
  records.write_bytes(records.read_bytes()[:-20])
  with pytest.raises(ValueError, match=r'grey.1\.0\.0 cannot be read'):
    _load(tmp_path, 'grey')
  (tmp_path / 'grey' / '1.0.0' / 'dataset_info.json').write_text('{')
  with pytest.raises(ValueError, match=r'grey.1\.0\.0 is not a data set of TFDS'):
    _load(tmp_path, 'grey')


def test_the_publishers_files_come_before_tfds(tmp_path):
  source = image_sources.MNIST
  from_tfds, published = _images(7, 28, 28, 1), _images(7, 28, 28)
  splits = {'train': (from_tfds, _LABELS), 'test': (from_tfds[:4], _LABELS[:4])}
  write_tfds_images(tmp_path, 'mnist', splits, num_classes=10)
  data = tfds_data.load_source(source, str(tmp_path), seed=0)
  np.testing.assert_array_equal(data.train['x'], np.float32(from_tfds[..., 0]) / 255)
  assert data.num_classes == 10

  contents = [published, _LABELS, published[:3], _LABELS[:3]]
  for name, array in zip(source.file_names, contents, strict=True):
    write_idx(tmp_path / 'mnist' / name, array)
  data = tfds_data.load_source(source, str(tmp_path), seed=0)
  np.testing.assert_array_equal(data.train['x'], np.float32(published) / 255)
  np.testing.assert_array_equal(data.train['y'], _LABELS)
  np.testing.assert_array_equal(data.test['x'], np.float32(published[:3]) / 255)
  np.testing.assert_array_equal(data.test['y'], _LABELS[:3])
  assert data.num_classes == 10
  assert data.train['x'].dtype == np.float32
  assert data.train['y'].dtype == np.int32
