"""Elastic aggregation of FedAvg, FedProx, SCAFFOLD and MimeLite in numpy.

Algorithms 1 and 2 and equation 1 of the elastic aggregation paper's supplement.
With Delta_k = theta_k - theta the server adds; here it subtracts the mean of
theta - theta_k. FedProx's term is part of the gradient. The paper's two mu are
`mu`, the decay of a client's Omega_k, and `fraction`, the share of rows that a
client holds back.

Rows and batches are those of `fed_avg`. A client is a triple of its name, the
rows D_k it trains on and the rows B_k it holds back. A client without rows has
neither, and one that holds back too little has no B_k.
"""

from collections.abc import Callable, Mapping, Sequence
import fractions
import math
from typing import Any, NamedTuple

import numpy as np

from tests.oracles.fed_avg import batches, example_weights, ratio
from tests.oracles.numpy_models import (
  Batch,
  LinearRegression,
  LossAndGradient,
  Weights,
  all_finite,
  map_weights,
  norm,
  num_rows,
  weighted_mean,
)
from tests.oracles.scaffold import check_names, tree_sum

# (weights, batch) -> gradient of the batch's mean of ||F(theta; x)||^2.
NormGradient = Callable[[Weights, Batch], Weights]


class Client(NamedTuple):
  name: str
  trained: Batch  # D_k
  held_back: Batch  # B_k


class Elastic(NamedTuple):
  """The knobs of the sensitivity and of zeta."""

  tau: float
  mu: float = 0.9  # Only of the momentum form.
  sensitivity: str = 'momentum'  # or 'average'
  sensitivity_batch_size: int = 1


class Round(NamedTuple):
  """After a round; omega, zeta and metrics are of the round itself."""

  weights: Weights
  omega: Weights
  zeta: Weights
  state: Any  # The algorithm's.
  metrics: dict[str, float]


def elastic(
  algorithm: Any,
  norm_gradient: NormGradient,
  weights: Weights,
  rounds: Sequence[Sequence[Client]],
  settings: Elastic,
  *,
  weighting: str = 'examples',
) -> list[Round]:
  """Runs an algorithm with elastic aggregation over the given cohorts.

  A client without rows is no part of its round. A client is left out, with its
  Omega_k, if anything in D_k or in its uploads is not finite. Of a client whose
  Omega_k alone is not finite, only that is left out. A round without clients
  changes nothing, nor does one that would give something not finite.

  Args:
    algorithm: FedAvg, Scaffold or MimeLite.
    norm_gradient: (weights, batch) -> gradient of the mean of ||F||^2.
    weights: theta at the start; its dtype is that of the whole run.
    rounds: One cohort a round.
    settings: tau, and how Omega_k is computed.
    weighting: 'examples' (|D_k|) or 'uniform', of updates and of Omega_k.

  Returns:
    What every round gave. Its metrics: of the clients whose updates are kept
    num_clients, num_examples (|D_k|), loss and drift; num_left_out;
    num_sensitivities, the number of Omega_k that were taken; boosted, the share
    of coordinates with zeta > 1; least, mean and largest zeta; and update_norm.
  """
  x, state = weights, algorithm.init(weights)
  results = []
  for cohort in rounds:
    check_names([(client.name, client.trained) for client in cohort])
    kept: list[tuple[int, _Local]] = []
    omegas: list[tuple[int, Weights]] = []
    left_out = 0
    for client in cohort:
      n = num_rows(client.trained)
      if n == 0:
        continue
      # A client that diverges is left out below, no need to warn.
      with np.errstate(all='ignore'):
        local = algorithm.train(x, state, client)
        omega_k = client_omega(norm_gradient, x, client.held_back, settings)
      if not (all_finite(client.trained) and all_finite(local.uploads)):
        left_out += 1
        continue
      kept.append((n, local))
      if omega_k is not None and all_finite(omega_k):
        omegas.append((n, omega_k))

    omega = map_weights(np.zeros_like, x)
    if omegas:
      counts, values = zip(*omegas, strict=True)
      omega = weighted_mean(values, example_weights(counts, weighting))
    zeta = zeta_of(omega, settings.tau)

    x_old = x
    if kept:
      p = example_weights([n for n, _ in kept], weighting)
      with np.errstate(all='ignore'):
        mean = weighted_mean([local.uploads['delta'] for _, local in kept], p)
        scaled = map_weights(np.multiply, zeta, mean)
        new_x, new_state = algorithm.finish(
          x, state, scaled, [local for _, local in kept], p
        )
      if all_finite(new_x) and all_finite(new_state):
        x, state = new_x, new_state

    drifts = [norm(local.uploads['delta']) for _, local in kept]
    all_zetas = np.concatenate([np.ravel(z) for z in zeta.values()])
    metrics = {
      'num_clients': len(kept),
      'num_examples': sum(n for n, _ in kept),
      'loss': ratio(
        sum(local.loss_sum for _, local in kept), sum(local.rows for _, local in kept)
      ),
      'drift': ratio(sum(drifts), len(drifts)),
      'num_left_out': left_out,
      'num_sensitivities': len(omegas),
      'boosted': float(np.mean(all_zetas > 1)),
      'least_zeta': float(np.min(all_zetas)),
      'mean_zeta': float(np.mean(all_zetas, dtype=np.float64)),
      'largest_zeta': float(np.max(all_zetas)),
      'update_norm': norm(map_weights(np.subtract, x, x_old)),
    }
    results.append(Round(x, omega, zeta, state, metrics))
  return results


