"""Arrays typed as small as they go without losing a bit, and back on the client.

Pixels that are k / 255 become bytes, ids of words two bytes. Which way an array was
stored is told by a number beside it; each is tried out when it is written, so that what
comes back is equal bit by bit, or the array is stored as it is.
"""

from typing import NamedTuple

import numpy as np
import tensorflow as tf

_PLAIN = 0
_BYTES, _WORDS = 1, 2  # Of integers.
_QUOTIENTS, _INVERTED = 1, 2  # Of floats: bytes b as b / divisor and 1 - b / divisor.
_FLOATS = ((255, _QUOTIENTS), (255, _INVERTED), (1, _QUOTIENTS))


class Encoded(NamedTuple):
  """An array to be stored.

  Attributes:
    code: How it is stored.
    divisor: What belongs to it.
    content: Little-endian, in row-major order.
  """

  code: int
  divisor: int
  content: bytes


def encode(array: np.ndarray) -> Encoded:
  """The smallest form of an array that gives it back bit by bit."""
  if array.dtype == np.float32:
    array = np.ascontiguousarray(array)
    for divisor, code in _FLOATS:
      # Most that do not fit are found out by a single row.
      if _as_bytes(array[:1], divisor, code) is not None:
        as_bytes = _as_bytes(array, divisor, code)
        if as_bytes is not None:
          return Encoded(code, divisor, as_bytes.tobytes())
  elif array.dtype.kind in 'iu' and array.dtype.itemsize > 2:
    low, high = (array.min(), array.max()) if array.size else (0, 0)
    for code, dtype in ((_BYTES, np.dtype('<u1')), (_WORDS, np.dtype('<u2'))):
      if low >= 0 and high <= np.iinfo(dtype).max:
        return Encoded(code, 1, array.astype(dtype).tobytes())
  little = array.astype(array.dtype.newbyteorder('<'), copy=False)
  return Encoded(_PLAIN, 1, little.tobytes())


def _as_bytes(array: np.ndarray, divisor: int, code: int) -> np.ndarray | None:
  """The bytes that stand for an array of floats, or None."""
  one, factor = np.float32(1), np.float32(divisor)
  with np.errstate(all='ignore'):  # What is no number does not come back.
    numbers = (one - array if code == _INVERTED else array) * factor
    found = np.rint(numbers).astype(np.uint8)
  back = found.astype(np.float32) / factor
  if code == _INVERTED:
    back = one - back
  # As integers, or -0 would be 0.
  is_same = np.array_equal(back.view(np.uint32), array.view(np.uint32))
  return found if is_same else None


def widths(dtype: tf.DType) -> list[int]:
  """The bytes of a value by code, for arrays that are of this dtype when decoded."""
  if dtype == tf.float32:
    return [4, 1, 1]
  if dtype.is_integer and dtype.size > 2:
    return [dtype.size, 1, 2]
  return [dtype.size]


def decode(
  content: tf.Tensor, code: tf.Tensor, divisor: tf.Tensor, dtype: tf.DType
) -> tf.Tensor:
  """What was encoded, flat, in TensorFlow operations.

  Args:
    content: The bytes, a string scalar.
    code: An integer scalar.
    divisor: An integer scalar. It must be no constant of the graph: TensorFlow would
      multiply by its inverse, which is not the same.
    dtype: Of the array.
  """

  def plain():
    return tf.io.decode_raw(content, dtype)

  def quotients():
    numbers = tf.cast(tf.io.decode_raw(content, tf.uint8), tf.float32)
    return numbers / tf.cast(divisor, tf.float32)

  def from_bytes():
    return tf.cast(tf.io.decode_raw(content, tf.uint8), dtype)

  def from_words():
    return tf.cast(tf.io.decode_raw(content, tf.uint16), dtype)

  if dtype == tf.float32:
    branches = [plain, quotients, lambda: 1 - quotients()]
  elif len(widths(dtype)) > 1:
    branches = [plain, from_bytes, from_words]
  else:
    return plain()
  return tf.switch_case(tf.cast(code, tf.int32), branches)
