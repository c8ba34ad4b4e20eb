"""Fixed points and linear rates, in float64, on games whose saddle point is known.

G_i(z) = M_i z + c_i is mu-strongly monotone, |M_i| <= beta and |M_i - M| <= delta with
M the mean. A step on all rows is then a map with the contraction

    |I - gamma M_i| <= q,    q^2 = 1 - 2 gamma mu + gamma^2 beta^2

since |v - gamma M_i v|^2 = |v|^2 - 2 gamma <M_i v, v> + gamma^2 |M_i v|^2. Constants
are computed from the game; that they are what is named above is all that is used.
"""

import functools

import numpy as np
import pytest

from tests.oracles import saddle_point as oracle
from tests.tff_algorithms import saddle_problems
from tff_algorithms.catalyst_stopping import InnerRounds
from tff_algorithms.extra_step_local_sgd import build_extra_step_local_sgd
from tff_algorithms.fed_avg_s import build_fed_avg_s
from tff_algorithms.minibatch_mirror import (
  build_minibatch_mirror_descent,
  build_minibatch_mirror_prox,
)
from tff_algorithms.scaffold_catalyst_s import build_scaffold_catalyst_s
from tff_algorithms.scaffold_s import build_scaffold_s

pytestmark = pytest.mark.slow

_TAU = 4
_GAMMA = 0.15
_THETA = 1.0
_INNER = 4
_ROUNDING = 1 + 1e-9  # On a contraction, as long as there is something to contract.


class _Game:
  """Clients of the quadratic game, and the constants above."""

  def __init__(self, lam, a, b):
    self.lam = lam
    self.clients = saddle_problems.game_clients(a, b)
    game = oracle.QuadraticGame(h=1.0, lam=lam)
    each = [game.linear([(0, rows)]) for rows in self.clients]
    self.matrices = [M for M, _ in each]
    self.optima = [np.linalg.solve(M, -c) for M, c in each]
    self.optimum = saddle_problems.vector(game.optimum(list(enumerate(self.clients))))
    mean = np.mean(self.matrices, axis=0)
    self.mu = min(lam, 1.0)  # The symmetric part is diag(lambda, 1).
    self.beta = max(np.linalg.norm(M, 2) for M in self.matrices)
    self.delta = max(np.linalg.norm(M - mean, 2) for M in self.matrices)

  def q(self, gamma=_GAMMA, theta=0.0):
    """The contraction of a step; with theta, of one on the regularized game."""
    mu, beta = self.mu + theta, self.beta + theta
    return np.sqrt(1 - 2 * gamma * mu + gamma**2 * beta**2)

  def scaffold_rate(self, theta=0.0):
    """A bound on a round of SCAFFOLD-S, with e = z~ - z* and all rows in each step.

    z_i - z~ moves by -gamma (M_i (z_i - z~) + M e), so that step j goes along
    (I - gamma M_i)^j M e. The sum over j of gamma (I - gamma M)^j M is
    I - (I - gamma M)^tau; and (I - gamma M_i)^j differs from (I - gamma M)^j by at
    most j q^(j-1) gamma delta. So

      |e_new| <= (q^tau + gamma^2 beta delta (sum over j < tau of j q^(j-1))) |e|
    """
    q = self.q(theta=theta)
    steps = sum(j * q ** (j - 1) for j in range(_TAU))
    return q**_TAU + _GAMMA**2 * (self.beta + theta) * self.delta * steps


_B = [[1.0, 0.0], [-1.0, 0.5], [0.5, 1.0]]
_UNLIKE = _Game(0.75, [[1.0, 1.5], [1.2, 1.3], [1.1, 1.7]], _B)
# Where they are best is unlike, but not how they bend.
_ALIKE = _Game(0.75, [[1.1, 1.5]] * 3, _B)
# M = I + 10 J with a rotation J: normal, and all but bilinear.
_BILINEAR = _Game(1.0, [[10.0, 10.0]] * 3, _B)
_ALGORITHMS = {
  'fed_avg_s': build_fed_avg_s,
  'extra_step': build_extra_step_local_sgd,
  'scaffold_s': build_scaffold_s,
  'catalyst': functools.partial(
    build_scaffold_catalyst_s, theta=_THETA, stopping=InnerRounds(_INNER)
  ),
  'mirror_descent': build_minibatch_mirror_descent,
  'mirror_prox': build_minibatch_mirror_prox,
}


