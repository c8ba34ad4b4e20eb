"""Phases made a `tff.learning.templates.LearningProcess`, with its guards.

Guards stand twice. On the client, before anything is aggregated: a NaN or an infinity
in its rows or its uploads makes every upload zero with weight zero. At the server,
after the phase: if no client was kept, or the new state is not finite, everything
stays as it was but the number of the round.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import local_loop, structures
from tff_algorithms.client_inputs import ClientInput
from tff_algorithms.phases import Phase, ServerState

_MEASUREMENTS = 'measurements'


class State(NamedTuple):
  """The state of a process.

  Attributes:
    server: The algorithm's state.
    aggregators: The states of its aggregators, a tuple with an OrderedDict a phase.
  """

  server: ServerState
  aggregators: tuple


class _Counted(NamedTuple):
  """The clients' measurements and how many clients there were."""

  num_present: tf.Tensor
  num_kept: tf.Tensor
  num_left_out: tf.Tensor
  measurements: collections.OrderedDict


class _Aggregates(NamedTuple):
  """What an aggregator returned: its new state, the result, what it measured."""

  states: collections.OrderedDict
  results: collections.OrderedDict
  measurements: collections.OrderedDict


def build_learning_process(
  initial_state: Callable[[], ServerState],
  phases: Sequence[Phase],
  client_input: ClientInput,
  *,
  server_optimizer: tff.learning.optimizers.Optimizer,
  metrics_aggregator: tff.aggregators.UnweightedAggregationFactory | None = None,
) -> tff.learning.templates.LearningProcess:
  """Builds the process whose `next` runs the phases one after the other.

  Type signatures, with S the state (a `State`), I the client's input, W the weights
  (`tff.learning.models.ModelWeights`), H the hyperparameters and M the metrics:

  *   `initialize`: `( -> S@SERVER)`
  *   `next`: `(<state=S@SERVER, clients={I}@CLIENTS> ->
      <state=S@SERVER, metrics=M@SERVER>)`
  *   `get_model_weights`: `(S -> W)`, `set_model_weights`: `(<S, W> -> S)`
  *   `get_hparams`: `(S -> H)`, `set_hparams`: `(<S, H> -> S)`

  M is an OrderedDict with `client_work/train`, the scalars of `Phase.metrics` and the
  counts of clients and bytes, and `aggregator`, what the aggregators measured. The
  metrics of all phases but the last carry the phase's class name as a prefix.

  Args:
    initial_state: A TensorFlow function that makes the algorithm's first state.
    phases: The phases, in order.
    client_input: What the clients' argument is.
    server_optimizer: The optimizer whose state is `ServerState.optimizer`.
    metrics_aggregator: Sums the clients' measurements, `tff.aggregators.SumFactory()`
      by default. A secure sum here and in the phases makes every aggregation secure.
  """
  server_init = tff.tensorflow.computation(initial_state)
  server_type = server_init.type_signature.result
  trips = [
    _Trip(phase, server_type, client_input, metrics_aggregator) for phase in phases
  ]

  @tff.federated_computation
  def initialize():
    aggregators = tuple(trip.initialize_aggregators() for trip in trips)
    server = tff.federated_eval(server_init, tff.SERVER)
    return tff.federated_zip(State(server, aggregators))

  state_type = initialize.type_signature.result.member

  @tff.federated_computation(
    initialize.type_signature.result, tff.FederatedType(client_input.type, tff.CLIENTS)
  )
  def next_round(state, clients):
    server, aggregators, metrics = state.server, [], []
    for trip, aggregator_states in zip(trips, state.aggregators, strict=True):
      server, aggregator_states, trip_metrics = trip.run(
        server, aggregator_states, clients
      )
      aggregators.append(aggregator_states)
      metrics.append(trip_metrics)
    server = tff.federated_map(_count_round(server_type), server)
    return tff.learning.templates.LearningProcessOutput(
      tff.federated_zip(State(server, tuple(aggregators))),
      _merge_metrics(phases, metrics),
    )

  weights_type = server_type.weights

  @tff.tensorflow.computation(state_type)
  def get_model_weights(state):
    return state.server.weights

  @tff.tensorflow.computation(state_type, weights_type)
  def set_model_weights(state, weights):
    return state._replace(server=state.server._replace(weights=weights))

  @tff.tensorflow.computation(state_type)
  def get_hparams(state):
    server = state.server
    return collections.OrderedDict(
      server.hparams, server_optimizer=server_optimizer.get_hparams(server.optimizer)
    )

  @tff.tensorflow.computation(state_type, get_hparams.type_signature.result)
  def set_hparams(state, hparams):
    hparams = collections.OrderedDict(hparams)
    optimizer = server_optimizer.set_hparams(
      state.server.optimizer, hparams.pop('server_optimizer')
    )
    server = state.server._replace(optimizer=optimizer, hparams=hparams)
    return state._replace(server=server)

  return tff.learning.templates.LearningProcess(
    initialize,
    next_round,
    get_model_weights,
    set_model_weights,
    get_hparams_fn=get_hparams,
    set_hparams_fn=set_hparams,
  )


