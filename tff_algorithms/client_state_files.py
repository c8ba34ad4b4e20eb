"""States of clients as files: the bytes of all their tensors, one after the other.

Where clients and whoever drives the process share a file system, the states of a large
model had better not travel: with `client_states_by_file` a state is the path of a file,
which the client reads, and beside which it writes its new state.
"""

import math
from typing import Any

import numpy as np
import tensorflow as tf
import tree

_NEW = '.new'


def to_bytes(state: Any) -> bytes:
  """A state of numpy arrays as bytes."""
  return b''.join(np.asarray(leaf).tobytes() for leaf in tree.flatten(state))


def from_bytes(content: bytes, like: Any) -> Any:
  """The state in these bytes, of the same structure as another one of numpy arrays."""
  leaves, offset = [], 0
  for leaf in tree.flatten(like):
    flat = np.frombuffer(content, leaf.dtype, math.prod(leaf.shape), offset)
    leaves.append(flat.reshape(leaf.shape))
    offset += flat.nbytes
  return tree.unflatten_as(like, leaves)


def read(path: tf.Tensor, specs: Any) -> Any:
  """A client's way to its state, of these `tf.TensorSpec`s."""
  content, leaves, offset = tf.io.read_file(path), [], 0
  for spec in tf.nest.flatten(specs):
    part = tf.strings.substr(content, offset, _num_bytes(spec))
    leaves.append(_decoded(tf.io.decode_raw(part, tf.uint8), spec))
    offset += _num_bytes(spec)
  return tf.nest.pack_sequence_as(specs, leaves)


def write(path: tf.Tensor, state: Any) -> tf.Tensor:
  """Writes the new state of the client whose old one is at a path; returns its path."""
  parts = []
  for leaf in tf.nest.flatten(state):
    # The last field of a serialized tensor are its bytes as they are in memory.
    serialized, size = tf.io.serialize_tensor(leaf), _num_bytes(leaf)
    parts.append(tf.strings.substr(serialized, -size, size) if size else '')
  new_path = tf.strings.join([path, _NEW])
  with tf.control_dependencies([tf.io.write_file(new_path, tf.strings.join(parts))]):
    return tf.identity(new_path)


def _decoded(content: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
  """The tensor with these bytes, of any dtype of numbers."""
  if spec.dtype == tf.bool:
    return tf.cast(tf.reshape(content, spec.shape), tf.bool)
  size = spec.dtype.size
  return tf.bitcast(
    tf.reshape(content, [*spec.shape, *([size] if size > 1 else [])]), spec.dtype
  )


def _num_bytes(tensor: Any) -> int:
  return tensor.shape.num_elements() * tensor.dtype.size
