"""A model's loss and metrics on many rows, in this process."""

import collections
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tff_algorithms import models

# Large enough to keep the cores busy, small enough for any model's activations: twenty
# words of each row, each with the logits of ten thousand, are 200 MB.
_CHUNK_ROWS = 256


def distance(weights: models.ModelWeights, other: models.ModelWeights) -> np.float32:
  """The Euclidean norm of the difference of their trainable weights."""
  pairs = zip(
    tf.nest.flatten(weights.trainable), tf.nest.flatten(other.trainable), strict=True
  )
  squares = [np.square(np.subtract(a, b, dtype=np.float64)).sum() for a, b in pairs]
  return np.float32(np.sqrt(sum(squares)))


class Evaluator:
  """Evaluates weights of one model; traced once, whatever it is given."""

  def __init__(self, model: Any):
    """Initializes the evaluator.

    Args:
      model: A `models.Model`, or a functional model of TFF's that runs eagerly, which
        those made of Keras models do not.
    """
    self._model = model = models.as_model(model)

    @tf.function(autograph=False, reduce_retracing=True)
    def measure(weights, batch):
      x, y = models.x_and_y(batch)
      outputs = model.predict(weights, x, None)
      return model.loss(y, outputs), model.metrics(y, outputs)

    self._measure = measure

  def __call__(
    self, weights: models.ModelWeights, rows: Mapping[str, Any]
  ) -> collections.OrderedDict[str, np.number]:
    """The mean loss and the model's metrics over all the rows.

    Args:
      weights: The model's weights.
      rows: A structure (x, y) of arrays with the examples on their first axis; at
        least one.
    """
    num_rows = len(tf.nest.flatten(rows)[0])
    weights = tf.nest.map_structure(tf.convert_to_tensor, weights)
    loss, sums = 0.0, None
    for start in range(0, num_rows, _CHUNK_ROWS):
      chunk = tf.nest.map_structure(lambda a, i=start: a[i : i + _CHUNK_ROWS], rows)
      chunk = tf.nest.map_structure(tf.convert_to_tensor, chunk)
      chunk_loss, chunk_sums = self._measure(weights, chunk)
      loss += float(chunk_loss) * min(_CHUNK_ROWS, num_rows - start)
      if sums is None:
        sums = chunk_sums
      else:
        sums = tf.nest.map_structure(tf.add, sums, chunk_sums)
    values = collections.OrderedDict(loss=np.float32(loss / num_rows))
    # Where examples differ in weight, as sentences do, the model has a loss of its own.
    values.update(self._model.finalize_metrics(sums))
    return tf.nest.map_structure(lambda value: np.asarray(value)[()], values)
