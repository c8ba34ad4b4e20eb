"""Tests of the saddle-point oracle: numbers by hand, closed forms, invariants."""

from fractions import Fraction
import itertools
import math
from typing import Any

import numpy as np
import pytest

from tests.oracles.saddle_point import (
  QuadraticGame,
  distance,
  distance_of_x,
  duality_gap,
  fed_avg_s,
  mean,
  mirror_descent,
  mirror_prox,
  norm,
  scaffold_catalyst_s,
  scaffold_s,
)

NAN = float('nan')


def _z(x, y, dtype=np.float64):
  return [np.atleast_1d(x).astype(dtype)], [np.atleast_1d(y).astype(dtype)]


def _pairs(all_z):
  """One-dimensional points as pairs of floats, one after the other."""
  return [float(part[0][0]) for z in all_z for part in z]


def _vector(z):
  return np.concatenate([array.ravel() for array in z[0] + z[1]])


def _assert_same(got, want, rtol=1e-10):
  assert len(got) == len(want)
  for a, b in zip(got, want, strict=True):
    np.testing.assert_allclose(_vector(a), _vector(b), rtol=rtol, atol=1e-13)


def _rows(a, b):
  a, b = np.atleast_1d(a).astype(float), np.atleast_1d(b).astype(float)
  return {'a': a[:, None], 'b': b[:, None]}


# The mapping of A is (x - y, y - 2 + x), that of B (x - 2y, y + 1 + 2x).
TOY = QuadraticGame(h=1.0, lam=1.0)
A = ('A', _rows(1, 2))
B = ('B', _rows(2, -1))
EMPTY = ('empty', _rows([], []))
BAD = ('bad', _rows([1, 1], [2, NAN]))
# Where x is positive the mapping is not finite.
MAX = float(np.finfo(float).max)
LARGE = ('large', _rows(MAX, -MAX))


def _bilinear(z, batch):
  """f = c x y, c the mean of the rows."""
  (x,), (y,) = z
  c = float(np.mean(batch['c']))
  return float(c * (x @ y)), ([c * y], [-c * x])


def _problem(seed=0, s=0.7, rows=(3, 1, 5), d=4, lam=0.5, h=1.0):
  """A game of clients of several rows, and a start."""
  rng = np.random.default_rng(seed)
  clients = [
    (str(i), {'a': 1 + s * rng.normal(size=(n, d)), 'b': rng.normal(size=(n, d))})
    for i, n in enumerate(rows)
  ]
  z0 = [rng.normal(size=d)], [rng.normal(size=d)]
  return QuadraticGame(h=h, lam=lam), clients, z0


def _order(t, i, epoch, n):
  return np.random.default_rng([t, i, epoch]).permutation(n)


def _runs(mapping, z0, rounds, **changes):
  """One run of every algorithm, by name."""
  local: dict[str, Any] = {'gamma_l': 0.1, 'tau': 3, 'batch_size': 2} | changes
  central = {'gamma': 0.1, 'num_batches': local['tau']} | {
    k: v for k, v in local.items() if k in ('batch_size', 'order')
  }
  full = {'gamma': 0.1}
  catalyst = {'theta': 0.5, **local}
  args = mapping, z0, rounds
  return {
    'fed_avg_s': fed_avg_s(*args, **local),
    'schedule': fed_avg_s(*args, schedule='inverse_sqrt', **local),
    'extra_step': fed_avg_s(*args, extra_step=True, **local),
    'average': fed_avg_s(*args, mu=0.5, **local),
    'scaffold_s': scaffold_s(*args, **local),
    'rounds': scaffold_catalyst_s(*args, inner_rounds=2, **catalyst),
    'decrease': scaffold_catalyst_s(*args, decrease=0.9, **catalyst),
    'mirror_descent': mirror_descent(*args, **central),
    'full_mirror_descent': mirror_descent(*args, **full),
    'mirror_prox': mirror_prox(*args, **central),
    'full_mirror_prox': mirror_prox(*args, **full),
  }


# The game.


@pytest.mark.parametrize('h', [0.5, 1.0])
def test_mapping_agrees_with_finite_differences(h):
  game, clients, z0 = _problem(h=h)
  f, step = game.f(clients), 1e-6
  G = _vector(mean([game.mapping(z0, rows)[1] for _, rows in clients]))
  v = _vector(z0)
  numeric = np.zeros_like(v)
  for i in range(len(v)):
    ends = []
    for sign in (1, -1):
      moved = v.copy()
      moved[i] += sign * step
      ends.append(f([moved[:4]], [moved[4:]]))
    numeric[i] = (ends[0] - ends[1]) / (2 * step)
  numeric[4:] *= -1
  np.testing.assert_allclose(G, numeric, rtol=1e-6, atol=1e-8)


def test_game_by_hand():
  """x = (1, 2), y = (3, -1), two rows of a (1, 3) and (3, 1), b (1, 0) and (3, 2)."""
  rows = {'a': np.array([[1.0, 3], [3, 1]]), 'b': np.array([[1.0, 0], [3, 2]])}
  z = [np.array([1.0, 2])], [np.array([3.0, -1])]
  # With mean a = (2, 2) and b = (2, 1): b y = 5, y A x = 2.
  loss, (gx, gy) = QuadraticGame(lam=0.2).mapping(z, rows)
  assert loss == pytest.approx(-5 + 0.5 * (5 - 2) + 0.5)
  np.testing.assert_allclose(gx, [[0.2 - 3, 0.4 + 1]])
  np.testing.assert_allclose(gy, [[3, 0.5 - 1 + 1]])
  loss, (gx, gy) = QuadraticGame(h=1.0, lam=0.2).mapping(z, rows)
  assert loss == pytest.approx(-5 + (5 - 2) + 0.5)
  np.testing.assert_allclose(gx, [[0.2 - 6, 0.4 + 2]])
  np.testing.assert_allclose(gy, [[3, -1 - 1 + 4]])


