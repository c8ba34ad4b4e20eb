"""Federated saddle-point algorithms in numpy.

"Efficient Algorithms for Federated Saddle Point Optimization" (Hou et al. 2021):
FedAvg-S (Algorithm 4), Extra Step Local SGD (appendix A), SCAFFOLD-S (Algorithm 2),
SCAFFOLD-Catalyst-S (Algorithms 3 and 5), minibatch mirror descent and mirror-prox
(section 4), and the quadratic game of section 6.

A point z is a pair (x, y) of lists of arrays: x minimizes, y maximizes. Its dtype
is that of the whole run. A mapping is (z, batch) -> (mean loss, (df/dx, -df/dy)),
the gradient mapping of the mean over the rows of the batch.

A client is a pair of a name and its rows, a dict of arrays with n_i >= 0 rows. A
round is tau local steps of every client with rows and one synchronization. All
means over clients are uniform. A client is left out if a number in its rows or in
what it sends is not finite; where it sends twice in a round, each is judged alone.
A round in which nobody is left, or after which the state were not finite, changes
nothing, but it counts as a round: for tau, the order and the metrics.

All algorithms return z after every round and the metrics of every round:

  communication_rounds: rounds so far, those that changed nothing too. Two a round
    with mirror-prox, one with all others.
  num_clients: clients whose (last) update is in the mean.
  num_left_out: clients of whom anything was left out.
  update_norm: ||z - z_old||.
  gradient_norm: the norm of the mean of the mappings that the clients sent at the
    server's z, NaN if nobody did. Not with FedAvg-S, where none are sent.
"""

from collections.abc import Callable, Iterator, Sequence
import dataclasses
import functools
import math
from typing import Any

import numpy as np

from tests.oracles import numpy_models
from tests.oracles.fed_avg import batches
from tests.oracles.numpy_models import Batch, num_rows

Z = tuple[list[np.ndarray], list[np.ndarray]]
Mapping = Callable[[Z, Batch], tuple[float, Z]]
NamedCohort = Sequence[tuple[Any, Batch]]
Metrics = dict[str, Any]
Order = Callable[[int, int, int, int], np.ndarray]
Steps = int | Sequence[int] | Callable[[int], int]
Prox = Callable[[Z], Z]
Draw = Callable[[Batch, int], Iterator[Batch]]
Function = Callable[[list[np.ndarray], list[np.ndarray]], float]


