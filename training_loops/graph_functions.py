"""TensorFlow functions that are called with little ado."""

from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.python.eager import cancellation, context, execute

_Tensors = Sequence[tf.Tensor]


class Stop(cancellation.CancellationManager):
  """Stops the calls that it is given to, at the next step of a loop at the latest."""


class GraphFunction:
  """A TensorFlow function of flat tensors, built once.

  Not `tf.function`, which makes operations with effects wait for each other: what is
  built here is made to be run as TFF runs it, where they do not.
  """

  def __init__(
    self,
    build: Callable[..., _Tensors],
    specs: Sequence[tf.TensorSpec],
    num_outputs: int,
  ):
    """Builds the graph.

    Args:
      build: Makes the outputs of the inputs, in a graph.
      specs: Of the inputs.
      num_outputs: How many outputs there are.
    """
    self._function = tf.compat.v1.wrap_function(build, specs)
    self._name = self._function.name
    self._num_outputs = num_outputs
    config = context.context().function_call_options.config_proto_serialized
    self._attrs = ('executor_type', '', 'config_proto', config)

  def __call__(self, inputs: _Tensors, stop: Stop) -> _Tensors:
    """Calls it; may be called by several threads at once.

    Args:
      inputs: Values of the inputs.
      stop: What stops it.
    """
    # As TensorFlow does in the end, after a third of a millisecond of preparations.
    return execute.execute_with_cancellation(
      self._name,
      self._num_outputs,
      inputs,
      self._attrs,
      context.context(),
      stop,
    )
