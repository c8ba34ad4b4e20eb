"""A TFF context that executes computations in this process, by TensorFlow alone.

Apart from `runtimes` because importing it imports TFF.
"""

import collections
from collections.abc import Iterator, MutableMapping, Sequence
import itertools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from training_loops import kept, round_plan, threads, worker_context
from training_loops.round_plan import ClientPass, Function, Plan, Tensor

_MAX_PLANS = 128  # More than a program calls in turn.

_Values = MutableMapping[Tensor, tf.Tensor]


class InProcessContext(tff.framework.SyncContext):
  """Runs each computation's plan, a number of clients at a time.

  Clients' values are accumulated in the clients' order, so that the same round has the
  same result, and no more than a few clients' are there at a time.
  """

  def __init__(self, num_threads: int):
    """Initializes the context.

    Args:
      num_threads: How many clients compute at once.
    """
    self._plans = kept.Kept(_MAX_PLANS, _planned)
    self._caller = threads.Threads(1)
    self._workers = threads.Threads(num_threads)
    # One more each than are at work, so that none has to wait for the accumulation.
    self._max_started = 2 * num_threads

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Calls a computation."""
    # In a thread of its own: a signal can interrupt waiting for it, but not TensorFlow.
    return self._caller.start(lambda: self._invoke(comp, arg)).result()

  def _invoke(self, comp: Any, arg: Any) -> Any:
    plan: Plan = self._plans(comp)
    values, clients = _given(plan, arg, comp.type_signature.parameter)
    for step in plan.steps:
      if isinstance(step, ClientPass):
        self._run_clients(step, values, clients)
      else:
        values.update(_run(step, values))
    result_type = comp.type_signature.result
    result = _result(plan.result, result_type, values, clients)
    return tff.types.type_to_py_container(result, result_type)

  def _run_clients(
    self,
    step: ClientPass,
    values: _Values,
    clients: Sequence[_Values],
  ) -> None:
    """Adds the totals to values, and to each client's values what is kept of it."""
    sums = [values[tensor] for a in step.aggregates for tensor in a.zero]
    before = [tensor for a in step.aggregates for tensor in a.before]
    after = [tensor for a in step.aggregates for tensor in a.after]
    total = [tensor for a in step.aggregates for tensor in a.total]
    for own, made in self._work(step.work, values, clients):
      known = collections.ChainMap(made, own, values)
      known = known.new_child(dict(zip(before, sums, strict=True)))
      known.update(_run(step.accumulation, known))
      sums = [known[tensor] for tensor in after]
      own.update((tensor, made[tensor]) for tensor in step.kept)
    values.update(zip(total, sums, strict=True))

  def _work(
    self, work: Function, values: _Values, clients: Sequence[_Values]
  ) -> Iterator[tuple[Any, _Values]]:
    """Each client with what it has made, in order, as soon as that is there."""

    def start(own):
      known = collections.ChainMap(own, values)
      started.append((own, self._workers.start(lambda: _run(work, known))))

    started: collections.deque = collections.deque()
    rest = iter(clients)
    for own in itertools.islice(rest, self._max_started):
      start(own)
    while started:
      own, future = started.popleft()
      made = future.result()
      for following in itertools.islice(rest, 1):
        start(following)
      yield own, made


def _planned(comp: Any) -> Plan:
  return round_plan.make(tff.backends.native.desugar_and_transform_to_native(comp))


def _run(function: Function, values: _Values) -> _Values:
  outputs = function.call([values[tensor] for tensor in function.inputs])
  return dict(zip(function.outputs, outputs, strict=True))


