"""How clients step: with an optimizer of their own, or with the server's.

    s, y <- Optimizer(s, y, g)

The s to start from is fresh on every client in every round, or it is the server's:
fixed in all local steps (Mime), or updated by them and then thrown away (Loc-Mime).
"""

import abc
import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import base_optimizers, server_steps, structures
from tff_algorithms.base_optimizers import BaseOptimizer
from tff_algorithms.server_state import ServerState
from tff_algorithms.structures import Structure

_LEARNING_RATE = tff.learning.optimizers.LEARNING_RATE_KEY


class ClientOptimizer(abc.ABC):
  """An optimizer of local steps, and where its state comes from."""

  @abc.abstractmethod
  def message(self, server: ServerState, factor: Any) -> Any:
    """What a client is sent for it.

    Args:
      server: The server's state.
      factor: What its learning rate is multiplied by, or None.
    """

  @abc.abstractmethod
  def start(self, message: Any, specs: Structure) -> Any:
    """The state before the first step, for weights of these `tf.TensorSpec`s."""

  @abc.abstractmethod
  def update(self, state: Any, y: Structure, g: Structure) -> tuple[Any, Structure]:
    """(state, y) after a step along g."""

  def upload(self, x: Structure, y: Structure, state: Any) -> Structure:
    """What a client sends for its steps from x to y, with the state after them."""
    del state
    return structures.subtract(x, y)

  def displacement(self, upload: Structure, server: ServerState) -> Structure:
    """The mean of x - y_i that follows from the mean of the uploads."""
    del server
    return upload


@dataclasses.dataclass(frozen=True)
class Fresh(ClientOptimizer):
  """A pair (U, V) whose state is new; its rate is the `client_learning_rate`."""

  pair: BaseOptimizer

  @property
  def _optimizer(self) -> tff.learning.optimizers.Optimizer:
    return base_optimizers.as_tff_optimizer(self.pair, 1.0)

  def message(self, server: ServerState, factor: Any) -> Any:
    rate = server.hparams['client_learning_rate']
    return rate if factor is None else rate * tf.cast(factor, rate.dtype)

  def start(self, message: Any, specs: Structure) -> Any:
    optimizer = self._optimizer
    state = optimizer.initialize(specs)
    return optimizer.set_hparams(state, {_LEARNING_RATE: message})

  def update(self, state: Any, y: Structure, g: Structure) -> tuple[Any, Structure]:
    return self._optimizer.next(state, y, g)


@dataclasses.dataclass(frozen=True)
class ServersState(ClientOptimizer):
  """The optimizer whose state is `ServerState.optimizer`.

  Attributes:
    optimizer: A pair by `base_optimizers.as_tff_optimizer`, or any of TFF's.
    updates_locally: Whether local steps update the client's copy of the state.
  """

  optimizer: tff.learning.optimizers.Optimizer
  updates_locally: bool = False

  def message(self, server: ServerState, factor: Any) -> Any:
    if factor is None:
      return server.optimizer
    return server_steps.scheduled(self.optimizer, server.optimizer, factor)

  def start(self, message: Any, specs: Structure) -> Any:
    del specs
    return message

  def update(self, state: Any, y: Structure, g: Structure) -> tuple[Any, Structure]:
    new_state, y = self.optimizer.next(state, y, g)
    return (new_state if self.updates_locally else state), y