def test_half_is_equation_18():
  """-1/2 (||y||^2 - b y + y A x) + lambda/2 ||x||^2."""
  x, y, a, b = (np.random.default_rng(i).normal(size=3) for i in range(4))
  want = -0.5 * (y @ y - b @ y + y @ np.diag(a) @ x) + 0.5 * 1e-5 * x @ x
  loss, _ = QuadraticGame().mapping(([x], [y]), {'a': a[None], 'b': b[None]})
  assert loss == pytest.approx(want)


@pytest.mark.parametrize('h', [0.5, 1.0])
def test_optimum(h):
  game, clients, _ = _problem(h=h)
  z_star = game.optimum(clients)
  G = mean([game.mapping(z_star, rows)[1] for _, rows in clients])
  assert norm(G) < 1e-12
  f = game.f(clients)
  rng = np.random.default_rng(5)
  for _ in range(5):
    z = [z_star[0][0] + rng.normal(size=4)], [z_star[1][0] + rng.normal(size=4)]
    # -f is 1-strongly convex in y, f is lambda-strongly convex in x.
    want = 0.25 * distance_of_x(z, z_star) ** 2
    want += 0.5 * np.sum((z[1][0] - z_star[1][0]) ** 2)
    assert duality_gap(f, z, z_star) == pytest.approx(want)
  assert duality_gap(f, z_star, z_star) == 0
  # As a regression: y* = h (b - A x), so x* = (lambda + h^2 A^2)^{-1} h^2 A b.
  a, b = (np.mean([rows[k].mean(axis=0) for _, rows in clients], axis=0) for k in 'ab')
  np.testing.assert_allclose(z_star[0][0], h**2 * a * b / (0.5 + h**2 * a**2))


def test_prox():
  game, clients, z0 = _problem()
  z = game.prox(clients, 0.7)(z0)
  G = mean([game.mapping(z, rows)[1] for _, rows in clients])
  np.testing.assert_allclose(_vector(G), 0.7 * (_vector(z0) - _vector(z)))
  z_star = game.optimum(clients)
  np.testing.assert_allclose(
    _vector(game.prox(clients, 0.7)(z_star)), _vector(z_star), rtol=1e-10
  )
  # It contracts, equation 108, with mu = 0.5.
  assert distance(z, z_star) <= (1 - 0.5 / 1.2) * distance(z0, z_star)


def test_distances_and_gap_by_hand():
  z, z_star = _z([1, 2], [3, 4]), _z([1, 0], [0, 0])
  assert distance(z, z_star) == pytest.approx(math.sqrt(4 + 9 + 16))
  assert distance_of_x(z, z_star) == pytest.approx(2)
  f = lambda x, y: 10 * np.sum(x[0]) + np.sum(y[0])  # noqa: E731
  assert duality_gap(f, z, z_star) == pytest.approx(30 - 17)


def test_generate():
  clients = QuadraticGame.generate(np.random.default_rng(3), 5.0)
  rng = np.random.default_rng(3)
  b = 5 * np.array([rng.normal(size=10) for _ in range(10)])
  a = np.array([rng.normal(1, 5, size=10) for _ in range(10)])
  assert len({name for name, _ in clients}) == 10
  for i, (_, rows) in enumerate(clients):
    np.testing.assert_allclose(rows['b'], [b[i] - b.mean(axis=0)])
    np.testing.assert_allclose(rows['a'], [np.where(a[i] < 1, 1, a[i])])
  z_star = QuadraticGame().optimum(clients)
  np.testing.assert_allclose(_vector(z_star), 0, atol=1e-12)
  clients = QuadraticGame.generate(np.random.default_rng(3), 0.0, n=2, d=3)
  assert [rows['a'].tolist() for _, rows in clients] == [[[1.0] * 3]] * 2
  assert [rows['b'].tolist() for _, rows in clients] == [[[0.0] * 3]] * 2


# Numbers by hand. gamma = 1/2, two local steps, from (0, 0).

HAND: dict[str, Any] = {'gamma_l': 0.5, 'tau': 2}


def test_fed_avg_s_by_hand():
  """A goes (0, 1), (0.5, 1.5), B goes (0, -0.5), (-0.5, -0.75)."""
  z, metrics = fed_avg_s(TOY.mapping, _z(0, 0), [[A, B], [A]], **HAND)
  # From (0, 0.375): A's g is (-0.375, -1.625), then (-1.0, -0.625).
  assert _pairs(z) == pytest.approx([0, 0.375, 0.6875, 1.5])
  assert metrics[0] == pytest.approx(
    {
      'communication_rounds': 1,
      'num_clients': 2,
      'num_left_out': 0,
      'update_norm': 0.375,
    }
  )
  assert metrics[1]['communication_rounds'] == 2
  assert metrics[1]['num_clients'] == 1
  # The sums are (-1, -3) and (1, 1.5).
  z, _ = fed_avg_s(TOY.mapping, _z(0, 0), [[A, B]], gamma_g=2.0, **HAND)
  assert _pairs(z) == pytest.approx([0, 1.5])


def test_fed_avg_s_with_a_schedule_by_hand():
  """Factors 1 and 1/2: A ends at (0.25, 1.25), B at (-0.25, -0.625)."""
  z, _ = fed_avg_s(
    TOY.mapping, _z(0, 0), [[A, B], [A]], schedule='inverse_sqrt', **HAND
  )
  x, y = 0.0, 0.3125
  for k in (2, 3):
    gamma = 0.5 / (math.sqrt(k) + 1)
    x, y = x - gamma * (x - y), y - gamma * (y - 2 + x)
  assert _pairs(z) == pytest.approx([0, 0.3125, x, y])
  z, _ = fed_avg_s(
    TOY.mapping, _z(0, 0), [[A, B]], schedule='inverse_sqrt', gamma_g=2.0, **HAND
  )
  # The sums of what is sent: (-0.5, -2.5) and (0.5, 1.25).
  assert _pairs(z) == pytest.approx([0, 1.25])


