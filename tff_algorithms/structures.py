"""Arithmetic on structures of tensors: what the algorithms write as vector algebra.

A structure is whatever `tf.nest` walks through: model weights, a gradient, an
optimizer's state. All structures of one call have the same shape.
"""

import functools
import math
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

Structure = Any


def add(*terms: Structure) -> Structure:
  """a + b + ..., in this order, so that a computation gives the same every time.

  `tf.add_n`, and what TensorFlow makes of several sums in a row, begins with whichever
  summand's memory is free.
  """

  def plus(a, b):
    return tf.ensure_shape(tf.add(a, b), a.shape)  # Not to be joined with the next sum.

  return tf.nest.map_structure(lambda *t: functools.reduce(plus, t), *terms)


def subtract(a: Structure, b: Structure) -> Structure:
  """a - b."""
  return tf.nest.map_structure(tf.subtract, a, b)


def scale(factor: Any, a: Structure) -> Structure:
  """factor * a for a scalar factor, in each tensor's own dtype."""
  if not tf.is_tensor(factor):
    factor = np.float64(factor)  # As a tensor a Python number would be a float32.
  return tf.nest.map_structure(lambda t: tf.cast(factor, t.dtype) * t, a)


def zeros_like(a: Structure) -> Structure:
  """0 * a, also for non-finite a."""
  return tf.nest.map_structure(tf.zeros_like, a)


def global_norm(a: Structure) -> tf.Tensor:
  """The Euclidean norm of all the tensors as one vector, a float32 scalar."""
  squares = [tf.reduce_sum(tf.square(t)) for t in tf.nest.flatten(a)]
  return tf.sqrt(tf.add_n([tf.cast(s, tf.float32) for s in squares]))


def clip(a: Structure, norm: float) -> Structure:
  """The structure, scaled down to this global norm if its own is larger."""
  return scale(norm / tf.maximum(global_norm(a), norm), a)


def all_finite(a: Structure) -> tf.Tensor:
  """Whether no floating-point tensor of the structure has a NaN or an infinity."""
  tensors = [
    t
    for t in map(tf.convert_to_tensor, tf.nest.flatten(a))
    if t.dtype.is_floating or t.dtype.is_complex
  ]
  if not tensors:
    return tf.constant(True)
  # A sum is finite only if each of its terms is, and many times faster to find out. It
  # may overflow: then all of them are looked at.
  sums = tf.stack([tf.math.is_finite(tf.reduce_sum(t)) for t in tensors])
  return tf.cond(
    tf.reduce_all(sums),
    lambda: tf.constant(True),
    lambda: tf.reduce_all(
      tf.stack([tf.reduce_all(tf.math.is_finite(t)) for t in tensors])
    ),
  )


def select(condition: tf.Tensor, a: Structure, b: Structure) -> Structure:
  """a if the scalar condition holds, else b; the other side may be non-finite.

  Nothing is copied.
  """
  return tf.cond(
    condition,
    lambda: tf.nest.map_structure(tf.identity, a),
    lambda: tf.nest.map_structure(tf.identity, b),
  )


def weight_dtype(a: Structure) -> tf.DType:
  """The dtype for clients' weights: the structure's own, but float32 at least."""
  dtype = tf.nest.flatten(a)[0].dtype
  return dtype if dtype.size >= 4 else tf.float32


def tensor_specs(a: Structure) -> Structure:
  """The structure of `tf.TensorSpec`s that describes a structure of tensors."""
  return tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), a)


def as_vector(a: Structure) -> tf.Tensor:
  """All the numbers of a structure as one float32 vector: 7 digits of each."""
  parts = [tf.reshape(tf.cast(t, tf.float32), [-1]) for t in tf.nest.flatten(a)]
  return tf.concat(parts, axis=0)


def from_vector(vector: tf.Tensor, specs: Structure) -> Structure:
  """The structure of these `tf.TensorSpec`s that `as_vector` made a vector of."""
  flat_specs = tf.nest.flatten(specs)
  parts = tf.split(vector, [spec.shape.num_elements() for spec in flat_specs])
  tensors = []
  for part, spec in zip(parts, flat_specs, strict=True):
    # A count may have come through a quantised sum.
    part = tf.round(part) if spec.dtype.is_integer else part
    tensors.append(tf.cast(tf.reshape(part, spec.shape), spec.dtype))
  return tf.nest.pack_sequence_as(specs, tensors)


def size_in_bytes(value_type: tff.Type) -> int:
  """What a value of this type takes on the wire, uncompressed."""
  if isinstance(value_type, tff.TensorType):
    return math.prod(value_type.shape) * np.dtype(value_type.dtype).itemsize
  if isinstance(value_type, tff.StructType):
    return sum(size_in_bytes(t) for _, t in tff.structure.iter_elements(value_type))
  raise TypeError(f'A message holds tensors only, found {value_type}.')
