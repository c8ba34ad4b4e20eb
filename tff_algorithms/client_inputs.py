"""What a client's argument of `next` is, and how its rows are read on the client.

The client ends up with all its rows as one structure of tensors, and with a key of its
own, from which its randomness is seeded. An ordinary `tf.data` set is gathered once;
with `from_id` only the client's id travels, and the client reads its rows itself, which
is the fastest way into a round. With `from_stream` they are never all in memory.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import checks, streams
from tff_algorithms.streams import Stream

# More rows than a client can hold in memory: `rebatch` then gives a single batch.
_ALL_ROWS = 1 << 40


class ClientRows(NamedTuple):
  """What a client has in a round.

  Attributes:
    key: An int64 scalar of its own.
    rows: A structure of tensors whose leading axis is the client's examples, or a
      `Stream` of such.
    max_steps: Where its local steps are cut in this round, an int32 scalar, or None.
    only_gradient: A boolean scalar where a cohort is split in halves: whether it sends
      a full gradient and no update, or an update and no full gradient. None for both.
    population: Which of several populations it belongs to, an int32 scalar, or None.
    state: What it has kept since it last took part; `()` where clients keep nothing.
    held_back: Rows of its own that are none of `rows`, or None.
  """

  key: tf.Tensor
  rows: Any
  max_steps: tf.Tensor | None = None
  only_gradient: tf.Tensor | None = None
  population: tf.Tensor | None = None
  state: Any = ()
  held_back: Any = None

  @property
  def rows_for_gradient(self) -> Any:
    """The rows that its full gradient is over: none if it sends none."""
    if self.only_gradient is None:
      return self.rows
    return streams.only_if(self.only_gradient, self.rows)

  @property
  def held_back_for_update(self) -> Any:
    """The held-back rows of a client that sends an update: none if it sends none."""
    if self.held_back is None or self.only_gradient is None:
      return self.held_back
    return streams.only_if(~self.only_gradient, self.held_back)


class ClientInput(NamedTuple):
  """A client's argument.

  Attributes:
    type: Its TFF type, unplaced.
    load: A TensorFlow function, value of that type -> `ClientRows`.
  """

  type: tff.Type
  load: Callable[[Any], ClientRows]


def from_dataset(batch_spec: Any) -> ClientInput:
  """An ordinary data set of batches; TFF type `batch*`.

  How the rows are batched in it does not matter. The key is a hash of the first row.

  Args:
    batch_spec: The structure of `tf.TensorSpec`s of a batch, the leading axis None.
  """

  def load(dataset):
    rows = _with_extra_row(dataset, batch_spec).rebatch(_ALL_ROWS).get_single_element()
    return ClientRows(_key(rows), tf.nest.map_structure(lambda t: t[:-1], rows))

  return ClientInput(_sequence_type(batch_spec), load)


def from_stream(batch_spec: Any, rows_at_a_time: int) -> ClientInput:
  """A data set of batches that may be larger than memory; TFF type `batch*`.

  Its rows pass in parts of `rows_at_a_time`, as often as the algorithm passes over
  them, and once before that to count them and to look for what is not finite; it must
  have the same rows every time. How they are batched in it does not matter, but a batch
  is in memory too. The key is a hash of the first row.

  They are shuffled within their part only, anew in every pass, and the parts come in
  order: rows that are sorted by label, say, should be mixed where they are stored.

  Args:
    batch_spec: The structure of `tf.TensorSpec`s of a batch, the leading axis None.
    rows_at_a_time: The rows of a part, a multiple of the algorithm's `batch_size`.
      Without shuffling the results do not depend on it.
  """
  checks.count(rows_at_a_time, 'rows_at_a_time')

  def load(dataset):
    first = _with_extra_row(dataset, batch_spec).rebatch(1).take(1).get_single_element()
    return ClientRows(_key(first), Stream.of(dataset, rows_at_a_time))

  return ClientInput(_sequence_type(batch_spec), load)


def from_id(load_rows: Callable[[tf.Tensor], Any]) -> ClientInput:
  """The client's id; TFF type `str`. The key is a hash of the id.

  Args:
    load_rows: A TensorFlow function, id (a string scalar) -> the client's rows. It
      runs where the client runs, so what it reads must be there.
  """
  return ClientInput(
    tff.TensorType(np.str_),
    lambda client_id: ClientRows(_hash(client_id), load_rows(client_id)),
  )


def from_content(parse_rows: Callable[[tf.Tensor], Any]) -> ClientInput:
  """The client's id, and its rows as one string; the key is a hash of the id.

  TFF type `<client_id=str,content=str>`. For clients that cannot read their rows by
  their id where they run; the results are those of `from_id`.

  Args:
    parse_rows: A TensorFlow function, the string -> the client's rows.
  """
  return ClientInput(
    tff.StructType([('client_id', np.str_), ('content', np.str_)]),
    lambda value: ClientRows(_hash(value['client_id']), parse_rows(value['content'])),
  )


def with_max_steps(client_input: ClientInput) -> ClientInput:
  """As `client_input`, each client with a limit of its own to its local steps.

  TFF type `<client=T,max_steps=int32>`, T that of `client_input`.
  `tff.learning.programs` take no structs for clients; `next` does.
  """

  def load(value):
    given = client_input.load(value['client'])
    return given._replace(max_steps=value['max_steps'])

  return ClientInput(
    tff.StructType([('client', client_input.type), ('max_steps', np.int32)]), load
  )


def of_halves(client_input: ClientInput) -> ClientInput:
  """As `client_input`, each client with the half of the cohort that it is in.

  TFF type `<client=T,only_gradient=bool>`, T that of `client_input`; `in_halves` makes
  such arguments.
  """

  def load(value):
    given = client_input.load(value['client'])
    return given._replace(only_gradient=value['only_gradient'])

  return ClientInput(
    tff.StructType([('client', client_input.type), ('only_gradient', np.bool_)]), load
  )


def of_populations(client_input: ClientInput) -> ClientInput:
  """As `client_input`, each client with the number of its population.

  TFF type `<client=T,population=int32>`, T that of `client_input`.
  """

  def load(value):
    given = client_input.load(value['client'])
    return given._replace(population=value['population'])

  return ClientInput(
    tff.StructType([('client', client_input.type), ('population', np.int32)]), load
  )


def holding_back(
  client_input: ClientInput, fraction: float, batch_size: int, seed: int
) -> ClientInput:
  """As `client_input`, each client with a part of its rows held back.

  The part is drawn from (seed, the client's key), so that it is the same in all rounds.
  A client of which it would be less than a batch holds back nothing.

  Args:
    client_input: The clients' argument; its rows are in memory.
    fraction: The share of the rows to hold back, rounded down to whole rows.
    batch_size: The least number of rows to hold back.
    seed: The run's seed.
  """
  if not 0 < fraction < 1:
    raise ValueError(f'fraction must be between 0 and 1, found {fraction}.')
  checks.count(batch_size, 'batch_size')

  def load(value):
    given = client_input.load(value)
    if isinstance(given.rows, Stream):
      raise ValueError('Of a stream nothing can be held back: it is never in memory.')
    n = streams.num_rows(given.rows)
    # In float64, where 0.1 of 30 is 3.
    num_held = tf.cast(tf.floor(fraction * tf.cast(n, tf.float64) + 1e-9), tf.int32)
    num_held = tf.where(num_held < batch_size, 0, num_held)
    # [seed, 0] seeds the rounds, [seed, 1] the weights, [seed, 2] the local steps.
    draw_seed = tf.random.experimental.stateless_fold_in(
      tf.constant([seed, 3], tf.int64), given.key
    )
    order = tf.random.experimental.stateless_shuffle(tf.range(n), draw_seed)

    def part(indices):
      indices = tf.sort(indices)  # In the order that they were in.
      return tf.nest.map_structure(lambda t: tf.gather(t, indices), given.rows)

    return given._replace(rows=part(order[num_held:]), held_back=part(order[:num_held]))

  return ClientInput(client_input.type, load)


def in_halves(clients: Sequence[Any]) -> list[collections.OrderedDict]:
  """The arguments of a cohort split in halves: every second one sends a gradient.

  Args:
    clients: The arguments of the cohort's clients without a half.

  Raises:
    ValueError: If there are fewer than two.
  """
  if len(clients) < 2:
    raise ValueError(
      f'split_cohort needs at least two clients in a round, found {len(clients)}.'
    )
  return [
    collections.OrderedDict(client=client, only_gradient=i % 2 == 1)
    for i, client in enumerate(clients)
  ]


def _sequence_type(batch_spec: Any) -> tff.SequenceType:
  for spec in tf.nest.flatten(batch_spec):
    if not spec.shape[1:].is_fully_defined():
      raise ValueError(
        f'All rows must be of one shape, but the batch has {spec}; pad them, or make '
        'the input with client_inputs.from_id.'
      )
  return tff.SequenceType(tff.types.tensorflow_to_type(batch_spec))


def _with_extra_row(dataset: tf.data.Dataset, batch_spec: Any) -> tf.data.Dataset:
  """The data set and one more row: one without elements has no single element."""
  extra = tf.nest.map_structure(
    lambda spec: tf.zeros([1] + spec.shape[1:], spec.dtype), batch_spec
  )
  return dataset.concatenate(tf.data.Dataset.from_tensors(extra))


def _key(rows: Any) -> tf.Tensor:
  """A hash of the first row."""
  first = [tf.io.serialize_tensor(t[0]) for t in tf.nest.flatten(rows)]
  return _hash(tf.strings.join(first))


def _hash(text: tf.Tensor) -> tf.Tensor:
  return tf.strings.to_hash_bucket_fast(text, num_buckets=2**63 - 1)
