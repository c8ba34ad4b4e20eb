"""Base optimizers as pairs (U, V): Karimireddy et al. 2021 (Mime), Table 5.

A base optimizer steps with x <- x - eta U(g, s) and then tracks s <- V(g, s). For a
fixed s, U is linear in g, so that a client can apply the server's s to many local
steps. All the U here use the s from before V, as the table does: Adam and AdaGrad
divide by the root of the old v, where TFF's divide by that of the new one.
"""

import abc
import collections
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import checks, structures
from tff_algorithms.structures import Structure

_LEARNING_RATE = tff.learning.optimizers.LEARNING_RATE_KEY


class BaseOptimizer(abc.ABC):
  """A pair of pure functions (U, V) and the statistics s they start from."""

  def init(self, specs: Structure) -> Any:
    """The first s, for weights of these `tf.TensorSpec`s."""
    del specs
    return ()

  @abc.abstractmethod
  def U(self, g: Structure, s: Any) -> Structure:
    """The direction of a step; the step is x <- x - eta U(g, s)."""

  def V(self, g: Structure, s: Any) -> Any:
    """The statistics after a gradient g."""
    del g
    return s


def _moving_average(beta: float, new: Structure, old: Structure) -> Structure:
  """(1 - beta) new + beta old."""
  return tf.nest.map_structure(lambda n, o: (1 - beta) * n + beta * o, new, old)


def _square(g: Structure) -> Structure:
  return tf.nest.map_structure(tf.square, g)


def _preconditioned(g: Structure, v: Structure, eps: float) -> Structure:
  """g / (eps + sqrt(v))."""
  return tf.nest.map_structure(lambda a, b: a / (eps + tf.sqrt(b)), g, v)


def _full(specs: Structure, value: float) -> Structure:
  return tf.nest.map_structure(
    lambda s: tf.fill(s.shape, tf.constant(value, s.dtype)), specs
  )


@dataclasses.dataclass(frozen=True)
class _SGD(BaseOptimizer):
  def U(self, g, s):
    return g


@dataclasses.dataclass(frozen=True)
class _Momentum(BaseOptimizer):
  beta: float

  def init(self, specs):
    return _full(specs, 0.0)

  def U(self, g, s):
    return _moving_average(self.beta, g, s)

  def V(self, g, s):
    return _moving_average(self.beta, g, s)


@dataclasses.dataclass(frozen=True)
class _AdaGrad(BaseOptimizer):
  eps: float
  initial_accumulator: float

  def init(self, specs):
    return _full(specs, self.initial_accumulator)

  def U(self, g, s):
    return _preconditioned(g, s, self.eps)

  def V(self, g, s):
    return structures.add(s, _square(g))


class AdamStatistics(NamedTuple):
  """Adam's s: the moving averages of the gradient and of its square."""

  m: Structure
  v: Structure


@dataclasses.dataclass(frozen=True)
class _Adam(BaseOptimizer):
  beta_1: float
  beta_2: float
  eps: float
  initial_accumulator: float

  def init(self, specs):
    return AdamStatistics(_full(specs, 0.0), _full(specs, self.initial_accumulator))

  def U(self, g, s):
    return _preconditioned(_moving_average(self.beta_1, g, s.m), s.v, self.eps)

  def V(self, g, s):
    return AdamStatistics(
      m=_moving_average(self.beta_1, g, s.m),
      v=_moving_average(self.beta_2, _square(g), s.v),
    )


def sgd() -> BaseOptimizer:
  """U = g, nothing tracked."""
  return _SGD()


def momentum(beta: float = 0.9) -> BaseOptimizer:
  """U = V = (1 - beta) g + beta m: the averaged form, unlike TFF's g + beta m."""
  return _Momentum(checks.fraction(beta, 'beta'))


def adagrad(eps: float = 1e-7, initial_accumulator: float = 0.1) -> BaseOptimizer:
  """U = g / (eps + sqrt v), V = v + g^2, with v from `initial_accumulator`."""
  return _AdaGrad(
    checks.positive(eps, 'eps'),
    checks.not_negative(initial_accumulator, 'initial_accumulator'),
  )


def adam(
  beta_1: float = 0.9,
  beta_2: float = 0.99,
  eps: float = 1e-3,
  initial_accumulator: float = 0.0,
) -> BaseOptimizer:
  """U = ((1 - beta_1) g + beta_1 m) / (eps + sqrt v), without bias correction.

  Args:
    beta_1: The decay of m.
    beta_2: The decay of v.
    eps: What is added to sqrt v. While v is 0 a step divides by it alone.
    initial_accumulator: The first v.
  """
  return _Adam(
    checks.fraction(beta_1, 'beta_1'),
    checks.fraction(beta_2, 'beta_2'),
    checks.positive(eps, 'eps'),
    checks.not_negative(initial_accumulator, 'initial_accumulator'),
  )


class _PairOptimizer(tff.learning.optimizers.Optimizer):
  """See `as_tff_optimizer`."""

  def __init__(self, base: BaseOptimizer, learning_rate: float):
    self._base = base
    self._learning_rate = learning_rate

  def initialize(self, specs):
    return collections.OrderedDict(
      [
        (_LEARNING_RATE, tf.constant(self._learning_rate, tf.float32)),
        ('statistics', self._base.init(specs)),
      ]
    )

  def next(self, state, weights, gradients):
    s = state['statistics']
    step = structures.scale(state[_LEARNING_RATE], self._base.U(gradients, s))
    new_state = collections.OrderedDict(state, statistics=self._base.V(gradients, s))
    return new_state, structures.subtract(weights, step)

  def get_hparams(self, state):
    return collections.OrderedDict([(_LEARNING_RATE, state[_LEARNING_RATE])])

  def set_hparams(self, state, hparams):
    return collections.OrderedDict(state, **hparams)


def as_tff_optimizer(
  base: BaseOptimizer, learning_rate: float
) -> tff.learning.optimizers.Optimizer:
  """A pair as TFF's optimizer: x <- x - eta U(g, s); s <- V(g, s).

  This is the server step of the Mime paper's Algorithm 2 (FedAvg with a base
  optimizer) and of its server-only baselines.

  Args:
    base: The pair.
    learning_rate: eta, a hyperparameter that `set_hparams` can change.
  """
  return _PairOptimizer(base, checks.positive(learning_rate, 'learning_rate'))
