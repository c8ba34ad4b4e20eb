"""Tests of arrays typed small."""

import numpy as np
import pytest
import tensorflow as tf

from tasks import row_codecs

_K = np.arange(256).astype(np.float32)


@tf.function(reduce_retracing=True)
def _decoded(content, code, divisor, dtype):
  return row_codecs.decode(content, code, divisor, dtype)


@pytest.mark.parametrize(
  ('array', 'width'),
  [
    (_K / np.float32(255), 1),
    (1 - _K / np.float32(255), 1),
    (_K, 1),
    (np.array([0.0, -0.0], np.float32), 4),
    (np.array([0.5, np.nan, np.inf], np.float32), 4),
    (np.array([0.0, 0.3], np.float32), 4),
    (np.array([0.0, 0.3]), 8),
    (np.array([0, 255], np.int32), 1),
    (np.array([0, 256], np.int64), 2),
    (np.array([0, 65536], np.int32), 4),
    (np.array([-1, 5], np.int32), 4),
    (np.array([0, 255], np.uint8), 1),
    (np.array([], np.int32), 1),
    (np.array([True, False]), 1),
  ],
)
def test_arrays_come_back_bit_by_bit_from_the_smallest_form(array, width):
  encoded = row_codecs.encode(array)
  assert len(encoded.content) == width * len(array)
  dtype = tf.as_dtype(array.dtype)
  assert row_codecs.widths(dtype)[encoded.code] == width
  back = _decoded(
    tf.constant(encoded.content),
    tf.constant(encoded.code, tf.int64),
    tf.constant(encoded.divisor, tf.int64),
    dtype,
  ).numpy()
  assert back.dtype == array.dtype
  assert back.tobytes() == array.tobytes()
