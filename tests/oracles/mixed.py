"""Mixed federated learning in numpy: a federated and a central loss, f_f + f_c.

"Mixed Federated Learning: Joint Decentralized and Centralized Learning"
(Augenstein et al. 2022): Algorithm 1 (parallel training and 2-way gradient
transfer), Algorithm 2 (1-way gradient transfer), equation 7 (dissimilarity),
appendix A.2 (the clients' average gradient) and B.4.5 (transfer learning).

Rows, cohorts and batches are those of `fed_avg`, and so is p_i = n_i. The central
data of a round, one entry of `centrals`, are the rows that the server has in it,
or None for a loss without data. f_f and f_c contain w_f and w_c, but the losses in
the metrics do not.

A client without rows, or with something not finite in its rows or in what it sends,
is left out of everything. A round without a usable client changes nothing at all,
nor does one that would give something not finite.

All functions return the weights after every round, and the metrics of every round:
- loss: The mean over the examples of the local steps, before each step.
- central_loss: The same of the central steps; a step without data counts one.
- num_examples, num_clients, num_left_out, update_norm: As in `fed_avg`.
And those of the three algorithms also, NaN or None where no client was kept:
- g_tilde_square, b_tilde_square: Equation 7 at x, with the first batches.
- federated_gradient: The mean over all clients and steps of w_f g_i, without the
  augmenting and the FedProx part.
- recovered_gradient: Equation 10, which is the same for plain SGD and rho = 0.
- g_tilde_c, g_tilde_f: The augmenting gradients after the round.
"""

from collections.abc import Callable, Iterable, Sequence
import dataclasses
import functools
from typing import Any

import numpy as np

from tests.oracles import numpy_optimizers
from tests.oracles.fed_avg import Cohort, batches, example_weights, ratio
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

CentralLossAndGradient = Callable[[Weights, Any], tuple[float, Weights]]
Metrics = dict[str, Any]
Result = tuple[list[Weights], list[Metrics]]
State = dict[str, Any]


@dataclasses.dataclass(kw_only=True)
class Settings:
  """The arguments that the functions below share.

  An optimizer is a base optimizer (U, V) or a server optimizer of numpy_optimizers,
  plain SGD if None. A rate of its own is multiplied by the one given here.

  Attributes:
    learning_rate: eta of the client optimizer.
    batch_size: Rows of a client's batch; the last of an epoch may be shorter.
    central_batch_size: Rows of a central batch, needed where there are central steps.
      Step k takes the k-th batch, without shuffling. The last one may be shorter,
      and then comes the first again.
    central_steps: K_c, at least 1, needed likewise.
    central_learning_rate: eta_c; eta eta_s if None (appendix B.2).
    server_learning_rate: eta_s.
    merge_learning_rate: eta_m.
    federated_weight: w_f, multiplies the clients' gradients.
    central_weight: w_c, multiplies the central gradients.
    epochs: Passes over the client's rows.
    max_steps: The most local steps of a client, at least 1.
    weighting: 'examples' (p_i = n_i) or 'uniform'.
    order: (round, index in the cohort, epoch, n_i) -> order of the rows.
    clip_central_norm: Every w_c g_c is scaled down to this global norm if it is
      larger, before the augmenting gradient is added.
    server: The server optimizer. Its state is kept over rounds.
    central: The central optimizer, fresh in every round.
    merge: The merge optimizer. Its state is kept over rounds.
    client: The client optimizer, fresh for every client in every round.
    rho: FedProx: rho (y - x) is added to the local gradient, whatever w_f is.
  """

  learning_rate: float
  batch_size: int
  central_batch_size: int = 0
  central_steps: int = 0
  central_learning_rate: float | None = None
  server_learning_rate: float = 1.0
  merge_learning_rate: float = 1.0
  federated_weight: float = 1.0
  central_weight: float = 1.0
  epochs: int = 1
  max_steps: int | None = None
  weighting: str = 'examples'
  order: Callable[[int, int, int, int], np.ndarray] | None = None
  clip_central_norm: float | None = None
  server: Any = None
  central: Any = None
  merge: Any = None
  client: Any = None
  rho: float = 0.0

  def __post_init__(self) -> None:
    if self.central_learning_rate is None:
      self.central_learning_rate = self.learning_rate * self.server_learning_rate
    for name in ('server', 'central', 'merge', 'client'):
      optimizer = getattr(self, name) or numpy_optimizers.Sgd()
      if not hasattr(optimizer, 'next'):
        optimizer = numpy_optimizers.BaseServer(optimizer)
      setattr(self, name, optimizer)


