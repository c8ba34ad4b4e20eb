"""Streams: a client's rows where they are more than its memory holds.

They pass in parts, each a structure of tensors as other clients' rows are. What runs
over the rows runs over one part after the other, `tf.data` reading the next one when it
is asked for, so that there is a cost for each part and none for a step.
"""

from collections.abc import Callable
import dataclasses
from typing import Any

import tensorflow as tf

from tff_algorithms import structures
from tff_algorithms.structures import Structure


@dataclasses.dataclass(frozen=True)
class Stream:
  """The rows of a client in parts.

  Attributes:
    parts: A data set of the parts, structures of tensors with a leading axis.
    rows_at_a_time: The rows of a part; the last one may have fewer.
    num_rows: How many rows there are in all.
    evidence: A float scalar that is finite if all numbers in the rows are.
  """

  parts: tf.data.Dataset
  rows_at_a_time: int
  num_rows: tf.Tensor
  evidence: tf.Tensor

  @classmethod
  def of(cls, dataset: tf.data.Dataset, rows_at_a_time: int) -> 'Stream':
    """The rows of a data set of batches, which is passed over to get to know them."""
    parts = dataset.rebatch(rows_at_a_time)

    def survey(known, part):
      n, evidence = known
      evidence = tf.where(structures.all_finite(part), evidence, float('nan'))
      return n + num_rows(part), evidence

    return cls(parts, rows_at_a_time, *reduce(parts, (0, 0.0), survey))

  def parts_of(self, num_steps: tf.Tensor, batch_size: int) -> tf.data.Dataset:
    """The parts that so many steps see, with their numbers.

    After the last part comes the first again, and the numbers go on.

    Args:
      num_steps: How many steps are taken.
      batch_size: The rows of a step; the last step of a part may take fewer.

    Raises:
      ValueError: If the last step of every part would.
    """
    steps, rest = divmod(self.rows_at_a_time, batch_size)
    if rest:
      raise ValueError(
        'The rows of a stream are taken in batches of its parts: rows_at_a_time='
        f'{self.rows_at_a_time} must be a multiple of batch_size={batch_size}, say '
        f'{(steps + 1) * batch_size}.'
      )
    in_pass = tf.maximum(ceil_div(self.num_rows, batch_size), 1)
    num_parts = num_steps // in_pass * ceil_div(in_pass, steps)
    num_parts += ceil_div(num_steps % in_pass, steps)
    parts = self.parts.repeat().take(tf.cast(num_parts, tf.int64))
    return parts.enumerate()


def reduce(
  dataset: tf.data.Dataset, start: Structure, function: Callable[..., Structure]
) -> Structure:
  """As `dataset.reduce`, with any structure for what is carried from part to part."""

  def on_flat(carried, element):
    carried = tf.nest.pack_sequence_as(start, carried)
    return tuple(tf.nest.flatten(function(carried, element)))

  # tf.data takes lists, as weights may be, for tensors.
  end = dataset.reduce(tuple(tf.nest.flatten(start)), on_flat)
  return tf.nest.pack_sequence_as(start, end)


def num_rows(rows: Structure | Stream) -> tf.Tensor:
  """How many examples the rows are."""
  if isinstance(rows, Stream):
    return rows.num_rows
  return tf.shape(tf.nest.flatten(rows)[0])[0]


def specs(rows: Structure | Stream) -> Structure:
  """What describes the rows that are in memory at a time."""
  if isinstance(rows, Stream):
    return rows.parts.element_spec
  return structures.tensor_specs(rows)


def evidence(rows: Structure | Stream) -> Structure:
  """What is finite if and only if the rows are."""
  return rows.evidence if isinstance(rows, Stream) else rows


def only_if(condition: tf.Tensor, rows: Structure | Stream) -> Structure | Stream:
  """The rows where the scalar condition holds, else none."""
  if isinstance(rows, Stream):
    count = tf.cast(tf.where(condition, -1, 0), tf.int64)  # -1 takes all.
    n = tf.where(condition, rows.num_rows, 0)
    return dataclasses.replace(rows, parts=rows.parts.take(count), num_rows=n)
  return tf.nest.map_structure(
    lambda t: t[: tf.where(condition, tf.shape(t)[0], 0)], rows
  )


def in_memory(rows: Structure | Stream, what: str) -> Structure:
  """The rows, which must not be a stream.

  Args:
    rows: The rows.
    what: What cannot do with a stream, to be named in the error.

  Raises:
    ValueError: If they are one.
  """
  if isinstance(rows, Stream):
    raise ValueError(
      f'{what} needs all rows in memory at once: it goes with '
      'client_inputs.from_dataset or from_id, not with from_stream.'
    )
  return rows


def ceil_div(a: tf.Tensor, b: Any) -> tf.Tensor:
  """a / b, rounded up."""
  return -(-a // b)
