"""When SCAFFOLD-Catalyst-S has solved a sub-problem: Hou et al. 2021, Algorithm 5.

The rules are asked as soon as the mean of the G_i(z~) is known.
"""

import abc
from collections.abc import Callable
import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tff_algorithms import checks, structures
from tff_algorithms.structures import Structure

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
    distance = norm_of(structures.subtract(problem.z, solution))
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


def norm_of(z: Structure) -> tf.Tensor:
  """||z|| in the dtype of z: small steps of large sums decide."""
  return tf.sqrt(
    tf.add_n([tf.reduce_sum(tf.square(part)) for part in tf.nest.flatten(z)])
  )
