"""The processes that builders return: one for each form of `next`."""

import collections
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow_federated as tff

from tff_algorithms.client_states import ClientState
from tff_algorithms.models import ModelWeights
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

    With what clients keep, and with an argument of the server's, these come after, as
    in `next`; of several phases one takes what clients keep.

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


class StatefulOutput(NamedTuple):
  """What `next` of a `StatefulProcess` returns.

  Attributes:
    state: S @SERVER.
    metrics: M @SERVER.
    proposed: `{<client_id=str,value=C>}@CLIENTS`, what each client would keep, in any
      order.
    is_accepted: Whether they may, `bool@SERVER`: where the server's new state was not
      finite and the old one stayed, clients keep what they had too.
  """

  state: Any
  metrics: Any
  proposed: Sequence[ClientState]
  is_accepted: Any

  @property
  def client_states(self) -> Sequence[ClientState]:
    """What the round's clients keep: what they proposed, or nothing new."""
    return self.proposed if self.is_accepted else ()


class StatefulProcess(MixedProcess):
  """A process whose clients keep something from round to round.

  With C the type of what a client keeps, `next` takes
  `{<client_id=str,value=C>}@CLIENTS` after the clients' data (and before the server's
  argument, if it has one), and returns a `StatefulOutput`. The module `client_states`
  has what hands them out and takes them back. Of the phases one does so; the others
  are as without.

  Attributes:
    initialize_client: `( -> C)`, what a client starts with.
    cohort_limit: How many clients there are in all, so that no round has more; None
      where that does not matter.
    client_states_by_file: Whether what clients keep is in files of theirs.
  """

  def __init__(
    self,
    initialize_client: tff.Computation,
    cohort_limit: int | None,
    client_states_by_file: bool,
    *args: Any,
    **kwargs: Any,
  ):
    super().__init__(*args, **kwargs)
    self.initialize_client = initialize_client
    self.cohort_limit = cohort_limit
    self.client_states_by_file = client_states_by_file


def model_weights(state: State) -> ModelWeights:
  """The model in a state: `get_model_weights` without a call of the runtime.

  Such a call ships the whole state there and the model back, seconds for a large one.
  """
  return state.server.output


def accessors(
  initialize: tff.Computation,
  server_optimizer: tff.learning.optimizers.Optimizer,
  optimizer_name: str,
) -> dict[str, tff.Computation]:
  """What gets and sets the weights and the hyperparameters in a state."""
  state_type = initialize.type_signature.result.member
  get_model_weights = tff.tensorflow.computation(model_weights, state_type)

  @tff.tensorflow.computation(state_type, state_type.server.weights)
  def set_model_weights(state, weights):
    return state._replace(server=state.server.with_output(weights))

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