def parallel_training(
  loss_and_gradient: LossAndGradient,
  central_loss_and_gradient: CentralLossAndGradient,
  weights: Weights,
  cohorts: Sequence[Cohort],
  centrals: Sequence[Batch | None],
  **settings: Any,
) -> Result:
  """Runs parallel training (Algorithm 1); for the arguments see `Settings`."""
  functions = loss_and_gradient, central_loss_and_gradient
  rounds = zip(cohorts, centrals, strict=True)
  return _mixed(*functions, weights, rounds, lambda t: 'parallel', settings)


def two_way(
  loss_and_gradient: LossAndGradient,
  central_loss_and_gradient: CentralLossAndGradient,
  weights: Weights,
  cohorts: Sequence[Cohort],
  centrals: Sequence[Batch | None],
  *,
  initial_gradients: tuple[Weights, Weights] | None = None,
  **settings: Any,
) -> Result:
  """Runs 2-way gradient transfer (Algorithm 1).

  Clients add g~_c to their gradients, and central steps add g~_f to theirs. After
  a round g~_c is the mean of its central gradients, g~_f that of its client
  gradients over all clients and steps, both without what was added. At the start
  (g~_c, g~_f) are the initial gradients, zero if None.
  """
  functions = loss_and_gradient, central_loss_and_gradient
  rounds = zip(cohorts, centrals, strict=True)
  return _mixed(
    *functions, weights, rounds, lambda t: 'two_way', settings, initial_gradients
  )


def one_way(
  loss_and_gradient: LossAndGradient,
  central_loss_and_gradient: CentralLossAndGradient,
  weights: Weights,
  cohorts: Sequence[Cohort],
  centrals: Sequence[Batch | None],
  **settings: Any,
) -> Result:
  """Runs 1-way gradient transfer (Algorithm 2).

  g~_c is the gradient of f_c at x on all rows of the server as one batch. There are
  no central steps and no merge, and no settings of theirs.
  """
  functions = loss_and_gradient, central_loss_and_gradient
  rounds = zip(cohorts, centrals, strict=True)
  _refuse(settings, ['merge', 'central_batch', 'central_steps', 'central_learning'])
  return _mixed(*functions, weights, rounds, lambda t: 'one_way', settings)


def only_central(
  central_loss_and_gradient: CentralLossAndGradient,
  weights: Weights,
  centrals: Sequence[Batch | None],
  *,
  central_learning_rate: float,
  **settings: Any,
) -> Result:
  """Runs the central steps alone; the optimizer's state is kept over rounds."""
  settings |= {'central_learning_rate': central_learning_rate}
  settings |= {'learning_rate': 1.0, 'batch_size': 1}  # There are no clients.
  return _mixed(
    None,
    central_loss_and_gradient,
    weights,
    [((), data) for data in centrals],
    lambda t: 'central',
    settings,
    keep_central_state=True,
  )


def transfer_learning(
  loss_and_gradient: LossAndGradient,
  central_loss_and_gradient: CentralLossAndGradient,
  weights: Weights,
  cohorts: Sequence[Cohort],
  centrals: Sequence[Batch | None],
  *,
  switch_round: int,
  order_of_stages: str = 'central_first',
  keep_central_state: bool = False,
  **settings: Any,
) -> Result:
  """Runs transfer learning (appendix B.4.5): one stage, then the other.

  A central round takes K_c central steps from x and asks no client, a federated
  one is FedAvg. Rounds before `switch_round`, counted from 0, are of the first
  stage: 'central_first' or 'federated_first'. The central optimizer is fresh in
  every round unless its state is to be kept.
  """
  _refuse(settings, ['merge', 'federated_weight', 'central_weight'])
  stages = ['central', 'federated']
  if order_of_stages not in ('central_first', 'federated_first'):
    raise ValueError(f"'central_first' or 'federated_first', not {order_of_stages!r}")
  if order_of_stages == 'federated_first':
    stages.reverse()
  return _mixed(
    loss_and_gradient,
    central_loss_and_gradient,
    weights,
    zip(cohorts, centrals, strict=True),
    lambda t: stages[t >= switch_round],
    settings,
    keep_central_state=keep_central_state,
  )


