"""Models of images.

`cnn_dropout`, `autoencoder` and `resnet18` are those of
`tff.simulation.baselines`, which Reddi et al. 2021 used; with the same weights they
compute the same, and their weights have the same order.
"""

import collections
from collections.abc import Sequence
import dataclasses
import itertools
import math

import tensorflow as tf

from tasks import layers
from tasks.classifiers import classifier
from tff_algorithms import models


def logistic(x_shape: Sequence[int], num_classes: int) -> models.Model:
  """Multinomial logistic regression: convex, started at zero.

  Args:
    x_shape: The shape of an input, which is flattened.
    num_classes: How many classes there are.
  """
  num_in = math.prod(x_shape)

  def initialize(seed):
    del seed  # The start of a convex problem need not be random.
    return tf.zeros([num_in, num_classes]), tf.zeros([num_classes])

  def logits(weights, x, seed):
    del seed
    return layers.dense(tf.reshape(x, [-1, num_in]), *weights)

  return classifier(_batch_spec(x_shape), initialize, logits)


def mlp(
  x_shape: Sequence[int], num_classes: int, hidden: Sequence[int]
) -> models.Model:
  """A perceptron with layers of rectified units.

  Args:
    x_shape: The shape of an input, which is flattened.
    num_classes: How many classes there are.
    hidden: The sizes of the hidden layers.
  """
  sizes = [math.prod(x_shape), *hidden, num_classes]
  activations = [tf.nn.relu] * len(hidden) + [tf.identity]

  def initialize(seed):
    return layers.kernels_and_biases(itertools.pairwise(sizes), seed)

  def logits(weights, x, seed):
    del seed
    return _dense_layers(weights, x, activations)

  return classifier(_batch_spec(x_shape), initialize, logits)


def cnn_dropout(num_classes: int) -> models.Model:
  """The convolutional network with dropout of Reddi et al. 2021, appendix C.2.

  Its inputs are images of 28x28 pixels.
  """
  num_flat = 12 * 12 * 64
  shapes = [(3, 3, 1, 32), (3, 3, 32, 64), (num_flat, 128), (128, num_classes)]

  def initialize(seed):
    return layers.kernels_and_biases(shapes, seed)

  def logits(weights, x, seed):
    x = x[..., tf.newaxis]
    x = _convolve(x, weights[0:2], 'VALID')
    x = _convolve(x, weights[2:4], 'VALID')
    x = layers.dropout(layers.max_pool(x), 0.25, seed, 0)
    x = tf.nn.relu(layers.dense(tf.reshape(x, [-1, num_flat]), *weights[4:6]))
    return layers.dense(layers.dropout(x, 0.5, seed, 1), *weights[6:8])

  return classifier(_batch_spec((28, 28)), initialize, logits)


