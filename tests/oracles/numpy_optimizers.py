"""Server optimizers in numpy.

Every server optimizer has `init(weights) -> state` and
`next(state, weights, gradient, factor=1.0) -> (state, weights)`; `factor`
multiplies its learning rate in this step only. Two families:

- `Tff*`: replicas of `tff.learning.optimizers` of TFF 0.87. TFF keeps hyper-
  parameters as float32 whatever the weights are, and takes 1 - beta_2 *after*
  that rounding; the replicas do so too. It matters: 1 - float32(0.999) is off
  from 0.001 by 1.3e-5 of it.
- `Sgd`, `Momentum`, `AdaGrad`, `Adam`: base optimizers (U, V) of the Mime paper
  (arXiv 2008.03606, Table 5), without a learning rate; `BaseServer` makes one
  a server optimizer. Hyper-parameters are not rounded.
"""

from typing import Any

import numpy as np

from tests.oracles.numpy_models import Weights, map_weights

State = dict[str, Any]


def _round(value: float | np.floating, dtype: np.dtype) -> np.floating:
  """A hyper-parameter as TFF sees it: float32, then the weights' dtype."""
  return dtype.type(np.float32(value))


def _full(weights: Weights, value: float) -> Weights:
  return map_weights(lambda w: np.full_like(w, _round(value, w.dtype)), weights)


def _bias_corrected(rate: float, beta_1: float, beta_2: float, step: int) -> np.float32:
  """rate sqrt(1 - beta_2^t) / (1 - beta_1^t), in float32 as in TFF."""
  one, t = np.float32(1), np.float32(step)
  sqrt = np.sqrt(one - np.float32(beta_2) ** t)
  return np.float32(rate) * sqrt / (one - np.float32(beta_1) ** t)


class TffSgd:
  """`build_sgdm`: w <- w - lr g.

  With a momentum (neither None nor 0): v <- momentum v + g; w <- w - lr v, v
  starting at 0. Not an average: compare `Momentum`.
  """

  def __init__(self, learning_rate: float = 0.01, momentum: float | None = None):
    self._learning_rate = learning_rate
    self._momentum = momentum

  def init(self, weights: Weights) -> State:
    return {'v': _full(weights, 0.0)} if self._momentum else {}

  def next(
    self, state: State, weights: Weights, gradient: Weights, factor=1.0
  ) -> tuple[State, Weights]:
    new_v, new_weights = {}, {}
    for name, w in weights.items():
      step = gradient[name]
      if self._momentum:
        momentum = _round(self._momentum, w.dtype)
        step = new_v[name] = momentum * state['v'][name] + step
      new_weights[name] = w - _round(factor * self._learning_rate, w.dtype) * step
    return {'v': new_v} if self._momentum else {}, new_weights


class TffAdagrad:
  """`build_adagrad`: v <- v + g^2; w <- w - lr g / sqrt(v + eps).

  v starts at 0.1; the new v divides, and epsilon is under the root.
  """

  def __init__(
    self,
    learning_rate: float,
    initial_preconditioner_value: float = 0.1,
    epsilon: float = 1e-7,
  ):
    self._learning_rate = learning_rate
    self._initial = initial_preconditioner_value
    self._epsilon = epsilon

  def init(self, weights: Weights) -> State:
    return {'v': _full(weights, self._initial)}

  def next(
    self, state: State, weights: Weights, gradient: Weights, factor=1.0
  ) -> tuple[State, Weights]:
    new_v, new_weights = {}, {}
    for name, w in weights.items():
      g = gradient[name]
      rate = _round(factor * self._learning_rate, w.dtype)
      v = new_v[name] = state['v'][name] + g**2
      new_weights[name] = w - rate * g / np.sqrt(v + _round(self._epsilon, w.dtype))
    return {'v': new_v}, new_weights


