"""The server's optimizers of Algorithm 1 of mixed FL: Augenstein et al. 2022."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow_federated as tff

from tff_algorithms import server_steps, structures
from tff_algorithms.structures import Structure


class Merge(tff.learning.optimizers.Optimizer):
  """The last lines of Algorithm 1, with the states of all its optimizers.

  x_f <- ServerOptimizer(x, -Delta), Delta_f = x_f - x for the clients, or for each of
  several populations of them; x <- MergeOptimizer(x, -sum of Delta_f and Delta_c).
  """

  def __init__(
    self,
    servers: Mapping[str, tff.learning.optimizers.Optimizer],
    merge: tff.learning.optimizers.Optimizer,
  ):
    """Initializes the optimizer.

    Args:
      servers: ServerOptimizer, by the name of whose mean update it takes.
      merge: MergeOptimizer.
    """
    self._servers = dict(servers)
    self._parts = {**self._servers, 'merge': merge}

  def _map(self, function: str, *arguments: Mapping[str, Any]) -> Any:
    return collections.OrderedDict(
      (name, getattr(part, function)(*(argument[name] for argument in arguments)))
      for name, part in self._parts.items()
    )

  def initialize(self, specs: Any) -> Any:
    return self._map('initialize', dict.fromkeys(self._parts, specs))

  def step(
    self,
    state: Any,
    x: Structure,
    updates: Mapping[str, Structure],
    deltas: Sequence[Structure] = (),
    factor: Any = None,
    is_present: Mapping[str, Any] | None = None,
  ) -> tuple[Any, Structure]:
    """x after a round.

    Args:
      state: The states of all.
      x: The weights.
      updates: The means of x - x_i, which are -Delta, by name.
      deltas: What is merged as it is: Delta_c = x_c - x.
      factor: What eta_s is multiplied by, or None.
      is_present: Whether there is an update of that name, all by default; without one
        its optimizer does not step.
    """
    state, deltas = collections.OrderedDict(state), list(deltas)
    for name, optimizer in self._servers.items():
      stepped = server_steps.scheduled_step(
        optimizer, state[name], x, updates[name], factor
      )
      if is_present is not None:
        stepped = structures.select(is_present[name], stepped, (state[name], x))
      state[name], x_f = stepped
      deltas.append(structures.subtract(x_f, x))
    g = structures.scale(-1, structures.add(*deltas))
    state['merge'], x = self._parts['merge'].next(state['merge'], x, g)
    return state, x

  def next(self, state: Any, weights: Any, gradients: Any) -> tuple[Any, Any]:
    """A round with the same mean update for all."""
    return self.step(state, weights, dict.fromkeys(self._servers, gradients))

  def get_hparams(self, state: Any) -> Any:
    return self._map('get_hparams', state)

  def set_hparams(self, state: Any, hparams: Any) -> Any:
    return self._map('set_hparams', state, hparams)