def small_cnn(x_shape: Sequence[int], num_classes: int) -> models.Model:
  """A small convolutional network, for grey or colour images of any size.

  Two convolutions (3x3, of 32 and 64 channels), each followed by 2x2 pooling, and a
  hidden layer of 128, all rectified.

  Args:
    x_shape: `[height, width]` or `[height, width, channels]` of an image.
    num_classes: How many classes there are.
  """
  height, width, channels = (*x_shape, 1)[:3]
  num_flat = (height // 4) * (width // 4) * 64
  shapes = [(3, 3, channels, 32), (3, 3, 32, 64), (num_flat, 128), (128, num_classes)]

  def initialize(seed):
    return layers.kernels_and_biases(shapes, seed)

  def logits(weights, x, seed):
    del seed
    x = tf.reshape(x, [-1, height, width, channels])
    x = layers.max_pool(_convolve(x, weights[0:2], 'SAME'))
    x = layers.max_pool(_convolve(x, weights[2:4], 'SAME'))
    return _dense_layers(weights[4:], x, [tf.nn.relu, tf.identity])

  return classifier(_batch_spec(x_shape), initialize, logits)


def autoencoder() -> models.Model:
  """The bottleneck autoencoder of 28x28 pixels of Reddi et al. 2021, appendix C.2.

  The loss is the mean squared error; labels come with the data and are not used. As a
  loss does not see the inputs, they are part of the outputs.
  """
  sizes = [784, 1000, 500, 250, 30, 250, 500, 1000, 784]
  activations = [tf.sigmoid] * 3 + [tf.identity] + [tf.sigmoid] * 4

  def initialize(seed):
    weights = layers.kernels_and_biases(itertools.pairwise(sizes), seed)
    return models.ModelWeights(weights, ())

  def predict(weights, x, seed):
    del seed
    return collections.OrderedDict(
      reconstruction=_dense_layers(weights.trainable, x, activations),
      pixels=tf.reshape(x, [-1, sizes[0]]),
    )

  def errors(outputs):
    return outputs['reconstruction'] - outputs['pixels']

  def loss(y, outputs):
    del y
    return tf.reduce_mean(tf.square(errors(outputs)))

  def metrics(y, outputs):
    squared, absolute = tf.square(errors(outputs)), tf.abs(errors(outputs))
    return collections.OrderedDict(
      squared_error=tf.reduce_sum(tf.reduce_mean(squared, axis=1)),
      absolute_error=tf.reduce_sum(tf.reduce_mean(absolute, axis=1)),
      num_images=tf.cast(tf.size(y), squared.dtype),
    )

  def finalize_metrics(sums):
    return collections.OrderedDict(
      mean_squared_error=sums['squared_error'] / sums['num_images'],
      mean_absolute_error=sums['absolute_error'] / sums['num_images'],
    )

  return models.Model(
    input_spec=collections.OrderedDict(
      x=_batch_spec((28, 28)), y=tf.TensorSpec([None], tf.int32)
    ),
    initialize=initialize,
    predict=predict,
    loss=loss,
    metrics=metrics,
    finalize_metrics=finalize_metrics,
  )


_RESNET_CHANNELS = (64, 64, 128, 128, 256, 256, 512, 512)  # Of the blocks.
_RESNET_L2 = 1e-4


def resnet18(x_shape: Sequence[int], num_classes: int) -> models.Model:
  """ResNet-18 with identity mappings (He et al. 2016) and group norm.

  As in TFF all blocks work at one resolution, a quarter of the images'. TFF's network
  asks for an L2 penalty on kernels and on the last bias. `from_keras_model`, on which
  TFF's task is built, adds it to the loss (`functional_model_from_keras` does not), so
  it is part of the loss here; the outputs are the logits and the penalty.

  Args:
    x_shape: `[height, width, channels]` of an image.
    num_classes: How many classes there are.
  """
  num_features = _RESNET_CHANNELS[-1]

  def initialize(seed):
    weights = []
    for index, shape in enumerate(_resnet_kernel_shapes(x_shape[-1])):
      kernel = layers.he_normal(shape, seed, index)
      weights += [kernel, tf.ones(shape[-1:]), tf.zeros(shape[-1:])]
    last = layers.normal((num_features, num_classes), 0.01, seed, len(weights))
    return (*weights, last, tf.zeros([num_classes]))

  def logits(weights, x, seed):
    del seed
    *convolutions, last_kernel, last_bias = weights
    # Each convolution with the normalisation of what it, and perhaps a shortcut, gives.
    units = zip(*(convolutions[i::3] for i in range(3)), strict=True)
    kernel, *norm = next(units)
    x = tf.nn.relu(layers.group_norm(tf.nn.conv2d(x, kernel, 2, 'SAME'), *norm))
    x = activated = tf.nn.max_pool2d(x, 3, 2, 'SAME')
    for channels in _RESNET_CHANNELS:
      kernel, *norm = next(units)
      residual = layers.conv2d(activated, kernel)
      residual = tf.nn.relu(layers.group_norm(residual, *norm))
      if channels != x.shape[-1]:
        kernel, *norm = next(units)
        x = layers.group_norm(layers.conv2d(x, kernel), *norm)
      kernel, *norm = next(units)
      x += layers.conv2d(residual, kernel)
      activated = tf.nn.relu(layers.group_norm(x, *norm))
    return layers.dense(tf.reduce_mean(activated, [1, 2]), last_kernel, last_bias)

  def penalty(weights):
    *convolutions, last_kernel, last_bias = weights
    penalized = [*convolutions[::3], last_kernel, last_bias]
    return 2 * _RESNET_L2 * tf.add_n([tf.nn.l2_loss(w) for w in penalized])

  plain = classifier(_batch_spec(x_shape), initialize, logits)
  return dataclasses.replace(
    plain,
    predict=lambda weights, x, seed: collections.OrderedDict(
      logits=plain.predict(weights, x, seed), penalty=penalty(weights.trainable)
    ),
    loss=lambda y, outputs: plain.loss(y, outputs['logits']) + outputs['penalty'],
    metrics=lambda y, outputs: plain.metrics(y, outputs['logits']),
  )


def _resnet_kernel_shapes(num_in: int) -> list[tuple[int, ...]]:
  """The shapes of the kernels of all convolutions, in the order of their use."""
  channels = _RESNET_CHANNELS[0]
  shapes: list[tuple[int, ...]] = [(7, 7, num_in, channels)]
  for channels_out in _RESNET_CHANNELS:
    shapes.append((3, 3, channels, channels_out))
    if channels_out != channels:
      shapes.append((1, 1, channels, channels_out))  # The shortcut.
    shapes.append((3, 3, channels_out, channels_out))
    channels = channels_out
  return shapes


def _batch_spec(x_shape):
  return tf.TensorSpec([None, *x_shape], tf.float32)


def _dense_layers(weights, x, activations):
  """Dense layers on flattened inputs; weights are kernel, bias, kernel, bias, ..."""
  x = tf.reshape(x, [-1, weights[0].shape[0]])
  for i, activation in enumerate(activations):
    x = activation(layers.dense(x, *weights[2 * i : 2 * i + 2]))
  return x


def _convolve(x, weights, padding):
  kernel, bias = weights
  return tf.nn.relu(tf.nn.bias_add(tf.nn.conv2d(x, kernel, 1, padding), bias))
