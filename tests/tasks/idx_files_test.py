"""Tests of IDX files."""

import gzip

import hypothesis
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
import numpy as np
import pytest

from tasks import idx_files
from tests.tasks.data_files import write_idx

_LABELS = np.array([3, 1, 4], np.uint8)
# Written out byte by byte from the description of the format.
_LABELS_FILE = bytes([0, 0, 8, 1, 0, 0, 0, 3, 3, 1, 4])
_COMPRESSED = gzip.compress(_LABELS_FILE, mtime=0)  # The time would name the tests.


def test_labels_are_read_from_their_bytes(tmp_path):
  path = tmp_path / 'labels'
  path.write_bytes(_LABELS_FILE)
  np.testing.assert_array_equal(idx_files.read(path, 1), _LABELS)
  path.write_bytes(gzip.compress(_LABELS_FILE))
  np.testing.assert_array_equal(idx_files.read(path, 1), _LABELS)


@hypothesis.given(
  hnp.arrays(np.uint8, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0)),
  st.sampled_from(['file', 'file.gz']),
)
def test_an_array_is_read_as_it_was_written(tmp_path_factory, array, name):
  path = tmp_path_factory.mktemp('idx') / name
  write_idx(path, array)
  found = idx_files.read(path, array.ndim)
  assert found.dtype == np.uint8
  np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize(
  ('content', 'message'),
  [
    (b'', 'not an IDX file'),
    (b'<html>', 'not an IDX file'),
    (_LABELS_FILE[:6], 'not an IDX file'),
    (bytes([0, 0, 13, 1]) + _LABELS_FILE[4:], 'not an IDX file of bytes'),
    (bytes([0, 0, 8, 3]) + _LABELS_FILE[4:], 'not an IDX file of bytes with 1 axes'),
    (_LABELS_FILE[:-1], 'takes 11 bytes, it has 10'),
    (_LABELS_FILE + b'5', 'takes 11 bytes, it has 12'),
    (bytes([0, 0, 8, 1, 255, 255, 255, 255]), 'takes 4294967303 bytes, it has 8'),
    (_COMPRESSED[:-9], 'cannot be read'),
    (_COMPRESSED[:12] + b'garbage', 'cannot be read'),
    (b'\x1f\x8bgarbage', 'cannot be read'),
  ],
)
def test_a_broken_file_is_named(tmp_path, content, message):
  (tmp_path / 'my-labels').write_bytes(content)
  with pytest.raises(ValueError, match=f'my-labels .*{message}'):
    idx_files.read(tmp_path / 'my-labels', 1)


def test_images_and_labels_must_match(tmp_path):
  write_idx(tmp_path / 'images', np.zeros([2, 5, 5], np.uint8))
  write_idx(tmp_path / 'labels', _LABELS)
  with pytest.raises(ValueError, match=r'images has 2 images, .*labels 3 labels'):
    idx_files.read_labelled_images(tmp_path / 'images', tmp_path / 'labels', 10)


def test_a_label_beyond_the_classes_is_refused(tmp_path):
  write_idx(tmp_path / 'images', np.zeros([3, 5, 5], np.uint8))
  write_idx(tmp_path / 'labels', _LABELS)
  _, labels = idx_files.read_labelled_images(
    tmp_path / 'images', tmp_path / 'labels', 5
  )
  np.testing.assert_array_equal(labels, _LABELS)
  with pytest.raises(ValueError, match='labels has the label 4, with 4 classes'):
    idx_files.read_labelled_images(tmp_path / 'images', tmp_path / 'labels', 4)
