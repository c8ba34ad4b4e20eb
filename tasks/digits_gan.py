"""A small generative adversarial network on the handwritten digits.

The generator G, the weights to minimise over, makes pictures of noise; the
discriminator D, those to maximise over, tells them from real ones:

    f = E log D(x) + E log(1 - D(G(noise)))
        - r/2 E ||grad_x logit D(x)||^2 - c/2 ||weights of D||^2

One f for both (Goodfellow et al. 2014), and no other loss for the generator. The first
regularizer (Mescheder et al. 2018) keeps plain descent and ascent from turning round
in circles, the second keeps the scores small, so that larger steps can be taken.
"""

import collections
from collections.abc import Callable
import itertools

import numpy as np
import tensorflow as tf

from tasks import digits, layers
from tasks.task import Task
from tff_algorithms import models, oracles
from tff_algorithms.saddle_point import GradientMapping, SaddlePoint

_SHAPE = (8, 8)
_NUM_PIXELS = 64
_NUM_NOISE = 16
_NUM_HIDDEN = 128
_SLOPE = 0.2  # Of the units' negative part.
_GRADIENT_PENALTY = 0.1
_WEIGHT_PENALTY = 0.01


def gan(name: str, seed: int, partition: Callable) -> Task:
  """Both networks have one hidden layer of 128; the labels play no part."""
  train, test = digits.load(seed, partition)
  model = _model(train.all_rows()['x'].mean(axis=0))
  objective = GradientMapping(oracles.ModelLoss(model))
  return Task(name, model, train, test, objective=objective)


def sample(weights: models.ModelWeights, num_images: int, seed: int = 0) -> np.ndarray:
  """Pictures that the generator makes, `[num_images, 8, 8]`, ink being 1."""
  noise = _noise(num_images, tf.constant([seed, 0]))
  return _generated(weights.trainable.min, noise).numpy()


def _noise(num_images: int | tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
  return tf.random.stateless_normal([num_images, _NUM_NOISE], seed)


def _hidden(x: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor) -> tf.Tensor:
  return tf.nn.leaky_relu(layers.dense(x, kernel, bias), _SLOPE)


def _generated(generator: tuple[tf.Tensor, ...], noise: tf.Tensor) -> tf.Tensor:
  kernel, bias, *last = generator
  pixels = tf.sigmoid(layers.dense(_hidden(noise, kernel, bias), *last))
  return tf.reshape(pixels, [-1, *_SHAPE])


def _model(mean_image: np.ndarray) -> models.Model:
  """Its outputs are the terms of f and the two probabilities of each row.

  Args:
    mean_image: What the discriminator subtracts: with pictures around 0 its scores are
      less sensitive to its weights.
  """

  def initialize(seed):
    sizes = [_NUM_NOISE, _NUM_HIDDEN, _NUM_PIXELS], [_NUM_PIXELS, _NUM_HIDDEN, 1]
    shapes = [shape for of_one in sizes for shape in itertools.pairwise(of_one)]
    drawn = layers.kernels_and_biases(shapes, seed)
    return models.ModelWeights(SaddlePoint(drawn[:4], drawn[4:]), ())

  def logits(discriminator, images):
    """Of all pictures, and the squared norms of the gradients by the pixels."""
    kernel, bias, last_kernel, last_bias = discriminator
    x = tf.reshape(images - mean_image, [-1, _NUM_PIXELS])
    hidden = _hidden(x, kernel, bias)
    slopes = tf.where(hidden > 0, 1.0, _SLOPE) * last_kernel[:, 0]
    gradients = tf.matmul(slopes, kernel, transpose_b=True)
    squares = tf.reduce_sum(tf.square(gradients), axis=1)
    return layers.dense(hidden, last_kernel, last_bias)[:, 0], squares

  def predict(weights, x, seed):
    generator, discriminator = weights.trainable
    noise = _noise(tf.shape(x)[0], tf.constant([0, 0]) if seed is None else seed)
    of_real, squares = logits(discriminator, x)
    of_made, _ = logits(discriminator, _generated(generator, noise))
    of_weights = tf.add_n([tf.reduce_sum(tf.square(w)) for w in discriminator])
    terms = -tf.nn.softplus(-of_real) - tf.nn.softplus(of_made)
    terms -= (_GRADIENT_PENALTY * squares + _WEIGHT_PENALTY * of_weights) / 2
    return tf.stack([terms, tf.sigmoid(of_real), tf.sigmoid(of_made)], axis=1)

  def metrics(y, outputs):
    _, real, made = tf.unstack(tf.reduce_sum(outputs, axis=0))
    return collections.OrderedDict(
      real_sum=real, made_sum=made, num_images=tf.cast(tf.size(y), tf.float32)
    )

  def finalize_metrics(sums):
    return collections.OrderedDict(
      score_of_real=sums['real_sum'] / sums['num_images'],
      score_of_made=sums['made_sum'] / sums['num_images'],
    )

  return models.Model(
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None, *_SHAPE], tf.float32), y=tf.TensorSpec([None], tf.int32)
    ),
    initialize=initialize,
    predict=predict,
    loss=lambda y, outputs: tf.reduce_mean(outputs[:, 0]),
    metrics=metrics,
    finalize_metrics=finalize_metrics,
  )
