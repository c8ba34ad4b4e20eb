"""Augmenting gradients: what an algorithm adds to the loss gradient of a local step.

    y <- y - eta U(g_i(y; batch) + a, s)

A term is one summand of a, and carries everything that belongs to it: a state at the
server, what is sent for it, what clients upload for it. Terms sum, so an algorithm is
a list of them. Every hook may be left as it is; nothing is the empty struct `()`.
"""

import abc
import collections
from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, NoReturn

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms.models import ModelWeights
from tff_algorithms.oracles import Evaluation
from tff_algorithms.server_state import ServerState
from tff_algorithms.streams import Stream
from tff_algorithms.structures import Structure


@dataclasses.dataclass(frozen=True)
class Client:
  """What is known on a client before its first local step.

  Attributes:
    weights: The server's weights x.
    rows: All the client's rows, or a `Stream` of them.
    num_examples: How many there are, in the weights' dtype.
    seed: The client's seed in this round.
    full_gradient: (weights, whether with dropout) -> the `local_loop.FullGradient`
      there; of no rows where the client is to send an update only.
    first_gradient: () -> the gradient of the first local step, at x.
    state: What the term keeps on this client, as it is before the round.
    held_back: Rows that it does not train on, or None; no rows where the client is to
      send no update.
  """

  weights: ModelWeights
  rows: Structure | Stream
  num_examples: tf.Tensor
  seed: tf.Tensor
  full_gradient: Callable[[ModelWeights, bool], Any]
  first_gradient: Callable[[], Structure]
  state: Any = ()
  held_back: Any = None


@dataclasses.dataclass(frozen=True)
class Step:
  """What is known at one local step.

  Attributes:
    y: The client's weights before the step.
    x: The server's weights, where y started.
    evaluate: weights -> the oracle's `Evaluation` on this step's batch, with this
      step's seed: two gradients of one step see one dropout mask.
  """

  y: Structure
  x: Structure
  evaluate: Callable[[Structure], Evaluation]


class Term(abc.ABC):
  """A summand of the augmenting gradient."""

  @property
  @abc.abstractmethod
  def name(self) -> str:
    """A prefix for the names of its uploads; unique within an algorithm."""

  # Whether `value` is the same at all steps of a round, and follows from the message.
  is_constant: bool = False

  # Whether `value` takes another gradient on the step's batch: both must then see the
  # same randomness.
  takes_second_gradient: bool = False

  @property
  def needs_gradient_sum(self) -> bool:
    """Whether it wants `Outcome.gradient_sum`, which the loop adds up on request."""
    return False

  @property
  def cohort_limit(self) -> int | None:
    """How many clients a round can have, where there are no more in all."""
    return None

  @property
  def aggregators(self) -> Mapping[str, tff.aggregators.AggregationFactory]:
    """A factory for each upload, by the upload's name."""
    return {}

  @property
  def shared(self) -> Mapping[str, str]:
    """Those that aggregate an upload of the phase's once more: name -> its name."""
    return {}

  def init(self, weights: ModelWeights) -> Any:
    """Its first state at the server."""
    del weights
    return ()

  def client_init(self, weights: ModelWeights) -> Any:
    """Its first state on a client; `()` if it keeps nothing there."""
    del weights
    return ()

  def message(self, state: Any, server: ServerState) -> Any:
    """What the server sends for it, given its state and the server's."""
    del state, server
    return ()

  def prepare(self, message: Any, client: Client) -> Any:
    """A pass over the client's rows before its loop, for `value` and `uploads`."""
    del message, client
    return ()

  def value(self, step: Step, message: Any, prepared: Any) -> Structure:
    """Its value at a local step, of the weights' structure; `()` adds nothing."""
    del step, message, prepared
    return ()

  def uploads(self, client: Client, prepared: Any, outcome: Any) -> Any:
    """What the client uploads for it: names -> `phases.Upload`.

    Args:
      client: The client.
      prepared: What `prepare` gave.
      outcome: The `local_loop.Outcome` of the client's training.
    """
    del client, prepared, outcome
    return collections.OrderedDict()

  def next_client_state(self, client: Client, prepared: Any, outcome: Any) -> Any:
    """Its next state on the client, which a client that is left out does not take.

    Args:
      client: The client; `client.state` is the state so far.
      prepared: What `prepare` gave.
      outcome: The `local_loop.Outcome` of the client's training.
    """
    del prepared, outcome
    return client.state

  def scaled(self, update: Structure, means: Any) -> Structure:
    """What it makes of the clients' mean update, before the server steps by that.

    Args:
      update: The mean update, or what the term before has made of it.
      means: Its own aggregated uploads by name.
    """
    del means
    return update

  def absorb(self, state: Any, means: Any, server: ServerState) -> Any:
    """Its next state at the server.

    Args:
      state: Its state.
      means: Its aggregated uploads by name.
      server: The server's state that the clients trained from.
    """
    del means, server
    return state

  def is_usable(self, state: Any, round_num: tf.Tensor) -> tf.Tensor:
    """Whether its state at the server is good for this round.

    If not, the phase changes nothing.
    """
    del state, round_num
    return tf.constant(True)

  def metrics(
    self, state: Any, means: Any, server: ServerState
  ) -> Mapping[str, tf.Tensor]:
    """Scalars that tell about the round.

    Args:
      state: Its state at the server before the round.
      means: Its aggregated uploads by name.
      server: The server's state before the round.
    """
    del state, means, server
    return {}


def value_at_x(term: Term, message: Any, x: Structure) -> Structure:
  """A term's value at y = x where it follows from its message alone.

  Raises:
    ValueError: If it does not, but needs a client's batch, or what a client prepared.
  """
  unknown = _OnlyOnAClient(
    f'the term {term.name!r} needs what only a client has for its value at y = x, so '
    'the server cannot follow it: neither the state of a base optimizer nor a '
    'selection goes with it.'
  )
  step = Step(y=x, x=x, evaluate=lambda weights: unknown.gradient)
  try:
    value = term.value(step, message, unknown)
  except (TypeError, ValueError):
    unknown.fail()  # What it would compute with is not there.
  if any(part is unknown for part in tf.nest.flatten(value)):
    unknown.fail()
  return value


class _OnlyOnAClient:
  """What stands at the server for what it cannot know; to use it is an error."""

  def __init__(self, message: str):
    self._message = message

  def fail(self) -> NoReturn:
    raise ValueError(self._message)

  def __getattr__(self, name: str) -> NoReturn:
    self.fail()

  def __getitem__(self, key: Any) -> NoReturn:
    self.fail()
