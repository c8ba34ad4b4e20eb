"""A TFF computation as a plan: few large TensorFlow functions, each called in its turn.

TFF compiles a computation to a sequence of calls of intrinsics, with small TensorFlow
computations in between. Here that is followed symbolically, once, to see what becomes
of each tensor, and all that can be one function becomes one. The stages, in turns, are

    0, 3, ...  at the server
    1, 4, ...  on each client
    2, 5, ...  at the server, as each client ends: what has been accumulated, and the
               client's values -> what has been accumulated

so that a round of one broadcast and one aggregation is four functions. What stages hand
to each other are tensors, without structure.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from training_loops import graph_functions, graph_imports

SERVER, CLIENTS, ACCUMULATION = range(3)
_NUM_KINDS = 3
_GIVEN = -1  # The stage of what is given from outside.

_Struct = tff.structure.Struct


class UnsupportedError(NotImplementedError):
  """A computation has something in it that cannot be planned."""


@dataclasses.dataclass(frozen=True, eq=False)
class Tensor:
  """A tensor, or a data set as a variant tensor, that has no value yet.

  Attributes:
    spec: Its shape and dtype.
    type: Its TFF type; a variant tensor's is the data set's.
    stage: Where it is made.
    is_clients: Whether each client has its own.
    call: What makes it, unless it is given or a total.
  """

  spec: tf.TensorSpec
  type: tff.Type
  stage: int = _GIVEN
  is_clients: bool = False
  call: '_Call | None' = None


@dataclasses.dataclass(eq=False)
class _Call:
  """Tensors -> tensors, by a function that is called while a graph is built."""

  function: Callable[[Sequence[tf.Tensor]], Sequence[tf.Tensor]]
  inputs: Sequence[Tensor]
  outputs: Sequence[Tensor] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Aggregate:
  """What is accumulated over the clients.

  Attributes:
    zero: What it begins with.
    before: What there is before a client.
    after: What there is with that client.
    total: What there is in the end.
  """

  zero: Sequence[Tensor]
  before: Sequence[Tensor]
  after: Sequence[Tensor]
  total: Sequence[Tensor]


@dataclasses.dataclass(frozen=True)
class Function:
  """A TensorFlow function.

  Attributes:
    inputs: What it takes.
    outputs: What it makes of that.
    call: (The values of inputs, the run it is a part of) -> those of outputs.
  """

  inputs: Sequence[Tensor]
  outputs: Sequence[Tensor]
  call: Callable[[Sequence[tf.Tensor], graph_functions.Run], Sequence[tf.Tensor]]


# Inputs, outputs, what makes these of those while a graph is built -> a function.
MakeFunction = Callable[[Sequence[Tensor], Sequence[Tensor], Callable[..., Any]], Any]


@dataclasses.dataclass(frozen=True)
class ClientPass:
  """What each client does, and what is accumulated of it.

  Attributes:
    work: The client's own part, a `Function` unless it was asked for otherwise.
    kept: Those of its outputs that are needed later, a value for each client.
    accumulation: The part at the server, after `work`.
    aggregates: What it accumulates: its outputs are their `after`.
  """

  work: Any
  kept: Sequence[Tensor]
  accumulation: Function
  aggregates: Sequence[Aggregate]


@dataclasses.dataclass(frozen=True)
class Plan:
  """A computation that is ready to run.

  Attributes:
    argument: The tensors of its argument, in the order of their types.
    steps: What to do, in this order; a function is the server's.
    result: The tensors of its result, in `tff.structure.Struct`s.
  """

  argument: Sequence[Tensor]
  steps: Sequence[Function | ClientPass]
  result: Any


def make_function(
  inputs: Sequence[Tensor],
  outputs: Sequence[Tensor],
  build: Callable[..., Sequence[tf.Tensor]],
) -> Function:
  """A function that is called in this process."""
  if not outputs:
    return Function(inputs, outputs, lambda values, run: [])
  specs = [tensor.spec for tensor in inputs]
  call = graph_functions.GraphFunction(build, specs, len(outputs))
  return Function(inputs, outputs, call)


def make(
  comp: tff.framework.ConcreteComputation, make_work: MakeFunction = make_function
) -> Plan:
  """Plans a computation.

  Args:
    comp: The computation.
    make_work: Makes the functions of clients.

  Raises:
    UnsupportedError: If it cannot be planned.
  """
  # As TFF compiles it for its worker, but for simplifying each TensorFlow graph in it:
  # TensorFlow does that when it has the whole of a function.
  block, _ = tff.tensorflow.replace_intrinsics_with_bodies(comp.to_building_block())
  block = tff.framework.to_call_dominant(block)
  planner = _Planner(make_work)
  parameter = comp.type_signature.parameter
  argument = None if parameter is None else _tensors(parameter)
  result = planner.evaluate(block, {}, SERVER)
  if callable(result):
    result = result(argument, SERVER)
  return Plan(list(_flatten(argument)), planner.steps(_flatten(result)), result)


def _flatten(value: Any) -> Iterator[Tensor]:
  if isinstance(value, Tensor):
    yield value
  elif isinstance(value, _Struct):
    for part in value:
      yield from _flatten(part)
  elif value is not None:
    raise UnsupportedError('A function is passed on or returned.')


def _tensors(value_type: tff.Type, **attributes: Any) -> Any:
  """New tensors of a type, in structures; attributes are those of `Tensor`."""
  if isinstance(value_type, tff.FederatedType):
    is_clients = value_type.placement is tff.CLIENTS and not value_type.all_equal
    return _tensors(value_type.member, is_clients=is_clients)
  if isinstance(value_type, tff.StructType):
    elements = tff.structure.iter_elements(value_type)
    return _Struct((name, _tensors(t, **attributes)) for name, t in elements)
  if isinstance(value_type, tff.SequenceType):
    return Tensor(tf.TensorSpec([], tf.variant), value_type, **attributes)
  if isinstance(value_type, tff.TensorType):
    dtype = tf.dtypes.as_dtype(value_type.dtype.type)
    return Tensor(tf.TensorSpec(value_type.shape, dtype), value_type, **attributes)
  raise UnsupportedError(f'There is a value of type {value_type}.')


def _stage_of(place: int, inputs: Sequence[Tensor]) -> int:
  """The first stage of a place's kind, from there on, that all inputs are there for."""
  first = max([place, *(tensor.stage for tensor in inputs)])
  return first + (place - first) % _NUM_KINDS