def fed_avg_s(
  mapping: Mapping,
  z0: Z,
  rounds: Sequence[NamedCohort],
  *,
  gamma_l: float,
  tau: Steps,
  gamma_g: float | None = None,
  batch_size: int | None = None,
  order: Order | None = None,
  schedule: str | None = None,
  extra_step: bool = False,
  mu: float | None = None,
) -> tuple[list[Z], list[Metrics]]:
  """Runs FedAvg-S, or Extra Step Local SGD.

  Args:
    mapping: See the module.
    z0: z at the start.
    rounds: One cohort a round.
    gamma_l: The step size of the local steps, which may be 0.
    tau: The number of local steps of a round, the same for all clients: one
      number, or one for every round, from 0.
    gamma_g: The server's step size, gamma_l if None. With it, z becomes the mean
      of the clients' z_i.
    batch_size: Rows of a batch; the last batch of a pass may be shorter. All rows
      if None. Passes over the rows are repeated as long as steps last.
    order: (round, index of the client in the whole cohort, pass, n_i) -> order of
      the rows in that pass. As they come if None.
    schedule: 'inverse_sqrt' multiplies both step sizes by 1 / (sqrt(k) + 1), k the
      local iterations from the start of the run, those of rounds that changed
      nothing not counted.
    extra_step: A local step goes along the mapping at z_i - gamma_l g, g the
      mapping at z_i, on the same batch. Not with a schedule.
    mu: If given, the metrics have 'average', the iterate of Theorem 4: the mean of
      z^0, ..., z^K with weights (1 - gamma_l mu / 4)^(1 - k), where z^k is the mean
      over the kept clients of z_i before step k, and z where they synchronize. The
      z_i are then judged as the update is.

  Returns:
    z after every round, and the metrics of every round.
  """
  if schedule not in (None, 'inverse_sqrt'):
    raise ValueError(f"schedule is None or 'inverse_sqrt', not {schedule!r}")
  if schedule and extra_step:
    raise ValueError('there is no schedule for the extra step')
  if mu is not None and gamma_l * mu >= 4:
    raise ValueError('gamma_l mu must be less than 4')
  gamma_g = gamma_l if gamma_g is None else gamma_g

  def direction(z: Z, batch: Batch) -> Z:
    _, g = mapping(z, batch)
    if extra_step:
      _, g = mapping(_step(z, gamma_l, g), batch)
    return g

  z, k = z0, 0
  path = [z0]  # z^0, ..., z^k
  all_z, all_metrics = [], []

  for t, cohort in enumerate(rounds):
    steps = _num_steps(tau, t)
    factors = [
      1 / (math.sqrt(k + j) + 1) if schedule == 'inverse_sqrt' else 1.0
      for j in range(steps)
    ]
    draw = _draw(tau, batch_size, order, t)
    uploads, iterates, left_out = [], [], 0
    for i, (_, data) in enumerate(cohort):
      if num_rows(data) == 0:
        continue
      z_i, total, iterates_i = z, _zeros(z), []
      with np.errstate(all='ignore'):
        for factor, batch in zip(factors, draw(data, i), strict=True):
          iterates_i.append(z_i)
          g = direction(z_i, batch)
          g = map_z(lambda g, factor=factor: factor * g, g)
          z_i = _step(z_i, gamma_l, g)
          total = map_z(np.add, total, g)
      kept = numpy_models.all_finite(data) and all_finite(total)
      if mu is not None:
        kept = kept and all(all_finite(z_i) for z_i in iterates_i)
      if not kept:
        left_out += 1
        continue
      uploads.append(total)
      iterates.append(iterates_i)

    z_old = z
    new_z = _server_step(z, gamma_g, uploads)
    if new_z is not None:
      z, k = new_z, k + steps
      path += [mean([of_client[j] for of_client in iterates]) for j in range(1, steps)]
      path.append(z)
    all_z.append(z)
    metrics = _metrics(t + 1, len(uploads), left_out, z, z_old)
    if mu is not None:
      metrics['average'] = _weighted_average(path, 1 - gamma_l * mu / 4)
    all_metrics.append(metrics)
  return all_z, all_metrics


def scaffold_s(
  mapping: Mapping,
  z0: Z,
  rounds: Sequence[NamedCohort],
  *,
  gamma_l: float,
  tau: Steps,
  gamma_g: float | None = None,
  batch_size: int | None = None,
  order: Order | None = None,
) -> tuple[list[Z], list[Metrics]]:
  """Runs SCAFFOLD-S.

  A round starts with its cohort's mean of the mappings at z, each over all rows of
  a client. Arguments as in `fed_avg_s`.
  """
  gamma_g = gamma_l if gamma_g is None else gamma_g
  z = z0
  all_z, all_metrics = [], []
  for t, cohort in enumerate(rounds):
    z_old = z
    G, num_clients, left_out = _gather(mapping, z, cohort)
    if G is not None:
      uploads, also_left_out = _corrected_steps(
        mapping,
        z,
        G,
        cohort,
        gamma_l,
        _draw(tau, batch_size, order, t),
      )
      new_z = _server_step(z, gamma_g, uploads)
      z = z if new_z is None else new_z
      num_clients, left_out = len(uploads), left_out | also_left_out
    all_z.append(z)
    metrics = _metrics(t + 1, num_clients, len(left_out), z, z_old)
    metrics['gradient_norm'] = math.nan if G is None else norm(G)
    all_metrics.append(metrics)
  return all_z, all_metrics


