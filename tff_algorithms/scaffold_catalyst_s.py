"""SCAFFOLD-Catalyst-S: Hou et al. 2021, Algorithms 3 and 5.

In meta-iteration t clients have
    f_i^theta(x, y) = f_i(x, y) + theta/2 ||x - xbar||^2 - theta/2 ||y - ybar||^2
so that                 G_i^theta(z) = G_i(z) + theta (z - zbar)
and at its end          zbar <- SCAFFOLD-S({f_i^theta}), started at zbar

It is SCAFFOLD-S with one more term, FedProx's, anchored at zbar: the correction of
SCAFFOLD-S is the same for f_i^theta and f_i. When a meta-iteration ends is a rule
of its own, asked as soon as the mean of the G_i(z~) is known.
"""

import abc
from collections.abc import Callable, Sequence
import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import (
  checks,
  mime,
  models,
  oracles,
  saddle_framework,
  structures,
)
from tff_algorithms.fed_prox import Proximal
from tff_algorithms.models import ModelWeights
from tff_algorithms.server_state import ServerState
from tff_algorithms.structures import Structure
from tff_algorithms.terms import Step, Term

# What weights of about 1 may be wrong by, in units of their dtype's precision.
_ROUNDINGS = 4


class MetaIteration(NamedTuple):
  """Where the meta-iterations are.

  Attributes:
    t: How many there have been, an int32 scalar.
    zbar: What this one started from.
    inner_rounds: How many rounds of SCAFFOLD-S it has had; with 0 the next one starts
      it, at the z~ of then.
    start_norm: ||G(zbar)||, the norm of the sub-problem's gradient mapping there.
  """

  t: tf.Tensor
  zbar: Structure
  inner_rounds: tf.Tensor
  start_norm: tf.Tensor


class CatalystState(NamedTuple):
  """What the server keeps, so that a round that fails has changed nothing.

  Attributes:
    kept: The meta-iteration after the last round.
    proposed: That of the round under way, once G(z~) is known: it is kept if the
      round succeeds.
  """

  kept: MetaIteration
  proposed: MetaIteration

  def started_again(self) -> 'CatalystState':
    """With a meta-iteration that starts where the next round does."""
    first = tf.zeros_like(self.kept.inner_rounds)
    return self._replace(kept=self.kept._replace(inner_rounds=first))


class SubProblem(NamedTuple):
  """What is known of f^theta when it is asked whether it is solved.

  Attributes:
    meta: The meta-iteration.
    z: z~, where SCAFFOLD-S has got.
    norm: ||G^theta(z~)||.
    theta: theta.
  """

  meta: MetaIteration
  z: Structure
  norm: tf.Tensor
  theta: float


class Stopping(abc.ABC):
  """When SCAFFOLD-S has solved a sub-problem well enough."""

  @abc.abstractmethod
  def is_solved(self, problem: SubProblem) -> tf.Tensor:
    """Whether it has."""


@dataclasses.dataclass(frozen=True)
class InnerRounds(Stopping):
  """After a fixed number of rounds."""

  rounds: int

  def __post_init__(self) -> None:
    checks.count(self.rounds, 'inner_rounds')

  def is_solved(self, problem: SubProblem) -> tf.Tensor:
    return problem.meta.inner_rounds >= self.rounds


@dataclasses.dataclass(frozen=True)
class SufficientDecrease(Stopping):
  """Once ||G^theta(z~)|| is at most so many times what it was: appendix F's heuristic.

  A saddle function has no value to decrease; the norm of its gradient mapping has.
  """

  factor: float = 0.5

  def __post_init__(self) -> None:
    if not 0 < self.factor < 1:
      raise ValueError(f'factor must be between 0 and 1, found {self.factor}.')

  def is_solved(self, problem: SubProblem) -> tf.Tensor:
    return problem.norm <= self.factor * problem.meta.start_norm


class TooAccurateError(ValueError):
  """An accuracy that the weights' dtype cannot have."""


@dataclasses.dataclass(frozen=True)
class ProxAccuracy(Stopping):
  """Once ||z~ - prox(zbar)||^2 <= (mu / (2 (theta + mu)))^2 epsilon: Algorithm 5.

  Attributes:
    prox: (zbar, theta) -> the solution of the sub-problem.
    convexity: mu, such that f is mu-strongly convex-concave.
    epsilon: The accuracy asked of the last zbar.
  """

  prox: Callable[[Any, float], Structure]
  convexity: float
  epsilon: float

  def __post_init__(self) -> None:
    checks.positive(self.convexity, 'convexity')
    checks.positive(self.epsilon, 'epsilon')

  def is_solved(self, problem: SubProblem) -> tf.Tensor:
    solution = self.prox(problem.meta.zbar, problem.theta)
    distance = _norm(structures.subtract(problem.z, solution))
    return distance <= self._distance(problem.theta, distance.dtype)

  def _distance(self, theta: float, dtype: tf.DType) -> float:
    """The distance to the solution that is small enough.

    Raises:
      TooAccurateError: If it is lost in the rounding of weights of about 1: zbar would
        never move, and nothing would tell.
    """
    mu = self.convexity
    distance = mu / (2 * (theta + mu)) * math.sqrt(self.epsilon)
    if distance < _ROUNDINGS * np.finfo(dtype.as_numpy_dtype).eps:
      raise TooAccurateError(
        f'With epsilon={self.epsilon:g}, theta={theta:g} and mu={mu:g} a sub-problem '
        f'is to be solved within {distance:.1g}, which is lost in the rounding of '
        f'{dtype.name} weights.'
      )
    return distance