def test_extra_step_by_hand():
  """A: g at (0, 1) is (-1, -1). From (0.5, 0.5), g is (0, -1), at (0.5, 1) (-.5, -.5).

  B: g at (0, -0.5) is (1, 0.5). From (-0.5, -0.25), g is (0, -0.25), and at
  (-0.5, -0.125) it is (-0.25, -0.125).
  """
  z, _ = fed_avg_s(TOY.mapping, _z(0, 0), [[A, B]], extra_step=True, **HAND)
  a, b = (0.75, 0.75), (-0.375, -0.1875)
  assert _pairs(z) == pytest.approx([(a[0] + b[0]) / 2, (a[1] + b[1]) / 2])


def test_weighted_average_by_hand():
  """w_k is 1/2, 1, 2 with gamma mu = 2; z^1 = (0, 0.25), z^2 = (0, 0.375)."""
  _, metrics = fed_avg_s(TOY.mapping, _z(0, 0), [[A, B], [A]], mu=4.0, **HAND)
  assert _pairs([metrics[0]['average']]) == pytest.approx([0, 1 / 3.5])
  # With w_3 = 4, w_4 = 8; z^3 = (0.1875, 1.1875), z^4 = (0.6875, 1.5).
  assert _pairs([metrics[1]['average']]) == pytest.approx(
    [(0.75 + 5.5) / 15.5, (1 + 4.75 + 12) / 15.5]
  )
  # A step size of the server changes z^2 to (0, 1.5), not z^1.
  _, metrics = fed_avg_s(TOY.mapping, _z(0, 0), [[A, B]], mu=4.0, gamma_g=2.0, **HAND)
  assert _pairs([metrics[0]['average']]) == pytest.approx([0, 3.25 / 3.5])


def test_scaffold_s_by_hand():
  """G = (0, -0.5). At (0, 0.25), A's g is (-0.25, -0.25) and B's (-0.5, -0.25)."""
  z, metrics = scaffold_s(TOY.mapping, _z(0, 0), [[A, B], [A, B]], **HAND)
  assert _pairs(z[:1]) == pytest.approx([0.1875, 0.375])
  # Then G is the mean of (-0.1875, -1.4375) and (-0.5625, 1.75).
  assert metrics[0]['gradient_norm'] == pytest.approx(0.5)
  assert metrics[1]['gradient_norm'] == pytest.approx(math.hypot(0.375, 0.15625))
  assert metrics[0]['communication_rounds'] == 1
  z, _ = scaffold_s(TOY.mapping, _z(0, 0), [[A, B]], gamma_g=2.0, **HAND)
  assert _pairs(z) == pytest.approx([0.75, 1.5])


def test_catalyst_by_hand():
  """As above in round 0, but the second g's of y are 0.25 more: 0."""
  runs = [
    scaffold_catalyst_s(
      TOY.mapping, _z(0, 0), [[A, B]] * 2, theta=1.0, inner_rounds=R, **HAND
    )
    for R in (1, 2)
  ]
  for z, metrics in runs:
    assert _pairs(z[:1]) == pytest.approx([0.1875, 0.25])
    assert metrics[0]['gradient_norm'] == pytest.approx(0.5)
    assert _pairs([metrics[0]['zbar']]) == [0, 0]
    assert metrics[0]['meta_iterations'] == 0
    # The mean of (-0.0625, -1.5625) and (-0.3125, 1.625).
    assert metrics[1]['gradient_norm'] == pytest.approx(math.hypot(0.1875, 0.03125))
  (z_1, metrics_1), (z_2, metrics_2) = runs
  assert _pairs([metrics_1[1]['zbar']]) == pytest.approx([0.1875, 0.25])
  assert _pairs([metrics_2[1]['zbar']]) == [0, 0]
  assert [m[1]['meta_iterations'] for m in (metrics_1, metrics_2)] == [1, 0]
  assert [m[1]['inner_rounds'] for m in (metrics_1, metrics_2)] == [1, 2]
  # The first steps are e = (0.09375, -0.015625) and (0, -0.140625). The second
  # subtract half of G plus M_i e + e, M_i of rows (1, -a) and (a, 1).
  for z, G, e in [
    (z_1, (-0.1875, 0.03125), (0.09375, -0.015625)),
    (z_2, (0.0, 0.28125), (0.0, -0.140625)),
  ]:
    second = [(G[0] + 2 * e[0] - a * e[1], G[1] + a * e[0] + 2 * e[1]) for a in (1, 2)]
    want = [
      start + e_j - 0.5 * (second[0][j] + second[1][j]) / 2
      for j, (start, e_j) in enumerate(zip((0.1875, 0.25), e, strict=True))
    ]
    assert _pairs(z[1:]) == pytest.approx(want)


def test_mirror_descent_and_prox_by_hand():
  """G at (0, 0) is (0, -0.5), and at (0, 0.25) (-0.375, -0.25)."""
  z, metrics = mirror_descent(TOY.mapping, _z(0, 0), [[A, B]], gamma=0.5)
  assert _pairs(z) == pytest.approx([0, 0.25])
  assert metrics[0]['gradient_norm'] == pytest.approx(0.5)
  assert metrics[0]['communication_rounds'] == 1
  z, metrics = mirror_prox(TOY.mapping, _z(0, 0), [[A, B]] * 2, gamma=0.5)
  assert _pairs(z[:1]) == pytest.approx([0.1875, 0.125])
  assert metrics[0]['gradient_norm'] == pytest.approx(0.5)
  assert [m['communication_rounds'] for m in metrics] == [2, 4]


