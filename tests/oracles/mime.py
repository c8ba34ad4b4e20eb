"""Mime, MimeLite, Loc-Mime and their MVR forms in numpy.

Mime paper (arXiv 2008.03606), Algorithms 1, 3, 4 and 5 and equations 13-16, with
its two practical changes of section 3: averages weighted by the clients'
examples, and epochs in place of steps.

Rows, cohorts, batches and guards are those of `fed_avg`. A trip is one exchange
with the clients. Mime with this round's c needs two a round, all others one.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any

import numpy as np

from tests.oracles.fed_avg import (
  Cohort,
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

Metrics = dict[str, Any]
Order = Callable[[int, int, int, int], np.ndarray]


def mime(
  loss_and_gradient: LossAndGradient,
  weights: Weights,
  cohorts: Sequence[Cohort],
  *,
  base: Any,
  learning_rate: float,
  batch_size: int,
  epochs: int = 1,
  max_steps: int | None = None,
  server_learning_rate: float = 1.0,
  weighting: str = 'examples',
  order: Order | None = None,
  corrected: bool = True,
  control_variate: str = 'current',
  updates_locally: bool = False,
  split: bool = False,
  rho: float = 0.0,
) -> tuple[list[Weights], list[Metrics]]:
  """Runs Mime or one of its kin over the given cohorts.

  A client with a non-finite row is left out of everything. Otherwise, where the
  gradient and the update of a client go up in one trip, it is left out as a whole
  if either is not finite; where they go up apart, each is judged alone. A round
  without any gradient or any update changes nothing, nor does one that would give
  something not finite.

  Args:
    loss_and_gradient: (weights, batch) -> (mean loss, gradient).
    weights: x at the start; its dtype is that of the whole run.
    cohorts: One cohort a round, as in `fed_avg`.
    base: A base optimizer (U, V), see numpy_optimizers.
    learning_rate: eta of the local steps.
    batch_size: Rows of a batch; the last batch of an epoch may be shorter.
    epochs: Passes over the client's rows.
    max_steps: The most local steps a client takes.
    server_learning_rate: eta_g in x <- x - eta_g mean(x - y_i).
    weighting: 'examples' (n_i) or 'uniform', in all means.
    order: As in `fed_avg`; the index is that in the whole cohort.
    corrected: Mime if true, MimeLite if not.
    control_variate: Which c a corrected step takes: 'current', the mean of the
      full gradients of this round (Algorithm 1), or 'previous', that of the round
      before and 0 at first (Algorithms 3 and 4).
    updates_locally: Loc-Mime (section 5.1): a client also updates its own copy of
      s after every step, and throws it away after the round.
    split: The split of section 5.1: the first half of a cohort, rounded down, only
      sends gradients, the others only updates. Halves are counted before empty
      clients are skipped.
    rho: FedProx's coefficient: rho (y - x) is added to the corrected gradient.

  Returns:
    The weights after every round, and the metrics of every round: s and c after
    the round; the drift and spread of the updates that are kept, num_clients of
    them; the norm of the mean of the num_gradients gradients that are kept;
    num_left_out, the clients of whom anything was left out; and the update_norm.
  """
  if control_variate not in ('current', 'previous'):
    raise ValueError(f"'current' or 'previous', not {control_variate!r}")
  two_trips = corrected and control_variate == 'current'
  x, s = weights, base.init(weights)
  c = map_weights(np.zeros_like, weights)
  all_weights, all_metrics = [], []

  for t, cohort in enumerate(cohorts):
    # By the client's index in the cohort: the full gradients and the local models.
    gradients: dict[int, Weights] = {}
    ys: dict[int, Weights] = {}
    left_out = set()
    new_x, new_s, new_c = x, s, c

    # The clients that send gradients, and those that send updates.
    everyone = range(len(cohort))
    half = len(cohort) // 2
    senders, trainers = (
      (everyone[:half], everyone[half:]) if split else (everyone, everyone)
    )

    for i in senders:
      data = cohort[i]
      if num_rows(data) == 0:
        continue
      g = _full_gradient(loss_and_gradient, x, data)
      if all_finite(data) and all_finite(g):
        gradients[i] = g
      else:
        left_out.add(i)

    # What a corrected step takes for c.
    c_sent = c
    if two_trips:
      if gradients:
        c_sent = _mean(gradients, cohort, weighting)
      else:
        trainers = range(0)  # Nobody is asked to train.

    for i in trainers:
      data = cohort[i]
      if num_rows(data) == 0:
        continue
      y, s_i = x, s
      order_i = functools.partial(order, t, i) if order else None
      with np.errstate(all='ignore'):
        for batch in batches(data, batch_size, epochs, max_steps, order_i):
          _, g = loss_and_gradient(y, batch)
          if corrected:
            _, g_x = loss_and_gradient(x, batch)
            g = map_weights(lambda g, g_x, c: g - g_x + c, g, g_x, c_sent)
          g = map_weights(lambda g, y, x: g + rho * (y - x), g, y, x)
          u = base.U(g, s_i)
          y = map_weights(lambda y, u: y - learning_rate * u, y, u)
          if updates_locally:
            s_i = base.V(g, s_i)
        delta = map_weights(np.subtract, x, y)
      if all_finite(data) and all_finite(delta):
        ys[i] = y
      else:
        left_out.add(i)

    if not two_trips and not split:
      # Both uploads went up together.
      for i in left_out:
        gradients.pop(i, None)
        ys.pop(i, None)

    mean = _mean(gradients, cohort, weighting) if gradients else None
    if mean is not None and ys:
      new_c = mean
      with np.errstate(all='ignore'):
        new_s = base.V(new_c, s)
      new_x = _server_update(x, ys, cohort, weighting, server_learning_rate)
    metrics = _metrics(x, ys, cohort, weighting)
    metrics['gradient_norm'] = float('nan') if mean is None else norm(mean)
    metrics['num_gradients'] = len(gradients)
    metrics['num_left_out'] = len(left_out)

    x_old = x
    if all_finite(new_x) and all_finite(new_s) and all_finite(new_c):
      x, s, c = new_x, new_s, new_c
    metrics['update_norm'] = norm(map_weights(np.subtract, x, x_old))
    metrics['s'] = s
    metrics['c'] = c
    all_weights.append(x)
    all_metrics.append(metrics)
  return all_weights, all_metrics


def mime_mvr(
  loss_and_gradient: LossAndGradient,
  weights: Weights,
  cohorts: Sequence[Cohort],
  *,
  a: float,
  learning_rate: float,
  batch_size: int,
  epochs: int = 1,
  max_steps: int | None = None,
  server_learning_rate: float = 1.0,
  weighting: str = 'examples',
  order: Order | None = None,
  lite: bool = False,
) -> tuple[list[Weights], list[Metrics]]:
  """Runs MimeMVR (Algorithm 5) or MimeLiteMVR (equation 14).

  A client sends y and both gradients in one trip, and is left out as a whole if
  a row or any of them is not finite. If nobody is kept, or if the new x, m or c
  were not finite, everything stays, x^{t-2} too.

  Args:
    loss_and_gradient: As in `mime`, and so all that is not named here.
    weights: x^0, and x^{-1}.
    cohorts: One cohort a round.
    a: 1 - beta, the weight of the new gradient.
    learning_rate: eta of the local steps.
    batch_size: Rows of a batch.
    epochs: Passes over the client's rows.
    max_steps: The most local steps a client takes.
    server_learning_rate: eta_g; 1 is the paper's.
    weighting: 'examples' or 'uniform'.
    order: The order of the rows.
    lite: MimeLiteMVR if true, which does not send c.

  Returns:
    The weights after every round, and the metrics of every round: m and c after
    the round, the others as in `mime`.
  """
  x, x_before = weights, weights  # x^{t-1} and x^{t-2}
  m = map_weights(np.zeros_like, weights)
  c = map_weights(np.zeros_like, weights)
  all_weights, all_metrics = [], []

  for t, cohort in enumerate(cohorts):
    ys: dict[int, Weights] = {}
    gradients: dict[int, Weights] = {}  # at x^{t-1}
    gradients_before: dict[int, Weights] = {}  # at x^{t-2}
    left_out = 0

    for i, data in enumerate(cohort):
      if num_rows(data) == 0:
        continue
      y = x
      order_i = functools.partial(order, t, i) if order else None
      with np.errstate(all='ignore'):
        for batch in batches(data, batch_size, epochs, max_steps, order_i):
          _, g_y = loss_and_gradient(y, batch)
          _, g_x = loss_and_gradient(x, batch)
          if lite:
            g = g_y
          else:
            g = map_weights(lambda g_y, g_x, c: g_y - g_x + c, g_y, g_x, c)
          d = map_weights(
            lambda g, m, g_y, g_x: a * g + (1 - a) * m + (1 - a) * (g_y - g_x),
            g,
            m,
            g_y,
            g_x,
          )
          y = map_weights(lambda y, d: y - learning_rate * d, y, d)
        delta = map_weights(np.subtract, x, y)
      g = _full_gradient(loss_and_gradient, x, data)
      g_before = _full_gradient(loss_and_gradient, x_before, data)
      uploads = {'delta': delta, 'g': g, 'g_before': g_before}
      if not all_finite(data) or not all_finite(uploads):
        left_out += 1
        continue
      ys[i], gradients[i], gradients_before[i] = y, g, g_before

    new_x, new_m, new_c = x, m, c
    if ys:
      new_c = _mean(gradients, cohort, weighting)
      c_before = _mean(gradients_before, cohort, weighting)
      new_m = _new_m(a, m, new_c, c_before)
      new_x = _server_update(x, ys, cohort, weighting, server_learning_rate)
    metrics = _metrics(x, ys, cohort, weighting)
    metrics['gradient_norm'] = norm(new_c) if ys else float('nan')
    metrics['num_left_out'] = left_out

    x_old = x
    if ys and all_finite(new_x) and all_finite(new_m) and all_finite(new_c):
      x, x_before, m, c = new_x, x, new_m, new_c
    metrics['update_norm'] = norm(map_weights(np.subtract, x, x_old))
    metrics['m'] = m
    metrics['c'] = c
    all_weights.append(x)
    all_metrics.append(metrics)
  return all_weights, all_metrics


def server_only_mvr(
  loss_and_gradient: LossAndGradient,
  weights: Weights,
  cohorts: Sequence[Cohort],
  *,
  a: float,
  learning_rate: float,
  weighting: str = 'examples',
) -> tuple[list[Weights], list[Metrics]]:
  """Runs MVR at the server, without local steps.

  m <- a c + (1 - a) (m + c - c~), equation 16, then x <- x - eta m with the new
  m; c and c~ are the cohort's mean full gradients at x^{t-1} and x^{t-2}, and
  x^{-1} = x^0. Guards as in `mime_mvr`. The metrics have m and c after the round.
  """
  x, x_before = weights, weights
  m = map_weights(np.zeros_like, weights)
  c = map_weights(np.zeros_like, weights)
  all_weights, all_metrics = [], []

  for cohort in cohorts:
    gradients: dict[int, Weights] = {}
    gradients_before: dict[int, Weights] = {}
    left_out = 0
    for i, data in enumerate(cohort):
      if num_rows(data) == 0:
        continue
      g = _full_gradient(loss_and_gradient, x, data)
      g_before = _full_gradient(loss_and_gradient, x_before, data)
      if not (all_finite(data) and all_finite(g) and all_finite(g_before)):
        left_out += 1
        continue
      gradients[i], gradients_before[i] = g, g_before

    new_x, new_m, new_c = x, m, c
    if gradients:
      new_c = _mean(gradients, cohort, weighting)
      c_before = _mean(gradients_before, cohort, weighting)
      new_m = _new_m(a, m, new_c, c_before)
      with np.errstate(all='ignore'):
        new_x = map_weights(lambda x, m: x - learning_rate * m, x, new_m)
    metrics: Metrics = {
      'gradient_norm': norm(new_c) if gradients else float('nan'),
      'num_clients': len(gradients),
      'num_left_out': left_out,
    }

    x_old = x
    if gradients and all_finite(new_x) and all_finite(new_m) and all_finite(new_c):
      x, x_before, m, c = new_x, x, new_m, new_c
    metrics['update_norm'] = norm(map_weights(np.subtract, x, x_old))
    metrics['m'] = m
    metrics['c'] = c
    all_weights.append(x)
    all_metrics.append(metrics)
  return all_weights, all_metrics


def _full_gradient(
  loss_and_gradient: LossAndGradient, x: Weights, data: Batch
) -> Weights:
  """The gradient at x over all rows of the client, each once."""
  with np.errstate(all='ignore'):
    return loss_and_gradient(x, data)[1]


def _client_weights(
  chosen: dict[int, Weights], cohort: Cohort, weighting: str
) -> list[float]:
  return example_weights([num_rows(cohort[i]) for i in chosen], weighting)


def _mean(chosen: dict[int, Weights], cohort: Cohort, weighting: str) -> Weights:
  """The mean of what the clients sent, by their index in the cohort."""
  p = _client_weights(chosen, cohort, weighting)
  with np.errstate(all='ignore'):
    return weighted_mean(list(chosen.values()), p)


def _server_update(
  x: Weights, ys: dict[int, Weights], cohort: Cohort, weighting: str, rate: float
) -> Weights:
  """The new x: x - eta_g mean(x - y_i)."""
  deltas = {i: map_weights(np.subtract, x, y) for i, y in ys.items()}
  with np.errstate(all='ignore'):
    mean = _mean(deltas, cohort, weighting)
    return map_weights(lambda x, d: x - rate * d, x, mean)


def _new_m(a: float, m: Weights, c: Weights, c_before: Weights) -> Weights:
  """Equation 16."""
  with np.errstate(all='ignore'):
    return map_weights(
      lambda m, c, c_before: a * c + (1 - a) * m + (1 - a) * (c - c_before),
      m,
      c,
      c_before,
    )


def _metrics(
  x: Weights, ys: dict[int, Weights], cohort: Cohort, weighting: str
) -> Metrics:
  """What the local models of the kept clients tell; NaN if there are none."""
  drifts = [norm(map_weights(np.subtract, y, x)) for y in ys.values()]
  p = _client_weights(ys, cohort, weighting)
  return {
    'drift': ratio(sum(drifts), len(drifts)),
    'spread': spread(list(ys.values()), p),
    'num_clients': len(ys),
  }
