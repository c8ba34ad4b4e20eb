"""Labelled data from TFDS (TensorFlow Datasets), by their name."""

from collections.abc import Callable, Mapping
import difflib
import functools
import math
import operator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
import tqdm

from tasks import (
  downloads,
  federated_data,
  idx_files,
  image_sources,
  labelled_data,
  scaling,
  tfds_files,
)
from tasks.federated_data import Rows
from tasks.labelled_data import LabelledData

_BATCH_SIZE = 512  # Of rows read at once; it makes no difference to the result.
_SUPPORTED = (
  'supported are an image, a numeric tensor of fixed shape, or a dictionary of such '
  'tensors'
)


def load_source(
  source: image_sources.Source, data_dir: str | None, seed: int
) -> LabelledData:
  """The publisher's files if they are there, else the same data set from TFDS.

  Args:
    source: The data set, of images.
    data_dir: Where both are looked for and TFDS keeps its data; by default TFF's cache
      directory and TFDS's.
    seed: As in `load`.

  Returns:
    Pixels from 0 to 1, in the orientation that they are stored in.

  Raises:
    ValueError: If the data are not there and cannot be downloaded, or are broken.
  """
  paths = image_sources.find(source, downloads.directory(data_dir))
  if not paths:
    return load(source.tfds_name, data_dir, seed)
  splits = []
  for images_path, labels_path in (paths[:2], paths[2:]):
    images, labels = idx_files.read_labelled_images(
      images_path, labels_path, source.num_classes
    )
    splits.append(labelled_data.rows(np.divide(images, 255, dtype=np.float32), labels))
  train, test = splits
  return LabelledData(train, test, source.num_classes)


def load(
  tfds_name: str, data_dir: str | None, seed: int, image_size: int | None = None
) -> LabelledData:
  """A classification data set of TFDS, downloaded and prepared only if need be.

  Tests are on the split `test`, else on `validation`, else on a fifth of `train`.

  Args:
    tfds_name: As for `tfds.load`: `name`, `name/config`, `name/config:version`.
    data_dir: Where TFDS keeps its data; its own default directory if None.
    seed: What the rows held out are drawn from, if the data set comes without.
    image_size: The side of the squares that images are resized to, if not None.

  Returns:
    Images as `[height, width]` or `[height, width, channels]`, integer pixels scaled to
    [0, 1]. Other numbers as one vector, each of mean 0 and variance 1 over the training
    rows; classes among the inputs are one-hot in it.

  Raises:
    ValueError: If the data are not there and cannot be downloaded, or are of a kind
      that is not supported.
  """
  builder = _prepared_builder(tfds_name, data_dir)
  try:
    return _labelled_data(builder, seed, image_size)
  except ValueError as error:
    raise ValueError(f'{tfds_name} of TFDS: {error}') from error
  except (OSError, tf.errors.OpError) as error:
    raise ValueError(f'{builder.data_path} cannot be read ({error}).') from error


def _prepared_builder(tfds_name: str, data_dir: str | None) -> tfds.core.DatasetBuilder:
  """A builder whose data are on disk."""
  # Data sets of a thousand authors are made by their own code: it raises anything.
  directory = downloads.tfds_directory(data_dir)
  path = tfds_files.prepared(tfds_name, directory)
  if path:
    try:
      return tfds.builder_from_directory(path)
    except Exception as error:
      raise ValueError(f'{path} is not a data set of TFDS ({error}).') from error
  downloads.tfds(data_dir, tfds_name)
  try:
    builder = tfds.builder(tfds_name, data_dir=directory)
    builder.download_and_prepare()
  except tfds.core.DatasetNotFoundError as error:
    known = tfds.list_builders(with_community_datasets=False)
    near = difflib.get_close_matches(tfds_name, known, n=3)
    hint = f' Did you mean {" or ".join(near)}?' if near else ''
    raise ValueError(f'TFDS has no data set named {tfds_name!r}.{hint}') from error
  except Exception as error:
    raise ValueError(
      f'TFDS could not prepare {tfds_name} in {directory} ({error}). Name a directory '
      'that has it with --data_dir; --task=digits_logistic needs no download.'
    ) from error
  return builder


def _labelled_data(
  builder: tfds.core.DatasetBuilder, seed: int, image_size: int | None
) -> LabelledData:
  features = builder.info.features
  x_keys, y_key = _supervised_keys(builder.info)
  inputs = _inputs(features, x_keys, image_size)
  num_classes = _num_classes(features, y_key)
  train_split, test_split = _split_names(builder.info)
  train = _read(builder, train_split, inputs, y_key)
  if test_split:
    test = _read(builder, test_split, inputs, y_key)
  else:
    train, test = labelled_data.split_rows(train, seed)
  if num_classes is None:
    num_classes = 1 + int(max(train['y'].max(initial=0), test['y'].max(initial=0)))
  if not inputs.is_image:
    _standardize(train['x'], test['x'])
  return LabelledData(train, test, num_classes)


def _supervised_keys(info: tfds.core.DatasetInfo) -> tuple[Any, str]:
  """The keys of the inputs, possibly nested, and that of the label."""
  if info.supervised_keys:
    x_keys, y_key, *_ = info.supervised_keys
    return x_keys, y_key
  labels = [
    key
    for key, feature in info.features.items()
    if isinstance(feature, tfds.features.ClassLabel)
  ]
  others = [key for key in info.features if key not in labels]
  if len(labels) != 1 or len(others) != 1:
    raise ValueError('it does not say which feature is the label and which the input.')
  return others[0], labels[0]


class _Inputs(NamedTuple):
  """What a model is given of an example.

  Attributes:
    shape: The shape.
    convert: A decoded example of TFDS -> the float32 tensor.
    is_image: Whether it is an image.
  """

  shape: tuple[int, ...]
  convert: Callable[[Mapping[str, Any]], tf.Tensor]
  is_image: bool