def test_batches():
  """Rows of b = 1, 2, 6 two at a time: means 1.5, 6, 1.5, 6. Only y moves."""
  game = QuadraticGame(h=1.0, lam=0.0)
  cohort = [('A', _rows([0, 0, 0], [1, 2, 6]))]
  arguments: dict[str, Any] = {'batch_size': 2}
  tau = {'tau': 3, 'gamma_l': 0.5}
  z, _ = fed_avg_s(game.mapping, _z(0, 0), [cohort], **tau, **arguments)
  assert _pairs(z) == pytest.approx([0, 2.4375])  # 0.75, 3.375
  mirror = {'gamma': 0.5, 'num_batches': 3}
  z, _ = mirror_descent(game.mapping, _z(0, 0), [cohort], **mirror, **arguments)
  assert _pairs(z) == pytest.approx([0, 1.5])  # batches 1.5, 6, 1.5: a mean of 3
  z, _ = mirror_prox(game.mapping, _z(0, 0), [cohort], **mirror, **arguments)
  assert _pairs(z) == pytest.approx([0, 0.75])
  z, _ = mirror_descent(game.mapping, _z(0, 0), [cohort], gamma=0.5, **arguments)
  assert _pairs(z) == pytest.approx([0, 1.5])  # all rows: 3 too
  # The order is asked for by the round, the place in the whole cohort and the pass.
  asked = []

  def order(*key):
    asked.append(key)
    return np.array([2, 1, 0])

  z, _ = fed_avg_s(
    game.mapping,
    _z(0, 0),
    [[], [EMPTY, *cohort]],
    order=order,
    **tau,
    **arguments,
  )
  assert _pairs(z[1:]) == pytest.approx([0, 2.75])  # batches 4, 1, 4: 2, 1.5
  assert asked == [(1, 1, 0, 3), (1, 1, 1, 3)]
  del asked[:]
  mirror_prox(game.mapping, _z(0, 0), [cohort], order=order, **mirror, **arguments)
  assert asked == [(0, 0, 0, 3), (0, 0, 1, 3)] * 2


def test_scaffold_s_takes_g_on_the_same_batch_and_all_rows_for_the_mean():
  """The curvature a of the batches differs, and the rows are not alike."""
  game, clients, z0 = _problem(rows=(3,))
  rows = clients[0][1]
  first, last = ({k: v[part] for k, v in rows.items()} for part in (slice(2), [2]))
  zt = z_i = _vector(z0)

  def g(v, batch):
    return _vector(game.mapping(([v[:4]], [v[4:]]), batch)[1])

  for batch in (first, last, first, last):
    z_i = z_i - 0.1 * (g(z_i, batch) - g(zt, batch) + g(zt, rows))
  z, _ = scaffold_s(game.mapping, z0, [clients], gamma_l=0.1, tau=4, batch_size=2)
  np.testing.assert_allclose(_vector(z[0]), z_i)


# Closed forms: with full batches, G_i(z) = M_i z + c_i.


def _linear(game, clients):
  return [game.linear([client]) for client in clients]


def _power_sum(T, tau):
  return sum(np.linalg.matrix_power(T, j) for j in range(tau))


def test_fed_avg_s_closed_form():
  """z_i - z_i^* is multiplied by (I - gamma M_i)^tau; of another tau every round."""
  game, clients, z0 = _problem()
  taus = [1, 4, 2]
  got, _ = fed_avg_s(game.mapping, z0, [clients] * 3, gamma_l=0.2, tau=taus)
  z, want = _vector(z0), []
  for tau in taus:
    ends = []
    for M, c in _linear(game, clients):
      z_i = np.linalg.solve(M, -c)
      T = np.linalg.matrix_power(np.eye(8) - 0.2 * M, tau)
      ends.append(z_i + T @ (z - z_i))
    z = np.mean(ends, axis=0)
    want.append(z)
  np.testing.assert_allclose([_vector(z) for z in got], want)
  by_function, _ = fed_avg_s(
    game.mapping, z0, [clients] * 3, gamma_l=0.2, tau=lambda t: taus[t]
  )
  _assert_same(by_function, got, rtol=0)


def test_extra_step_closed_form():
  """A step multiplies z_i - z_i^* by I - gamma M_i (I - gamma M_i)."""
  game, clients, z0 = _problem()
  got, _ = fed_avg_s(
    game.mapping, z0, [clients] * 3, gamma_l=0.2, tau=4, extra_step=True
  )
  z, want = _vector(z0), []
  for _ in range(3):
    ends = []
    for M, c in _linear(game, clients):
      z_i = np.linalg.solve(M, -c)
      T = np.eye(8) - 0.2 * M + 0.04 * M @ M
      ends.append(z_i + np.linalg.matrix_power(T, 4) @ (z - z_i))
    z = np.mean(ends, axis=0)
    want.append(z)
  np.testing.assert_allclose([_vector(z) for z in got], want)


def _corrected_round(systems, z, G, theta, gamma_l, gamma_g, tau):
  """The sum over the steps is sum_j (I - gamma_l (M_i + theta))^j times G."""
  identity = np.eye(len(z))
  sums = [
    _power_sum(identity - gamma_l * (M + theta * identity), tau) @ G for M, _ in systems
  ]
  return z - gamma_g * np.mean(sums, axis=0)


