"""The server-only baseline in numpy: no local steps.

Mime paper (arXiv 2008.03606), appendix A, equation 2, with a cohort in place of
one client: g is the mean of the clients' full-batch gradients at x, and the
server takes x <- x - eta U(g, s); s <- V(g, s).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.oracles.fed_avg import (
  Cohort,
  Metrics,
  Schedule,
  example_weights,
  server_step,
)
from tests.oracles.numpy_models import (
  LossAndGradient,
  NumCorrect,
  Weights,
  all_finite,
  map_weights,
  norm,
  num_rows,
  weighted_mean,
)


def server_only(
  loss_and_gradient: LossAndGradient,
  weights: Weights,
  rounds: Sequence[Cohort],
  *,
  optimizer: Any,
  weighting: str = 'examples',
  server_schedule: Schedule | None = None,
  num_correct: NumCorrect | None = None,
) -> tuple[list[Weights], list[Metrics]]:
  """Runs the server-only baseline; arguments and guards as in `fed_avg`."""
  x, state = weights, optimizer.init(weights)
  all_weights, all_metrics = [], []

  for t, cohort in enumerate(rounds):
    factor = float(server_schedule(t)) if server_schedule else 1.0
    gradients, n, left_out = [], [], 0
    loss_sum, correct_sum = 0.0, 0

    for data in cohort:
      n_i = num_rows(data)
      if n_i == 0:
        continue
      with np.errstate(all='ignore'):
        loss, g = loss_and_gradient(x, data)
      if not all_finite(data) or not all_finite(g):
        left_out += 1
        continue
      gradients.append(g)
      n.append(n_i)
      loss_sum += loss * n_i
      if num_correct:
        correct_sum += num_correct(x, data)

    x_old = x
    if gradients:
      g = weighted_mean(gradients, example_weights(n, weighting))
      x, state = server_step(optimizer, x, state, g, factor)

    examples = sum(n)
    metrics = {
      'loss': loss_sum / examples if examples else float('nan'),
      'num_examples': examples,
      'num_clients': len(gradients),
      'num_left_out': left_out,
      'update_norm': norm(map_weights(np.subtract, x, x_old)),
    }
    if num_correct:
      metrics['accuracy'] = correct_sum / examples if examples else float('nan')
    all_weights.append(x)
    all_metrics.append(metrics)
  return all_weights, all_metrics