class _Trip:
  """The federated computation around one phase."""

  def __init__(self, phase, server_type, client_input, metrics_aggregator):
    # In this order: each type follows from those before it.
    self._phase = phase
    self._message = tff.tensorflow.computation(phase.message, server_type)
    message_type = self._message.type_signature.result
    self._client = tff.tensorflow.computation(
      _guarded_work(phase, client_input), message_type, client_input.type
    )
    uploads_type, counted_type = self._client.type_signature.result
    self._aggregators = collections.OrderedDict(
      (name, _create(phase.aggregators[name], upload_type))
      for name, upload_type in tff.structure.iter_elements(uploads_type)
    )
    factory = metrics_aggregator or tff.aggregators.SumFactory()
    self._sum = factory.create(counted_type)
    self._bytes = collections.OrderedDict(
      bytes_down=structures.size_in_bytes(message_type),
      bytes_up=sum(
        structures.size_in_bytes(upload.value)
        + (structures.size_in_bytes(upload.weight) if aggregator.is_weighted else 0)
        for upload, aggregator in zip(
          uploads_type, self._aggregators.values(), strict=True
        )
      ),
    )

  def initialize_aggregators(self):
    """The first states of the aggregators, @SERVER."""
    states = collections.OrderedDict(
      (name, aggregator.initialize()) for name, aggregator in self._aggregators.items()
    )
    states[_MEASUREMENTS] = self._sum.initialize()
    return tff.federated_zip(states)

  def run(self, server, aggregator_states, clients):
    """(server, aggregators, clients) -> (server, aggregators, metrics)."""
    message = tff.federated_broadcast(tff.federated_map(self._message, server))
    results = tff.federated_map(self._client, (message, clients))
    outputs = collections.OrderedDict()
    for name, aggregator in self._aggregators.items():
      upload = results[0][name]
      weight = (upload.weight,) if aggregator.is_weighted else ()
      outputs[name] = aggregator.next(aggregator_states[name], upload.value, *weight)
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
      (server, aggregator_states, aggregates, counted.result)
    )
    finish = tff.tensorflow.computation(
      self._guarded_finish, *arguments.type_signature.member
    )
    finished = tff.federated_map(finish, arguments)
    return finished[0], finished[1], finished[2]

  def _guarded_finish(self, server, aggregator_states, aggregates, counted):
    """The server's side of the phase, and its metrics."""
    an_error = tf.debugging.assert_greater(
      counted.num_present,
      0.5,
      message='Empty cohort: a round needs at least one client, found none.',
    )
    with tf.control_dependencies([an_error]):
      num_kept = tf.identity(counted.num_kept)
    new_server = self._phase.finish(server, aggregates.results)
    # A secure sum of floats is quantised: half a client stands for none.
    usable = (num_kept > 0.5) & structures.all_finite(new_server)
    new_server, new_states = structures.select(
      usable, (new_server, aggregates.states), (server, aggregator_states)
    )
    metrics = self._phase.metrics(
      counted.measurements, num_kept, aggregates.results, server, new_server
    )
    metrics.update(
      num_clients=num_kept,
      num_clients_left_out=counted.num_left_out,
      **{name: tf.constant(size, tf.int64) for name, size in self._bytes.items()},
    )
    return (
      new_server,
      new_states,
      collections.OrderedDict(train=metrics, aggregator=aggregates.measurements),
    )


def _guarded_work(phase: Phase, client_input: ClientInput) -> Callable:
  """A client's work, with what is not finite taken out."""

  def work(message, value):
    key, rows = client_input.load(value)
    result = phase.work(message, key, rows)
    has_examples = local_loop.num_rows(rows) > 0
    finite = structures.all_finite((rows, result.uploads, result.measurements))
    kept = has_examples & finite
    result = structures.select(kept, result, structures.zeros_like(result))
    counted = _Counted(
      num_present=tf.ones([]),
      num_kept=tf.cast(kept, tf.float32),
      num_left_out=tf.cast(has_examples & ~finite, tf.float32),
      measurements=result.measurements,
    )
    return result.uploads, counted

  return work


def _create(factory: Any, upload_type: Any) -> Any:
  if isinstance(factory, tff.aggregators.UnweightedAggregationFactory):
    return factory.create(upload_type.value)
  return factory.create(upload_type.value, upload_type.weight)


def _count_round(server_type: tff.Type) -> Any:
  @tff.tensorflow.computation(server_type)
  def count_round(server):
    return server._replace(round_num=server.round_num + 1)

  return count_round


def _merge_metrics(phases, metrics):
  """The metrics of all phases as one structure @SERVER; bytes are added up."""

  def merge(parts):
    train: collections.OrderedDict = collections.OrderedDict()
    aggregator: collections.OrderedDict = collections.OrderedDict()
    for i, (phase, part) in enumerate(zip(phases, parts, strict=True)):
      prefix = '' if i == len(parts) - 1 else f'{type(phase).__name__}_'
      train.update((prefix + name, value) for name, value in part['train'].items())
      aggregator.update(part['aggregator'])
    for name in ('bytes_down', 'bytes_up'):
      train[name] = tf.add_n([part['train'][name] for part in parts])
    return collections.OrderedDict(
      client_work=collections.OrderedDict(train=train), aggregator=aggregator
    )

  arguments = tff.federated_zip(tuple(metrics))
  merged = tff.tensorflow.computation(merge, arguments.type_signature.member)
  return tff.federated_map(merged, arguments)