def _given(
  plan: Plan, arg: Any, parameter: tff.Type | None
) -> tuple[_Values, Sequence[_Values]]:
  """The values of an argument, and those of it that each client has."""
  if parameter is None:
    return {}, []
  arg = worker_context.transformed(arg)
  num_clients = worker_context.num_clients(arg, parameter)
  values: _Values = {}
  clients: list[_Values] = [{} for _ in range(num_clients or 0)]
  tensors = iter(plan.argument)

  def add(value, value_type):
    if isinstance(value_type, tff.FederatedType):
      if value_type.placement is tff.CLIENTS and not value_type.all_equal:
        parts = list(itertools.islice(tensors, _num_tensors(value_type.member)))
        for own, part in zip(clients, value, strict=True):
          own.update(zip(parts, _flattened(part, value_type.member), strict=True))
      else:
        add(value, value_type.member)
    elif isinstance(value_type, tff.StructType):
      for part, part_type in _parts(value, value_type):
        add(part, part_type)
    else:
      values[next(tensors)] = _to_tensor(value, value_type)

  add(arg, parameter)
  return values, clients


def _num_tensors(value_type: tff.Type) -> int:
  if isinstance(value_type, tff.StructType):
    return sum(map(_num_tensors, value_type))
  return 1


def _parts(value: Any, value_type: tff.StructType) -> Iterator[tuple[Any, tff.Type]]:
  parts = tff.structure.from_container(value)
  if len(parts) != len(value_type):
    raise TypeError(f'Expected {value_type}, found a structure of {len(parts)}.')
  return zip(parts, value_type, strict=True)


def _flattened(value: Any, value_type: tff.Type) -> Iterator[tf.Tensor]:
  if isinstance(value_type, tff.StructType):
    for part, part_type in _parts(value, value_type):
      yield from _flattened(part, part_type)
  else:
    yield _to_tensor(value, value_type)


def _to_tensor(value: Any, value_type: tff.Type) -> tf.Tensor:
  """A tensor, or a data set as a variant tensor, of its type.

  Raises:
    TypeError: If the value is none of the type.
  """
  if isinstance(value_type, tff.SequenceType):
    return _to_variant(value, value_type)
  if not _is_of_type(value, value_type):
    # Whether it may stand for one, TFF says as it does everywhere.
    message, _ = tff.framework.serialize_value(value, value_type)
    value, _ = tff.framework.deserialize_value(message, value_type)
  return tf.constant(value, tf.dtypes.as_dtype(value_type.dtype.type))


def _is_of_type(value: Any, value_type: tff.TensorType) -> bool:
  if isinstance(value, np.ndarray | np.generic):
    return value.dtype == value_type.dtype and value.shape == value_type.shape
  return isinstance(value, str | bytes) and value_type == tff.TensorType(np.str_)


def _to_variant(value: Any, value_type: tff.SequenceType) -> tf.Tensor:
  if isinstance(value, list):
    message, _ = tff.framework.serialize_value(value, value_type)
    value, _ = tff.framework.deserialize_value(message, value_type)
  if not isinstance(value, tf.data.Dataset):
    raise TypeError(f'Expected a data set, found {type(value)}.')
  found = tff.SequenceType(tff.types.tensorflow_to_type(value.element_spec))
  if not value_type.is_assignable_from(found):
    raise TypeError(f'Expected a data set of {value_type}, found one of {found}.')
  return tf.data.experimental.to_variant(value)


def _result(
  planned: Any, value_type: tff.Type, values: _Values, clients: Sequence[_Values]
) -> Any:
  """What has been made, in `tff.structure.Struct`s."""
  if isinstance(value_type, tff.FederatedType):
    member = value_type.member
    if value_type.placement is tff.SERVER or value_type.all_equal:
      return _result(planned, member, values, clients)
    return [
      _result(planned, member, collections.ChainMap(own, values), ()) for own in clients
    ]
  if isinstance(value_type, tff.StructType):
    elements = tff.structure.iter_elements(value_type)
    return tff.structure.Struct(
      (name, _result(part, part_type, values, clients))
      for part, (name, part_type) in zip(planned, elements, strict=True)
    )
  return _to_numpy(values[planned])


def _to_numpy(tensor: tf.Tensor) -> Any:
  return tensor.numpy()
