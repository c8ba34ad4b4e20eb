"""One trip from the server to the clients and back, with its guards.

Guards stand twice. On the client, before anything is aggregated: a NaN or an infinity
in its rows or its uploads makes every upload zero with weight zero. At the server,
after the phase: if no client was kept (of a cohort in halves, none of one half), or
the new state is not finite, everything stays as it was but the number of the round.
"""

import collections
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import local_loop, structures
from tff_algorithms.client_inputs import ClientInput
from tff_algorithms.phases import Phase
from tff_algorithms.selection import Selection
from tff_algorithms.server_state import ServerState
from tff_algorithms.transports import Everything, Rows

_MEASUREMENTS = 'measurements'
_SUMS = (tff.aggregators.SumFactory, tff.aggregators.SecureSumFactory)


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


class _Aggregates(NamedTuple):
  """What an aggregator returned: its new state, the result, what it measured."""

  states: collections.OrderedDict
  results: collections.OrderedDict
  measurements: collections.OrderedDict


class RoundTrip:
  """The federated computation around one phase: broadcast, map, aggregate."""

  def __init__(
    self,
    phase: Phase,
    server_type: tff.Type,
    client_input: ClientInput,
    metrics_aggregator: tff.aggregators.UnweightedAggregationFactory | None,
    is_last: bool,
    central_input: ClientInput | None = None,
    selection: Selection | None = None,
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
    """
    # In this order: each type follows from those before it.
    self._phase = phase
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
    self._client = tff.tensorflow.computation(
      self._guarded_work, self._way.sent_type(message_type), client_input.type
    )
    uploads_type, counted_type = self._client.type_signature.result
    self._upload_names = tff.structure.name_list(uploads_type)
    self._aggregators = collections.OrderedDict(
      (name, self._create(name, factory, uploads_type))
      for name, factory in phase.aggregators.items()
    )
    self._check_all_are_aggregated()
    factory = metrics_aggregator or tff.aggregators.SumFactory()
    # The guards count clients with it: noise or a clipped norm would mislead them.
    if not isinstance(factory, _SUMS):
      raise ValueError(
        'metrics_aggregator must be a tff.aggregators.SumFactory or SecureSumFactory, '
        f'found {type(factory).__name__}.'
      )
    self._sum = factory.create(counted_type)
    self._bytes = collections.OrderedDict(
      bytes_down=phase.bytes_down(self._way.message_type(message_type)),
      # What is aggregated twice is sent once.
      bytes_up=sum(
        structures.size_in_bytes(upload.value)
        + (structures.size_in_bytes(upload.weight) if self._is_weighted(name) else 0)
        for name, upload in tff.structure.iter_elements(uploads_type)
      ),
    )

  def _source_of(self, name: str) -> str:
    """The upload whose value an aggregator takes."""
    return self._phase.shared.get(name, name)

  def _is_weighted(self, upload: str) -> bool:
    """Whether the weight of an upload is used."""
    return any(
      aggregator.is_weighted
      for name, aggregator in self._aggregators.items()
      if upload in (name, self._source_of(name))
    )

  def _create(self, name: str, factory: Any, uploads_type: Any) -> Any:
    """The aggregation process of one of the phase's aggregators."""
    source = self._source_of(name)
    if source not in self._upload_names:
      raise ValueError(
        f'The aggregator {name!r} has no upload among {self._upload_names}.'
      )
    value_type = uploads_type[source].value
    factory = self._way.factory(name, factory, value_type)
    if isinstance(factory, tff.aggregators.UnweightedAggregationFactory):
      return factory.create(value_type)
    return factory.create(value_type, uploads_type[source].weight)

  def _check_all_are_aggregated(self) -> None:
    taken = {*self._aggregators, *map(self._source_of, self._aggregators)}
    for name in self._upload_names:
      if name not in taken:
        raise ValueError(
          f'The upload {name!r} has no aggregator among {list(self._aggregators)}.'
        )

  def _with_rows(self, server: ServerState, own: Any) -> ServerState:
    """The state as a phase sees it, with a way to the server's own rows."""
    if self._central_input is None:
      return server
    load = self._central_input.load
    return server._replace(central=lambda: load(own).rows)

  def initialize_aggregators(self) -> Any:
    """The first states of the aggregators, @SERVER."""
    states = collections.OrderedDict(
      (name, aggregator.initialize()) for name, aggregator in self._aggregators.items()
    )
    states[_MEASUREMENTS] = self._sum.initialize()
    return tff.federated_zip(states)

  def run(
    self, server: Any, aggregator_states: Any, clients: Any, own: Any = None
  ) -> tuple:
    """(server, aggregators @SERVER, clients) -> (server, aggregators, metrics).

    Args:
      server: The `ServerState` @SERVER.
      aggregator_states: The states of the aggregators @SERVER.
      clients: The clients' arguments.
      own: The server's, if it has one.
    """
    own = tff.federated_value((), tff.SERVER) if own is None else own
    message = tff.federated_map(self._message, (server, own))
    sent = self._way.send(message, clients)
    results = tff.federated_map(self._client, (sent, clients))
    outputs = collections.OrderedDict()
    for name, aggregator in self._aggregators.items():
      value = results[0][self._source_of(name)].value
      # One that shares another's value may have weights of its own.
      weighing = name if name in self._upload_names else self._source_of(name)
      weight = (results[0][weighing].weight,) if aggregator.is_weighted else ()
      outputs[name] = aggregator.next(aggregator_states[name], value, *weight)
    counted = self._sum.next(aggregator_states[_MEASUREMENTS], results[1])
    aggregates = _Aggregates(
      states=collections.OrderedDict(
        [(name, output.state) for name, output in outputs.items()]
        + [(_MEASUREMENTS, counted.state)]
      ),
      results=collections.OrderedDict(
        (name, output.result) for name, output in outputs.items()
      ),
      measurements=collections.OrderedDict(
        (name, output.measurements) for name, output in outputs.items()
      ),
    )
    arguments = tff.federated_zip(
      (server, aggregator_states, aggregates, counted.result, own)
    )
    finish = tff.tensorflow.computation(
      self._guarded_finish, *arguments.type_signature.member
    )
    finished = tff.federated_map(finish, arguments)
    return finished[0], finished[1], finished[2]

  def _missing_steps(self, server: ServerState) -> dict[str, Any]:
    """What a step adds to each aggregator's result on what a client is not sent."""
    by_upload = self._phase.unselected_step(server)
    return {
      name: by_upload[self._source_of(name)]
      for name in self._aggregators
      if self._source_of(name) in by_upload
    }

  def _guarded_work(self, sent, value):
    """A client's side of the phase, with what is not finite taken out."""
    given = self._client_input.load(value)
    result = self._phase.work(*self._way.receive(sent, given))
    uploads = self._way.upload(result.uploads, result.measurements, given)
    result = result._replace(uploads=uploads)
    has_examples = local_loop.num_rows(given.rows) > 0
    finite = structures.all_finite((given.rows, result.uploads, result.measurements))
    kept = has_examples & finite
    result = structures.select(kept, result, structures.zeros_like(result))
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
    return result.uploads, structures.as_vector(counted)

  def _guarded_finish(self, server, aggregator_states, aggregates, counted, own):
    """The server's side of the phase, and its metrics."""
    old = self._with_rows(server, own)
    counted = structures.from_vector(counted, self._counted_specs)
    with tf.control_dependencies(_cohort_errors(counted)):
      num_kept = tf.identity(counted.num_kept)
    means = self._way.complete(aggregates.results, lambda: self._missing_steps(old))
    new_server = self._phase.finish(old, means)._replace(central=())
    # A secure sum of floats is quantised: half a client stands for none.
    trained = (new_server.weights.trainable, new_server.optimizer, new_server.terms)
    usable = tf.reduce_all(num_kept > 0.5) & structures.all_finite(trained)
    usable &= self._phase.is_usable(old)
    new_server, new_states = structures.select(
      usable, (new_server, aggregates.states), (server, aggregator_states)
    )
    if self._is_last:
      new_server = new_server._replace(round_num=server.round_num + 1)
    metrics = self._phase.metrics(counted.measurements, means, old, new_server)
    metrics.update(
      num_clients_left_out=counted.num_left_out,
      **{name: tf.constant(size, tf.int64) for name, size in self._bytes.items()},
    )
    return (
      new_server,
      new_states,
      collections.OrderedDict(train=metrics, aggregator=aggregates.measurements),
    )


def _cohort_errors(counted: _Counted) -> list[Any]:
  """Operations that stop a round whose cohort cannot be."""
  num_present = counted.num_present
  errors = [
    tf.debugging.assert_greater(
      tf.reduce_sum(num_present),
      0.5,
      message='Empty cohort: a round needs at least one client, found none.',
    )
  ]
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