def _inputs(
  features: tfds.features.FeaturesDict, x_keys: Any, image_size: int | None
) -> _Inputs:
  leaves = [
    leaf for key in tf.nest.flatten(x_keys) for leaf in _leaves(features[key], (key,))
  ]
  path, feature = leaves[0]
  if len(leaves) == 1 and isinstance(feature, tfds.features.Image):
    return _image(path, feature, image_size)
  if image_size:
    raise ValueError('--image_size is for images, which it has none of.')
  vectors = [_vector(path, feature) for path, feature in leaves]
  return _Inputs(
    (sum(vector.shape[0] for vector in vectors),),
    lambda example: tf.concat([vector.convert(example) for vector in vectors], 0),
    is_image=False,
  )


_Path = tuple[str, ...]


def _leaves(feature: Any, path: _Path) -> list[tuple[_Path, Any]]:
  """The features in a feature, each with the keys that lead to it, in a fixed order."""
  if not isinstance(feature, tfds.features.FeaturesDict):
    return [(path, feature)]
  return [
    leaf for key in sorted(feature) for leaf in _leaves(feature[key], (*path, key))
  ]


def _at(example: Mapping[str, Any], path: _Path) -> tf.Tensor:
  return functools.reduce(operator.getitem, path, example)


def _image(
  path: _Path, feature: tfds.features.Image, image_size: int | None
) -> _Inputs:
  *sides, channels = feature.shape
  if image_size:
    sides = [image_size, image_size]
  if None in sides:
    raise ValueError('its images vary in size: give --image_size to resize them.')
  if channels is None:
    raise ValueError('its images vary in their number of channels.')
  shape = (*sides, channels) if channels > 1 else tuple(sides)
  dtype = np.dtype(feature.np_dtype)
  white = np.iinfo(dtype).max if np.issubdtype(dtype, np.integer) else 1

  def convert(example):
    image = tf.cast(_at(example, path), tf.float32)
    if image_size:
      image = tf.image.resize(image, sides, antialias=True)
    return tf.reshape(image, shape) / white

  return _Inputs(shape, convert, is_image=True)


def _vector(path: _Path, feature: Any) -> _Inputs:
  """A numeric tensor, flat; the number of a class means nothing and becomes one-hot."""
  if isinstance(feature, tfds.features.ClassLabel):
    num_classes = feature.num_classes
    return _Inputs(
      (num_classes,),
      lambda example: tf.one_hot(_at(example, path), num_classes),
      is_image=False,
    )
  if (
    not isinstance(feature, tfds.features.Tensor)
    or None in feature.shape
    or not _is_numeric(feature.np_dtype)
  ):
    raise ValueError(
      f'its input {"/".join(path)} is a {type(feature).__name__} of shape '
      f'{feature.shape}; {_SUPPORTED}.'
    )
  return _Inputs(
    (math.prod(feature.shape),),
    lambda example: tf.reshape(tf.cast(_at(example, path), tf.float32), [-1]),
    is_image=False,
  )


def _is_numeric(dtype: Any) -> bool:
  return np.issubdtype(dtype, np.number) or np.issubdtype(dtype, np.bool_)


def _num_classes(features: tfds.features.FeaturesDict, y_key: Any) -> int | None:
  """The number of classes, None if the labels are just integers."""
  feature = features[y_key] if isinstance(y_key, str) else None
  if isinstance(feature, tfds.features.ClassLabel):
    return feature.num_classes
  if (
    not isinstance(feature, tfds.features.Tensor)
    or feature.shape != ()
    or not np.issubdtype(feature.np_dtype, np.integer)
  ):
    raise ValueError(f'its label {y_key!r} is neither a class nor an integer.')
  return None


def _split_names(info: tfds.core.DatasetInfo) -> tuple[str, str | None]:
  if 'train' not in info.splits:
    raise ValueError(f"it has no split 'train', only {', '.join(info.splits)}.")
  held_out = [split for split in ('test', 'validation') if split in info.splits]
  return 'train', held_out[0] if held_out else None


def _read(
  builder: tfds.core.DatasetBuilder, split: str, inputs: _Inputs, y_key: str
) -> Rows:
  """All rows of a split, in the order of the files."""
  num_rows = builder.info.splits[split].num_examples
  rows = federated_data.allocate(
    {'x': ((num_rows, *inputs.shape), np.float32), 'y': ((num_rows,), np.int32)}
  )
  dataset = builder.as_dataset(
    split=split, shuffle_files=False, read_config=tfds.ReadConfig(try_autocache=False)
  )
  batches = dataset.map(
    lambda example: (inputs.convert(example), tf.cast(example[y_key], tf.int32)),
    num_parallel_calls=tf.data.AUTOTUNE,
  ).batch(_BATCH_SIZE)
  end = 0
  for some_x, some_y in tqdm.tqdm(
    batches.as_numpy_iterator(),
    'Reading',
    total=math.ceil(num_rows / _BATCH_SIZE),
    delay=2,
    leave=False,
    disable=None,
  ):
    start, end = end, end + len(some_y)
    rows['x'][start:end], rows['y'][start:end] = some_x, some_y
  if rows['y'].min(initial=0) < 0:
    raise ValueError(f'the split {split!r} has examples without a label.')
  return rows


def _standardize(train: np.ndarray, test: np.ndarray) -> None:
  """Gives each column mean 0 and variance 1 over the training rows, in place."""
  for x in (train, test):
    if not np.isfinite(x).all():
      raise ValueError('it has inputs that are not finite.')
  mean, deviation = scaling.moments(train)
  for x in (train, test):
    x[:] = (x - mean) / deviation
