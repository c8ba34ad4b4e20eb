"""What a loop over batches adds up: losses, counts, metrics, gradients."""

from typing import Any

import tensorflow as tf

from tff_algorithms import streams, structures
from tff_algorithms.models import ModelWeights
from tff_algorithms.oracles import Evaluation, Oracle
from tff_algorithms.streams import Stream
from tff_algorithms.structures import Structure


class LoopSums:
  """The sums of a loop, which has them as few tensors.

  What a loop carries along costs it three operations a step, with a small model as much
  as computing with it: so all scalars are one vector.
  """

  def __init__(
    self,
    oracle: Oracle,
    x: ModelWeights,
    rows: Structure | Stream,
    with_gradients: bool,
  ):
    """Initializes it.

    Args:
      oracle: What is evaluated.
      x: Weights, which the gradients are like.
      rows: What the batches are of.
      with_gradients: Whether the gradients are added up.
    """
    self._x = x
    self._with_gradients = with_gradients

    # Without AutoGraph, as all that TFF traces: converting takes longer than tracing.
    @tf.function(autograph=False)
    def metrics_of(weights, batch):
      return oracle.evaluate(weights, batch, None).metrics

    # Traced for its shapes, never run.
    self._metrics = metrics_of.get_concrete_function(
      structures.tensor_specs(x), streams.specs(rows)
    ).structured_outputs

  def zero(self) -> Any:
    """The sums of nothing."""
    metrics = [tf.zeros(t.shape, t.dtype) for t in tf.nest.flatten(self._metrics)]
    zero = tf.zeros([])
    gradient = structures.zeros_like(self._x.trainable) if self._with_gradients else ()
    return gradient, *_packed([zero, zero, *metrics])

  def add(self, sums: Any, evaluation: Evaluation, num_rows: tf.Tensor) -> Any:
    """The sums with those of a batch."""
    k = tf.cast(num_rows, tf.float32)
    loss = k * tf.cast(evaluation.loss, tf.float32)
    metrics = tf.nest.flatten(evaluation.metrics)
    gradient = evaluation.gradient if self._with_gradients else ()
    gradient_sum, *others = sums
    others = tf.nest.map_structure(tf.add, others, [*_packed([k, loss, *metrics])])
    # A gradient may be a sum itself, which is not to be joined with this one.
    return structures.add(gradient_sum, gradient), *others

  def result(self, sums: Any) -> tuple[Structure, tf.Tensor, tf.Tensor, Structure]:
    """The gradients, the number of rows, the losses, the metrics, each summed up."""
    gradient, scalars, others = sums
    scalars, others = iter(tf.unstack(scalars)), iter(others)
    num_seen, loss_sum = next(scalars), next(scalars)
    metrics = tf.nest.map_structure(
      lambda t: next(scalars if _is_scalar(t) else others), self._metrics
    )
    return gradient, num_seen, loss_sum, metrics


def _is_scalar(t):
  return t.shape.rank == 0 and t.dtype == tf.float32


def _packed(values):
  """The scalars as one vector, and the others."""
  scalars = tf.stack([t for t in values if _is_scalar(t)])
  return scalars, [t for t in values if not _is_scalar(t)]
