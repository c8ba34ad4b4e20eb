"""Phases made a process: a `LearningProcess` wherever its signature allows."""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms.client_inputs import ClientInput
from tff_algorithms.phases import Phase
from tff_algorithms.process_types import (
  MixedProcess,
  PhasedProcess,
  State,
  StatefulOutput,
  StatefulProcess,
  accessors,
)
from tff_algorithms.round_trip import RoundTrip
from tff_algorithms.selection import Selection
from tff_algorithms.server_state import ServerState


def build_learning_process(
  initial_state: Callable[[], ServerState],
  phases: Sequence[Phase],
  client_input: ClientInput,
  *,
  server_optimizer: tff.learning.optimizers.Optimizer,
  optimizer_name: str = 'server_optimizer',
  metrics_aggregator: tff.aggregators.UnweightedAggregationFactory | None = None,
  central_input: ClientInput | None = None,
  selection: Selection | None = None,
  client_states_by_file: bool = False,
) -> PhasedProcess | MixedProcess | StatefulProcess:
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

  With a `central_input` of type C the process is a `MixedProcess`, and `next` is
  `(<state=S@SERVER, clients={I}@CLIENTS, central=C@SERVER> -> ...)`. Where clients keep
  something it is a `StatefulProcess`, whose `next` takes and returns that too.

  Args:
    initial_state: A TensorFlow function that makes the algorithm's first state.
    phases: The phases, in order.
    client_input: What the clients' argument is.
    server_optimizer: The optimizer whose state is `ServerState.optimizer`.
    optimizer_name: The name of its hyperparameters in H.
    metrics_aggregator: Sums the clients' measurements and counts the clients:
      `tff.aggregators.SumFactory()` by default, or a `SecureSumFactory` whose bounds
      hold all of them. Secure here and in the phases, every aggregation is.
    central_input: What the server's own argument is, where it has rows of its own.
    selection: Which rows of the model's tables a client is sent; None for all.
    client_states_by_file: Whether what clients keep is in files of theirs
      (`client_state_files`); `next` then takes and returns paths.
  """
  server_init = tff.tensorflow.computation(initial_state)
  server_type = server_init.type_signature.result
  trips = [
    RoundTrip(
      phase,
      server_type,
      client_input,
      metrics_aggregator,
      is_last=i == len(phases),
      central_input=central_input,
      selection=selection,
      client_states_by_file=client_states_by_file,
    )
    for i, phase in enumerate(phases, start=1)
  ]

  @tff.federated_computation
  def initialize():
    aggregators = tuple(trip.initialize_aggregators() for trip in trips)
    server = tff.federated_eval(server_init, tff.SERVER)
    return tff.federated_zip(State(server, aggregators))

  types = collections.OrderedDict(
    state=initialize.type_signature.result,
    clients=tff.FederatedType(client_input.type, tff.CLIENTS),
  )
  stateful = [trip for trip in trips if trip.client_state_type is not None]
  if len(stateful) > 1:
    raise ValueError('Clients can keep something from one phase of a round, not more.')
  for trip in stateful:
    types['client_states'] = tff.FederatedType(trip.client_state_type, tff.CLIENTS)
  if central_input:
    types['central'] = tff.FederatedType(central_input.type, tff.SERVER)

  def phase_computation(i):
    def run_phase(state, clients, client_states=None, central=None):
      trip = trips[i].run(
        state.server, state.aggregators[i], clients, client_states, central
      )
      aggregators = [
        trip.aggregators if i == j else state.aggregators[j] for j in range(len(trips))
      ]
      new_state = tff.federated_zip(State(trip.server, tuple(aggregators)))
      if trips[i] not in stateful:
        return tff.learning.templates.LearningProcessOutput(new_state, trip.metrics)
      return StatefulOutput(new_state, trip.metrics, trip.proposed, trip.is_accepted)

    taken = dict(types)
    if trips[i] not in stateful:
      taken.pop('client_states', None)
    return _federated(run_phase, taken)

  computations = [phase_computation(i) for i in range(len(phases))]

  def next_round(state, **arguments):
    metrics = []
    kept: dict[str, Any] = {}
    for run_phase in computations:
      names = tff.structure.name_list(run_phase.type_signature.parameter)
      output = run_phase(state, *(arguments[name] for name in names[1:]))
      state = output.state
      metrics.append(output.metrics)
      if 'client_states' in names:
        kept = {'proposed': output.proposed, 'is_accepted': output.is_accepted}
    merged = _merge_metrics(phases, metrics)
    if not kept:
      return tff.learning.templates.LearningProcessOutput(state, merged)
    return StatefulOutput(state, merged, **kept)

  arguments = (computations, initialize, _federated(next_round, types))
  methods = accessors(initialize, server_optimizer, optimizer_name)
  if stateful:
    (trip,) = stateful
    initialize_client = tff.tensorflow.computation(
      lambda: trip.phase.client_init(initial_state().weights)
    )
    return StatefulProcess(
      initialize_client,
      trip.phase.cohort_limit,
      client_states_by_file,
      *arguments,
      **methods,
    )
  return (MixedProcess if central_input else PhasedProcess)(*arguments, **methods)


def _federated(
  run: Callable[..., Any], types: Mapping[str, tff.Type]
) -> tff.Computation:
  """A function of arguments by name as a computation of these types."""
  return tff.federated_computation(
    lambda arguments: run(**{name: arguments[name] for name in types}),
    tff.StructType(list(types.items())),
  )


def build_central_process(
  initial_state: Callable[[], ServerState],
  run_round: Callable[[ServerState], tuple[ServerState, Any]],
  central_input: ClientInput,
  *,
  optimizer: tff.learning.optimizers.Optimizer,
) -> MixedProcess:
  """Builds a process without clients: `next` is `(<S@SERVER, C@SERVER> -> ...)`.

  S and what `next` returns are as for `build_learning_process`, with C the type of
  `central_input`.

  Args:
    initial_state: A TensorFlow function that makes the algorithm's first state.
    run_round: A TensorFlow function, server -> (server, metrics).
    central_input: What the server's argument is.
    optimizer: The optimizer whose state is `ServerState.optimizer`.
  """

  @tff.tensorflow.computation
  def initial():
    return State(initial_state(), ())

  @tff.federated_computation
  def initialize():
    return tff.federated_eval(initial, tff.SERVER)

  @tff.tensorflow.computation(initial.type_signature.result, central_input.type)
  def run(state, own):
    server = state.server._replace(central=lambda: central_input.load(own).rows)
    server, metrics = run_round(server)
    return State(server, ()), metrics

  @tff.federated_computation(
    initialize.type_signature.result,
    tff.FederatedType(central_input.type, tff.SERVER),
  )
  def next_round(state, central):
    state, metrics = tff.federated_map(run, (state, central))
    train = collections.OrderedDict(train=metrics)
    return tff.learning.templates.LearningProcessOutput(
      state, tff.federated_zip(collections.OrderedDict(client_work=train))
    )

  return MixedProcess(
    (), initialize, next_round, **accessors(initialize, optimizer, 'optimizer')
  )


def _merge_metrics(phases, metrics):
  """The metrics of all phases as one structure @SERVER; bytes are added up."""
  if len(phases) == 1:  # There is nothing to be computed.
    (only,) = metrics
    return tff.federated_zip(
      collections.OrderedDict(
        client_work=collections.OrderedDict(train=only.train),
        aggregator=only.aggregator,
      )
    )

  def merge(parts):
    train: collections.OrderedDict = collections.OrderedDict()
    aggregator: collections.OrderedDict = collections.OrderedDict()
    for i, (phase, part) in enumerate(zip(phases, parts, strict=True)):
      prefix = '' if i == len(parts) - 1 else f'{type(phase).__name__}_'
      train.update((prefix + name, value) for name, value in part['train'].items())
      aggregator.update(
        (prefix + name, value) for name, value in part['aggregator'].items()
      )
    for name in ('bytes_down', 'bytes_up'):
      train[name] = tf.add_n([part['train'][name] for part in parts])
    return collections.OrderedDict(
      client_work=collections.OrderedDict(train=train), aggregator=aggregator
    )

  arguments = tff.federated_zip(tuple(metrics))
  merged = tff.tensorflow.computation(merge, arguments.type_signature.member)
  return tff.federated_map(merged, arguments)