def scaffold_catalyst_s(
  mapping: Mapping,
  z0: Z,
  rounds: Sequence[NamedCohort],
  *,
  theta: float,
  gamma_l: float,
  tau: Steps,
  gamma_g: float | None = None,
  batch_size: int | None = None,
  order: Order | None = None,
  inner_rounds: int | None = None,
  decrease: float | None = None,
  prox: Prox | None = None,
  epsilon: float | None = None,
  mu: float | None = None,
) -> tuple[list[Z], list[Metrics]]:
  """Runs SCAFFOLD-Catalyst-S.

  SCAFFOLD-S on f_i + theta/2 ||x - xbar||^2 - theta/2 ||y - ybar||^2. A run on it
  starts where the one before ended, at the new zbar. Whether it has ended is
  decided as soon as the clients' mappings at z are there, and never in its first
  round; the round goes on with zbar = z then. A round that changes nothing is no
  round of the run, and does not move zbar.

  Args:
    mapping: That of f_i, as in `fed_avg_s`, and so all that is not named here.
    z0: z and zbar at the start.
    rounds: One cohort a round.
    theta: The regularization.
    gamma_l: The step size of the local steps.
    tau: Local steps of a round.
    gamma_g: The server's step size.
    batch_size: Rows of a batch.
    order: The order of the rows.
    inner_rounds: A run ends after so many rounds.
    decrease: A run ends when the norm of G(z) + theta (z - zbar) is at most
      `decrease` times what it was in the run's first round.
    prox: A run ends when ||z - prox(zbar)||^2 <= (mu / (2 (theta + mu)))^2 epsilon,
      prox being that of f / theta. Of `inner_rounds`, `decrease` and `prox`
      just one is given.
    epsilon: The accuracy, with `prox`.
    mu: The strong convexity, with `prox`.

  Returns:
    z after every round, and the metrics of every round, which also have zbar
    (after the round), meta_iterations (how often zbar has moved) and inner_rounds
    (since it moved).
  """
  if [inner_rounds, decrease, prox].count(None) != 2:
    raise ValueError('give one of inner_rounds, decrease and prox')
  if prox is not None and (epsilon is None or mu is None):
    raise ValueError('prox needs epsilon and mu')
  gamma_g = gamma_l if gamma_g is None else gamma_g
  z, zbar, inner, moved, first_norm = z0, z0, 0, 0, math.nan
  all_z, all_metrics = [], []

  for t, cohort in enumerate(rounds):
    z_old = z
    G, num_clients, left_out = _gather(mapping, z, cohort)
    if G is not None:
      G_theta = _regularized(G, theta, z, zbar)
      if inner == 0:
        ends = False
      elif inner_rounds is not None:
        ends = inner >= inner_rounds
      elif decrease is not None:
        ends = norm(G_theta) <= decrease * first_norm
      else:
        assert prox is not None and mu is not None and epsilon is not None
        bound = (mu / (2 * (theta + mu))) ** 2 * epsilon
        ends = distance(z, prox(zbar)) ** 2 <= bound

      new_zbar, new_inner, new_moved, new_norm = zbar, inner, moved, first_norm
      if ends:
        new_zbar, new_inner, new_moved = z, 0, moved + 1
        G_theta = G
      if new_inner == 0:
        new_norm = norm(G_theta)  # = ||G(zbar)||

      def of_sub_problem(z: Z, batch: Batch, zbar: Z = new_zbar) -> tuple[None, Z]:
        _, g = mapping(z, batch)
        return None, _regularized(g, theta, z, zbar)

      uploads, also_left_out = _corrected_steps(
        of_sub_problem,
        z,
        G_theta,
        cohort,
        gamma_l,
        _draw(tau, batch_size, order, t),
      )
      new_z = _server_step(z, gamma_g, uploads)
      num_clients, left_out = len(uploads), left_out | also_left_out
      in_state = decrease is not None  # Whether the norm is.
      if new_z is not None and (math.isfinite(new_norm) or not in_state):
        z, zbar, inner, moved = new_z, new_zbar, new_inner + 1, new_moved
        first_norm = new_norm
    all_z.append(z)
    metrics = _metrics(t + 1, num_clients, len(left_out), z, z_old)
    metrics['gradient_norm'] = math.nan if G is None else norm(G)
    metrics |= {'zbar': zbar, 'meta_iterations': moved, 'inner_rounds': inner}
    all_metrics.append(metrics)
  return all_z, all_metrics