def populations(
  loss_and_gradients: Sequence[LossAndGradient],
  weights: Weights,
  cohorts: Sequence[Sequence[tuple[int, Batch]]],
  *,
  population_weights: Sequence[float],
  server_learning_rates: Sequence[float],
  servers: Sequence[Any] | None = None,
  **settings: Any,
) -> Result:
  """Runs parallel training of several populations of clients, without a centre.

  A cohort has pairs (population, rows). x_p = ServerOptimizer_p(x, -Delta_p) and
  x <- MergeOptimizer(x, -sum_p (x_p - x)). For a population without usable clients
  x_p is x, and its server optimizer's state stays. An index in the cohort counts
  all of its clients. The metrics also have population_metrics, one dict for each.
  """
  columns = (
    loss_and_gradients,
    population_weights,
    server_learning_rates,
    servers or [None] * len(loss_and_gradients),
  )
  parts = [
    (f, Settings(federated_weight=w, server_learning_rate=rate, server=s, **settings))
    for f, w, rate, s in zip(*columns, strict=True)
  ]
  merge = Settings(**settings)
  zeros = map_weights(np.zeros_like, weights)

  def one_round(t: int, state: State, cohort: Any) -> tuple[State | None, Metrics]:
    x, server_states, xs, all_updates = state['x'], dict(state['servers']), [], []
    for p, (loss_and_gradient, part) in enumerate(parts):
      members = [(i, rows) for i, (q, rows) in enumerate(cohort) if q == p]
      updates = _client_updates(loss_and_gradient, x, t, members, zeros, part)
      if updates.deltas:
        server_states[p], x_p = _server_step(server_states[p], x, updates, part)
        xs.append(x_p)
      all_updates.append(updates)
    metrics = _client_metrics(all_updates)
    metrics['population_metrics'] = [_client_metrics([u]) for u in all_updates]
    if not xs:
      return None, metrics
    merge_state, new_x = _merge(state['merge'], x, xs, merge)
    return {'x': new_x, 'servers': server_states, 'merge': merge_state}, metrics

  server_states = {p: part.server.init(weights) for p, (_, part) in enumerate(parts)}
  start = {'x': weights, 'servers': server_states, 'merge': merge.merge.init(weights)}
  return _run(one_round, start, cohorts)


def dissimilarity(
  federated_gradient: Weights,
  central_gradient: Weights,
  federated_weight: float,
  central_weight: float,
) -> tuple[float, float]:
  """G~^2 and B~^2 of equation 7, in float64; the gradients contain the weights.

  A term with a weight of 0 is 0, its limit. Where the gradients cancel B~^2 is inf,
  and NaN where both are 0.
  """
  gradients = federated_gradient, central_gradient
  terms = np.float64(0)
  for g, w in zip(gradients, (federated_weight, central_weight), strict=True):
    if w:
      terms += norm(g) ** 2 / w
  both = map_weights(lambda f, c: f.astype(np.float64) + c, *gradients)
  square = np.float64(norm(both) ** 2)
  with np.errstate(all='ignore'):
    return float(terms - square), float(terms / square)


