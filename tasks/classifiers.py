"""What models that classify have in common."""

import collections
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tff_algorithms import models


def classifier(
  x_spec: tf.TensorSpec,
  initialize: Callable[[Any], tuple[tf.Tensor, ...]],
  logits: Callable[[tuple[tf.Tensor, ...], tf.Tensor, Any], tf.Tensor],
) -> models.Model:
  """A model with one integer label an example: cross-entropy loss, accuracy.

  Args:
    x_spec: A batch of inputs, the leading axis None.
    initialize: A `[2]` integer seed -> the weights, all trainable.
    logits: (weights, inputs, seed or None in inference) -> `[batch, classes]`.
  """
  y_spec = tf.TensorSpec([None], tf.int32)
  return models.Model(
    input_spec=collections.OrderedDict(x=x_spec, y=y_spec),
    initialize=lambda seed: models.ModelWeights(initialize(seed), ()),
    predict=lambda weights, x, seed: logits(weights.trainable, x, seed),
    loss=models.cross_entropy,
    metrics=models.accuracy_sums,
    finalize_metrics=models.accuracy_from_sums,
  )


def binary_classifier(
  x_spec: tf.TensorSpec,
  initialize: Callable[[Any], tuple[tf.Tensor, ...]],
  logits: Callable[[tuple[tf.Tensor, ...], tf.Tensor, Any], tf.Tensor],
) -> models.Model:
  """A model with a label of 0 or 1 an example: cross-entropy loss, accuracy, AUC.

  The AUC is the area under the ROC curve. Scores, the sigmoid of the logits, are put
  into 500 bins; those in one bin count as equal. Where all examples have the same label
  the AUC is not defined: it is NaN.

  Args:
    x_spec: A batch of inputs, the leading axis None.
    initialize: A `[2]` integer seed -> the weights, all trainable.
    logits: (weights, inputs, seed or None in inference) -> `[batch]`, above 0 for 1.
  """
  y_spec = tf.TensorSpec([None], tf.int32)
  return models.Model(
    input_spec=collections.OrderedDict(x=x_spec, y=y_spec),
    initialize=lambda seed: models.ModelWeights(initialize(seed), ()),
    predict=lambda weights, x, seed: logits(weights.trainable, x, seed),
    loss=_binary_cross_entropy,
    metrics=_binary_sums,
    finalize_metrics=_binary_metrics,
  )


_NUM_BINS = 500


def _binary_cross_entropy(y: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  """The mean; NaN if a label is neither 0 nor 1, as in `models.cross_entropy`."""
  labels = tf.cast(y, logits.dtype)
  losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits)
  nan = tf.constant(float('nan'), losses.dtype)
  return tf.reduce_mean(tf.where((y >= 0) & (y <= 1), losses, nan))


def _binary_sums(y: tf.Tensor, logits: tf.Tensor) -> collections.OrderedDict:
  """Right answers and answers, and how many of each label are in each bin."""
  right = tf.equal(tf.cast(logits > 0, y.dtype), y)
  bins = tf.cast(tf.sigmoid(logits) * _NUM_BINS, tf.int32)
  bins = tf.minimum(bins, _NUM_BINS - 1)
  bins = tf.where(tf.math.is_nan(logits), -1, bins)  # Which is none.

  def histogram(label):
    ones = tf.cast(tf.equal(y, label), tf.float32)
    return tf.math.unsorted_segment_sum(ones, bins, _NUM_BINS)

  return collections.OrderedDict(
    num_right=tf.reduce_sum(tf.cast(right, tf.float32)),
    num_answers=tf.cast(tf.size(y), tf.float32),
    positives=histogram(1),
    negatives=histogram(0),
  )


def _binary_metrics(sums: collections.OrderedDict) -> collections.OrderedDict:
  """The accuracy, and how likely a positive's score is above a negative's."""
  positives = sums['positives'] / tf.reduce_sum(sums['positives'])
  negatives = sums['negatives'] / tf.reduce_sum(sums['negatives'])
  below = tf.cumsum(negatives, exclusive=True)
  metrics = models.accuracy_from_sums(sums)
  metrics['auc'] = tf.reduce_sum(positives * (below + negatives / 2))
  return metrics
