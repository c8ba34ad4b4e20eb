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
