"""Floating-point operations of a gradient, counted in its TensorFlow graph."""

import tensorflow as tf
from tensorflow.python.framework import convert_to_constants
from tensorflow.python.util import deprecation

from tff_algorithms import structures
from tff_algorithms.oracles import Oracle
from tff_algorithms.selection import Selection

_profiler = tf.compat.v1.profiler


def of_a_step(
  oracle: Oracle, batch_size: int, selection: Selection | None = None
) -> int:
  """What one gradient on a full batch costs, as TensorFlow's profiler counts it.

  A multiplication and an addition are two operations. What the profiler knows nothing
  of (looking up rows of a table) counts for nothing, and so do the bodies of loops, and
  what an optimizer does with the gradient.

  Args:
    oracle: What gives the gradient.
    batch_size: The rows of the batch.
    selection: Which rows of its tables a client has; None for all.
  """

  @tf.function
  def evaluate(weights, batch):
    # The seed is that of a step in training.
    return oracle.evaluate(weights, batch, tf.constant([0, 0], tf.int64))

  def on_client(spec):
    if selection is None or tuple(spec.shape) != selection.table_shape:
      return spec
    return tf.TensorSpec(selection.piece_shape, spec.dtype)

  weights = structures.tensor_specs(
    oracle.initial_weights(tf.constant([0, 1], tf.int64))
  )
  weights = tf.nest.map_structure(on_client, weights)
  batch_specs = tf.nest.map_structure(
    lambda spec: tf.TensorSpec([batch_size, *spec.shape[1:]], spec.dtype),
    oracle.batch_spec,
  )
  traced = evaluate.get_concrete_function(weights, batch_specs)
  # Calls of functions become their bodies.
  graph = convert_to_constants.convert_variables_to_constants_v2(traced).graph
  options = _profiler.ProfileOptionBuilder(
    _profiler.ProfileOptionBuilder.float_operation()
  )
  with deprecation.silence():  # Of the profiler, which has no successor for this.
    counted = _profiler.profile(graph, options=options.with_empty_output().build())
  return counted.total_float_ops
