"""TensorFlow functions that are called with little ado."""

from collections.abc import Callable, Sequence

import tensorflow as tf
from tensorflow.python.eager import cancellation, context, execute

_Tensors = Sequence[tf.Tensor]


class Run(cancellation.CancellationManager):
  """What calls that belong together share: where they are made, and what stops them.

  `start_cancel` stops those that are being made, at the next step of a loop at the
  latest, and those to come.

  Attributes:
    device: Where all is run that can be run there; None where TensorFlow would.
  """

  def __init__(self, device: str | None = None):
    """Initializes it; nothing is stopped yet."""
    super().__init__()
    self.device = device


def without_attributes(tensor: tf.Tensor) -> tf.Tensor:
  """The same tensor, which leaves nothing behind.

  On Python 3.11 each tensor is made with room for Python attributes, 32 bytes, which
  TensorFlow does not free with it. To delete that room does.
  """
  del tensor.__dict__
  return tensor


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

  def __call__(self, inputs: _Tensors, run: Run) -> _Tensors:
    """Calls it; may be called by several threads at once.

    Args:
      inputs: Values of the inputs.
      run: What this call is a part of.
    """
    # As TensorFlow does in the end, after a third of a millisecond of preparations.
    with tf.device(run.device):
      outputs = execute.execute_with_cancellation(
        self._name,
        self._num_outputs,
        inputs,
        self._attrs,
        context.context(),
        run,
      )
    return [without_attributes(tensor) for tensor in outputs]
