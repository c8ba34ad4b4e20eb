"""SCAFFOLD in numpy.

"SCAFFOLD: Stochastic Controlled Averaging for Federated Learning" (arXiv
1910.06378), Algorithm 1, with epochs in place of steps. The server may have any
optimizer, and FedProx's rho (y - x) and a clipping of the gradients may be added
to the local steps.

Rows, batches and metrics are those of `fed_avg`. The clients have a state and
therefore a name.
"""

from collections.abc import Callable, Sequence
import functools
import math
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
  Batch,
  LossAndGradient,
  Weights,
  all_finite,
  map_weights,
  norm,
  num_rows,
  weighted_mean,
)

NamedCohort = Sequence[tuple[str, Batch]]
Order = Callable[[int, int, int, int], np.ndarray]


def scaffold(
  loss_and_gradient: LossAndGradient,
  weights: Weights,
  rounds: Sequence[NamedCohort],
  *,
  num_clients: int,
  client_learning_rate: float,
  server_optimizer: Any,
  option: int,
  batch_size: int,
  epochs: int = 1,
  max_steps: int | None = None,
  weighting: str = 'uniform',
  rho: float = 0.0,
  order: Order | None = None,
  clip_norm: float | None = None,
) -> tuple[list[Weights], list[Weights], list[dict[str, Weights]], list[Metrics]]:
  """Runs SCAFFOLD over the given cohorts.

  A client without rows, and so without a step, is no part of its round. A client
  is left out if anything in its rows, its update or its control variate is not
  finite. Both keep their c_i. A round without any other client changes nothing,
  nor does one after which x, the optimizer's state or c were not finite: then all
  clients keep their c_i.

  Args:
    loss_and_gradient: (weights, batch) -> (mean loss, gradient).
    weights: x at the start; its dtype is that of the whole run.
    rounds: One cohort a round: a list of pairs of a client's name and its rows,
      a dict of arrays with n_i >= 0 rows. A name occurs once in a cohort.
    num_clients: N, the number of all clients, sampled or not.
    client_learning_rate: eta_l.
    server_optimizer: See numpy_optimizers. Plain SGD's learning rate is eta_g.
    option: How c_i is renewed. 1: the gradient at x over all rows of the client.
      2: c_i - c + (x - y_i) / (K_i eta_l), which is the mean of the gradients of
      the local steps; with rho or clip_norm it is that mean that is taken.
    batch_size: Rows of a batch; the last batch of an epoch may be shorter.
    epochs: Passes over the client's rows.
    max_steps: K_i = min(epochs * ceil(n_i / batch_size), max_steps).
    weighting: 'uniform' or 'examples' (n_i), in the mean of the updates. The
      control variates are never weighted.
    rho: FedProx's coefficient: rho (y - x) is added to the corrected gradient.
    order: As in `fed_avg`; the index is that in the whole cohort.
    clip_norm: The largest norm of a gradient g_i(y). Only with option 2.

  Returns:
    After every round: x, c, the c_i of all clients that have ever renewed theirs,
    and the metrics of `fed_avg`.
  """
  if option not in (1, 2):
    raise ValueError(f'option is 1 or 2, not {option!r}')
  if option == 1 and clip_norm is not None:
    raise ValueError('clip_norm is only for option 2')
  N, eta = num_clients, client_learning_rate
  zero = map_weights(np.zeros_like, weights)
  x, c = weights, zero
  client_cs: dict[str, Weights] = {}
  server_state = server_optimizer.init(x)
  all_weights, all_c, all_client_cs, all_metrics = [], [], [], []

  for t, cohort in enumerate(rounds):
    check_names(cohort)
    ys, deltas, n, left_out = [], [], [], 0
    new_client_cs, dcs = {}, []
    loss_sum, rows_sum = 0.0, 0

    for i, (name, data) in enumerate(cohort):
      n_i = num_rows(data)
      if n_i == 0:
        continue
      if not all_finite(data):
        left_out += 1
        continue
      order_i = functools.partial(order, t, i) if order else None
      c_i = client_cs.get(name, zero)
      y, K, g_sum = x, 0, zero
      loss_i, rows_i = 0.0, 0
      # A client that diverges is left out below, no need to warn.
      with np.errstate(all='ignore'):
        for batch in batches(data, batch_size, epochs, max_steps, order_i):
          loss, g = loss_and_gradient(y, batch)
          loss_i += loss * num_rows(batch)
          rows_i += num_rows(batch)
          if clip_norm is not None:
            g = _clip(g, clip_norm)
          y = map_weights(
            lambda y, g, c_i, c, x: y - eta * (g - c_i + c + rho * (y - x)),
            y,
            g,
            c_i,
            c,
            x,
          )
          g_sum = map_weights(np.add, g_sum, g)
          K += 1
        if K == 0:
          continue

        if option == 1:
          _, new_c_i = loss_and_gradient(x, data)
        elif rho == 0 and clip_norm is None:
          new_c_i = map_weights(
            lambda c_i, c, x, y, K=K: c_i - c + (x - y) / (K * eta), c_i, c, x, y
          )
        else:
          new_c_i = map_weights(lambda g, K=K: g / K, g_sum)
        delta = map_weights(np.subtract, x, y)
        dc = map_weights(np.subtract, new_c_i, c_i)
      if not all_finite({'delta': delta, 'c_i': new_c_i, 'dc': dc}):
        left_out += 1
        continue
      ys.append(y)
      deltas.append(delta)
      n.append(n_i)
      new_client_cs[name] = new_c_i
      dcs.append(dc)
      loss_sum += loss_i
      rows_sum += rows_i

    x_old, p = x, example_weights(n, weighting)
    if ys:
      with np.errstate(all='ignore'):
        g = weighted_mean(deltas, p)
        new_state, new_x = server_optimizer.next(server_state, x, g)
        new_c = map_weights(lambda c, dc: c + dc / N, c, tree_sum(dcs))
      if all_finite(new_x) and all_finite(new_state) and all_finite(new_c):
        x, server_state, c = new_x, new_state, new_c
        client_cs = client_cs | new_client_cs

    all_weights.append(x)
    all_c.append(c)
    all_client_cs.append(dict(client_cs))
    all_metrics.append(
      {
        'loss': ratio(loss_sum, rows_sum),
        'num_examples': sum(n),
        'num_clients': len(ys),
        'num_left_out': left_out,
        'drift': ratio(sum(norm(delta) for delta in deltas), len(deltas)),
        'spread': spread(ys, p),
        'update_norm': norm(map_weights(np.subtract, x, x_old)),
      }
    )
  return all_weights, all_c, all_client_cs, all_metrics


def check_names(cohort: NamedCohort) -> None:
  """A client cannot be twice in a cohort: which of its states would be kept?"""
  names = [name for name, _ in cohort]
  if len(set(names)) < len(names):
    raise ValueError(f'a client is twice in the cohort {names}')


def tree_sum(trees: Sequence[Weights]) -> Weights:
  """The sum of at least one tree."""
  return functools.reduce(lambda a, b: map_weights(np.add, a, b), trees)


def _clip(g: Weights, clip_norm: float) -> Weights:
  """Scales g down to clip_norm; NaN if its norm is not finite."""
  length = norm(g)
  if not math.isfinite(length):
    return map_weights(lambda g: np.full_like(g, np.nan), g)
  if length <= clip_norm:
    return g
  return map_weights(lambda g: g * (clip_norm / length), g)
