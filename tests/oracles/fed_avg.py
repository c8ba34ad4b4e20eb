"""FedAvg / FedOpt / FedProx in numpy.

Mime paper (arXiv 2008.03606), Algorithm 2, with its two practical changes of
section 3: averages weighted by the clients' examples, and epochs in place of
steps. FedProx (arXiv 1812.06127) adds rho (y - x) to the local gradient.
"""

from collections.abc import Callable, Iterator, Sequence
import functools
from typing import Any

import numpy as np

from tests.oracles import numpy_optimizers
from tests.oracles.numpy_models import (
  Batch,
  LossAndGradient,
  NumCorrect,
  Weights,
  all_finite,
  map_weights,
  norm,
  num_rows,
  weighted_mean,
)

Cohort = Sequence[Batch]
Metrics = dict[str, float]
Schedule = Callable[[int], float]


def fed_avg(
  loss_and_gradient: LossAndGradient,
  weights: Weights,
  rounds: Sequence[Cohort],
  *,
  client_learning_rate: float | Schedule,
  server_optimizer: Any,
  batch_size: int,
  epochs: int = 1,
  max_steps: int | None = None,
  weighting: str = 'examples',
  rho: float = 0.0,
  client_optimizer: Any = None,
  order: Callable[[int, int, int, int], np.ndarray] | None = None,
  server_schedule: Schedule | None = None,
  num_correct: NumCorrect | None = None,
) -> tuple[list[Weights], list[Metrics]]:
  """Runs FedAvg over the given cohorts.

  Args:
    loss_and_gradient: (weights, batch) -> (mean loss, gradient).
    weights: x at the start; its dtype is that of the whole run.
    rounds: One cohort a round: a list of clients, each a dict of arrays with
      the client's n_i >= 0 rows.
    client_learning_rate: eta, or a function round -> eta, rounds from 0.
    server_optimizer: See numpy_optimizers.
    batch_size: Rows of a batch; the last batch of an epoch may be shorter.
    epochs: Passes over the client's rows, each from the first row on.
    max_steps: K_i = min(epochs * ceil(n_i / batch_size), max_steps).
    weighting: 'examples' (n_i) or 'uniform' (clients with at least one row).
    rho: FedProx's coefficient; 0 is FedAvg.
    client_optimizer: A base optimizer (U, V), its state fresh for every client
      in every round. Plain SGD if None.
    order: (round, index of the client in its cohort, epoch, n_i) -> order of
      the rows in that epoch. As they come if None.
    server_schedule: round -> factor on the server's learning rate.
    num_correct: (weights, batch) -> correct predictions, for the accuracy.

  Returns:
    The weights after every round, and the metrics of every round. A mean over
    nothing (no client kept, or no step) is NaN there.
  """
  x = weights
  client_optimizer = client_optimizer or numpy_optimizers.Sgd()
  server_state = server_optimizer.init(x)
  all_weights, all_metrics = [], []

  for t, cohort in enumerate(rounds):
    rate = client_learning_rate
    eta = float(rate(t) if callable(rate) else rate)
    factor = float(server_schedule(t)) if server_schedule else 1.0
    ys, deltas, n, left_out = [], [], [], 0
    loss_sum, correct_sum, rows_sum = 0.0, 0, 0

    for i, data in enumerate(cohort):
      n_i = num_rows(data)
      if n_i == 0:
        continue
      order_i = functools.partial(order, t, i) if order else None
      y, s = x, client_optimizer.init(x)
      loss_i, correct_i, rows_i = 0.0, 0, 0
      # A client that diverges is left out below, no need to warn.
      with np.errstate(all='ignore'):
        for batch in batches(data, batch_size, epochs, max_steps, order_i):
          loss, g = loss_and_gradient(y, batch)
          loss_i += loss * num_rows(batch)
          rows_i += num_rows(batch)
          if num_correct:
            correct_i += num_correct(y, batch)
          d = map_weights(lambda g, y, x: g + rho * (y - x), g, y, x)
          u = client_optimizer.U(d, s)
          y = map_weights(lambda y, u, eta=eta: y - eta * u, y, u)
          s = client_optimizer.V(d, s)
        delta = map_weights(np.subtract, x, y)
      if not all_finite(data) or not all_finite(delta):
        left_out += 1
        continue
      ys.append(y)
      deltas.append(delta)
      n.append(n_i)
      loss_sum += loss_i
      correct_sum += correct_i
      rows_sum += rows_i

    x_old, p = x, example_weights(n, weighting)
    if ys:
      g = weighted_mean(deltas, p)
      x, server_state = server_step(server_optimizer, x, server_state, g, factor)

    metrics = {
      'loss': ratio(loss_sum, rows_sum),
      'num_examples': sum(n),
      'num_clients': len(ys),
      'num_left_out': left_out,
      'drift': ratio(sum(norm(delta) for delta in deltas), len(deltas)),
      'spread': spread(ys, p),
      'update_norm': norm(map_weights(np.subtract, x, x_old)),
    }
    if num_correct:
      metrics['accuracy'] = ratio(correct_sum, rows_sum)
    all_weights.append(x)
    all_metrics.append(metrics)
  return all_weights, all_metrics


def batches(
  data: Batch,
  batch_size: int,
  epochs: int = 1,
  max_steps: int | None = None,
  order: Callable[[int, int], np.ndarray] | None = None,
) -> Iterator[Batch]:
  """Consecutive slices of the rows, anew every epoch, at most max_steps."""
  n, step = num_rows(data), 0
  for epoch in range(epochs):
    rows = np.arange(n) if order is None else np.asarray(order(epoch, n))
    for start in range(0, n, batch_size):
      if step == max_steps:
        return
      chosen = rows[start : start + batch_size]
      yield {name: column[chosen] for name, column in data.items()}
      step += 1


def example_weights(n: Sequence[int], weighting: str) -> list[float]:
  """The weights p_i of the kept clients, which all have rows."""
  if weighting == 'examples':
    return [float(n_i) for n_i in n]
  if weighting == 'uniform':
    return [1.0 for _ in n]
  raise ValueError(f"weighting is 'examples' or 'uniform', not {weighting!r}")


def server_step(
  optimizer: Any, x: Weights, state: Any, gradient: Weights, factor: float
) -> tuple[Weights, Any]:
  """One server step; a step to something not finite is not taken."""
  with np.errstate(all='ignore'):
    new_state, new_x = optimizer.next(state, x, gradient, factor)
  if not all_finite(new_x) or not all_finite(new_state):
    return x, state
  return new_x, new_state


def spread(ys: Sequence[Weights], p: Sequence[float]) -> float:
  """sqrt of the weighted mean of ||y_i - ybar||^2, ybar the weighted mean."""
  if not ys:
    return float('nan')
  ybar = weighted_mean(ys, p)
  squares = [norm(map_weights(np.subtract, y, ybar)) ** 2 for y in ys]
  return float(np.sqrt(np.average(squares, weights=p)))


def ratio(total: float, count: int) -> float:
  return float(total / count) if count else float('nan')