@pytest.mark.parametrize('rates', [(0.2, 0.2), (0.2, 0.3), (0.0, 0.05)])
def test_scaffold_s_closed_form(rates):
  game, clients, z0 = _problem()
  got, metrics = scaffold_s(
    game.mapping, z0, [clients] * 4, gamma_l=rates[0], gamma_g=rates[1], tau=3
  )
  systems = _linear(game, clients)
  z, want, norms = _vector(z0), [], []
  for _ in range(4):
    G = np.mean([M @ z + c for M, c in systems], axis=0)
    norms.append(np.linalg.norm(G))
    z = _corrected_round(systems, z, G, 0.0, *rates, 3)
    want.append(z)
  np.testing.assert_allclose([_vector(z) for z in got], want)
  assert [m['gradient_norm'] for m in metrics] == pytest.approx(norms)


@pytest.mark.parametrize(
  ('rule', 'value', 'moves'),
  [
    ('rounds', 3, list(range(3, 40, 3))),
    ('rounds', 1, list(range(1, 40))),
    ('decrease', 0.3, None),
    ('decrease', 0.05, None),
    ('prox', 0.1, None),
    ('prox', 1.0, None),
    ('prox', 1e9, list(range(1, 40))),
    ('decrease', 0.0, []),
  ],
)
@pytest.mark.parametrize('rates', [(0.2, 0.2), (0.1, 0.3), (0.0, 0.05)])
def test_catalyst_closed_form(rule, value, moves, rates):
  game, clients, z0 = _problem()
  theta, mu, T = 0.8, 0.5, 40
  stop = {
    'rounds': {'inner_rounds': value},
    'decrease': {'decrease': value},
    'prox': {'prox': game.prox(clients, theta), 'epsilon': value, 'mu': mu},
  }[rule]
  got, metrics = scaffold_catalyst_s(
    game.mapping,
    z0,
    [clients] * T,
    theta=theta,
    gamma_l=rates[0],
    gamma_g=rates[1],
    tau=3,
    **stop,
  )
  systems = _linear(game, clients)
  M = np.mean([M for M, _ in systems], axis=0)
  c = np.mean([c for _, c in systems], axis=0)

  z = zbar = _vector(z0)
  want, zbars, moved_in, start = [], [], [], 0
  for t in range(T):
    G = M @ z + c
    first_norm = np.linalg.norm(M @ zbar + c)
    near = np.linalg.solve(M + theta * np.eye(8), theta * zbar - c)
    if t > start:
      ends = {
        'rounds': t - start == value,
        'decrease': np.linalg.norm(G + theta * (z - zbar)) <= value * first_norm,
        'prox': np.sum((z - near) ** 2) <= (mu / (2 * (theta + mu))) ** 2 * value,
      }[rule]
      if ends:
        zbar, start = z, t
        moved_in.append(t)
    z = _corrected_round(systems, z, G + theta * (z - zbar), theta, *rates, 3)
    want.append(z)
    zbars.append(zbar)
    assert metrics[t]['meta_iterations'] == len(moved_in)
    assert metrics[t]['inner_rounds'] == t - start + 1
    assert metrics[t]['gradient_norm'] == pytest.approx(np.linalg.norm(G))
  np.testing.assert_allclose([_vector(z) for z in got], want)
  np.testing.assert_allclose([_vector(m['zbar']) for m in metrics], zbars)
  if moves is not None:
    assert moved_in == moves
  else:
    assert 0 < len(moved_in) < T - 1


def test_catalyst_solved_well_is_the_proximal_point_algorithm():
  game, clients, z0 = _problem()
  prox = game.prox(clients, 1.0)
  _, metrics = scaffold_catalyst_s(
    game.mapping,
    z0,
    [clients] * 300,
    theta=1.0,
    gamma_l=0.1,
    tau=5,
    decrease=1e-9,
  )
  assert metrics[-1]['meta_iterations'] > 3
  zbars = [z0]
  for m in metrics:
    if m['meta_iterations'] == len(zbars):
      zbars.append(m['zbar'])
  for before, after in itertools.pairwise(zbars[:5]):
    assert distance(after, prox(before)) < 1e-7


# Invariants.


def test_optimum_of_everybody_is_a_fixed_point():
  """All clients agree, so local steps do not move either."""
  game, clients, _ = _problem(rows=(1,))
  z_star = game.optimum(clients)
  cohort = [(str(i), clients[0][1]) for i in range(3)]
  for z, _ in _runs(game.mapping, z_star, [cohort] * 3).values():
    _assert_same(z, [z_star] * 3)


def test_optimum_of_the_mean_is_a_fixed_point_but_of_fed_avg_s():
  game, clients, _ = _problem(rows=(1, 1, 1))
  z_star = game.optimum(clients)
  for name, (z, metrics) in _runs(game.mapping, z_star, [clients] * 3).items():
    if name in ('fed_avg_s', 'schedule', 'extra_step', 'average'):
      assert distance(z[-1], z_star) > 1e-3
      assert 'gradient_norm' not in metrics[-1]
    else:
      _assert_same(z, [z_star] * 3)
      assert metrics[-1]['gradient_norm'] < 1e-12


def test_catalyst_without_regularization_is_scaffold_s():
  game, clients, z0 = _problem()
  local: dict[str, Any] = {
    'gamma_l': 0.1,
    'gamma_g': 0.2,
    'tau': lambda t: 1 + t % 3,
    'batch_size': 2,
    'order': _order,
  }
  rounds = [clients[: 1 + t % 3] for t in range(8)]
  want, want_metrics = scaffold_s(game.mapping, z0, rounds, **local)
  for rule in [
    {'inner_rounds': 2},
    {'decrease': 0.8},
    {'prox': lambda zbar: zbar, 'epsilon': 1.0, 'mu': 0.5},
  ]:
    got, metrics = scaffold_catalyst_s(
      game.mapping, z0, rounds, theta=0.0, **rule, **local
    )
    _assert_same(got, want, rtol=0)
    for a, b in zip(metrics, want_metrics, strict=True):
      assert b.items() <= a.items()


