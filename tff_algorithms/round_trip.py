"""One trip from the server to the clients and back, with its guards.

Guards stand twice. On the client, before anything is aggregated: a NaN or an infinity
in its rows or its uploads makes every upload zero with weight zero. At the server,
after the phase: if no client was kept (of a cohort in halves, none of one half), or
the new state is not finite, everything stays as it was but the number of the round.
"""

import collections
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import client_state_files, streams, structures
from tff_algorithms.aggregation import Aggregation
from tff_algorithms.client_inputs import ClientInput
from tff_algorithms.client_states import ClientState
from tff_algorithms.phases import Phase
from tff_algorithms.selection import Selection
from tff_algorithms.server_state import ServerState
from tff_algorithms.transports import Everything, Rows


class _Counted(NamedTuple):
  """The clients' measurements and how many clients there were.

  Attributes:
    num_present: How many came, in each half if the cohort is split, else in all.
    num_kept: How many of these were kept.
    num_left_out: How many were not, although they have examples.
    measurements: The sums of what the kept ones measured.
  """

  num_present: Any
  num_kept: Any
  num_left_out: tf.Tensor
  measurements: collections.OrderedDict


class Trip(NamedTuple):
  """What a trip gave, all of it placed.

  Attributes:
    server: The new `ServerState`.
    aggregators: The new states of the aggregators.
    metrics: The phase's metrics.
    proposed: What the clients would keep, @CLIENTS; None where they keep nothing.
    is_accepted: Whether the server's state is new, so that they may; likewise.
  """

  server: Any
  aggregators: Any
  metrics: Any
  proposed: Any
  is_accepted: Any


