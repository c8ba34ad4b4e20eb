"""Layers and initial weights that the models share, as pure functions.

Layers compute what the Keras layers of the same names do, and initial weights are
drawn from the same distributions as theirs, but from a seed.
"""

from collections.abc import Callable, Iterable
import math
from typing import Any, TypeAlias

import tensorflow as tf

_fold_in = tf.random.experimental.stateless_fold_in

# (shape, seed, index) -> initial weights. The shape is of a dense `[in, out]` or a
# convolutional `[height, width, in, out]` kernel, the seed a `[2]` integer tensor, of
# the whole model; the index says which of its layers this is, so that no two are alike.
Initializer: TypeAlias = Callable[[tuple[int, ...], Any, int], tf.Tensor]


def uniform(shape: tuple[int, ...], limit: float, seed: Any, index: int) -> tf.Tensor:
  """Uniform within +-limit; seed and index as for an `Initializer`."""
  return tf.random.stateless_uniform(shape, _fold_in(seed, index), -limit, limit)


def normal(shape: tuple[int, ...], stddev: float, seed: Any, index: int) -> tf.Tensor:
  """Normal with mean 0; seed and index as for an `Initializer`."""
  return tf.random.stateless_normal(shape, _fold_in(seed, index), stddev=stddev)


def glorot_uniform(shape: tuple[int, ...], seed: Any, index: int) -> tf.Tensor:
  """Uniform within sqrt(6 / (fan in + fan out)), Glorot and Bengio 2010."""
  *window, num_in, num_out = shape
  limit = (6.0 / (math.prod(window) * (num_in + num_out))) ** 0.5
  return uniform(shape, limit, seed, index)


def he_normal(shape: tuple[int, ...], seed: Any, index: int) -> tf.Tensor:
  """Normal with variance 2 / fan in, cut at two deviations, He et al. 2015."""
  *window, num_in, _ = shape
  stddev = (2.0 / (math.prod(window) * num_in)) ** 0.5
  return tf.random.stateless_truncated_normal(
    shape, _fold_in(seed, index), stddev=stddev / _TRUNCATED_STDDEV
  )


# The standard deviation of a standard normal variable cut at +-2.
_TRUNCATED_STDDEV = 0.87962566103423978


def orthogonal(shape: tuple[int, int], seed: Any, index: int) -> tf.Tensor:
  """A random matrix with orthonormal rows or columns, whichever are fewer."""
  tall = (max(shape), min(shape))
  q, r = tf.linalg.qr(tf.random.stateless_normal(tall, _fold_in(seed, index)))
  q *= tf.sign(tf.linalg.diag_part(r))  # Without it not all are equally likely.
  return q if shape == tall else tf.transpose(q)


def kernels_and_biases(
  shapes: Iterable[tuple[int, ...]], seed: Any
) -> tuple[tf.Tensor, ...]:
  """Kernels of these shapes (`glorot_uniform`), each followed by a bias of zeros."""
  weights = []
  for index, shape in enumerate(shapes):
    weights += [glorot_uniform(shape, seed, index), tf.zeros(shape[-1:])]
  return tuple(weights)