def mirror_descent(
  mapping: Mapping,
  z0: Z,
  rounds: Sequence[NamedCohort],
  *,
  gamma: float,
  num_batches: Steps | None = None,
  batch_size: int | None = None,
  order: Order | None = None,
) -> tuple[list[Z], list[Metrics]]:
  """Runs minibatch mirror descent: z <- z - gamma mean G_i(z).

  Args:
    mapping: As in `fed_avg_s`, and so all that is not named here.
    z0: z at the start.
    rounds: One cohort a round.
    gamma: The step size.
    num_batches: A client sends the mean of its mappings on so many batches, those
      that as many local steps would take. The mapping over all its rows if None.
    batch_size: Rows of a batch.
    order: The order of the rows.

  Returns:
    z after every round, and the metrics of every round.
  """
  z = z0
  all_z, all_metrics = [], []
  for t, cohort in enumerate(rounds):
    z_old = z
    draw = None
    if num_batches is not None:
      draw = _draw(num_batches, batch_size, order, t)
    G, num_clients, left_out = _gather(mapping, z, cohort, draw)
    if G is not None:
      new_z = _finite_step(z, gamma, G)
      z = z if new_z is None else new_z
    all_z.append(z)
    metrics = _metrics(t + 1, num_clients, len(left_out), z, z_old)
    metrics['gradient_norm'] = math.nan if G is None else norm(G)
    all_metrics.append(metrics)
  return all_z, all_metrics


def mirror_prox(
  mapping: Mapping,
  z0: Z,
  rounds: Sequence[NamedCohort],
  *,
  gamma: float,
  num_batches: Steps | None = None,
  batch_size: int | None = None,
  order: Order | None = None,
) -> tuple[list[Z], list[Metrics]]:
  """Runs minibatch mirror-prox: z <- z - gamma mean G_i(z - gamma mean G_i(z)).

  Both halves of a round have the same clients and take the same batches. If one
  comes to nothing, so does the round. Arguments as in `mirror_descent`; the
  gradient_norm is that of the first half.
  """
  z = z0
  all_z, all_metrics = [], []
  for t, cohort in enumerate(rounds):
    z_old = z
    draw = None
    if num_batches is not None:
      draw = _draw(num_batches, batch_size, order, t)
    G, _, left_out = _gather(mapping, z, cohort, draw)
    z_half = None if G is None else _finite_step(z, gamma, G)
    num_clients = 0
    if z_half is not None:
      G_half, num_clients, also_left_out = _gather(mapping, z_half, cohort, draw)
      left_out = left_out | also_left_out
      new_z = None if G_half is None else _finite_step(z, gamma, G_half)
      z = z if new_z is None else new_z
    all_z.append(z)
    metrics = _metrics(2 * (t + 1), num_clients, len(left_out), z, z_old)
    metrics['gradient_norm'] = math.nan if G is None else norm(G)
    all_metrics.append(metrics)
  return all_z, all_metrics


# How good a point is.


def duality_gap(f: Function, z: Z, z_star: Z) -> float:
  """Gap*(z) = f(x, y*) - f(x*, y), equation 6."""
  (x, y), (x_star, y_star) = z, z_star
  return float(f(x, y_star) - f(x_star, y))


def distance(z: Z, z_star: Z) -> float:
  """||z - z*||."""
  return norm(map_z(np.subtract, z, z_star))


def distance_of_x(z: Z, z_star: Z) -> float:
  """||x - x*||."""
  return distance((z[0], []), (z_star[0], []))


# The game of section 6.