class RoundTrip:
  """The federated computation around one phase: broadcast, map, aggregate.

  Attributes:
    phase: The phase.
    client_state_type: What a client keeps, with its id, unplaced; None if nothing.
  """

  def __init__(
    self,
    phase: Phase,
    server_type: tff.Type,
    client_input: ClientInput,
    metrics_aggregator: tff.aggregators.UnweightedAggregationFactory | None,
    is_last: bool,
    central_input: ClientInput | None = None,
    selection: Selection | None = None,
    client_states_by_file: bool = False,
  ):
    """Traces the phase.

    Args:
      phase: The phase.
      server_type: The type of the `ServerState`.
      client_input: What the clients' argument is.
      metrics_aggregator: Sums the clients' measurements, in the clear if None.
      is_last: Whether the round ends here, and is to be counted.
      central_input: What the server's argument is, if it has one.
      selection: Which part of the message a client is sent; None for all of it.
      client_states_by_file: Whether what clients keep is in files of theirs.
    """
    # In this order: each type follows from those before it.
    self.phase = phase
    self._is_last = is_last
    self._central_input = central_input
    self._way = Rows(selection, client_input) if selection else Everything()
    self._message = tff.tensorflow.computation(
      lambda server, own: self._way.split(phase.message(self._with_rows(server, own))),
      server_type,
      central_input.type if central_input else (),
    )
    message_type = self._message.type_signature.result
    self._client_input = client_input
    self._states_by_file = client_states_by_file
    self.client_state_type = self._client_state_type(server_type)
    self._aggregation = Aggregation(phase, self._way, metrics_aggregator)
    client_types = [self._way.sent_type(message_type), client_input.type]
    if self.client_state_type is None:
      self._client = tff.tensorflow.computation(
        lambda sent, value: self._guarded_work(sent, value, None)[:1], *client_types
      )
    else:
      self._client = tff.tensorflow.computation(
        self._guarded_work, *client_types, self.client_state_type
      )
    self._aggregation.create(self._client.type_signature.result[0])
    self._bytes = collections.OrderedDict(
      bytes_down=phase.bytes_down(self._way.message_type(message_type)),
      bytes_up=self._aggregation.bytes_up,
    )

  def _with_rows(self, server: ServerState, own: Any) -> ServerState:
    """The state as a phase sees it, with a way to the server's own rows."""
    if self._central_input is None:
      return server
    load = self._central_input.load
    return server._replace(central=lambda: load(own).rows)

  def initialize_aggregators(self) -> Any:
    """The first states of the aggregators, @SERVER."""
    return self._aggregation.initialize()

  def run(
    self,
    server: Any,
    aggregator_states: Any,
    clients: Any,
    client_states: Any = None,
    own: Any = None,
  ) -> Trip:
    """Goes to the clients and back.

    Args:
      server: The `ServerState` @SERVER.
      aggregator_states: The states of the aggregators @SERVER.
      clients: The clients' arguments.
      client_states: What they have kept, if they keep something.
      own: The server's argument, if it has one.
    """
    own = tff.federated_value((), tff.SERVER) if own is None else own
    message = tff.federated_map(self._message, (server, own))
    sent = self._way.send(message, clients)
    states = () if client_states is None else (client_states,)
    results = tff.federated_map(self._client, (sent, clients, *states))
    aggregates = self._aggregation.run(aggregator_states, results[0])
    arguments = tff.federated_zip((server, aggregator_states, aggregates, own))
    finish = tff.tensorflow.computation(
      self._guarded_finish, *arguments.type_signature.member
    )
    finished = tff.federated_map(finish, arguments)
    proposed, is_accepted = None, None
    if client_states is not None:
      proposed, is_accepted = results[1], finished[3]
    return Trip(finished[0], finished[1], finished[2], proposed, is_accepted)

  def _guarded_work(self, sent, value, client_state):
    """A client's side of the phase, with what is not finite taken out."""
    given = self._client_input.load(value)
    if client_state is not None:
      given = given._replace(state=self._loaded(client_state.value))
    result = self.phase.work(*self._way.receive(sent, given))
    uploads = self._way.upload(result.uploads, result.measurements, given)
    result = result._replace(uploads=uploads)
    has_examples = streams.num_rows(given.rows) > 0
    finite = structures.all_finite((streams.evidence(given.rows), result))
    kept = has_examples & finite
    result = tf.cond(
      kept,
      lambda: tf.nest.map_structure(tf.identity, result),
      lambda: structures.zeros_like(result)._replace(state=given.state),
    )
    half = tf.ones([1])
    if given.only_gradient is not None:
      half = tf.one_hot(tf.cast(given.only_gradient, tf.int32), 2)
    counted = _Counted(
      num_present=half,
      num_kept=half * tf.cast(kept, tf.float32),
      num_left_out=tf.cast(has_examples & ~finite, tf.float32),
      measurements=result.measurements,
    )
    self._counted_specs = structures.tensor_specs(counted)  # Known once traced.
    # As one vector: in TFF's runtime every tensor that travels has its price.
    parts = self._aggregation.parts(result.uploads, structures.as_vector(counted))
    if client_state is not None:
      new = self._saved(client_state.value, result.state)
      client_state = client_state._replace(value=new)
    return parts, client_state

  def _client_state_type(self, server_type: Any) -> tff.Type | None:
    """What a client keeps of the phase, with its id; None if nothing."""

    def first(weights):
      state = self.phase.client_init(weights)
      self._client_state_specs = structures.tensor_specs(state)  # Known once traced.
      return state

    computation = tff.tensorflow.computation(first, server_type.weights)
    if self._client_state_specs == ():
      return None
    if any(s.dtype == tf.string for s in tf.nest.flatten(self._client_state_specs)):
      raise ValueError('What clients keep are numbers, found text.')
    value = np.str_ if self._states_by_file else computation.type_signature.result
    return tff.types.to_type(ClientState(np.str_, value))

  def _loaded(self, value: Any) -> Any:
    """A client's state, from what it is given for it."""
    if not self._states_by_file:
      return value
    return client_state_files.read(value, self._client_state_specs)

  def _saved(self, value: Any, state: Any) -> Any:
    """What a client returns for its new state."""
    return client_state_files.write(value, state) if self._states_by_file else state

  def _guarded_finish(self, server, aggregator_states, aggregates, own):
    """The server's side of the phase, and its metrics."""
    old = self._with_rows(server, own)
    results, counted = self._aggregation.results(aggregates)
    counted = structures.from_vector(counted, self._counted_specs)
    with tf.control_dependencies(_cohort_errors(counted, self.phase.cohort_limit)):
      num_kept = tf.identity(counted.num_kept)
    means = self._way.complete(
      results,
      lambda: self._aggregation.by_aggregator(self.phase.unselected_step(old)),
    )
    new_server = self.phase.finish(old, means)._replace(central=())
    # A secure sum of floats is quantised: half a client stands for none.
    trained = (new_server.weights.trainable, new_server.optimizer, new_server.terms)
    usable = tf.reduce_all(num_kept > 0.5) & structures.all_finite(trained)
    usable &= self.phase.is_usable(old)
    new_server, new_states = structures.select(
      usable, (new_server, aggregates.states), (server, aggregator_states)
    )
    if self._is_last:
      new_server = new_server._replace(round_num=server.round_num + 1)
    metrics = self.phase.metrics(counted.measurements, means, old, new_server)
    metrics.update(
      num_clients_left_out=counted.num_left_out,
      **{name: tf.constant(size, tf.int64) for name, size in self._bytes.items()},
    )
    metrics = collections.OrderedDict(train=metrics, aggregator=aggregates.measurements)
    if self.client_state_type is None:
      return new_server, new_states, metrics
    return new_server, new_states, metrics, usable


def _cohort_errors(counted: _Counted, limit: int | None) -> list[Any]:
  """Operations that stop a round whose cohort cannot be.

  Args:
    counted: The clients of the round.
    limit: How many clients there are in all, where that matters.
  """
  num_present = counted.num_present
  errors = [
    tf.debugging.assert_greater(
      tf.reduce_sum(num_present),
      0.5,
      message='Empty cohort: a round needs at least one client, found none.',
    )
  ]
  if limit is not None:
    errors.append(
      tf.debugging.assert_less(
        tf.reduce_sum(num_present),
        limit + 0.5,
        message=f'num_clients={limit} is less than the clients of this round.',
      )
    )
  if num_present.shape[0] == 2:
    errors.append(
      tf.debugging.assert_greater(
        num_present,
        0.5,
        message=(
          'split_cohort: a round needs at least one client for the gradient and one '
          'for the update; client_inputs.in_halves splits a cohort.'
        ),
      )
    )
  return errors
