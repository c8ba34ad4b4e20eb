"""What of the server's message a client is sent: everything, or a selection.

A selection (federated select, Charles et al. 2022) is of the rows of large tables. A
model with an embedding table of N rows, of which a client needs n, trains on the client
as one with a table of n rows, and what the client uploads are n rows with their keys.
The server's result is the same as if everything had been sent.
"""

import collections
from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import structures
from tff_algorithms.client_inputs import ClientInput, ClientRows
from tff_algorithms.mean import MeanFactory
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


class Everything:
  """Sends the whole message to all clients."""

  def split(self, message: Any) -> Any:
    """What a message is at the server before it is sent."""
    return message

  def sent_type(self, split_type: tff.Type) -> tff.Type:
    """The type of what a client gets."""
    return split_type

  def message_type(self, split_type: tff.Type) -> tff.Type:
    """The type of the message as a client has it, for counting its bytes."""
    return split_type

  def send(self, split: Any, clients: Any) -> Any:
    """From the server to the clients."""
    del clients
    return tff.federated_broadcast(split)

  def receive(self, sent: Any, given: ClientRows) -> tuple[Any, ClientRows]:
    """What a client works with: the message, and its rows."""
    return sent, given

  def upload(self, uploads: Any, measurements: Any, given: ClientRows) -> Any:
    """What a client uploads."""
    del measurements, given
    return uploads

  def factory(self, name: str, factory: Any, value_type: tff.Type) -> Any:
    """The aggregator for an upload."""
    del name, value_type
    return factory

  def complete(
    self, results: Any, missing_steps: Callable[[], Mapping[str, Structure]]
  ) -> Any:
    """The aggregated uploads as the server needs them.

    Args:
      results: By the aggregator's name.
      missing_steps: () -> what a local step adds to the result of each aggregator on
        rows that a client is not sent; those that it adds nothing to are not there.
    """
    del missing_steps
    return results