def test_scaffold_s_without_local_step_size_is_mirror_descent():
  game, clients, z0 = _problem()
  taus = [2, 5, 1]
  got, metrics = scaffold_s(
    game.mapping,
    z0,
    [clients] * 3,
    gamma_l=0.0,
    gamma_g=0.03,
    tau=taus,
    batch_size=2,
    order=_order,
  )
  z = z0
  for t, tau in enumerate(taus):
    [z], [want] = mirror_descent(game.mapping, z, [clients], gamma=tau * 0.03)
    _assert_same([got[t]], [z])
    assert metrics[t]['gradient_norm'] == pytest.approx(want['gradient_norm'])


def test_fed_avg_s_without_local_step_size_is_minibatch_mirror_descent():
  game, clients, z0 = _problem()
  arguments: dict[str, Any] = {'batch_size': 2, 'order': _order}
  got, _ = fed_avg_s(
    game.mapping, z0, [clients] * 3, gamma_l=0.0, gamma_g=0.03, tau=4, **arguments
  )
  want, _ = mirror_descent(
    game.mapping, z0, [clients] * 3, gamma=0.12, num_batches=4, **arguments
  )
  _assert_same(got, want)


def test_one_client_with_all_rows_of_scaffold_s_is_fed_avg_s():
  game, clients, z0 = _problem(rows=(5,))
  got, _ = scaffold_s(game.mapping, z0, [clients] * 3, gamma_l=0.1, tau=4)
  want, _ = fed_avg_s(game.mapping, z0, [clients] * 3, gamma_l=0.1, tau=4)
  _assert_same(got, want)


def test_one_step_is_the_same_for_all():
  """tau = 1 on all rows: FedAvg-S, SCAFFOLD-S and mirror descent."""
  game, clients, z0 = _problem()
  runs = [
    algorithm(game.mapping, z0, [clients] * 3, **rate)[0]
    for algorithm, rate in [
      (fed_avg_s, {'gamma_l': 0.2, 'tau': 1}),
      (scaffold_s, {'gamma_l': 0.2, 'tau': 1}),
      (mirror_descent, {'gamma': 0.2}),
    ]
  ]
  _assert_same(runs[1], runs[0])
  _assert_same(runs[2], runs[0])


def test_extra_steps_converge_where_descent_ascent_diverges():
  """f_i = c_i x y: a step of gamma multiplies ||z|| by sqrt(1 + (gamma c)^2)."""
  cohort = [('1', {'c': np.array([1.0])}), ('2', {'c': np.array([2.0])})]
  z0 = _z([1.0, -0.5], [0.5, 2.0])
  z, _ = fed_avg_s(_bilinear, z0, [cohort] * 100, gamma_l=0.2, tau=2)
  assert norm(z[-1]) > 100
  extra, _ = fed_avg_s(
    _bilinear, z0, [cohort] * 100, gamma_l=0.2, tau=2, extra_step=True
  )
  assert norm(extra[-1]) < 1e-3
  z, _ = mirror_descent(_bilinear, z0, [cohort] * 100, gamma=0.2)
  # The mean c is 1.5.
  assert norm(z[-1]) == pytest.approx(norm(z0) * math.sqrt(1.09) ** 100)
  z, _ = mirror_prox(_bilinear, z0, [cohort] * 100, gamma=0.2)
  assert norm(z[-1]) == pytest.approx(
    norm(z0) * math.sqrt((1 - 0.09) ** 2 + 0.09) ** 100
  )
  assert norm(z[-1]) < 0.1


def test_variance_reduction_and_the_schedule_converge_on_the_game():
  """Clients' optima differ, so that FedAvg-S stalls with a constant step size."""
  game, clients, z0 = _problem()
  z_star, rounds = game.optimum(clients), [clients] * 300
  local: dict[str, Any] = {'gamma_l': 0.2, 'tau': 10}
  stalled, slow, scaffold, catalyst, central = (
    distance(z[-1], z_star)
    for z, _ in [
      fed_avg_s(game.mapping, z0, rounds, **local),
      fed_avg_s(game.mapping, z0, rounds, schedule='inverse_sqrt', **local),
      scaffold_s(game.mapping, z0, rounds, **local),
      scaffold_catalyst_s(game.mapping, z0, rounds, theta=1.0, decrease=0.1, **local),
      mirror_prox(game.mapping, z0, rounds, gamma=0.2),
    ]
  )
  assert stalled > 0.1
  assert 1e-3 < slow < 0.01
  assert max(scaffold, catalyst, central) < 1e-9


# The weighted average.


@pytest.mark.parametrize('rates', [(0.1, 0.1), (0.1, 0.25), (0.0, 0.1)])
@pytest.mark.parametrize(
  'kind', [{}, {'schedule': 'inverse_sqrt'}, {'extra_step': True}]
)
def test_weighted_average_is_the_sum(rates, kind):
  """The sum of equation 32, the weights as fractions, the z_i one step at a time."""
  game, clients, z0 = _problem()
  taus, mu = [3, 1, 4], 0.5
  gamma_l, gamma_g = rates
  all_z, metrics = fed_avg_s(
    game.mapping,
    z0,
    [clients] * 3,
    gamma_l=gamma_l,
    gamma_g=gamma_g,
    tau=taus,
    mu=mu,
    batch_size=2,
    order=_order,
    **kind,
  )

  def mapping(v, rows):
    return _vector(game.mapping(([v[:4]], [v[4:]]), rows)[1])

  path = []
  q = 1 - Fraction(gamma_l) * Fraction(mu) / 4
  for t, tau in enumerate(taus):
    start, of_clients = _vector(all_z[t - 1] if t else z0), []
    for i, (_, rows) in enumerate(clients):
      n = len(rows['a'])
      passes = [_order(t, i, epoch, n) for epoch in range(tau)]
      drawn = [rows_of[j : j + 2] for rows_of in passes for j in range(0, n, 2)]
      zs = [start]
      for j in range(tau - 1):
        batch = {k: column[drawn[j]] for k, column in rows.items()}
        at = zs[-1]
        if 'extra_step' in kind:
          at = at - gamma_l * mapping(at, batch)
        gamma = gamma_l
        if 'schedule' in kind:
          gamma = gamma_l / (math.sqrt(len(path) + j) + 1)
        zs.append(zs[-1] - gamma * mapping(at, batch))
      of_clients.append(zs)
    path += list(np.mean(of_clients, axis=0))
    so_far = [*path, _vector(all_z[t])]
    w = [float(q ** (1 - k)) for k in range(len(so_far))]
    want = np.average(so_far, axis=0, weights=w)
    np.testing.assert_allclose(_vector(metrics[t]['average']), want, rtol=1e-12)
  assert len(path) == sum(taus)


