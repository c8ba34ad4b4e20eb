"""Files in the IDX format, in which MNIST and EMNIST are published."""

import gzip
import math
import pathlib
import zlib

import numpy as np

_GZIP_MAGIC = b'\x1f\x8b'
_UNSIGNED_BYTE = 8  # The code of the dtype; no other is in use here.


def read_labelled_images(
  images_path: pathlib.Path, labels_path: pathlib.Path, num_classes: int
) -> tuple[np.ndarray, np.ndarray]:
  """Images and their labels.

  Args:
    images_path: The file of the images.
    labels_path: The file of the labels.
    num_classes: The labels must be below.

  Returns:
    `[n, height, width]` and `[n]` bytes.

  Raises:
    ValueError: If a file is broken or the two do not match, with their names.
  """
  images, labels = read(images_path, 3), read(labels_path, 1)
  if len(images) != len(labels):
    raise ValueError(
      f'{images_path} has {len(images)} images, {labels_path} {len(labels)} labels.'
    )
  if labels.max(initial=0) >= num_classes:
    raise ValueError(
      f'{labels_path} has the label {labels.max()}, with {num_classes} classes.'
    )
  return images, labels


def read(path: pathlib.Path, num_axes: int) -> np.ndarray:
  """The array of bytes in an IDX file, which may be compressed by gzip.

  The format: two zeros, the code of the dtype, the number of axes, each one byte; the
  length of each axis, 32 bits, big-endian; the items in row-major order.

  Args:
    path: The file.
    num_axes: How many axes the array must have.

  Raises:
    ValueError: If the file is no such file, or broken; with its name.
  """
  try:
    content = path.read_bytes()
    if content.startswith(_GZIP_MAGIC):
      content = gzip.decompress(content)
  except (OSError, EOFError, zlib.error) as error:
    raise ValueError(f'{path} cannot be read ({error}).') from error
  start = 4 + 4 * num_axes
  if content[:4] != bytes([0, 0, _UNSIGNED_BYTE, num_axes]) or len(content) < start:
    raise ValueError(f'{path} is not an IDX file of bytes with {num_axes} axes.')
  shape = [int(n) for n in np.frombuffer(content, '>u4', num_axes, offset=4)]
  if len(content) != start + math.prod(shape):
    raise ValueError(
      f'{path} is broken: shape {shape} takes {start + math.prod(shape)} bytes, '
      f'it has {len(content)}.'
    )
  return np.frombuffer(content, np.uint8, offset=start).reshape(shape)