def lstm_weights(
  num_in: int, num_units: int, kernel: Initializer, seed: Any, index: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Kernel, recurrent kernel (`orthogonal`) and bias (1 at the forget gate)."""
  layer_seed = _fold_in(seed, index)
  zeros = tf.zeros([num_units])
  return (
    kernel((num_in, 4 * num_units), layer_seed, 0),
    orthogonal((num_units, 4 * num_units), layer_seed, 1),
    tf.concat([zeros, tf.ones([num_units]), zeros, zeros], axis=0),
  )


def gru_weights(
  num_in: int, num_units: int, kernel: Initializer, seed: Any, index: int
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
  """Kernel, recurrent kernel (`orthogonal`) and the two biases (0)."""
  layer_seed = _fold_in(seed, index)
  return (
    kernel((num_in, 3 * num_units), layer_seed, 0),
    orthogonal((num_units, 3 * num_units), layer_seed, 1),
    tf.zeros([2, 3 * num_units]),
  )


def dense(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
  """A linear map of the last axis; the axes between it and the first are static."""
  num_in, num_out = kernel.shape
  y = tf.nn.bias_add(tf.matmul(tf.reshape(x, [-1, num_in]), kernel), bias)
  return tf.reshape(y, [-1, *x.shape[1:-1], num_out])


@tf.custom_gradient
def conv2d(x: tf.Tensor, kernel: tf.Tensor) -> Any:
  """A convolution that keeps the size of images; the kernel's sides are odd.

  The gradient by x is a convolution too, with the kernel turned round. Written so it is
  five times as fast on a CPU, with hundreds of channels, as TensorFlow's own.
  """

  def gradient(dy):
    turned = tf.transpose(tf.reverse(kernel, axis=[0, 1]), [0, 1, 3, 2])
    dkernel = tf.raw_ops.Conv2DBackpropFilter(
      input=x,
      filter_sizes=kernel.shape,
      out_backprop=dy,
      strides=[1, 1, 1, 1],
      padding='SAME',
    )
    return tf.nn.conv2d(dy, turned, 1, 'SAME'), dkernel

  return tf.nn.conv2d(x, kernel, 1, 'SAME'), gradient


def max_pool(x: tf.Tensor) -> tf.Tensor:
  """The largest of each 2x2 pixels; an odd last row or column is left out.

  The gradient goes to the first of equals, as TensorFlow's, which in a loop on a CPU
  takes as long as a convolution: oneDNN's own stands in for it only where it is seen
  after the pooling, and a loop has no order.

  Args:
    x: `[batch, height, width, channels]`, static but for the batch.
  """
  height, width = (2 * (size // 2) for size in x.shape[1:3])
  if (height, width) != tuple(x.shape[1:3]):
    x = x[:, :height, :width]
  return _max_of_pairs_of_pairs(x)


@tf.custom_gradient
def _max_of_pairs_of_pairs(x: tf.Tensor) -> Any:
  height, width, channels = x.shape[1:]
  row = width // 2 * channels
  # Neighbours in a row first, then rows: of equals the first is that of the window.
  left, right = tf.unstack(tf.reshape(x, [-1, 2, channels]), axis=1)
  upper, lower = tf.unstack(tf.reshape(tf.maximum(left, right), [-1, 2, row]), axis=1)
  y = tf.maximum(upper, lower)

  def dealt_out(dy, first, second):
    to_first = dy * tf.cast(first >= second, dy.dtype)
    return tf.stack([to_first, dy - to_first], axis=1)

  def gradient(dy):
    of_rows = dealt_out(tf.reshape(dy, [-1, row]), upper, lower)
    of_pixels = dealt_out(tf.reshape(of_rows, [-1, channels]), left, right)
    return tf.reshape(of_pixels, [-1, height, width, channels])

  return tf.reshape(y, [-1, height // 2, width // 2, channels]), gradient


def dropout(x: tf.Tensor, rate: float, seed: Any, index: int) -> tf.Tensor:
  """Sets a share of x to zero and scales up the rest to keep the mean.

  Of 20 images in a network of EMNIST's it takes less than half the time of TensorFlow's
  own, which draws a float for each element: a random byte tells the usual rates.

  Args:
    x: Any tensor.
    rate: The probability that an element is set to zero.
    seed: A `[2]` integer seed, of the whole model, or None in inference.
    index: Which of its dropout layers this is.
  """
  if seed is None:
    return x
  word = tf.uint8 if (256 * rate).is_integer() else tf.uint32
  size = tf.size(x)
  drawn = tf.random.stateless_uniform(
    [-(-size * word.size // 4)], _fold_in(seed, index), None, None, tf.uint32
  )
  words = tf.reshape(tf.bitcast(drawn, word), [-1])[:size]
  is_kept = tf.reshape(words, tf.shape(x)) >= tf.constant(
    round(rate * 2 ** (8 * word.size)), word
  )
  return x * (tf.cast(is_kept, x.dtype) * (1 / (1 - rate)))


def group_norm(x: tf.Tensor, gamma: tf.Tensor, beta: tf.Tensor) -> tf.Tensor:
  """Normalises images over space and groups of neighbouring channels, Wu and He 2018.

  Args:
    x: `[batch, height, width, channels]`, static but for the batch.
    gamma: `[channels]`, what the normalised values are multiplied by.
    beta: `[channels]`, what is then added.
  """
  *space, channels = x.shape[1:]
  flat = tf.reshape(x, [-1, math.prod(space), channels])

  def group_mean(t):
    # Space first, then the group: many times faster than both at once.
    grouped = tf.reshape(tf.reduce_mean(t, axis=1), [-1, _GROUPS, channels // _GROUPS])
    means = tf.reduce_mean(grouped, axis=2, keepdims=True)
    return tf.reshape(tf.broadcast_to(means, tf.shape(grouped)), [-1, 1, channels])

  centred = flat - group_mean(flat)
  variance = group_mean(tf.square(centred))
  y = centred * (gamma * tf.math.rsqrt(variance + _EPSILON)) + beta
  return tf.reshape(y, [-1, *space, channels])


_GROUPS = 32
_EPSILON = 1e-3


def embedding(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
  """The rows of the table with these ids.

  An id out of range gives NaN, so that the client that holds it is left out of the
  round; TensorFlow's own lookup would stop the whole round.
  """
  valid = (ids >= 0) & (ids < table.shape[0])
  rows = tf.gather(table, tf.where(valid, ids, tf.zeros_like(ids)))
  return tf.where(valid[..., tf.newaxis], rows, float('nan'))


def lstm(
  x: tf.Tensor, kernel: tf.Tensor, recurrent_kernel: tf.Tensor, bias: tf.Tensor
) -> tf.Tensor:
  """The outputs of a layer of LSTM cells at all times, from a state of zeros.

  Args:
    x: `[batch, time, in]`, time and in static.
    kernel: `[in, 4 units]`: input gate, forget gate, candidate, output gate.
    recurrent_kernel: `[units, 4 units]`.
    bias: `[4 units]`.

  Returns:
    A `[batch, time, units]` tensor.
  """
  # What does not depend on the state is computed for all times at once.
  return _lstm_recurrence(dense(x, kernel, bias), recurrent_kernel)


@tf.custom_gradient
def _lstm_recurrence(z: tf.Tensor, recurrent_kernel: tf.Tensor) -> Any:
  """An LSTM's outputs, from its inputs times the kernel.

  The gradient is written out, two to five times as fast on a CPU as TensorFlow's own:
  that multiplies by a transposed matrix at each time, which is slow when the batch is
  small, and adds up as many outer products of the size of the kernel.
  """
  num_units = recurrent_kernel.shape[0]
  h = c = tf.zeros([tf.shape(z)[0], num_units], z.dtype)
  outputs, kept = [], []
  for z_t in tf.unstack(z, axis=1):
    gates = tf.split(z_t + tf.matmul(h, recurrent_kernel), 4, axis=1)
    i, f, o = (tf.sigmoid(gates[k]) for k in (0, 1, 3))
    g = tf.tanh(gates[2])
    c_before, c = c, f * c + i * g
    tanh_c = tf.tanh(c)
    h = o * tanh_c
    outputs.append(h)
    kept.append((i, f, g, o, c_before, tanh_c))
  h_all = tf.stack(outputs, axis=1)

  def gradient(dh_all):
    transposed = _transposed(recurrent_kernel)
    dh = dc = tf.zeros_like(h)
    dz = []
    for dh_t, saved in zip(tf.unstack(dh_all, axis=1)[::-1], kept[::-1], strict=True):
      i, f, g, o, c_before, tanh_c = saved
      dh += dh_t
      dc += _tanh_grad(y=tanh_c, dy=dh * o)
      dz_t = [
        _sigmoid_grad(y=i, dy=dc * g),
        _sigmoid_grad(y=f, dy=dc * c_before),
        _tanh_grad(y=g, dy=dc * i),
        _sigmoid_grad(y=o, dy=dh * tanh_c),
      ]
      dz.append(tf.concat(dz_t, axis=1))
      dh, dc = tf.matmul(dz[-1], transposed), dc * f
    dz_all = tf.stack(dz[::-1], axis=1)
    h_before = tf.reshape(h_all[:, :-1], [-1, num_units])
    dz_after = tf.reshape(dz_all[:, 1:], [-1, 4 * num_units])
    return dz_all, tf.matmul(h_before, dz_after, transpose_a=True)

  return h_all, gradient


def gru(
  x: tf.Tensor, kernel: tf.Tensor, recurrent_kernel: tf.Tensor, biases: tf.Tensor
) -> tf.Tensor:
  """The outputs of a layer of GRU cells at all times, from a state of zeros.

  The reset gate is applied after the product with the recurrent kernel, Keras's default
  (`reset_after`).

  Args:
    x: `[batch, time, in]`, time and in static.
    kernel: `[in, 3 units]`: update gate, reset gate, candidate.
    recurrent_kernel: `[units, 3 units]`.
    biases: `[2, 3 units]`: that of the input, that of the state.

  Returns:
    A `[batch, time, units]` tensor.
  """
  # What does not depend on the state is computed for all times at once.
  return _gru_recurrence(dense(x, kernel, biases[0]), recurrent_kernel, biases[1])


@tf.custom_gradient
def _gru_recurrence(z: tf.Tensor, recurrent_kernel: tf.Tensor, bias: tf.Tensor) -> Any:
  """A GRU's outputs, from its inputs times the kernel.

  The gradient is written out for the same reasons as an LSTM's: twice as fast as
  TensorFlow's own when the batch is small.
  """
  num_units = recurrent_kernel.shape[0]
  h = tf.zeros([tf.shape(z)[0], num_units], z.dtype)
  outputs, kept = [], []
  for z_t in tf.unstack(z, axis=1):
    of_input = tf.split(z_t, 3, axis=1)
    of_state = tf.split(tf.matmul(h, recurrent_kernel) + bias, 3, axis=1)
    u, r = (tf.sigmoid(of_input[k] + of_state[k]) for k in (0, 1))
    g = tf.tanh(of_input[2] + r * of_state[2])
    h_before, h = h, g + u * (h - g)
    outputs.append(h)
    kept.append((u, r, g, of_state[2], h_before))
  h_all = tf.stack(outputs, axis=1)

  def gradient(dh_all):
    transposed = _transposed(recurrent_kernel)
    dh = tf.zeros_like(h)
    dg, ds = [], []  # By the candidate before its tanh; by what comes of the state.
    for dh_t, saved in zip(tf.unstack(dh_all, axis=1)[::-1], kept[::-1], strict=True):
      u, r, g, s_g, h_before = saved
      dh += dh_t
      dh_before = dh * u
      dg_t = _tanh_grad(y=g, dy=dh - dh_before)
      ds_t = [
        _sigmoid_grad(y=u, dy=dh * (h_before - g)),
        _sigmoid_grad(y=r, dy=dg_t * s_g),
        dg_t * r,
      ]
      dg.append(dg_t)
      ds.append(tf.concat(ds_t, axis=1))
      dh = dh_before + tf.matmul(ds[-1], transposed)
    dg_all, ds_all = tf.stack(dg[::-1], axis=1), tf.stack(ds[::-1], axis=1)
    # The gates add up what comes of the input and of the state.
    dz_all = tf.concat([ds_all[..., : 2 * num_units], dg_all], axis=2)
    h_before = tf.reshape(h_all[:, :-1], [-1, num_units])
    ds_after = tf.reshape(ds_all[:, 1:], [-1, 3 * num_units])
    return (
      dz_all,
      tf.matmul(h_before, ds_after, transpose_a=True),
      tf.reduce_sum(ds_all, axis=[0, 1]),
    )

  return h_all, gradient


_sigmoid_grad = tf.raw_ops.SigmoidGrad  # dy * y * (1 - y)
_tanh_grad = tf.raw_ops.TanhGrad  # dy * (1 - y^2)


def _transposed(matrix: tf.Tensor) -> tf.Tensor:
  """A transposed copy, made once.

  The detour over three axes hides the transposition from TensorFlow's optimizer, which
  would fold it into every product that follows.
  """
  rows, columns = matrix.shape
  copy = tf.transpose(tf.reshape(matrix, [rows, 1, columns]), [2, 1, 0])
  return tf.reshape(copy, [columns, rows])
