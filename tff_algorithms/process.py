"""Phases made a `tff.learning.templates.LearningProcess`."""

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms.client_inputs import ClientInput
from tff_algorithms.models import ModelWeights
from tff_algorithms.phases import Phase
from tff_algorithms.round_trip import RoundTrip
from tff_algorithms.selection import Selection
from tff_algorithms.server_state import ServerState


class State(NamedTuple):
  """The state of a process.

  Attributes:
    server: The algorithm's state.
    aggregators: The states of its aggregators, a tuple with an OrderedDict a phase.
  """

  server: ServerState
  aggregators: tuple


class _Phased:
  """A process whose round can also be run one phase at a time."""

  _phases: tuple[tff.Computation, ...]

  @property
  def phases(self) -> tuple[tff.Computation, ...]:
    """`(<S@SERVER, {I}@CLIENTS> -> <state=S@SERVER, metrics=P@SERVER>)` a phase.

    With an argument of the server's that is the third, as of `next`.

    Each is one broadcast and one aggregation, where `next` of several phases is more
    than TFF's deployment forms and its distributed runtime take. One after the other
    they are `next`, but for P being the metrics of a single phase.
    """
    return self._phases


class PhasedProcess(_Phased, tff.learning.templates.LearningProcess):
  """A `LearningProcess` whose round can also be run one phase at a time."""

  def __init__(self, phases: Sequence[tff.Computation], *args: Any, **kwargs: Any):
    super().__init__(*args, **kwargs)
    self._phases = tuple(phases)


class MixedProcess(_Phased, tff.templates.IterativeProcess):
  """A process whose `next` (and each phase) takes an argument of the server's last.

  A `LearningProcess` cannot; this has the same methods beside.

  Attributes:
    get_model_weights: `(S -> W)`.
    set_model_weights: `(<S, W> -> S)`.
    get_hparams: `(S -> H)`.
    set_hparams: `(<S, H> -> S)`.
  """

  def __init__(
    self,
    phases: Sequence[tff.Computation],
    initialize_fn: tff.Computation,
    next_fn: tff.Computation,
    get_model_weights: tff.Computation,
    set_model_weights: tff.Computation,
    *,
    get_hparams_fn: tff.Computation,
    set_hparams_fn: tff.Computation,
  ):
    super().__init__(initialize_fn, next_fn, next_is_multi_arg=True)
    self._phases = tuple(phases)
    self.get_model_weights = get_model_weights
    self.set_model_weights = set_model_weights
    self.get_hparams = get_hparams_fn
    self.set_hparams = set_hparams_fn


def model_weights(state: State) -> ModelWeights:
  """The model in a state: `get_model_weights` without a call of the runtime.

  Such a call ships the whole state there and the model back, seconds for a large one.
  """
  return state.server.weights


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
) -> PhasedProcess | MixedProcess:
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
  `(<state=S@SERVER, clients={I}@CLIENTS, central=C@SERVER> -> ...)`.

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
    )
    for i, phase in enumerate(phases, start=1)
  ]

  @tff.federated_computation
  def initialize():
    aggregators = tuple(trip.initialize_aggregators() for trip in trips)
    server = tff.federated_eval(server_init, tff.SERVER)
    return tff.federated_zip(State(server, aggregators))

  argument_types = [
    initialize.type_signature.result,
    tff.FederatedType(client_input.type, tff.CLIENTS),
  ]
  if central_input:
    argument_types.append(tff.FederatedType(central_input.type, tff.SERVER))

  def federated(run):
    """`run(state, clients[, central])` as a computation that names its arguments."""
    if not central_input:
      return tff.federated_computation(
        lambda state, clients: run(state, clients), *argument_types
      )
    return tff.federated_computation(
      lambda state, clients, central: run(state, clients, central), *argument_types
    )

  def phase_computation(i):
    def run_phase(state, clients, *central):
      server, own, metrics = trips[i].run(
        state.server, state.aggregators[i], clients, *central
      )
      aggregators = [own if i == j else state.aggregators[j] for j in range(len(trips))]
      new_state = tff.federated_zip(State(server, tuple(aggregators)))
      return tff.learning.templates.LearningProcessOutput(new_state, metrics)

    return federated(run_phase)

  computations = [phase_computation(i) for i in range(len(phases))]

  def next_round(state, clients, *central):
    metrics = []
    for run_phase in computations:
      output = run_phase(state, clients, *central)
      state = output.state
      metrics.append(output.metrics)
    return tff.learning.templates.LearningProcessOutput(
      state, _merge_metrics(phases, metrics)
    )

  process_class = MixedProcess if central_input else PhasedProcess
  return process_class(
    computations,
    initialize,
    federated(next_round),
    **_accessors(initialize, server_optimizer, optimizer_name),
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
    (), initialize, next_round, **_accessors(initialize, optimizer, 'optimizer')
  )


def _accessors(
  initialize: tff.Computation,
  server_optimizer: tff.learning.optimizers.Optimizer,
  optimizer_name: str,
) -> dict[str, tff.Computation]:
  """What gets and sets the weights and the hyperparameters in a state."""
  state_type = initialize.type_signature.result.member
  get_model_weights = tff.tensorflow.computation(model_weights, state_type)

  @tff.tensorflow.computation(state_type, state_type.server.weights)
  def set_model_weights(state, weights):
    return state._replace(server=state.server._replace(weights=weights))

  @tff.tensorflow.computation(state_type)
  def get_hparams(state):
    server = state.server
    hparams = collections.OrderedDict(server.hparams)
    hparams[optimizer_name] = server_optimizer.get_hparams(server.optimizer)
    return hparams

  @tff.tensorflow.computation(state_type, get_hparams.type_signature.result)
  def set_hparams(state, hparams):
    hparams = collections.OrderedDict(hparams)
    optimizer = server_optimizer.set_hparams(
      state.server.optimizer, hparams.pop(optimizer_name)
    )
    server = state.server._replace(optimizer=optimizer, hparams=hparams)
    return state._replace(server=server)

  return {
    'get_model_weights': get_model_weights,
    'set_model_weights': set_model_weights,
    'get_hparams_fn': get_hparams,
    'set_hparams_fn': set_hparams,
  }


def _merge_metrics(phases, metrics):
  """The metrics of all phases as one structure @SERVER; bytes are added up."""

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