class _Planner:
  """Follows building blocks. A value is a tensor, a structure of values, or a function.

  A function is a Python function (argument, place) -> value, the place being the first
  stage that it may be called in, of the kind that it is to be called in.
  """

  def __init__(self, make_work: MakeFunction):
    self._make_work = make_work
    self._aggregates: list[Aggregate] = []

  def evaluate(self, block: Any, names: dict[str, Any], place: int) -> Any:
    """The value of a building block; `names` are those that it may refer to."""
    if isinstance(block, tff.framework.Reference):
      return names[block.name]
    if isinstance(block, tff.framework.Selection):
      source = self.evaluate(block.source, names, place)
      return source[block.index if block.name is None else block.name]
    if isinstance(block, tff.framework.Struct):
      elements = tff.structure.iter_elements(block)
      return _Struct((name, self.evaluate(b, names, place)) for name, b in elements)
    if isinstance(block, tff.framework.Block):
      names = dict(names)
      for name, local in block.locals:
        names[name] = self.evaluate(local, names, place)
      return self.evaluate(block.result, names, place)
    if isinstance(block, tff.framework.Lambda):
      name, body = block.parameter_name, block.result
      return lambda value, p: self.evaluate(body, {**names, name: value}, p)
    if isinstance(block, tff.framework.Call):
      argument = None
      if block.argument is not None:
        argument = self.evaluate(block.argument, names, place)
      return self.evaluate(block.function, names, place)(argument, place)
    if isinstance(block, tff.framework.Intrinsic):
      return self._intrinsic(block.uri, block.type_signature)
    if isinstance(block, tff.framework.CompiledComputation):
      return self._tensorflow(block)
    if isinstance(block, tff.framework.Literal):
      value = block.value
      return self._call(
        lambda _: [tf.constant(value)], None, block.type_signature, place
      )
    raise UnsupportedError(f'There is a {type(block).__name__}.')

  def _call(self, function: Any, inputs: Any, result_type: tff.Type, place: int) -> Any:
    inputs = list(_flatten(inputs))
    call = _Call(function, inputs)
    result = _tensors(
      result_type,
      stage=_stage_of(place, inputs),
      is_clients=place % _NUM_KINDS == CLIENTS,
      call=call,
    )
    call.outputs = list(_flatten(result))
    return result

  def _tensorflow(self, block: Any) -> Any:
    if not block.proto.HasField('tensorflow'):
      what = block.proto.WhichOneof('computation')
      raise UnsupportedError(f'There is a computation of {what}, not of TensorFlow.')
    graph = graph_imports.GraphImport(block.proto.tensorflow)
    result_type = block.type_signature.result
    return lambda value, place: self._call(graph, value, result_type, place)

  def _intrinsic(self, uri: str, intrinsic_type: tff.FunctionType) -> Any:
    match uri.removeprefix('federated_'):
      case 'value_at_server' | 'value_at_clients' | 'broadcast':
        return lambda value, place: value
      case 'zip_at_server' | 'zip_at_clients':
        return lambda value, place: value
      case 'eval_at_server':
        return lambda function, place: function(None, SERVER)
      case 'eval_at_clients':
        return lambda function, place: function(None, CLIENTS)
      case 'apply' | 'map_all_equal':  # What is equal for all is made once.
        return lambda value, place: value[0](value[1], SERVER)
      case 'map':
        return lambda value, place: value[0](value[1], CLIENTS)
      case 'aggregate':
        accumulated_type = intrinsic_type.parameter[2].parameter[0]
        return lambda value, place: self._aggregate(accumulated_type, value)
      case 'select':
        return lambda value, place: self._select(intrinsic_type.result, value)
    raise UnsupportedError(f'There is a {uri}.')

  def _aggregate(self, accumulated_type: tff.Type, argument: Any) -> Any:
    # The fourth merges partial sums, of which there are none.
    value, zero, accumulate, _, report = argument
    stage = _stage_of(ACCUMULATION, [*_flatten(zero), *_flatten(value)])
    before = _tensors(accumulated_type, stage=stage)
    after = accumulate(_Struct.unnamed(before, value), stage)
    total = _tensors(accumulated_type, stage=stage)
    self._aggregates.append(
      Aggregate(*(list(_flatten(part)) for part in (zero, before, after, total)))
    )
    return report(total, SERVER)

  def _select(self, result_type: tff.Type, argument: Any) -> Any:
    keys, _, server_value, select = argument
    key = Tensor(tf.TensorSpec([], keys.spec.dtype), keys.type)
    selected = select(_Struct.unnamed(server_value, key), CLIENTS)
    if isinstance(selected, _Struct):
      selected = tff.structure.to_odict_or_tuple(selected)
    inputs = [keys, *_flatten(server_value)]

    def rows(values):
      known = dict(zip(inputs, values, strict=True))

      def row(value):
        # Importing a graph does not capture what is outside, as identity does.
        inside = {tensor: tf.identity(outside) for tensor, outside in known.items()}
        inside[key] = value
        return tf.nest.map_structure(lambda t: _build([t], inside)[0], selected)

      data_set = tf.data.Dataset.from_tensor_slices(values[0]).map(row)
      return [tf.data.experimental.to_variant(data_set)]

    member = result_type.member
    return self._call(rows, _Struct.unnamed(*inputs), member, CLIENTS)

  def steps(self, results: Iterable[Tensor]) -> list[Function | ClientPass]:
    """The steps that results take."""
    wanted = dict.fromkeys(results)  # A set in an order that is always the same.

    def made_at(stage):
      return [tensor for tensor in wanted if tensor.stage == stage]

    def function(outputs, stage, make=make_function):
      inputs = _inputs(outputs, stage)
      wanted.update(dict.fromkeys(inputs))

      def build(*values):
        return _build(outputs, dict(zip(inputs, values, strict=True)))

      return make(inputs, outputs, build)

    steps: list[Function | ClientPass] = []
    last = max((tensor.stage for tensor in wanted), default=_GIVEN)
    first_stages = range(last - last % _NUM_KINDS, -1, -_NUM_KINDS)
    for server, clients, accumulation in ((s, s + 1, s + 2) for s in first_stages):
      totals, kept = set(made_at(accumulation)), made_at(clients)
      aggregates = [a for a in self._aggregates if not totals.isdisjoint(a.total)]
      if aggregates or kept:
        wanted.update(dict.fromkeys(t for a in aggregates for t in a.zero))
        after = function([t for a in aggregates for t in a.after], accumulation)
        work = function(made_at(clients), clients, self._make_work)
        steps.append(ClientPass(work, kept, after, aggregates))
      if outputs := made_at(server):
        steps.append(function(outputs, server))
    return steps[::-1]


def _inputs(outputs: Sequence[Tensor], stage: int) -> list[Tensor]:
  """What a stage needs from others, and from outside, to make its outputs."""
  seen, inputs, stack = set(outputs), [], list(outputs)
  while stack:
    tensor = stack.pop()
    if tensor.stage != stage or tensor.call is None:
      inputs.append(tensor)
      continue
    stack.extend(t for t in tensor.call.inputs if t not in seen)
    seen.update(tensor.call.inputs)
  return inputs


def _build(outputs: Sequence[Tensor], known: dict[Tensor, tf.Tensor]) -> list[Any]:
  """Adds to a graph what makes outputs of what is known."""

  def value(tensor):
    if tensor not in known:
      call = tensor.call
      made = call.function([value(t) for t in call.inputs])
      known.update(zip(call.outputs, made, strict=True))
    return known[tensor]

  return [value(tensor) for tensor in outputs]