@functools.cache
def _phases(name, lam, gamma=_GAMMA):
  arguments = dict(learning_rate=gamma)
  if not name.startswith('mirror'):
    arguments = dict(client_learning_rate=gamma, local_steps=_TAU, batch_size=1)
  objective = saddle_problems.quadratic_game(lam=lam)
  return saddle_problems.Phases(_ALGORITHMS[name], objective, **arguments)


def _path(name, game, num_rounds, start=None, gamma=_GAMMA):
  """z~ before and after the rounds, less z*; from 1, 1, ... by default."""
  zs = _phases(name, game.lam, gamma).zs([game.clients] * num_rounds, start)
  return np.array(zs) - game.optimum


def _assert_contracts(errors, rate, until=1e-9):
  """Each round at least by `rate`; and that goes on until there is little left."""
  assert rate < 1
  distances = np.linalg.norm(errors, axis=1)
  assert distances[-1] < until <= distances[0]
  alive = distances[:-1] > 1e-12
  assert (distances[1:] <= rate * _ROUNDING * distances[:-1])[alive].all()


def _rounds_until(rate, first, until=1e-9):
  return int(np.ceil(np.log(until / first) / np.log(rate))) + 1


# Fixed points.


@pytest.mark.parametrize(
  'name', ['scaffold_s', 'catalyst', 'mirror_descent', 'mirror_prox']
)
def test_the_saddle_point_is_a_fixed_point(name):
  errors = _path(name, _UNLIKE, 6, _UNLIKE.optimum)
  np.testing.assert_allclose(errors, 0, atol=1e-14)


def test_fed_avg_s_moves_away_where_clients_are_unlike():
  """z_i after tau steps is z_i* + (I - gamma M_i)^tau (z - z_i*)."""
  errors = _path('fed_avg_s', _UNLIKE, 1, _UNLIKE.optimum)
  ends = [
    z + np.linalg.matrix_power(np.eye(4) - _GAMMA * M, _TAU) @ (_UNLIKE.optimum - z)
    for M, z in zip(_UNLIKE.matrices, _UNLIKE.optima, strict=True)
  ]
  expected = np.mean(ends, axis=0) - _UNLIKE.optimum
  np.testing.assert_allclose(errors[1], expected, atol=1e-14)
  assert np.linalg.norm(expected) > 1e-3


@pytest.mark.parametrize('name', ['fed_avg_s', 'extra_step'])
def test_where_clients_bend_alike_the_saddle_point_is_one_of_fed_avg_s_too(name):
  """Then (I - gamma M)^tau (z* - z_i*) has mean 0."""
  np.testing.assert_allclose(_path(name, _ALIKE, 6, _ALIKE.optimum), 0, atol=1e-14)


# Rates.


def test_scaffold_s_converges_linearly_where_clients_are_unlike():
  rate = _UNLIKE.scaffold_rate()
  errors = _path('scaffold_s', _UNLIKE, _rounds_until(rate, 4.0))
  _assert_contracts(errors, rate)


def test_mirror_descent_converges_at_the_rate_of_a_step():
  rate = _UNLIKE.q()
  errors = _path('mirror_descent', _UNLIKE, _rounds_until(rate, 4.0, 1e-3))
  _assert_contracts(errors, rate, 1e-3)