def test_weighted_average_does_not_overflow():
  """w_2000 is 2^1999. y^k is 1 - 2^-k, so the mean is 1 - K w_1 / W_K = 1, nearly."""
  game = QuadraticGame(h=1.0, lam=0.0)
  cohort = [('A', _rows(0, 1))]
  z, metrics = fed_avg_s(
    game.mapping, _z(3, 0), [cohort] * 2, gamma_l=0.5, tau=1000, mu=4.0
  )
  assert _pairs([metrics[1]['average']]) == pytest.approx([3, 1])
  assert _pairs(z[1:]) == pytest.approx([3, 1])
  with np.errstate(over='raise'):
    fed_avg_s(game.mapping, _z(3, 0), [cohort], gamma_l=0.5, tau=2000, mu=4.0)


# Guards.


def test_clients_are_left_out():
  """Of the round, whether their rows or what they send is bad; empty ones are none."""
  start = _z(0.5, 0.25)
  rounds = [[A, B]] * 4
  others = [
    [A, EMPTY, B],
    [BAD, A, B],
    [A, LARGE, B, EMPTY],
    [A, B, BAD, LARGE],
  ]
  want = _runs(TOY.mapping, start, rounds, batch_size=1)
  got = _runs(TOY.mapping, start, others, batch_size=1)
  for name, (z, metrics) in got.items():
    _assert_same(z, want[name][0], rtol=0)
    assert [m['num_clients'] for m in metrics] == [2] * 4
    assert [m['num_left_out'] for m in metrics] == [0, 1, 1, 2]
    for m, m_want in zip(metrics, want[name][1], strict=True):
      for key in m.keys() - {'num_left_out', 'average', 'zbar'}:
        assert m[key] == m_want[key]
      for key in m.keys() & {'average', 'zbar'}:
        _assert_same([m[key]], [m_want[key]], rtol=0)


def test_rounds_without_anybody_change_nothing():
  """But the number of rounds. k of the schedule and Catalyst's rounds stay too."""
  start = _z(0.5, 0.25)
  want = _runs(TOY.mapping, start, [[A, B]] * 5)
  nobody = [[], [EMPTY], [BAD], [LARGE, BAD]]
  rounds = [nobody[0], [A, B], *nobody, [A, B], nobody[2], [A, B], [A, B], [A, B]]
  kept = [1, 6, 8, 9, 10]
  for name, (z, metrics) in _runs(TOY.mapping, start, rounds).items():
    _assert_same([z[t] for t in kept], want[name][0], rtol=0)
    _assert_same([z[0], *z[2:6], z[7]], [start] + [z[1]] * 4 + [z[6]], rtol=0)
    trips = 2 if 'prox' in name else 1
    assert [m['communication_rounds'] for m in metrics] == [
      trips * (t + 1) for t in range(11)
    ]
    assert [metrics[t]['num_clients'] for t in (0, 2, 3, 4, 5, 7)] == [0] * 6
    assert [metrics[t]['num_left_out'] for t in (0, 2, 3, 4, 5, 7)] == [
      0, 0, 0, 1, 2, 1
    ]  # fmt: skip
    assert [metrics[t]['update_norm'] for t in (0, 2, 3, 4, 5, 7)] == [0] * 6
    for t, m_want in zip(kept, want[name][1], strict=True):
      for key in ('average', 'zbar'):
        if key in m_want:
          _assert_same([metrics[t][key]], [m_want[key]], rtol=0)
      for key in ('meta_iterations', 'inner_rounds', 'gradient_norm', 'update_norm'):
        assert metrics[t].get(key) == m_want.get(key)
    if 'gradient_norm' in metrics[0]:
      assert math.isnan(metrics[5]['gradient_norm'])


def test_average_before_any_round_is_the_start():
  _, metrics = fed_avg_s(TOY.mapping, _z(0.5, 0.25), [[]], gamma_l=0.5, tau=2, mu=0.5)
  assert _pairs([metrics[0]['average']]) == [0.5, 0.25]


def test_steps_to_something_not_finite_are_not_taken():
  """The uploads are finite, the server's step is not."""
  z0, cohort = _z(0, 0), [('A', _rows(0, 1e150))]
  rate: dict[str, Any] = {'gamma_l': 1e-9, 'gamma_g': 1e160, 'tau': 2}
  game = QuadraticGame(h=1.0, lam=1.0)
  catalyst = scaffold_catalyst_s
  for z, metrics in [
    fed_avg_s(game.mapping, z0, [cohort], mu=0.1, **rate),
    scaffold_s(game.mapping, z0, [cohort], **rate),
    catalyst(game.mapping, z0, [cohort], theta=1.0, inner_rounds=1, **rate),
    mirror_descent(game.mapping, z0, [cohort], gamma=1e160),
    mirror_prox(game.mapping, z0, [cohort], gamma=1e160),
  ]:
    _assert_same(z, [z0], rtol=0)
    assert metrics[0]['update_norm'] == 0
    assert metrics[0]['num_left_out'] == 0
    assert metrics[0].get('inner_rounds', 0) == 0
    assert metrics[0].get('average', z0) == z0