def _mixed(
  loss_and_gradient: Any,
  central_loss_and_gradient: CentralLossAndGradient,
  weights: Weights,
  rounds: Iterable[tuple[Cohort, Batch | None]],
  kind_of_round: Callable[[int], str],
  settings: dict[str, Any],
  initial_gradients: tuple[Weights, Weights] | None = None,
  keep_central_state: bool = False,
) -> Result:
  """Rounds that are 'parallel', 'two_way', 'one_way', 'central' or 'federated'."""
  given = Settings(**settings)
  zeros = map_weights(np.zeros_like, weights)

  def one_round(t: int, state: State, data: Any) -> tuple[State | None, Metrics]:
    (cohort, rows), x, kind = data, state['x'], kind_of_round(t)
    new, xs, updates, run = dict(state), [], _Updates(), None
    g_c, g_f = state['g_c'], state['g_f']

    if kind != 'federated':
      before = state['central'] if keep_central_state else given.central.init(x)
      if kind == 'one_way':
        # One large batch. The step itself is not used.
        size = 1 if rows is None else num_rows(rows)
        one = dataclasses.replace(given, central_steps=1, central_batch_size=size)
        run = _central_run(central_loss_and_gradient, x, rows, before, g_f, one)
        new['g_c'] = g_c = run.mean
      else:
        run = _central_run(central_loss_and_gradient, x, rows, before, g_f, given)
        if keep_central_state:
          new['central'] = run.state
        xs.append(run.x)
    metrics = {'central_loss': run.loss if run else float('nan')}

    if kind != 'central':
      clients = enumerate(cohort)
      sends_gradients = kind == 'two_way'
      updates = _client_updates(
        loss_and_gradient, x, t, clients, g_c, given, sends_gradients
      )
      if updates.deltas:
        new['server'], x_f = _server_step(state['server'], x, updates, given)
        xs.append(x_f)
    metrics |= _client_metrics([updates])
    if run and kind != 'central':
      metrics |= _gradient_metrics(updates, run.first, g_c, given)

    if kind != 'central' and not updates.deltas:
      return None, metrics
    if len(xs) == 1:
      new['x'] = xs[0]
    else:
      new['merge'], new['x'] = _merge(state['merge'], x, xs, given)
    if run and kind == 'two_way':
      new |= {'g_c': run.mean, 'g_f': metrics['federated_gradient']}
    return new, metrics

  start: State = {'x': weights}
  start['g_c'], start['g_f'] = initial_gradients or (zeros, zeros)
  for name in ('server', 'central', 'merge'):
    start[name] = getattr(given, name).init(weights)
  return _run(one_round, start, rounds)


def _run(
  one_round: Callable[[int, State, Any], tuple[State | None, Metrics]],
  state: State,
  rounds: Iterable[Any],
) -> Result:
  """All rounds; a new state that is None or not finite is not taken."""
  all_weights, all_metrics = [], []
  for t, data in enumerate(rounds):
    x_old = state['x']
    with np.errstate(all='ignore'):
      new, metrics = one_round(t, state, data)
    if new is not None and all_finite(new):
      state = new
    metrics['update_norm'] = norm(map_weights(np.subtract, state['x'], x_old))
    if 'federated_gradient' in metrics:
      metrics |= {'g_tilde_c': state['g_c'], 'g_tilde_f': state['g_f']}
    all_weights.append(state['x'])
    all_metrics.append(metrics)
  return all_weights, all_metrics


@dataclasses.dataclass
class _Updates:
  """What the kept clients of a round have done."""

  deltas: list[Weights] = dataclasses.field(default_factory=list)  # y - x
  # w_f g_i: the sum over the client's steps, and the one of its first step, at x.
  gradients: list[Weights] = dataclasses.field(default_factory=list)
  firsts: list[Weights] = dataclasses.field(default_factory=list)
  n: list[int] = dataclasses.field(default_factory=list)
  steps: int = 0
  loss_sum: float = 0.0
  rows_seen: int = 0
  left_out: int = 0


def _client_updates(
  loss_and_gradient: LossAndGradient,
  x: Weights,
  t: int,
  clients: Iterable[tuple[int, Batch]],
  g_c: Weights,
  given: Settings,
  sends_gradients: bool = False,
) -> _Updates:
  """ClientUpdate of Algorithm 1, for all clients of a round."""
  updates, rho = _Updates(), given.rho
  for i, data in clients:
    if num_rows(data) == 0:
      continue
    order = functools.partial(given.order, t, i) if given.order else None
    y, s = x, given.client.init(x)
    gradients, loss_sum, rows_seen = [], 0.0, 0
    for batch in batches(data, given.batch_size, given.epochs, given.max_steps, order):
      loss, g = loss_and_gradient(y, batch)
      loss_sum += loss * num_rows(batch)
      rows_seen += num_rows(batch)
      g = _scale(g, given.federated_weight)
      gradients.append(g)
      d = map_weights(lambda g, c, y, x: g + c + rho * (y - x), g, g_c, y, x)
      s, y = given.client.next(s, y, d, given.learning_rate)
    delta, total = map_weights(np.subtract, y, x), _sum(gradients)
    finite = all_finite(data) and all_finite(delta)
    if not finite or (sends_gradients and not all_finite(total)):
      updates.left_out += 1
      continue
    updates.deltas.append(delta)
    updates.gradients.append(total)
    updates.firsts.append(gradients[0])
    updates.n.append(num_rows(data))
    updates.steps += len(gradients)
    updates.loss_sum += loss_sum
    updates.rows_seen += rows_seen
  return updates


