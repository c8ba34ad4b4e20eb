"""Arguments of a planned computation as tensors, and its result as Python has it."""

import collections
from collections.abc import (
  Collection,
  Iterable,
  Iterator,
  Mapping,
  MutableMapping,
  Sequence,
)
import itertools
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from training_loops import graph_functions, worker_context
from training_loops.round_plan import Tensor

Values = MutableMapping[Tensor, tf.Tensor]


def given(
  tensors: Iterable[Tensor], arg: Any, parameter: tff.Type | None
) -> tuple[Values, Sequence[Values]]:
  """The values of an argument: those of the server, and those of each client.

  Args:
    tensors: Those of the argument.
    arg: The argument, in Python's structures, or TFF's.
    parameter: Its type.

  Raises:
    TypeError: If it is none of the type.
    ValueError: If its parts are of different numbers of clients.
  """
  if parameter is None:
    return {}, []
  num_clients = worker_context.num_clients(arg, parameter)
  values: Values = {}
  clients: list[Values] = [{} for _ in range(num_clients or 0)]
  rest = iter(tensors)

  def add(value, value_type):
    if isinstance(value_type, tff.FederatedType):
      if value_type.placement is tff.CLIENTS and not value_type.all_equal:
        own_tensors = list(itertools.islice(rest, _num_tensors(value_type.member)))
        for own, part in zip(clients, value, strict=True):
          own.update(zip(own_tensors, _flat(part, value_type.member), strict=True))
      else:
        add(value, value_type.member)
    elif isinstance(value_type, tff.StructType):
      for part, part_type in _parts(value, value_type):
        add(part, part_type)
    else:
      values[next(rest)] = _to_tensor(value, value_type)

  add(arg, parameter)
  return values, clients


def _num_tensors(value_type: tff.Type) -> int:
  if isinstance(value_type, tff.StructType):
    return sum(map(_num_tensors, value_type))
  return 1


def _flat(value: Any, value_type: tff.Type) -> Iterator[tf.Tensor]:
  if isinstance(value_type, tff.StructType):
    for part, part_type in _parts(value, value_type):
      yield from _flat(part, part_type)
  else:
    yield _to_tensor(value, value_type)


def _parts(value: Any, value_type: tff.StructType) -> Iterator[tuple[Any, tff.Type]]:
  parts: Collection[Any]
  if isinstance(value, collections.OrderedDict):
    parts = value.values()
  elif isinstance(value, tuple | list):
    parts = value
  else:
    parts = tff.structure.from_container(value)
  if len(parts) != len(value_type):
    raise TypeError(f'Expected {value_type}, found a structure of {len(parts)}.')
  return zip(parts, value_type, strict=True)


def _to_tensor(value: Any, value_type: tff.Type) -> tf.Tensor:
  """A tensor, or a data set as a variant tensor, of its type."""
  if isinstance(value_type, tff.SequenceType):
    return _to_variant(value, value_type)
  if isinstance(value, tf.Tensor | tf.Variable):
    value = value.numpy()
  if not _is_of_type(value, value_type):
    # Whether it may stand for one, TFF says as it does everywhere.
    value = _as_tff_sends_it(value, value_type)
  return constant(value, tf.dtypes.as_dtype(value_type.dtype.type))


def constant(value: Any, dtype: tf.DType | None = None) -> tf.Tensor:
  """A tensor of a value, which leaves nothing behind."""
  return graph_functions.without_attributes(tf.constant(value, dtype))


def _is_of_type(value: Any, value_type: tff.TensorType) -> bool:
  if isinstance(value, np.ndarray | np.generic):
    return value.dtype == value_type.dtype and value.shape == value_type.shape
  return isinstance(value, str | bytes) and value_type == tff.TensorType(np.str_)


def _as_tff_sends_it(value: Any, value_type: tff.Type) -> Any:
  message, _ = tff.framework.serialize_value(value, value_type)
  return tff.framework.deserialize_value(message, value_type)[0]


def _to_variant(value: Any, value_type: tff.SequenceType) -> tf.Tensor:
  if isinstance(value, list):
    value = _as_tff_sends_it(value, value_type)
  if not isinstance(value, tf.data.Dataset):
    raise TypeError(f'Expected a data set, found {type(value)}.')
  found = tff.SequenceType(tff.types.tensorflow_to_type(value.element_spec))
  if not value_type.is_assignable_from(found):
    raise TypeError(f'Expected a data set of {value_type}, found one of {found}.')
  return tf.data.experimental.to_variant(value)


def result(
  planned: Any,
  result_type: tff.Type,
  values: Mapping[Tensor, tf.Tensor],
  clients: Sequence[Mapping[Tensor, tf.Tensor]],
) -> Any:
  """What has been made, in Python's containers.

  Args:
    planned: The tensors of the result, in `tff.structure.Struct`s.
    result_type: Its type.
    values: The values of tensors at the server.
    clients: Those of each client.
  """
  if isinstance(result_type, tff.FederatedType):
    member = result_type.member
    if result_type.placement is tff.SERVER or result_type.all_equal:
      return result(planned, member, values, clients)
    return [result(planned, member, {**values, **own}, ()) for own in clients]
  if isinstance(result_type, tff.StructType):
    parts = [
      result(part, part_type, values, clients)
      for part, part_type in zip(planned, result_type, strict=True)
    ]
    return _contained(parts, result_type)
  return to_python(values[planned], result_type)


def _contained(parts: Sequence[Any], value_type: tff.StructType) -> Any:
  """Parts in the container that a type is made of; done by TFF it takes long."""
  container = value_type.python_container
  if container in (list, tuple):
    return container(parts)
  if container is not None and issubclass(container, tuple):  # A NamedTuple.
    return container(*parts)
  names = [name for name, _ in tff.structure.iter_elements(value_type)]
  if container is collections.OrderedDict:
    return container(zip(names, parts, strict=True))
  struct = tff.structure.Struct(zip(names, parts, strict=True))
  return tff.types.type_to_py_container(struct, value_type)


def to_python(tensor: tf.Tensor, value_type: tff.Type) -> Any:
  """A tensor as an array, or as the data set that it is of its type."""
  if isinstance(value_type, tff.SequenceType):
    spec = tff.types.type_to_tf_tensor_specs(value_type.element)
    return tf.data.experimental.from_variant(tensor, spec)
  if tensor.shape.rank == 0:
    return tensor.numpy()
  try:
    # Not a copy. As it may be shared with another result, it cannot be written to.
    return np.asarray(memoryview(tensor))
  except (TypeError, BufferError, ValueError):  # Text, and what numpy does not know.
    return tensor.numpy()
