"""Phases made a `tff.learning.templates.LearningProcess`."""

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms.client_inputs import ClientInput
from tff_algorithms.models import ModelWeights
from tff_algorithms.phases import Phase, ServerState
from tff_algorithms.round_trip import RoundTrip


class State(NamedTuple):
  """The state of a process.

  Attributes:
    server: The algorithm's state.
    aggregators: The states of its aggregators, a tuple with an OrderedDict a phase.
  """

  server: ServerState
  aggregators: tuple


class PhasedProcess(tff.learning.templates.LearningProcess):
  """A `LearningProcess` whose round can also be run one phase at a time."""

  def __init__(self, phases: Sequence[tff.Computation], *args: Any, **kwargs: Any):
    super().__init__(*args, **kwargs)
    self._phases = tuple(phases)

  @property
  def phases(self) -> tuple[tff.Computation, ...]:
    """`(<S@SERVER, {I}@CLIENTS> -> <state=S@SERVER, metrics=P@SERVER>)` a phase.

    Each is one broadcast and one aggregation, where `next` of several phases is more
    than TFF's deployment forms and its distributed runtime take. One after the other
    they are `next`, but for P being the metrics of a single phase.
    """
    return self._phases


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
) -> PhasedProcess:
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
    optimizer_name: The name of its hyperparameters in H.
    metrics_aggregator: Sums the clients' measurements and counts the clients:
      `tff.aggregators.SumFactory()` by default, or a `SecureSumFactory` whose bounds
      hold all of them. Secure here and in the phases, every aggregation is.
  """
  server_init = tff.tensorflow.computation(initial_state)
  server_type = server_init.type_signature.result
  trips = [
    RoundTrip(phase, server_type, client_input, metrics_aggregator, i == len(phases))
    for i, phase in enumerate(phases, start=1)
  ]

  @tff.federated_computation
  def initialize():
    aggregators = tuple(trip.initialize_aggregators() for trip in trips)
    server = tff.federated_eval(server_init, tff.SERVER)
    return tff.federated_zip(State(server, aggregators))

  argument_types = (
    initialize.type_signature.result,
    tff.FederatedType(client_input.type, tff.CLIENTS),
  )

  def phase_computation(i):
    @tff.federated_computation(*argument_types)
    def run_phase(state, clients):
      server, own, metrics = trips[i].run(state.server, state.aggregators[i], clients)
      aggregators = [own if i == j else state.aggregators[j] for j in range(len(trips))]
      new_state = tff.federated_zip(State(server, tuple(aggregators)))
      return tff.learning.templates.LearningProcessOutput(new_state, metrics)

    return run_phase

  computations = [phase_computation(i) for i in range(len(phases))]

  @tff.federated_computation(*argument_types)
  def next_round(state, clients):
    metrics = []
    for run_phase in computations:
      output = run_phase(state, clients)
      state = output.state
      metrics.append(output.metrics)
    return tff.learning.templates.LearningProcessOutput(
      state, _merge_metrics(phases, metrics)
    )

  state_type = initialize.type_signature.result.member

  get_model_weights = tff.tensorflow.computation(model_weights, state_type)

  @tff.tensorflow.computation(state_type, server_type.weights)
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

  return PhasedProcess(
    computations,
    initialize,
    next_round,
    get_model_weights,
    set_model_weights,
    get_hparams_fn=get_hparams,
    set_hparams_fn=set_hparams,
  )


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
