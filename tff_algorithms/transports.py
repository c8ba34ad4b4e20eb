"""How the server's message gets to a client: as a whole, or a selection of its rows.

Whichever way, the server's result is the same.
"""

import collections
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import streams, structures
from tff_algorithms.client_inputs import ClientInput, ClientRows
from tff_algorithms.mean import MeanFactory
from tff_algorithms.selection import (
  Completed,
  Selected,
  SelectedMean,
  Selection,
  UnweightedSelectedMean,
)
from tff_algorithms.structures import Structure


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

  def is_whole(self, value: Any) -> bool:
    """Whether an uploaded value is as the server needs it, and no selection."""
    del value
    return True

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
    piece = self._selection.piece_shape
    if any(tuple(leaf.shape) == piece for leaf in leaves):
      raise ValueError(
        f'A tensor of the shape {piece}, that of a table on a client, is among the '
        'weights: choose another max_keys.'
      )
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
      return tf.maximum(self._keys(self._client_input.load(value)), 0)

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

  def _keys(self, given: ClientRows) -> tf.Tensor:
    return self._selection.keys(streams.in_memory(given.rows, 'A selection'))

  def receive(self, sent: Any, given: ClientRows) -> tuple[Any, ClientRows]:
    if given.held_back is not None:
      raise ValueError(
        'With a selection nothing can be held back: a client is sent what the rows '
        'need that it trains on. selection=None (--selection=none) sends all.'
      )
    others, rows = sent
    keys = self._keys(given)
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

  def is_whole(self, value: Any) -> bool:
    return not isinstance(value, Selected)

  def factory(self, name: str, factory: Any, value_type: tff.Type) -> Any:
    if getattr(value_type, 'python_container', None) is not Selected:
      return factory
    if isinstance(factory, MeanFactory):
      return SelectedMean(self._selection)
    if isinstance(factory, tff.aggregators.UnweightedMeanFactory):
      return UnweightedSelectedMean(self._selection)
    raise ValueError(
      f'{name} ({type(factory).__name__}) would have every client send whole tables: '
      'with a selection, updates are averaged by their plain mean; selection=None '
      '(--selection=none) goes with any.'
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
