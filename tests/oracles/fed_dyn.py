"""FedDyn in numpy.

"Federated Learning Based on Dynamic Regularization" (arXiv 2111.04263),
Algorithm 1. A client minimizes f_i(y) - <h_i, y> + alpha / 2 ||y - x||^2 by
epochs of SGD, and h_i takes the place of the gradient at its minimum.

Rows, batches and metrics are those of `fed_avg`, cohorts those of `scaffold`.
"""

from collections.abc import Sequence
import functools
from typing import Any

import numpy as np

from tests.oracles.fed_avg import (
  Metrics,
  batches,
  example_weights,
  ratio,
  spread,
)
from tests.oracles.numpy_models import (
  LossAndGradient,
  Weights,
  all_finite,
  map_weights,
  norm,
  num_rows,
  weighted_mean,
)
from tests.oracles.scaffold import NamedCohort, Order, check_names, tree_sum


def fed_dyn(
  loss_and_gradient: LossAndGradient,
  weights: Weights,
  rounds: Sequence[NamedCohort],
  *,
  num_clients: int,
  alpha: float,
  client_learning_rate: float,
  batch_size: int,
  epochs: int = 1,
  max_steps: int | None = None,
  order: Order | None = None,
  weighting: str = 'uniform',
  server_optimizer: Any = None,
) -> tuple[list[Weights], list[Weights], list[dict[str, Weights]], list[Metrics]]:
  """Runs FedDyn over the given cohorts.

  Clients without rows, clients that are left out and rounds that change nothing
  are as in `scaffold`, with h_i and h in place of c_i and c.

  Args:
    loss_and_gradient: (weights, batch) -> (mean loss, gradient).
    weights: x at the start; its dtype is that of the whole run.
    rounds: One cohort a round, as in `scaffold`.
    num_clients: N, the number of all clients, sampled or not.
    alpha: The coefficient of the regularization, above 0.
    client_learning_rate: eta_l of the local steps.
    batch_size: Rows of a batch; the last batch of an epoch may be shorter.
    epochs: Passes over the client's rows.
    max_steps: The most local steps a client takes.
    order: As in `fed_avg`; the index is that in the whole cohort.
    weighting: 'uniform' or 'examples' (n_i), in the mean of the y_i. The sum in h
      is never weighted.
    server_optimizer: See numpy_optimizers. Its gradient is x minus the new x of
      the paper. That new x is taken as it is if None.

  Returns:
    After every round: x, h, the h_i of all clients that have ever renewed theirs,
    and the metrics of `fed_avg`.
  """
  if alpha <= 0:
    raise ValueError(f'alpha must be above 0, not {alpha!r}')
  N, eta = num_clients, client_learning_rate
  zero = map_weights(np.zeros_like, weights)
  x, h = weights, zero
  client_hs: dict[str, Weights] = {}
  server_state = server_optimizer.init(x) if server_optimizer else {}
  all_weights, all_h, all_client_hs, all_metrics = [], [], [], []

  for t, cohort in enumerate(rounds):
    check_names(cohort)
    ys, dys, n, left_out = [], [], [], 0
    new_client_hs = {}
    loss_sum, rows_sum = 0.0, 0

    for i, (name, data) in enumerate(cohort):
      n_i = num_rows(data)
      if n_i == 0:
        continue
      if not all_finite(data):
        left_out += 1
        continue
      order_i = functools.partial(order, t, i) if order else None
      h_i = client_hs.get(name, zero)
      y, K = x, 0
      loss_i, rows_i = 0.0, 0
      # A client that diverges is left out below, no need to warn.
      with np.errstate(all='ignore'):
        for batch in batches(data, batch_size, epochs, max_steps, order_i):
          loss, g = loss_and_gradient(y, batch)
          loss_i += loss * num_rows(batch)
          rows_i += num_rows(batch)
          y = map_weights(
            lambda y, g, h_i, x: y - eta * (g - h_i + alpha * (y - x)), y, g, h_i, x
          )
          K += 1
        if K == 0:
          continue
        dy = map_weights(np.subtract, y, x)
        new_h_i = map_weights(lambda h_i, dy: h_i - alpha * dy, h_i, dy)
      if not all_finite({'dy': dy, 'h_i': new_h_i}):
        left_out += 1
        continue
      ys.append(y)
      dys.append(dy)
      n.append(n_i)
      new_client_hs[name] = new_h_i
      loss_sum += loss_i
      rows_sum += rows_i

    x_old, p = x, example_weights(n, weighting)
    if ys:
      with np.errstate(all='ignore'):
        new_h = map_weights(lambda h, dy: h - alpha / N * dy, h, tree_sum(dys))
        new_x = map_weights(lambda y, h: y - h / alpha, weighted_mean(ys, p), new_h)
        new_state = server_state
        if server_optimizer:
          g = map_weights(np.subtract, x, new_x)
          new_state, new_x = server_optimizer.next(server_state, x, g)
      if all_finite(new_x) and all_finite(new_state) and all_finite(new_h):
        x, server_state, h = new_x, new_state, new_h
        client_hs = client_hs | new_client_hs

    all_weights.append(x)
    all_h.append(h)
    all_client_hs.append(dict(client_hs))
    all_metrics.append(
      {
        'loss': ratio(loss_sum, rows_sum),
        'num_examples': sum(n),
        'num_clients': len(ys),
        'num_left_out': left_out,
        'drift': ratio(sum(norm(dy) for dy in dys), len(dys)),
        'spread': spread(ys, p),
        'update_norm': norm(map_weights(np.subtract, x, x_old)),
      }
    )
  return all_weights, all_h, all_client_hs, all_metrics