class Rows(Everything):
  """Sends each client the rows of tables that it needs."""

  def __init__(self, selection: Selection, client_input: ClientInput):
    self._selection = selection
    self._client_input = client_input
    self._specs: Any = None  # Of the message, known once it is traced.

  def _is_table(self, tensor: Any) -> bool:
    return tuple(tensor.shape) == self._selection.table_shape

  def split(self, message: Any) -> Any:
    self._specs = structures.tensor_specs(message)
    leaves = tf.nest.flatten(message)
    return (
      tuple(leaf for leaf in leaves if not self._is_table(leaf)),
      tuple(leaf for leaf in leaves if self._is_table(leaf)),
    )

  def _pack(self, others: Any, pieces: Any) -> Any:
    others, pieces = iter(others), iter(pieces)
    leaves = [
      next(pieces if self._is_table(spec) else others)
      for spec in tf.nest.flatten(self._specs)
    ]
    return tf.nest.pack_sequence_as(self._specs, leaves)

  def message_type(self, split_type: tff.Type) -> tff.Type:
    piece = tf.TensorSpec(self._selection.piece_shape)
    flat = tf.nest.flatten(self._specs)
    specs = self._pack(
      [spec for spec in flat if not self._is_table(spec)],
      [tf.TensorSpec(piece.shape, s.dtype) for s in flat if self._is_table(s)],
    )
    return tff.types.tensorflow_to_type(specs)

  def sent_type(self, split_type: tff.Type) -> tff.Type:
    others, tables = split_type
    if self._selection.is_simulated:
      return tff.StructType([others, tables])
    return tff.StructType(
      [others, tff.SequenceType(self._row(tables).type_signature.result)]
    )

  def _row(self, tables_type: tff.Type) -> tff.Computation:
    @tff.tensorflow.computation(tables_type, np.int32)
    def row(tables, key):
      return tuple(tf.gather(table, key) for table in tables)

    return row

  def send(self, split: Any, clients: Any) -> Any:
    others, tables = split
    if self._selection.is_simulated:
      return tff.federated_zip(
        (tff.federated_broadcast(others), tff.federated_broadcast(tables))
      )

    @tff.tensorflow.computation(self._client_input.type)
    def keys_of(value):
      # A key must be of some row; `receive` takes out those that are of none.
      return tf.maximum(self._selection.keys(self._client_input.load(value).rows), 0)

    @tff.tensorflow.computation
    def num_rows():
      return tf.constant(self._selection.table_shape[0], tf.int32)

    rows = tff.federated_select(
      tff.federated_map(keys_of, clients),
      tff.federated_eval(num_rows, tff.SERVER),
      tables,
      self._row(tables.type_signature.member),
    )
    return tff.federated_zip((tff.federated_broadcast(others), rows))

  def receive(self, sent: Any, given: ClientRows) -> tuple[Any, ClientRows]:
    others, rows = sent
    keys = self._selection.keys(given.rows)
    if self._selection.is_simulated:
      pieces = [tf.gather(table, tf.maximum(keys, 0)) for table in rows]
    else:
      n = self._selection.max_keys
      pieces = rows.batch(n, drop_remainder=True).get_single_element()
    is_row = tf.reshape(keys >= 0, [-1] + [1] * (len(self._selection.table_shape) - 1))
    pieces = [tf.where(is_row, piece, tf.zeros_like(piece)) for piece in pieces]
    rows = self._selection.localize(given.rows, keys)
    return self._pack(others, pieces), given._replace(rows=rows)

  def upload(self, uploads: Any, measurements: Any, given: ClientRows) -> Any:
    keys = self._selection.keys(given.rows)
    num_steps = measurements['num_steps']

    def selected(upload):
      has_piece = any(
        tuple(leaf.shape) == self._selection.piece_shape
        for leaf in tf.nest.flatten(upload.value)
      )
      if not has_piece:
        return upload
      return upload._replace(value=Selected(keys, num_steps, upload.value))

    return collections.OrderedDict((n, selected(u)) for n, u in uploads.items())

  def factory(self, name: str, factory: Any, value_type: tff.Type) -> Any:
    if getattr(value_type, 'python_container', None) is not Selected:
      return factory
    if isinstance(factory, MeanFactory):
      return _SelectedMean(self._selection)
    if isinstance(factory, tff.aggregators.UnweightedMeanFactory):
      return _UnweightedSelectedMean(self._selection)
    raise ValueError(
      f'{name} ({type(factory).__name__}) would have every client send whole tables: '
      'with a selection, updates are averaged by their plain mean.'
    )

  def complete(
    self, results: Any, missing_steps: Callable[[], Mapping[str, Structure]]
  ) -> Any:
    steps, completed = missing_steps(), collections.OrderedDict(results)
    for name, result in results.items():
      if isinstance(result, Completed):
        value = result.value
        if name in steps:
          value = self._with_missing(result, steps[name])
        completed[name] = value
    return completed

  def _with_missing(self, result: Completed, step: Structure) -> Structure:
    def add(mean, one_step):
      if not self._is_table(mean):
        return mean
      num = tf.reshape(result.missing_steps, [-1] + [1] * (len(mean.shape) - 1))
      return mean + tf.cast(num, mean.dtype) * one_step

    return tf.nest.map_structure(add, result.value, step)


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
class _SelectedMean(tff.aggregators.WeightedAggregationFactory):
  """As `mean.MeanFactory`, of `Selected` uploads; the result is `Completed`."""

  selection: Selection

  def create(self, value_type: Any, weight_type: Any) -> Any:
    return _mean_process(self.selection, value_type, weight_type)


@dataclasses.dataclass(frozen=True)
class _UnweightedSelectedMean(tff.aggregators.UnweightedAggregationFactory):
  """As `tff.aggregators.UnweightedMeanFactory`, of `Selected` uploads."""

  selection: Selection

  def create(self, value_type: Any) -> Any:
    return _mean_process(self.selection, value_type, None)