class TffRmsprop:
  """`build_rmsprop`: v <- v + (1-d)(g^2 - v); w <- w - lr g / (sqrt(v) + eps).

  v starts at 0; no bias correction.
  """

  def __init__(self, learning_rate: float, decay: float = 0.9, epsilon: float = 1e-7):
    self._learning_rate = learning_rate
    self._decay = decay
    self._epsilon = epsilon

  def init(self, weights: Weights) -> State:
    return {'v': _full(weights, 0.0)}

  def next(
    self, state: State, weights: Weights, gradient: Weights, factor=1.0
  ) -> tuple[State, Weights]:
    new_v, new_weights = {}, {}
    for name, w in weights.items():
      g, v = gradient[name], state['v'][name]
      rate = _round(factor * self._learning_rate, w.dtype)
      v = new_v[name] = v + (g**2 - v) * (1 - _round(self._decay, w.dtype))
      new_weights[name] = w - rate * g / (np.sqrt(v) + _round(self._epsilon, w.dtype))
    return {'v': new_v}, new_weights


class TffAdam:
  """`build_adam`, t = 1, 2, ...; m and v start at 0, the new ones are used.

  m <- m + (1 - beta_1)(g - m);  v <- v + (1 - beta_2)(g^2 - v)
  w <- w - lr sqrt(1 - beta_2^t) / (1 - beta_1^t) m / (sqrt(v) + eps)
  """

  def __init__(
    self,
    learning_rate: float,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-7,
  ):
    self._learning_rate = learning_rate
    self._beta_1 = beta_1
    self._beta_2 = beta_2
    self._epsilon = epsilon
    self._initial = 0.0

  def init(self, weights: Weights) -> State:
    m, v = _full(weights, 0.0), _full(weights, self._initial)
    return {'step': 0, 'm': m, 'v': v}

  def _second_moment(
    self, g: np.ndarray, v: np.ndarray, beta_2: np.floating
  ) -> np.ndarray:
    return v + (g**2 - v) * (1 - beta_2)

  def next(
    self, state: State, weights: Weights, gradient: Weights, factor=1.0
  ) -> tuple[State, Weights]:
    t = state['step'] + 1
    rate = _bias_corrected(factor * self._learning_rate, self._beta_1, self._beta_2, t)
    new_m, new_v, new_weights = {}, {}, {}
    for name, w in weights.items():
      g, m, v = gradient[name], state['m'][name], state['v'][name]
      m = new_m[name] = m + (g - m) * (1 - _round(self._beta_1, w.dtype))
      v = new_v[name] = self._second_moment(g, v, _round(self._beta_2, w.dtype))
      new_weights[name] = w - _round(rate, w.dtype) * m / (
        np.sqrt(v) + _round(self._epsilon, w.dtype)
      )
    return {'step': t, 'm': new_m, 'v': new_v}, new_weights


class TffYogi(TffAdam):
  """`build_yogi`: Adam but v <- v + (1 - beta_2) sign(g^2 - v) g^2.

  v starts at 1e-6 and epsilon is 1e-3. (The sign in TFF's docstring, of g - s,
  is a slip; its code has g^2 - s, as the Yogi paper.)
  """

  def __init__(
    self,
    learning_rate: float,
    beta_1: float = 0.9,
    beta_2: float = 0.999,
    epsilon: float = 1e-3,
    initial_preconditioner_value: float = 1e-6,
  ):
    super().__init__(learning_rate, beta_1, beta_2, epsilon)
    self._initial = initial_preconditioner_value

  def _second_moment(
    self, g: np.ndarray, v: np.ndarray, beta_2: np.floating
  ) -> np.ndarray:
    return v + (1 - beta_2) * np.sign(g**2 - v) * g**2


class Sgd:
  """Table 5, row 1: U(g, s) = g, no state."""

  def init(self, weights: Weights) -> State:
    del weights
    return {}

  def U(self, g: Weights, s: State) -> Weights:
    del s
    return g

  def V(self, g: Weights, s: State) -> State:
    del g
    return s


class Momentum:
  """Table 5, row 2: U(g, m) = V(g, m) = (1 - beta) g + beta m, m from 0."""

  def __init__(self, beta: float = 0.9):
    self._beta = beta

  def init(self, weights: Weights) -> State:
    return {'m': map_weights(np.zeros_like, weights)}

  def U(self, g: Weights, s: State) -> Weights:
    beta = self._beta
    return map_weights(lambda g, m: (1 - beta) * g + beta * m, g, s['m'])

  def V(self, g: Weights, s: State) -> State:
    return {'m': self.U(g, s)}