def _norm(z: Structure) -> tf.Tensor:
  """||z|| in the dtype of z: small steps of large sums decide."""
  return tf.sqrt(
    tf.add_n([tf.reduce_sum(tf.square(part)) for part in tf.nest.flatten(z)])
  )


@dataclasses.dataclass(frozen=True)
class Catalyst(Proximal):
  """a = theta (z_i - zbar); the server keeps zbar.

  Attributes:
    stopping: When zbar moves.
  """

  stopping: Stopping

  name = 'catalyst'

  def init(self, weights: ModelWeights) -> CatalystState:
    zbar = tf.nest.map_structure(tf.identity, weights.trainable)
    meta = MetaIteration(
      tf.constant(0), zbar, tf.constant(0), tf.zeros([], structures.weight_dtype(zbar))
    )
    return CatalystState(meta, meta)

  def message(self, state: CatalystState, server: ServerState) -> Structure:
    del server
    return state.proposed.zbar

  def anchor(self, step: Step, message: Structure) -> Structure:
    return message

  def propose(self, state: CatalystState, z: Structure, c: Structure) -> CatalystState:
    """The state for a round at z = z~, c being G(z~)."""
    meta = state.kept
    norm = _norm(self._gradient(meta, z, c))
    solved = self.stopping.is_solved(SubProblem(meta, z, norm, self.rho))
    is_first = tf.equal(meta.inner_rounds, 0)  # Of all, or since z was set.
    solved &= ~is_first
    t = meta.t + tf.cast(solved, meta.t.dtype)
    start = MetaIteration(t, z, tf.zeros_like(meta.inner_rounds), _norm(c))
    meta = structures.select(solved | is_first, start, meta)
    proposed = meta._replace(inner_rounds=meta.inner_rounds + 1)
    return state._replace(proposed=proposed)

  def absorb(
    self, state: CatalystState, means: Any, server: ServerState
  ) -> CatalystState:
    del means, server
    return state._replace(kept=state.proposed)

  def _gradient(self, meta: MetaIteration, z: Structure, c: Structure) -> Structure:
    """G^theta(z)."""
    return structures.add(
      c, structures.scale(self.rho, structures.subtract(z, meta.zbar))
    )

  def metrics(self, state: CatalystState, means: Any, server: ServerState) -> Any:
    c, meta = server.terms[0].c, state.proposed
    gradient = self._gradient(meta, server.weights.trainable, c)
    return {
      'meta_iterations': tf.cast(meta.t, tf.float32),
      'inner_rounds': tf.cast(meta.inner_rounds, tf.float32),
      'subproblem_gradient_norm': structures.global_norm(gradient),
    }


def build_scaffold_catalyst_s(
  objective: models.Model | oracles.Oracle,
  *,
  theta: float,
  stopping: Stopping | None = None,
  client_learning_rate: float,
  batch_size: int,
  terms: Sequence[Term] = (),
  **arguments: Any,
) -> tff.learning.templates.LearningProcess:
  """Builds SCAFFOLD-Catalyst-S, in two phases a round; theta = 0 is SCAFFOLD-S.

  `next` is `(<S@SERVER, {batch*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`; see
  `process.build_learning_process` for S and M.

  Args:
    objective: A model whose trainable weights are a `saddle_point.SaddlePoint`, or an
      oracle of gradient mappings.
    theta: The strength of the regularization, 0 or above.
    stopping: When a sub-problem is solved; once the norm of its gradient mapping is
      half of what it was, by default.
    client_learning_rate: gamma_l.
    batch_size: The rows of a local step.
    terms: Augmenting gradients to add to the local step.
    **arguments: More arguments of `saddle_framework.build`: `local_steps`,
      `sync_probability`, `server_learning_rate`, ...
  """
  catalyst = Catalyst(
    checks.not_negative(theta, 'theta'), stopping or SufficientDecrease()
  )

  def gathered(server: ServerState) -> ServerState:
    c, state, *rest = server.terms
    state = catalyst.propose(state, server.weights.trainable, c.c)
    return server._replace(terms=(c, state, *rest))

  return saddle_framework.build(
    objective,
    client_learning_rate=client_learning_rate,
    batch_size=batch_size,
    control_variate=mime.CurrentControlVariate,
    gathered=gathered,
    terms=[catalyst, *terms],
    **arguments,
  )