def num_held_back(n: int, fraction: float, sensitivity_batch_size: int) -> int:
  """|B_k| of a client of n rows: floor(fraction n), if that is a whole batch.

  fraction is the decimal number that it is printed as: 0.29 of 100 rows are 29,
  though 0.29 * 100 is less as a floating-point number.
  """
  rows = math.floor(fractions.Fraction(str(fraction)) * n)
  return rows if rows >= sensitivity_batch_size else 0


def split(name: str, data: Batch, held_back: Sequence[int]) -> Client:
  """The client that holds back the rows of these numbers."""
  rows = np.zeros(num_rows(data), bool)
  rows[list(held_back)] = True
  return Client(
    name,
    {key: column[~rows] for key, column in data.items()},
    {key: column[rows] for key, column in data.items()},
  )


def client_omega(
  norm_gradient: NormGradient, x: Weights, held_back: Batch, settings: Elastic
) -> Weights | None:
  """Omega_k at the server's x; None without held-back rows."""
  if num_rows(held_back) == 0:
    return None
  magnitudes = [
    map_weights(np.abs, norm_gradient(x, batch))
    for batch in batches(held_back, settings.sensitivity_batch_size)
  ]
  if settings.sensitivity == 'average':
    return weighted_mean(magnitudes, [1.0] * len(magnitudes))
  if settings.sensitivity != 'momentum':
    raise ValueError(f"'momentum' or 'average', not {settings.sensitivity!r}")
  mu = settings.mu
  omega = map_weights(np.zeros_like, x)
  for magnitude in magnitudes:
    omega = map_weights(lambda o, g: mu * o + (1 - mu) * g, omega, magnitude)
  return omega


def zeta_of(omega: Weights, tau: float) -> Weights:
  """1 + tau - Omega / max(Omega), with one maximum of the whole model."""
  largest = float(max(np.max(o) for o in omega.values()))
  if largest == 0:
    return map_weights(lambda o: np.full_like(o, 1 + tau), omega)
  return map_weights(lambda o: 1 + tau - o / largest, omega)


# The algorithms.


class _Local(NamedTuple):
  """What a client's training gives; only its uploads leave it."""

  uploads: dict[str, Weights]  # 'delta', that is x - y, and the algorithm's own.
  loss_sum: float
  rows: int
  states: tuple[tuple[str, Weights], ...] = ()  # What the client would keep.


class LocalSteps(NamedTuple):
  loss_and_gradient: LossAndGradient
  learning_rate: float
  batch_size: int
  epochs: int = 1
  max_steps: int | None = None
  rho: float = 0.0  # FedProx's coefficient.

  def run(
    self, x: Weights, data: Batch, direction: Callable[[Weights], Weights]
  ) -> tuple[_Local, Weights]:
    """Steps y <- y - eta direction(g + rho (y - x)), and the mean of the g."""
    y, gradients, loss_sum, rows = x, [], 0.0, 0
    for batch in batches(data, self.batch_size, self.epochs, self.max_steps):
      loss, g = self.loss_and_gradient(y, batch)
      loss_sum += loss * num_rows(batch)
      rows += num_rows(batch)
      gradients.append(g)
      d = direction(map_weights(lambda g, y, x: g + self.rho * (y - x), g, y, x))
      y = map_weights(lambda y, d: y - self.learning_rate * d, y, d)
    delta = map_weights(np.subtract, x, y)
    mean = weighted_mean(gradients, [1.0] * len(gradients))
    return _Local({'delta': delta}, loss_sum, rows), mean


class FedAvg:
  """Algorithms 1 and 2; FedAvgM's momentum is the server's optimizer."""

  def __init__(self, steps: LocalSteps, server_optimizer: Any):
    self._steps = steps
    self._server_optimizer = server_optimizer

  def init(self, x: Weights) -> Any:
    return self._server_optimizer.init(x)

  def train(self, x: Weights, state: Any, client: Client) -> _Local:
    del state
    local, _ = self._steps.run(x, client.trained, lambda g: g)
    return local

  def finish(
    self,
    x: Weights,
    state: Any,
    update: Weights,
    kept: Sequence[_Local],
    p: Sequence[float],
  ) -> tuple[Weights, Any]:
    del kept, p
    new_state, new_x = self._server_optimizer.next(state, x, update)
    return new_x, new_state