class AdaGrad:
  """Table 5, row 3: U(g, v) = g / (eps + sqrt v), V(g, v) = v + g^2.

  U sees the v from before this gradient, since (BASEOPT) applies U before V.
  Appendix C.4: v starts at 0.1, epsilon is 1e-7.
  """

  def __init__(self, epsilon: float = 1e-7, initial_accumulator: float = 0.1):
    self._epsilon = epsilon
    self._initial = initial_accumulator

  def init(self, weights: Weights) -> State:
    return {'v': map_weights(lambda w: np.full_like(w, self._initial), weights)}

  def U(self, g: Weights, s: State) -> Weights:
    return map_weights(lambda g, v: g / (self._epsilon + np.sqrt(v)), g, s['v'])

  def V(self, g: Weights, s: State) -> State:
    return {'v': map_weights(lambda g, v: v + g**2, g, s['v'])}


class Adam:
  """Table 5, row 4, and on request the bias corrections of Algorithm 4.

  U(g, (m, v)) = ((1 - beta_1) g + beta_1 m) / (eps + sqrt v)
  V(g, (m, v)) = ((1 - beta_1) g + beta_1 m, (1 - beta_2) g^2 + beta_2 v)
  So the step takes the new m but the old v, which starts at 0 (Algorithm 4):
  the first step divides by epsilon alone. Epsilon is appendix C.1's.

  With bias_correction U and the new m are divided by 1 - beta_1^t, and the new v
  by 1 - beta_2^t. The corrected m and v are the ones that are kept. t is part of
  the statistics, starts at 1 and grows by 1 with every V.
  """

  def __init__(
    self,
    beta_1: float = 0.9,
    beta_2: float = 0.99,
    epsilon: float = 1e-3,
    initial_accumulator: float = 0.0,
    bias_correction: bool = False,
  ):
    self._beta_1 = beta_1
    self._beta_2 = beta_2
    self._epsilon = epsilon
    self._initial = initial_accumulator
    self._bias_correction = bias_correction

  def init(self, weights: Weights) -> State:
    s: State = {
      'm': map_weights(np.zeros_like, weights),
      'v': map_weights(lambda w: np.full_like(w, self._initial), weights),
    }
    if self._bias_correction:
      s['t'] = 1
    return s

  def _corrections(self, s: State) -> tuple[float, float]:
    """1 - beta_1^t and 1 - beta_2^t, or ones."""
    if not self._bias_correction:
      return 1.0, 1.0
    return 1 - self._beta_1 ** s['t'], 1 - self._beta_2 ** s['t']

  def U(self, g: Weights, s: State) -> Weights:
    b1, eps = self._beta_1, self._epsilon
    k1, _ = self._corrections(s)
    return map_weights(
      lambda g, m, v: ((1 - b1) * g + b1 * m) / ((eps + np.sqrt(v)) * k1),
      g,
      s['m'],
      s['v'],
    )

  def V(self, g: Weights, s: State) -> State:
    b1, b2 = self._beta_1, self._beta_2
    k1, k2 = self._corrections(s)
    new: State = {
      'm': map_weights(lambda g, m: ((1 - b1) * g + b1 * m) / k1, g, s['m']),
      'v': map_weights(lambda g, v: ((1 - b2) * g**2 + b2 * v) / k2, g, s['v']),
    }
    if self._bias_correction:
      new['t'] = s['t'] + 1
    return new


class BaseServer:
  """(BASEOPT) at the server: x <- x - eta U(g, s); s <- V(g, s)."""

  def __init__(self, base, learning_rate: float = 1.0):
    self._base = base
    self._learning_rate = learning_rate

  def init(self, weights: Weights) -> State:
    return self._base.init(weights)

  def next(
    self, state: State, weights: Weights, gradient: Weights, factor=1.0
  ) -> tuple[State, Weights]:
    eta = float(factor * self._learning_rate)
    u = self._base.U(gradient, state)
    new_weights = map_weights(lambda x, u: x - eta * u, weights, u)
    return self._base.V(gradient, state), new_weights
