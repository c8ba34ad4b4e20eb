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
  """Adam's s.

  Attributes:
    m: The moving average of the gradient.
    v: That of its square.
    t: The number of the coming V, from 1, where bias is corrected; else `()`.
  """

  m: Structure
  v: Structure
  t: Any


@dataclasses.dataclass(frozen=True)
class _Adam(BaseOptimizer):
  beta_1: float
  beta_2: float
  eps: float
  initial_accumulator: float
  bias_correction: bool

  def init(self, specs):
    return AdamStatistics(
      m=_full(specs, 0.0),
      v=_full(specs, self.initial_accumulator),
      t=tf.ones([]) if self.bias_correction else (),
    )

  def U(self, g, s):
    m = self._unbiased(_moving_average(self.beta_1, g, s.m), self.beta_1, s.t)
    return _preconditioned(m, s.v, self.eps)

  def V(self, g, s):
    m = _moving_average(self.beta_1, g, s.m)
    v = _moving_average(self.beta_2, _square(g), s.v)
    return AdamStatistics(
      m=self._unbiased(m, self.beta_1, s.t),
      v=self._unbiased(v, self.beta_2, s.t),
      t=s.t + 1 if self.bias_correction else (),
    )

  def _unbiased(self, average, beta, t):
    """average / (1 - beta^t), as in Algorithm 4."""
    if not self.bias_correction:
      return average
    return structures.scale(1 / (1 - beta**t), average)


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
  bias_correction: bool = False,
) -> BaseOptimizer:
  """U = ((1 - beta_1) g + beta_1 m) / (eps + sqrt v), V the two moving averages.

  Args:
    beta_1: The decay of m.
    beta_2: The decay of v.
    eps: What is added to sqrt v. While v is 0 a step divides by it alone.
    initial_accumulator: The first v.
    bias_correction: Whether U, m and v are divided by 1 - beta^t, t the number of the
      round, as in Algorithm 4: each time, so that what is tracked is corrected again
      and again, which is not the Adam of Kingma and Ba.
  """
  return _Adam(
    checks.fraction(beta_1, 'beta_1'),
    checks.fraction(beta_2, 'beta_2'),
    checks.positive(eps, 'eps'),
    checks.not_negative(initial_accumulator, 'initial_accumulator'),
    bias_correction,
  )


class _PairOptimizer(tff.learning.optimizers.Optimizer):
  """See `as_tff_optimizer`."""

  def __init__(self, base: BaseOptimizer, learning_rate: float):
    self._base = base
    self._learning_rate = learning_rate

  def initialize(self, specs):
    rate = tf.constant(self._learning_rate, structures.weight_dtype(specs))
    return collections.OrderedDict(
      [
        (_LEARNING_RATE, rate),
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


def check_fits(
  optimizer: tff.learning.optimizers.Optimizer, specs: Structure, name: str
) -> None:
  """Checks that a step leaves the types of the weights and of the state as they are.

  Args:
    optimizer: The optimizer.
    specs: The `tf.TensorSpec`s of the trainable weights.
    name: The argument that the optimizer was given as.

  Raises:
    ValueError: If it does not.
  """

  # Without AutoGraph, as all that TFF traces: converting takes longer than tracing.
  @tf.function(autograph=False)
  def step(weights):
    state = tf.nest.map_structure(tf.convert_to_tensor, optimizer.initialize(specs))
    return state, optimizer.next(state, weights, weights)

  try:
    before, (after, weights) = step.get_concrete_function(specs).structured_outputs
    fits = _types(before) == _types(after) and _types(weights) == _types(specs)
  except (TypeError, ValueError) as error:
    # TensorFlow tells the whole way there, and the reason last.
    reason = str(error).strip().splitlines()[-1].strip()
    raise ValueError(f'{name} does not fit the weights: {reason}') from error
  if not fits:
    raise ValueError(
      f'{name} does not fit the weights: a step changes the shapes or the dtypes of '
      f'its state or of the weights, from {_types(before)} to {_types(after)}.'
    )


def _types(structure: Structure) -> list[tuple[Any, Any]]:
  return [(t.shape.as_list(), t.dtype.name) for t in tf.nest.flatten(structure)]