@pytest.mark.parametrize('name', ['fed_avg_s', 'extra_step'])
def test_where_clients_bend_alike_local_steps_are_all_worth_one(name):
  """With g = G(z), h = G(z - gamma g) and beta gamma <= 1/4, an extra step has

    |z_new - z*|^2 = |z - z*|^2 - 2 gamma <h, z_half - z*> + gamma^2 (|h - g|^2 - |g|^2)
                  <= (1 - gamma mu) |z - z*|^2 - gamma^2 (7/16) |g|^2

  by <h, z_half - z*> >= mu |z_half - z*|^2, |h - g| <= beta gamma |g| and
  |z - z*|^2 <= 2 |z_half - z*|^2 + 2 gamma^2 |g|^2.
  """
  gamma, step = _GAMMA, _ALIKE.q()
  if name == 'extra_step':
    gamma = 1 / (4 * _ALIKE.beta)
    step = np.sqrt(1 - gamma * _ALIKE.mu)
  rate = step**_TAU
  errors = _path(name, _ALIKE, _rounds_until(rate, 4.0), gamma=gamma)
  _assert_contracts(errors, rate)


def test_mirror_prox_converges_at_the_rate_of_an_extra_step():
  """See above."""
  gamma = 1 / (4 * _UNLIKE.beta)
  rate = np.sqrt(1 - gamma * _UNLIKE.mu)
  errors = _path('mirror_prox', _UNLIKE, _rounds_until(rate, 4.0, 1e-3), gamma=gamma)
  _assert_contracts(errors, rate, 1e-3)


def test_fed_avg_s_converges_linearly_to_another_point_where_clients_are_unlike():
  """A round is affine, its linear part the mean of the (I - gamma M_i)^tau."""
  rate = _UNLIKE.q() ** _TAU
  errors = _path('fed_avg_s', _UNLIKE, _rounds_until(rate, 4.0))
  _assert_contracts(np.diff(errors, axis=0), rate)
  assert np.linalg.norm(errors[-1]) > 1e-3


def test_catalyst_converges_at_the_rate_of_the_proximal_point_algorithm():
  """A prox, with prox z* = z* and |z - prox z| <= |z - z*|, is a contraction

  by theta / (theta + mu). N rounds of SCAFFOLD-S bring z~ to within
  r^N |zbar - prox zbar| of it, and so nearer to z* by theta / (theta + mu) + r^N.
  """
  r = _UNLIKE.scaffold_rate(_THETA)
  rate = _THETA / (_THETA + _UNLIKE.mu) + r**_INNER
  num_rounds = _INNER * _rounds_until(rate, 4.0, 1e-6)
  errors = _path('catalyst', _UNLIKE, num_rounds)
  _assert_contracts(errors[::_INNER], rate, 1e-6)


# Where the players' coupling is all but everything.


@pytest.mark.parametrize('name', ['mirror_descent', 'fed_avg_s', 'scaffold_s'])
def test_descent_ascent_diverges_where_the_game_is_all_but_bilinear(name):
  """Each step is exactly by |1 - gamma (1 + 10 i)|, which is above 1."""
  gamma = 1 / (4 * _BILINEAR.beta)
  step = abs(1 - gamma * (1 + 10j))
  assert step > 1
  distances = np.linalg.norm(_path(name, _BILINEAR, 12, gamma=gamma), axis=1)
  steps = 1 if name == 'mirror_descent' else _TAU
  expected = distances[0] * step ** (steps * np.arange(13))
  np.testing.assert_allclose(distances, expected, rtol=1e-12)


@pytest.mark.parametrize('name', ['mirror_prox', 'extra_step'])
def test_steps_that_look_ahead_converge_there(name):
  """Each step is exactly by |1 - m + m^2|, m = gamma (1 + 10 i)."""
  gamma = 1 / (4 * _BILINEAR.beta)
  m = gamma * (1 + 10j)
  steps = 1 if name == 'mirror_prox' else _TAU
  step = abs(1 - m + m**2)
  assert step <= np.sqrt(1 - gamma * _BILINEAR.mu)
  distances = np.linalg.norm(_path(name, _BILINEAR, 12, gamma=gamma), axis=1)
  expected = distances[0] * step ** (steps * np.arange(13))
  np.testing.assert_allclose(distances, expected, rtol=1e-12)