def test_catalyst_does_not_move_zbar_in_a_round_that_fails():
  """The mapping of the second round is finite at z only."""
  z0 = _z(0.0, 0.0)
  arguments: dict[str, Any] = {'theta': 1.0, 'inner_rounds': 1, 'tau': [2, 2, 2]}

  def mapping(z, batch):
    loss, g = TOY.mapping(z, batch)
    if np.all(batch['b'] == 7) and z[0][0] != at:
      g = [np.array([NAN])], [np.array([NAN])]
    return loss, g

  first, _ = scaffold_catalyst_s(TOY.mapping, z0, [[A, B]], gamma_l=0.5, **arguments)
  at = first[0][0][0]
  z, metrics = scaffold_catalyst_s(
    mapping, z0, [[A, B], [('7', _rows(1, 7))], [A, B]], gamma_l=0.5, **arguments
  )
  assert _pairs(z[1:2]) == _pairs(z[:1])
  assert _pairs([metrics[1]['zbar']]) == [0, 0]
  assert metrics[1]['gradient_norm'] > 0
  assert [m['num_left_out'] for m in metrics] == [0, 1, 0]
  assert [m['meta_iterations'] for m in metrics] == [0, 0, 1]
  assert [m['inner_rounds'] for m in metrics] == [1, 1, 1]
  want, _ = scaffold_catalyst_s(TOY.mapping, z0, [[A, B]] * 2, gamma_l=0.5, **arguments)
  _assert_same([z[0], z[2]], want, rtol=0)


def test_both_uploads_of_scaffold_s_are_judged_alone():
  """B's mapping is finite at (0, 0) only, so B sends one, and no update."""

  def mapping(z, batch):
    loss, g = TOY.mapping(z, batch)
    if batch['b'][0] == -1 and z[1][0] != 0:
      g = [np.array([NAN])], [np.array([NAN])]
    return loss, g

  z, metrics = scaffold_s(mapping, _z(0, 0), [[A, B]], **HAND)
  # G = (0, -0.5), and A's sum is (-0.25, -0.75).
  assert _pairs(z) == pytest.approx([0.125, 0.375])
  assert metrics[0]['gradient_norm'] == pytest.approx(0.5)
  assert metrics[0]['num_clients'] == metrics[0]['num_left_out'] == 1


def test_float32_stays_and_arguments_are_kept():
  game, clients, z0 = _problem()
  want = _runs(game.mapping, z0, [clients] * 3)
  z0 = [z0[0][0].astype(np.float32)], [z0[1][0].astype(np.float32)]
  start = _vector(z0).copy()
  for name, (z, metrics) in _runs(game.mapping, z0, [clients] * 3).items():
    for point in [*z, *(m[k] for m in metrics for k in ('zbar', 'average') if k in m)]:
      assert [array.dtype for array in point[0] + point[1]] == [np.float32] * 2
    _assert_same(z, want[name][0], rtol=1e-4)
  np.testing.assert_array_equal(_vector(z0), start)
  assert game.prox(clients, 1.0)(z0)[0][0].dtype == np.float32


def test_points_of_several_arrays():
  """x of two arrays, y of one with two axes: f = sum(x_0) x_1 sum(y) c."""

  def mapping(z, batch):
    (x_0, x_1), (y,) = z
    c = float(np.mean(batch['c']))
    s, r = np.sum(x_0), np.sum(y)
    gx = [np.full_like(x_0, c * x_1[0] * r), np.array([c * s * r])]
    return float(c * s * x_1[0] * r), (gx, [np.full_like(y, -c * s * x_1[0])])

  z0 = [np.array([1.0, 2.0]), np.array([0.5])], [np.array([[1.0, 0.0], [0.0, 1.0]])]
  [z], _ = mirror_descent(mapping, z0, [[('A', {'c': np.array([2.0])})]], gamma=0.1)
  np.testing.assert_allclose(z[0][0], [0.8, 1.8])
  np.testing.assert_allclose(z[0][1], [-0.7])
  np.testing.assert_allclose(z[1][0], [[1.3, 0.3], [0.3, 1.3]])
  for zs, _ in _runs(mapping, z0, [[('A', {'c': np.array([0.1])})]] * 2).values():
    assert [a.shape for a in zs[1][0] + zs[1][1]] == [(2,), (1,), (2, 2)]


def test_what_is_refused():
  args = TOY.mapping, _z(0, 0), [[A]]
  local: dict[str, Any] = {'gamma_l': 0.5, 'tau': 1}
  with pytest.raises(ValueError, match='schedule is'):
    fed_avg_s(*args, schedule='sqrt', **local)
  with pytest.raises(ValueError, match='extra step'):
    fed_avg_s(*args, schedule='inverse_sqrt', extra_step=True, **local)
  with pytest.raises(ValueError, match='less than 4'):
    fed_avg_s(*args, mu=8.0, **local)
  with pytest.raises(ValueError, match='needs a step'):
    fed_avg_s(*args, gamma_l=0.5, tau=0)
  with pytest.raises(ValueError, match='give one'):
    scaffold_catalyst_s(*args, theta=1.0, **local)
  with pytest.raises(ValueError, match='give one'):
    scaffold_catalyst_s(*args, theta=1.0, inner_rounds=1, decrease=0.5, **local)
  with pytest.raises(ValueError, match='epsilon'):
    scaffold_catalyst_s(*args, theta=1.0, prox=lambda z: z, **local)
