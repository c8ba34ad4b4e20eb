"""Selection: a client has the rows of large tables that it needs, and no others.

Federated select, Charles et al. 2022. A model with an embedding table of N rows, of
which a client needs n, trains on the client as one with a table of n rows, and what the
client uploads are n rows with their keys: here is what says which rows, and the mean of
such uploads. `transports` sends them.
"""

from collections.abc import Callable
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms.structures import Structure


@dataclasses.dataclass(frozen=True)
class Selection:
  """Which rows of a model's tables a client needs.

  Attributes:
    table_shape: (N, ...), the shape of a table. Every tensor of this shape among the
      weights, in what is sent and in what is uploaded is one.
    max_keys: n, how many rows a client is sent; fixed, as all clients are of one type.
    keys: A TensorFlow function, a client's rows -> the keys of the table's rows that
      it needs: int32 `[max_keys]`, different ones, then -1 for each that it does not
      need.
    localize: A TensorFlow function, (rows, keys) -> the rows with every key replaced by
      its position among the keys.
    is_simulated: Whether clients are in truth sent the whole tables, and take their
      rows themselves. In TFF's runtime that is many times faster than
      `tff.federated_select`; the numbers are the same, and so are the bytes in the
      metrics, which are those of the rows.
  """

  table_shape: tuple[int, ...]
  max_keys: int
  keys: Callable[[Structure], tf.Tensor]
  localize: Callable[[Structure, tf.Tensor], Structure]
  is_simulated: bool = False

  @property
  def piece_shape(self) -> tuple[int, ...]:
    """The shape of a table on a client."""
    return (self.max_keys, *self.table_shape[1:])


class Selected(NamedTuple):
  """An upload some of whose tensors are rows of tables.

  Attributes:
    keys: Which rows.
    num_steps: How many local steps they are of.
    value: What is uploaded.
  """

  keys: tf.Tensor
  num_steps: tf.Tensor
  value: Structure


class Completed(NamedTuple):
  """A mean of such uploads.

  Attributes:
    value: The mean, 0 for clients that do not have a row.
    missing_steps: For each row the mean of the steps of the clients without it.
  """

  value: Structure
  missing_steps: tf.Tensor


def _mean_process(
  selection: Selection, value_type: Any, weight_type: Any
) -> tff.templates.AggregationProcess:
  """Sums rows where they belong, client by client; unweighted if the type is None."""

  def table(tensor_type):
    is_piece = tuple(tensor_type.shape) == selection.piece_shape
    shape = selection.table_shape if is_piece else tensor_type.shape
    return tf.zeros(shape, tensor_type.dtype)

  def zeros(upload_type):
    if isinstance(upload_type, tff.TensorType):
      return table(upload_type)
    parts = [
      (name, zeros(part)) for name, part in tff.structure.iter_elements(upload_type)
    ]
    container = upload_type.python_container
    if container is None or container in (tuple, list):
      return tuple(part for _, part in parts)
    if hasattr(container, '_fields'):
      return container(*(part for _, part in parts))
    return container(parts)

  @tff.tensorflow.computation
  def zero():
    steps = tf.zeros([], value_type.num_steps.dtype)
    at_rows = tf.zeros(selection.table_shape[:1], steps.dtype)
    return zeros(value_type.value), steps, at_rows, tf.zeros([])

  accumulator_type = zero.type_signature.result
  upload_type = (value_type, np.float32 if weight_type is None else weight_type)

  @tff.tensorflow.computation(accumulator_type, upload_type)
  def accumulate(accumulator, upload):
    sums, steps, at_rows, weights = accumulator
    (keys, num_steps, value), weight = upload

    def add(total, part):
      part = tf.cast(weight, part.dtype) * part
      if tuple(part.shape) != selection.piece_shape:
        return total + part
      # What has a negative key is dropped.
      return total + tf.math.unsorted_segment_sum(part, keys, selection.table_shape[0])

    own_steps = tf.cast(weight, num_steps.dtype) * num_steps
    held = tf.math.unsorted_segment_sum(
      tf.fill([selection.max_keys], own_steps), keys, selection.table_shape[0]
    )
    return (
      tf.nest.map_structure(add, sums, value),
      steps + own_steps,
      at_rows + held,
      weights + tf.cast(weight, tf.float32),
    )

  @tff.tensorflow.computation(accumulator_type, accumulator_type)
  def merge(a, b):
    return tf.nest.map_structure(tf.add, a, b)

  @tff.tensorflow.computation(accumulator_type)
  def report(accumulator):
    sums, steps, at_rows, weights = accumulator
    mean = tf.nest.map_structure(lambda t: t / tf.cast(weights, t.dtype), sums)
    return Completed(mean, (steps - at_rows) / tf.cast(weights, steps.dtype))

  @tff.federated_computation
  def initialize():
    return tff.federated_value((), tff.SERVER)

  def mean(state, value, weight):
    total = tff.federated_aggregate(
      tff.federated_zip((value, weight)), zero(), accumulate, merge, report
    )
    return tff.templates.MeasuredProcessOutput(
      state, total, tff.federated_value((), tff.SERVER)
    )

  types = [
    initialize.type_signature.result,
    tff.FederatedType(value_type, tff.CLIENTS),
  ]
  if weight_type is None:
    one = tff.tensorflow.computation(lambda: tf.ones([]))

    @tff.federated_computation(*types)
    def next_unweighted(state, value):
      return mean(state, value, tff.federated_eval(one, tff.CLIENTS))

    return tff.templates.AggregationProcess(initialize, next_unweighted)

  @tff.federated_computation(*types, tff.FederatedType(weight_type, tff.CLIENTS))
  def next_weighted(state, value, weight):
    return mean(state, value, weight)

  return tff.templates.AggregationProcess(initialize, next_weighted)


@dataclasses.dataclass(frozen=True)
class SelectedMean(tff.aggregators.WeightedAggregationFactory):
  """As `mean.MeanFactory`, of `Selected` uploads; the result is `Completed`."""

  selection: Selection

  def create(self, value_type: Any, weight_type: Any) -> Any:
    return _mean_process(self.selection, value_type, weight_type)


@dataclasses.dataclass(frozen=True)
class UnweightedSelectedMean(tff.aggregators.UnweightedAggregationFactory):
  """As `tff.aggregators.UnweightedMeanFactory`, of `Selected` uploads."""

  selection: Selection

  def create(self, value_type: Any) -> Any:
    return _mean_process(self.selection, value_type, None)
