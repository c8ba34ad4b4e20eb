"""TensorFlow computations of TFF as parts of larger TensorFlow functions."""

from collections.abc import Iterator, Sequence
import itertools
from typing import Any

import tensorflow as tf
from tensorflow_federated.proto.v0 import computation_pb2

# A resource of this name is each time another one (TensorFlow's
# `ResourceHandle::ANONYMOUS_NAME`).
_ANONYMOUS = b'cd2c89b7-88b7-44c8-ad83-06c2a9158347'


_numbers = itertools.count()


class GraphImport:
  """The graph of a TensorFlow computation: values of its argument -> of its result.

  Both are flat, data sets being variant tensors. To be called while a graph is built.
  """

  def __init__(self, computation: computation_pb2.TensorFlow):
    """Takes over a graph.

    Args:
      computation: As TFF serializes it.
    """
    self._graph_def = tf.compat.v1.GraphDef()
    computation.graph_def.Unpack(self._graph_def)
    for node in self._graph_def.node:
      node.device = ''  # Where it was traced does not matter.
    names = {node.name for node in self._graph_def.node}
    parameter = list(_tensor_names(computation.parameter))
    # TFF's compiler has taken out what the result does not depend on.
    self._fed = [(i, n) for i, n in enumerate(parameter) if n.split(':')[0] in names]
    self._result = list(_tensor_names(computation.result))
    if computation.initialize_op:
      _initialize_first(self._graph_def, computation.initialize_op)
    _rename_functions(self._graph_def, f'_{next(_numbers)}')

  def __call__(self, values: Sequence[tf.Tensor]) -> Sequence[tf.Tensor]:
    return tf.graph_util.import_graph_def(
      self._graph_def,
      input_map={name: values[i] for i, name in self._fed},
      return_elements=self._result,
      name='c',
    )


def _rename_functions(graph_def: Any, suffix: str) -> None:
  """Gives functions names of their own.

  The program has others of these names: those that were traced, which are not as they
  were when TFF has simplified what it traced.
  """
  functions = graph_def.library.function
  names = {f.signature.name: f.signature.name + suffix for f in functions}
  for nodes in (graph_def.node, *(function.node_def for function in functions)):
    for node in nodes:
      node.op = names.get(node.op, node.op)
      for value in node.attr.values():
        for function in (value.func, *value.list.func):
          if function.name in names:
            function.name = names[function.name]
  for function in functions:
    function.signature.name = names[function.signature.name]
  for gradient in graph_def.library.gradient:
    gradient.function_name = names[gradient.function_name]
    gradient.gradient_func = names[gradient.gradient_func]


def _tensor_names(binding: Any) -> Iterator[str]:
  kind = binding.WhichOneof('binding')
  if kind == 'tensor':
    yield binding.tensor.tensor_name
  elif kind == 'sequence':
    yield binding.sequence.variant_tensor_name
  elif kind == 'struct':
    for element in binding.struct.element:
      yield from _tensor_names(element)


def _initialize_first(graph_def: Any, initialize_op: str) -> None:
  """Has the variables of a graph made anew and initialized before all else."""
  nodes = {node.name: node for node in graph_def.node}
  before, stack = set(), [initialize_op]
  while stack:
    name = stack.pop().removeprefix('^').split(':')[0]
    if name not in before:
      before.add(name)
      stack.extend(nodes[name].input)
  for node in graph_def.node:
    if node.op == 'VarHandleOp':
      node.attr['shared_name'].s = _ANONYMOUS
    if node.name not in before and node.op != 'Placeholder':
      node.input.append(f'^{initialize_op}')