class Scaffold:
  """SCAFFOLD, its control variates over D_k alone, and never scaled."""

  def __init__(
    self, steps: LocalSteps, server_optimizer: Any, *, option: int, num_clients: int
  ):
    self._steps = steps
    self._server_optimizer = server_optimizer
    self._option = option
    self._num_clients = num_clients

  def init(self, x: Weights) -> Any:
    return {
      'optimizer': self._server_optimizer.init(x),
      'c': map_weights(np.zeros_like, x),
      'clients': {},
    }

  def train(self, x: Weights, state: Any, client: Client) -> _Local:
    c = state['c']
    c_k = _kept_or_zero(state['clients'], client.name, x)
    local, mean = self._steps.run(
      x,
      client.trained,
      lambda g: map_weights(lambda g, c_k, c: g - c_k + c, g, c_k, c),
    )
    new_c_k = mean  # Option 2.
    if self._option == 1:
      _, new_c_k = self._steps.loss_and_gradient(x, client.trained)
    uploads = local.uploads | {'dc': map_weights(np.subtract, new_c_k, c_k)}
    return local._replace(uploads=uploads, states=((client.name, new_c_k),))

  def finish(
    self,
    x: Weights,
    state: Any,
    update: Weights,
    kept: Sequence[_Local],
    p: Sequence[float],
  ) -> tuple[Weights, Any]:
    del p  # Control variates are not weighted.
    optimizer, new_x = self._server_optimizer.next(state['optimizer'], x, update)
    total = tree_sum([local.uploads['dc'] for local in kept])
    c = map_weights(lambda c, dc: c + dc / self._num_clients, state['c'], total)
    clients = dict(state['clients'])
    for local in kept:
      clients |= dict(local.states)
    return new_x, {'optimizer': optimizer, 'c': c, 'clients': clients}


class MimeLite:
  """MimeLite, its full gradients over D_k alone, and never scaled."""

  def __init__(self, steps: LocalSteps, base: Any, server_learning_rate: float = 1.0):
    self._steps = steps
    self._base = base
    self._server_learning_rate = server_learning_rate

  def init(self, x: Weights) -> Any:
    return self._base.init(x)

  def train(self, x: Weights, state: Any, client: Client) -> _Local:
    local, _ = self._steps.run(x, client.trained, lambda g: self._base.U(g, state))
    _, gradient = self._steps.loss_and_gradient(x, client.trained)
    return local._replace(uploads=local.uploads | {'gradient': gradient})

  def finish(
    self,
    x: Weights,
    state: Any,
    update: Weights,
    kept: Sequence[_Local],
    p: Sequence[float],
  ) -> tuple[Weights, Any]:
    c = weighted_mean([local.uploads['gradient'] for local in kept], p)
    rate = self._server_learning_rate
    new_x = map_weights(lambda x, u: x - rate * u, x, update)
    return new_x, self._base.V(c, state)


def _kept_or_zero(states: Mapping[str, Weights], name: str, like: Weights) -> Weights:
  return states.get(name, map_weights(np.zeros_like, like))


# The gradients of the mean of ||F||^2, F the outputs of a model of numpy_models.


def linear_norm_gradient(weights: Weights, batch: Batch) -> Weights:
  """Of x W + b: the outputs of LinearRegression, the logits of LogisticRegression.

  ||F||^2 is twice the regression's loss where all its targets are zero.
  """
  targets = np.zeros((num_rows(batch), weights['bias'].size))
  _, g = LinearRegression.loss_and_gradient(weights, {'x': batch['x'], 'y': targets})
  return map_weights(lambda g: 2 * g, g)


def mlp_norm_gradient(weights: Weights, batch: Batch) -> Weights:
  """Of tanh(x W1 + b1) W2 + b2, the logits of Mlp."""
  x = batch['x'].astype(weights['kernel_1'].dtype)
  hidden = np.tanh(x @ weights['kernel_1'] + weights['bias_1'])
  d_logits = 2 * (hidden @ weights['kernel_2'] + weights['bias_2']) / len(x)
  # tanh' = 1 - tanh^2.
  d_hidden = (d_logits @ weights['kernel_2'].T) * (1 - hidden**2)
  return {
    'kernel_1': x.T @ d_hidden,
    'bias_1': np.sum(d_hidden, axis=0),
    'kernel_2': hidden.T @ d_logits,
    'bias_2': np.sum(d_logits, axis=0),
  }
