"""What an algorithm keeps at the server."""

import collections
from typing import Any, NamedTuple, Protocol, runtime_checkable

import tensorflow as tf

from tff_algorithms.models import ModelWeights


@runtime_checkable
class Restartable(Protocol):
  """The state of a term that goes by where x has been."""

  def started_again(self) -> Any:
    """The state for an x that has been set."""


@runtime_checkable
class Output(Restartable, Protocol):
  """The state of a term that says what model comes out, given x; x once that is set."""

  def output(self, weights: ModelWeights) -> ModelWeights:
    """The model that comes out."""


class ServerState(NamedTuple):
  """What an algorithm keeps at the server from round to round.

  Attributes:
    round_num: How many rounds there have been, an int32 scalar.
    weights: The model weights x.
    optimizer: The state of the server's optimizer.
    terms: The states of the augmenting gradients, in their order.
    hparams: An OrderedDict of scalars that `set_hparams` can change.
    central: Within a phase, () -> the server's own rows in this round; `()` in between,
      and where it has none.
  """

  round_num: tf.Tensor
  weights: ModelWeights
  optimizer: Any
  terms: tuple
  hparams: collections.OrderedDict
  central: Any = ()

  @property
  def output(self) -> ModelWeights:
    """The model that comes out: x, unless the state of a term says another."""
    for state in self.terms:
      if isinstance(state, Output):
        return state.output(self.weights)
    return self.weights

  def with_output(self, weights: ModelWeights) -> 'ServerState':
    """The state with this model for x, which is then what comes out."""
    terms = tuple(
      state.started_again() if isinstance(state, Restartable) else state
      for state in self.terms
    )
    return self._replace(weights=weights, terms=terms)