@dataclasses.dataclass(frozen=True)
class QuadraticGame:
  """f_i(x, y) = -1/2 ||y||^2 + h (b_i y - y A_i x) + lambda/2 ||x||^2.

  A_i = diag(a_i); a client's f_i is the mean over its rows, which have 'a' [d] and
  'b' [d]; x and y are lists of one array [d]. f is the mean over the clients.

  Attributes:
    h: 1/2 is equation 18 to the letter; 1 is twice as much coupling.
    lam: lambda.
  """

  h: float = 0.5
  lam: float = 1e-5

  def mapping(self, z: Z, batch: Batch) -> tuple[float, Z]:
    """The mean loss over the rows, and (df/dx, -df/dy)."""
    (x,), (y,) = z
    a = np.mean(batch['a'].astype(x.dtype), axis=0)
    b = np.mean(batch['b'].astype(x.dtype), axis=0)
    h, lam = self.h, self.lam
    loss = -0.5 * (y @ y) + h * (b @ y - y @ (a * x)) + 0.5 * lam * (x @ x)
    return float(loss), ([lam * x - h * a * y], [y - h * (b - a * x)])

  def f(self, clients: NamedCohort) -> Function:
    """(x, y) -> f(x, y) of these clients."""
    return lambda x, y: float(
      np.mean([self.mapping((x, y), rows)[0] for _, rows in clients])
    )

  def linear(self, clients: NamedCohort) -> tuple[np.ndarray, np.ndarray]:
    """M and c of the clients' G(z) = M z + c, z one vector, in float64."""
    a, b = (
      np.mean([np.mean(rows[key], axis=0, dtype=float) for _, rows in clients], axis=0)
      for key in ('a', 'b')
    )
    A, identity = np.diag(a), np.eye(len(a))
    M = np.block([[self.lam * identity, -self.h * A.T], [self.h * A, identity]])
    return M, np.concatenate([np.zeros_like(b), -self.h * b])

  def optimum(self, clients: NamedCohort) -> Z:
    """z*, where G is 0, in float64."""
    M, c = self.linear(clients)
    x, y = np.split(np.linalg.solve(M, -c), 2)
    return [x], [y]

  def prox(self, clients: NamedCohort, theta: float) -> Prox:
    """prox of f / theta: where G(z) + theta (z - zbar) is 0."""
    M, c = self.linear(clients)

    def prox(zbar: Z) -> Z:
      (x,), (y,) = zbar
      v = np.concatenate([x, y]).astype(float)
      v = np.linalg.solve(M + theta * np.eye(len(v)), theta * v - c)
      x, y = np.split(v.astype(x.dtype), 2)
      return [x], [y]

    return prox

  @staticmethod
  def generate(
    rng: np.random.Generator, s: float, *, n: int = 10, d: int = 10
  ) -> list[tuple[str, Batch]]:
    """n clients of one row: b_i of mean 0, a_i at least 1, both of spread s.

    All b'_i are drawn before all a_i.
    """
    b = s * rng.standard_normal((n, d))
    b = b - np.mean(b, axis=0)
    a = np.maximum(1 + s * rng.standard_normal((n, d)), 1)
    return [(str(i), {'a': a[i : i + 1], 'b': b[i : i + 1]}) for i in range(n)]


# Points as vectors.


def map_z(fn: Callable[..., np.ndarray], *zs: Z) -> Z:
  """Applies fn to the arrays in the same place."""
  x, y = (
    [fn(*arrays) for arrays in zip(*parts, strict=True)]
    for parts in zip(*zs, strict=True)
  )
  return x, y


def norm(z: Z) -> float:
  """Euclidean norm of all arrays as one vector, in float64."""
  return numpy_models.norm({str(i): array for i, array in enumerate(z[0] + z[1])})


def mean(zs: Sequence[Z]) -> Z:
  """The mean of at least one."""
  total = functools.reduce(lambda a, b: map_z(np.add, a, b), zs)
  return map_z(lambda total: total / len(zs), total)


def all_finite(z: Z) -> bool:
  return all(numpy_models.all_finite(array) for array in z[0] + z[1])


def _zeros(z: Z) -> Z:
  return map_z(np.zeros_like, z)


def _step(z: Z, gamma: float, g: Z) -> Z:
  return map_z(lambda z, g: z - gamma * g, z, g)


def _regularized(g: Z, theta: float, z: Z, zbar: Z) -> Z:
  return map_z(lambda g, z, zbar: g + theta * (z - zbar), g, z, zbar)


# What a round is made of.