@dataclasses.dataclass
class _CentralRun:
  """What the central steps of a round give."""

  x: Weights
  state: Any
  first: Weights  # w_c g_c of the first step, at x, not clipped.
  mean: Weights  # That of all steps, clipped, without the augmenting part.
  loss: float


def _central_run(
  central_loss_and_gradient: CentralLossAndGradient,
  x: Weights,
  data: Batch | None,
  state: Any,
  g_f: Weights,
  given: Settings,
) -> _CentralRun:
  """The central steps of Algorithm 1."""
  steps = given.central_steps
  chosen: Iterable[Batch | None] = [None] * steps
  if data is not None:
    if num_rows(data) == 0:
      raise ValueError('The server has no rows in this round.')
    chosen = batches(data, given.central_batch_size, steps, steps)
  gradients, clipped, loss_sum, rows_seen = [], [], 0.0, 0
  for batch in chosen:
    loss, g = central_loss_and_gradient(x, batch)
    rows = 1 if batch is None else num_rows(batch)
    loss_sum += loss * rows
    rows_seen += rows
    gradients.append(_scale(g, given.central_weight))
    clipped.append(_clip(gradients[-1], given.clip_central_norm))
    d = map_weights(np.add, clipped[-1], g_f)
    state, x = given.central.next(state, x, d, given.central_learning_rate)
  mean = _scale(_sum(clipped), 1 / steps)
  return _CentralRun(x, state, gradients[0], mean, ratio(loss_sum, rows_seen))


def _server_step(
  state: Any, x: Weights, updates: _Updates, given: Settings
) -> tuple[Any, Weights]:
  """x_f = ServerOptimizer(x, -Delta, eta_s), Delta the weighted mean."""
  delta = weighted_mean(updates.deltas, example_weights(updates.n, given.weighting))
  return given.server.next(state, x, _scale(delta, -1.0), given.server_learning_rate)


def _merge(
  state: Any, x: Weights, xs: Sequence[Weights], given: Settings
) -> tuple[Any, Weights]:
  """x <- MergeOptimizer(x, -sum (x_p - x), eta_m)."""
  minus_deltas = _sum([map_weights(np.subtract, x, x_p) for x_p in xs])
  return given.merge.next(state, x, minus_deltas, given.merge_learning_rate)


def _client_metrics(all_updates: Sequence[_Updates]) -> Metrics:
  losses = sum(updates.loss_sum for updates in all_updates)
  return {
    'loss': ratio(losses, sum(updates.rows_seen for updates in all_updates)),
    'num_examples': sum(sum(updates.n) for updates in all_updates),
    'num_clients': sum(len(updates.n) for updates in all_updates),
    'num_left_out': sum(updates.left_out for updates in all_updates),
  }


def _gradient_metrics(
  updates: _Updates, central_gradient: Weights, g_c: Weights, given: Settings
) -> Metrics:
  """Equation 7, the mean of the client gradients, and the same by equation 10."""
  names = ('g_tilde_square', 'b_tilde_square')
  if not updates.deltas:
    metrics: Metrics = dict.fromkeys(names, float('nan'))
    return metrics | {'federated_gradient': None, 'recovered_gradient': None}
  # The mean over S is uniform in equation 7.
  federated = weighted_mean(updates.firsts, [1.0] * len(updates.firsts))
  both = dissimilarity(
    federated, central_gradient, given.federated_weight, given.central_weight
  )
  factor = -1 / (given.learning_rate * updates.steps)
  deltas = _sum(updates.deltas)
  return dict(zip(names, both, strict=True)) | {
    'federated_gradient': _scale(_sum(updates.gradients), 1 / updates.steps),
    'recovered_gradient': map_weights(lambda d, g: factor * d - g, deltas, g_c),
  }


def _clip(gradient: Weights, clip_norm: float | None) -> Weights:
  if clip_norm is None or not norm(gradient) > clip_norm:
    return gradient
  return _scale(gradient, clip_norm / norm(gradient))


def _scale(tree: Weights, factor: float) -> Weights:
  return map_weights(lambda a: a * factor, tree)


def _sum(trees: Sequence[Weights]) -> Weights:
  return functools.reduce(functools.partial(map_weights, np.add), trees)


def _refuse(settings: dict[str, Any], beginnings: Sequence[str]) -> None:
  for name in settings:
    if name.startswith(tuple(beginnings)):
      raise TypeError(f'There is no {name} here.')
