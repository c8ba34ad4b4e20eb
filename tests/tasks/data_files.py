"""Small data sets in the formats that the tasks read."""

import contextlib
import gzip
import io
import struct

import numpy as np
import tensorflow_datasets as tfds


def write_idx(path, array):
  """Writes an array of bytes in the IDX format, compressed if named so."""
  header = struct.pack(f'>BBBB{array.ndim}I', 0, 0, 8, array.ndim, *array.shape)
  content = header + array.astype(np.uint8).tobytes()
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(gzip.compress(content) if path.suffix == '.gz' else content)


def write_articles(directory):
  """Writes text files in place of Wikipedia's, for training and for testing."""
  directory.mkdir()
  for name in ('train', 'test'):
    (directory / f'{name}.txt').write_text('= Number =\n\n All is number. \n' * 50)


def write_ratings(path, histories):
  """Writes ratings as MovieLens 1M has them, given as user -> (movie, time) pairs."""
  path.parent.mkdir(parents=True, exist_ok=True)
  lines = [
    f'{user}::{movie}::{1 + movie % 5}::{time}\n'
    for user, pairs in histories.items()
    for movie, time in pairs
  ]
  path.write_text(''.join(lines), encoding='latin-1')


def some_histories(num_users):
  """For `write_ratings`: user number n has rated n + 1 movies, one a minute."""
  return {
    user: [(1 + (17 * user + 5 * i) % 3952, 60 * i) for i in range(user + 1)]
    for user in range(1, num_users + 1)
  }


def write_tfds(directory, name, features, keys, splits, config=None, version='1.0.0'):
  """Has TFDS prepare a data set that it does not know.

  Args:
    directory: Where TFDS keeps its data.
    name: The name of the data set.
    features: The features of an example, by key.
    keys: The keys of input and label, or None.
    splits: Examples by the name of the split.
    config: The name of the configuration, if there is one.
    version: The version.
  """

  class Written(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version(version)
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name=config)] if config else []

    def _info(self):
      return tfds.core.DatasetInfo(
        builder=self,
        features=tfds.features.FeaturesDict(features),
        supervised_keys=keys,
        disable_shuffling=True,
      )

    def _split_generators(self, dl_manager):
      return {split: self._generate_examples(split) for split in splits}

    def _generate_examples(self, split):
      yield from enumerate(splits[split])

  Written.name = name
  with contextlib.redirect_stdout(io.StringIO()):
    Written(data_dir=directory).download_and_prepare()


def write_tfds_images(directory, name, splits, num_classes, **options):
  """The same with images, given as `[n, height, width, channels]`, and labels."""
  shape = next(iter(splits.values()))[0].shape[1:]
  write_tfds(
    directory,
    name,
    {
      'image': tfds.features.Image(shape=shape),
      'label': tfds.features.ClassLabel(num_classes=num_classes),
    },
    ('image', 'label'),
    {
      split: [{'image': x, 'label': y} for x, y in zip(images, labels, strict=True)]
      for split, (images, labels) in splits.items()
    },
    **options,
  )