def _num_steps(steps: Steps, t: int) -> int:
  if callable(steps):
    count = steps(t)
  elif isinstance(steps, int | np.integer):
    count = steps
  else:
    count = steps[t]
  if count < 1:
    raise ValueError(f'round {t} needs a step, not {count}')
  return int(count)


def _draw(steps: Steps, batch_size: int | None, order: Order | None, t: int) -> Draw:
  """(rows, index of the client) -> the batches of its steps in round t."""
  count = _num_steps(steps, t)

  def draw(data: Batch, i: int) -> Iterator[Batch]:
    size = num_rows(data) if batch_size is None else batch_size
    order_i = functools.partial(order, t, i) if order else None
    return batches(data, size, epochs=count, max_steps=count, order=order_i)

  return draw


def _gather(
  mapping: Mapping,
  z: Z,
  cohort: NamedCohort,
  draw: Draw | None = None,
) -> tuple[Z | None, int, set[int]]:
  """The mean of the clients' mappings at z; of how many; who was left out.

  A client's is the mean over the batches it draws, or over all its rows at once. The
  mean is None if there is nobody, or if it is not finite.
  """
  gathered, left_out = [], set()
  for i, (_, data) in enumerate(cohort):
    if num_rows(data) == 0:
      continue
    with np.errstate(all='ignore'):
      client = [data] if draw is None else draw(data, i)
      g = mean([mapping(z, batch)[1] for batch in client])
    if numpy_models.all_finite(data) and all_finite(g):
      gathered.append(g)
    else:
      left_out.add(i)
  with np.errstate(all='ignore'):
    G = mean(gathered) if gathered else None
  if G is not None and not all_finite(G):
    G = None
  return G, len(gathered), left_out


def _corrected_steps(
  mapping: Callable[[Z, Batch], tuple[Any, Z]],
  z: Z,
  G: Z,
  cohort: NamedCohort,
  gamma_l: float,
  draw: Draw,
) -> tuple[list[Z], set[int]]:
  """The sums of the kept clients' G_i(z_i) - G_i(z) + G; who was left out."""
  uploads, left_out = [], set()
  for i, (_, data) in enumerate(cohort):
    if num_rows(data) == 0:
      continue
    z_i, total = z, _zeros(z)
    with np.errstate(all='ignore'):
      for batch in draw(data, i):
        _, g_i = mapping(z_i, batch)
        _, g_z = mapping(z, batch)
        g = map_z(lambda g_i, g_z, G: g_i - g_z + G, g_i, g_z, G)
        z_i = _step(z_i, gamma_l, g)
        total = map_z(np.add, total, g)
    if numpy_models.all_finite(data) and all_finite(total):
      uploads.append(total)
    else:
      left_out.add(i)
  return uploads, left_out


def _finite_step(z: Z, gamma: float, g: Z) -> Z | None:
  """The step, or None if it leads to something not finite."""
  with np.errstate(all='ignore'):
    z = _step(z, gamma, g)
  return z if all_finite(z) else None


def _server_step(z: Z, gamma_g: float, uploads: Sequence[Z]) -> Z | None:
  """The step along the mean upload, or None if there is none."""
  if not uploads:
    return None
  with np.errstate(all='ignore'):
    return _finite_step(z, gamma_g, mean(uploads))


def _weighted_average(path: Sequence[Z], q: float) -> Z:
  """The mean of z^0, ..., z^K with weights q^(1 - k), in the dtype of z^0.

  The weights are divided by that of z^K, since q^(1 - K) may overflow.
  """
  K = len(path) - 1
  w = np.array([np.longdouble(q) ** (K - k) for k in range(K + 1)])

  def average(*arrays: np.ndarray) -> np.ndarray:
    total = np.tensordot(w, np.stack(arrays).astype(np.longdouble), axes=1)
    return (total / np.sum(w)).astype(arrays[0].dtype)

  return map_z(average, *path)


def _metrics(
  communication_rounds: int, num_clients: int, left_out: int, z: Z, z_old: Z
) -> Metrics:
  return {
    'communication_rounds': communication_rounds,
    'num_clients': num_clients,
    'num_left_out': left_out,
    'update_norm': distance(z, z_old),
  }
