"""How SCAFFOLD converges, in float64, on quadratics whose optimum is known.

All rows of a client are alike, so that every batch has its full gradient, and K_i is
its number of batches.
"""

import collections
import functools
import itertools

import numpy as np
import pytest

from tests.tff_algorithms import problems
from tff_algorithms import client_states, process
from tff_algorithms.client_states import ClientState
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.scaffold import build_scaffold

pytestmark = pytest.mark.usefixtures('runtime')

_both_options = pytest.mark.parametrize('option', [1, 2])


class Quadratics:
  """Clients with f_i(x) = (x - b_i)^T A_i (x - b_i) / 2; x* is that of their mean.

  Attributes:
    hessians: The A_i.
    centers: The b_i.
    optimum: x*.
    gradients_there: The gradients of all f_i at x*; they sum up to 0.
    cohort: (client id, rows) of all clients.
  """

  def __init__(self, hessians, centers, num_rows):
    """Makes the clients.

    Args:
      hessians: The A_i.
      centers: The b_i.
      num_rows: How many rows each client has, or all of them.
    """
    self.hessians, self.centers = np.asarray(hessians), np.asarray(centers)
    products = np.einsum('nij,nj->ni', self.hessians, self.centers)
    self.optimum = np.linalg.solve(self.hessians.sum(axis=0), products.sum(axis=0))
    self.gradients_there = self.hessians @ self.optimum - products
    num_rows = np.broadcast_to(num_rows, len(self.centers))
    self.cohort = [
      (f'c{i}', problems.quadratic_rows([a] * n, [b] * n, np.float64))
      for i, (a, b, n) in enumerate(
        zip(self.hessians, self.centers, num_rows, strict=True)
      )
    ]

  @property
  def states_at_the_optimum(self):
    """c_i = grad f_i(x*) as what the clients keep."""
    return [
      ClientState(client_id.encode(), _kept(gradient))
      for (client_id, _), gradient in zip(
        self.cohort, self.gradients_there, strict=True
      )
    ]


def _kept(c_i):
  w = np.asarray(c_i, np.float64)
  return collections.OrderedDict(control_variates=collections.OrderedDict(w=w))


# One process for all tests that can share it: building takes a second.
@functools.cache
def _scaffold(option, *, d, num_clients, rate, batch_size=1, weighting='uniform'):
  return build_scaffold(
    problems.quadratic([0.0] * d, np.float64).model,
    num_clients=num_clients,
    option=option,
    client_learning_rate=rate,
    batch_size=batch_size,
    weighting=weighting,
  )


@functools.cache
def _fed_avg(*, d, rate, batch_size=1):
  return build_fed_avg(
    problems.quadratic([0.0] * d, np.float64).model,
    client_learning_rate=rate,
    batch_size=batch_size,
    weighting='uniform',
  )


def _rounds(process_, cohorts, start, states=()):
  """After every round: x, the terms' states at the server, what the clients keep.

  Args:
    process_: SCAFFOLD, or FedAvg.
    cohorts: (client id, rows) of the clients, for each round; endless ones too.
    start: x at first.
    states: What clients keep at first, if not 0.
  """
  is_stateful = isinstance(process_, process.StatefulProcess)
  kept = client_states.InMemoryClientStates(process_) if is_stateful else None
  if kept:
    kept.write(states)
  state = process_.initialize()
  weights = process_.get_model_weights(state)
  trainable = collections.OrderedDict(w=np.asarray(start, np.float64))
  state = process_.set_model_weights(state, weights._replace(trainable=trainable))
  for cohort in cohorts:
    ids = [client_id for client_id, _ in cohort]
    arguments = [[problems.dataset(rows) for _, rows in cohort]]
    if kept:
      arguments.append(kept.read(ids))
    output = process_.next(state, *arguments)
    state = output.state
    if kept:
      kept.write(output.client_states)
    of_clients = kept.read(ids) if kept else []
    yield state.server.weights.trainable['w'], state.server.terms, of_clients


def _distances(process_, cohorts, start, optimum, states=()):
  """How far from the optimum x is at first, and after every round."""
  xs = [x for x, *_ in _rounds(process_, cohorts, start, states)]
  return [np.linalg.norm(np.asarray(x) - optimum) for x in (np.asarray(start), *xs)]


# From the optimum on.

_D, _N, _K, _RATE = 3, 4, 4, 0.25


def _random_hessians(num_clients, d=_D):
  """Positive definite ones, with eigenvalues between 0.3 and 2.3."""
  rng = np.random.default_rng(0)
  rotations = [np.linalg.qr(rng.normal(size=(d, d)))[0] for _ in range(num_clients)]
  eigenvalues = rng.uniform(0.3, 2.3, size=(num_clients, d))
  return [
    q @ np.diag(values) @ q.T for q, values in zip(rotations, eigenvalues, strict=True)
  ]


def _random_quadratics(hessians, num_rows=_K):
  centers = np.random.default_rng(1).normal(size=(len(hessians), len(hessians[0])))
  return Quadratics(hessians, centers, num_rows)


_UNLIKE = _random_quadratics(_random_hessians(_N))
_small = functools.partial(_scaffold, d=_D, num_clients=_N, rate=_RATE)
_small_fed_avg = functools.partial(_fed_avg, d=_D, rate=_RATE)


def test_fed_avg_moves_away_from_the_optimum():
  (first, *_), *_ = rounds = list(
    _rounds(_small_fed_avg(), [_UNLIKE.cohort] * 4, _UNLIKE.optimum)
  )
  # On every client y - b_i shrinks by I - eta A_i in a step.
  shrunk = [
    np.linalg.matrix_power(np.eye(_D) - _RATE * a, _K) @ (_UNLIKE.optimum - b)
    for a, b in zip(_UNLIKE.hessians, _UNLIKE.centers, strict=True)
  ]
  expected = np.mean(_UNLIKE.centers + shrunk, axis=0)
  np.testing.assert_allclose(first, expected, atol=1e-14)
  distances = [np.linalg.norm(x - _UNLIKE.optimum) for x, *_ in rounds]
  assert distances[0] > 0.04
  assert distances == sorted(distances)  # And on, towards where it will stall.


@_both_options
def test_with_the_right_c_i_it_stays_at_the_optimum_and_c_stays_zero(option):
  rounds = _rounds(
    _small(option),
    [_UNLIKE.cohort] * 5,
    _UNLIKE.optimum,
    _UNLIKE.states_at_the_optimum,
  )
  for x, (c,), of_clients in rounds:
    np.testing.assert_allclose(x, _UNLIKE.optimum, atol=1e-14)
    np.testing.assert_allclose(c['w'], 0, atol=1e-14)
    c_i = [kept.value['control_variates']['w'] for kept in of_clients]
    np.testing.assert_allclose(c_i, _UNLIKE.gradients_there, atol=1e-14)


@_both_options
def test_without_them_it_moves_away_like_fed_avg_and_comes_back(option):
  start = _UNLIKE.optimum
  cohorts = [_UNLIKE.cohort] * 40
  distances = _distances(_small(option), cohorts, start, start)
  fed_avg = _distances(_small_fed_avg(), cohorts[:1], start, start)
  assert distances[1] == pytest.approx(fed_avg[1], rel=1e-12)
  assert distances[1] > 0.04
  assert distances[-1] < 1e-9


def test_with_equal_hessians_and_equal_numbers_of_steps_fed_avg_stays_too():
  """The pulls of the clients then cancel; of unequal numbers of steps they do not."""
  hessians = [_random_hessians(1)[0]] * _N
  for num_rows, stays in ((_K, True), ([1, 2, 4, 7], False)):
    clients = _random_quadratics(hessians, num_rows)
    *_, end = _distances(
      _small_fed_avg(), [clients.cohort] * 3, clients.optimum, clients.optimum
    )
    assert (end < 1e-14) == stays
    assert stays or end > 0.05


# From afar: L = 1, mu = delta = 0.1 and the step size 1 / L of gradient descent, with
# A_i = mu + delta +- delta, f_i(x) = A_i x^2 / 2 + g_i x, and g_i = +-G of the same
# sign: clients that are the more wrong, the steeper they are.

_MU, _DELTA = 0.1, 0.1
_SIGNS = np.resize([1.0, -1.0], 20)
_RANGE_OF_G = (0.0, 1.0, 10.0, 100.0)  # sum g_i = 0; G is their root mean square.
_line = functools.partial(_scaffold, d=1, num_clients=20, rate=1.0)
_line_fed_avg = functools.partial(_fed_avg, d=1, rate=1.0)


def _scalar_quadratics(g, num_steps):
  a = _MU + _DELTA + _DELTA * _SIGNS
  return Quadratics(a[:, None, None], (-g * _SIGNS / a)[:, None], num_steps)


def _distances_until(accuracy, process_, clients, most, start=(1.0,), states=()):
  """|x| from the start to the first round that is nearer to x* = 0 than that."""
  cohorts = [clients.cohort] * most
  distances = [abs(start[0])]
  for x, *_ in _rounds(process_, cohorts, start, states):
    distances.append(abs(x[0]))
    if distances[-1] < accuracy:
      return distances
  raise AssertionError(f'It is still {distances[-1]} away after {most} rounds.')


def _rate(distances):
  """The slope of log |x_t|, fitted."""
  return np.polyfit(range(len(distances)), np.log(distances), 1)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
  ('option', 'num_steps', 'all_g', 'most', 'noise'),
  [
    (2, 2, (1.0, 100.0), 60, 0.02),
    (1, 2, (10.0,), 60, 0.02),
    # Faster modes, which take a while to die away beside each other.
    (2, 10, _RANGE_OF_G, 32, 0.4),
    # Here they swing around 0.
    (1, 10, (10.0,), 32, 0.4),
  ],
)
def test_converges_linearly_however_unlike_the_gradients_are(
  option, num_steps, all_g, most, noise
):
  rates = []
  for g in all_g:
    clients = _scalar_quadratics(g, num_steps)
    # The first round, with c_i = 0, is that of FedAvg, and moves x by about G.
    distances = _distances_until(1e-9, _line(option), clients, most)[1:]
    half = len(distances) // 2
    rates.append(_rate(distances))
    for part in (distances[:half], distances[half:]):
      assert _rate(part) == pytest.approx(rates[-1], rel=noise)
  # x and c - c_i are linear in x_0 and the g_i: G is in what is to go, not in how fast.
  np.testing.assert_allclose(rates, rates[0], rtol=noise / 2)


@pytest.mark.slow
def test_fed_avg_stalls_at_a_distance_that_grows_linearly_with_g():
  def stall(g):
    clients = _scalar_quadratics(g, 10)
    cohorts = [clients.cohort] * 16
    *_, before, end = _distances(_line_fed_avg(), cohorts, [1.0], [0.0])
    np.testing.assert_allclose(end, before, rtol=1e-9, atol=1e-9)
    return end

  nothing, once, *more = map(stall, _RANGE_OF_G)
  assert nothing < 1e-9
  assert once > 1  # Further than it started from.
  np.testing.assert_allclose(more, [10 * once, 100 * once], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize('g', [0.0, 100.0])
def test_local_steps_save_rounds_where_hessians_are_alike(g):
  """Rounds to f - f* < 1e-6 from x_0 = 1, against gradient descent, which needs 26.

  To be had are, by the theory for quadratics, rates of mu K / (L + (mu + delta) K) up
  to a constant; here (mu + delta) / L = 0.2, so against K = 1

      K = 2:   2 (1 + 0.2) / (1 + 0.4) = 1.7 times fewer rounds
      K = 10: 10 (1 + 0.2) / (1 + 2.0) = 4.0 times fewer

  It is a bound on the rate, and rounds come whole: hence the bands. With c_i = g_i at
  first the g_i cancel in every step, and G does not matter.
  """
  accuracy = np.sqrt(2 * 1e-6 / (_MU + _DELTA))  # f - f* = (mu + delta) x^2 / 2.

  def rounds(num_steps):
    clients = _scalar_quadratics(g, num_steps)
    states = clients.states_at_the_optimum
    return len(_distances_until(accuracy, _line(2), clients, 40, states=states)) - 1

  # With K = 1 it is gradient descent, x <- 0.8 x.
  descent = int(np.ceil(np.log(accuracy) / np.log(1 - _MU - _DELTA)))
  assert descent == 26
  assert rounds(1) == descent
  assert 1.6 <= descent / rounds(2) <= 2.1
  assert 3.2 <= descent / rounds(10) <= 4.5


def _sampled(cohort, per_round, num_rounds):
  rng = np.random.default_rng(0)
  for _ in range(num_rounds):
    yield [cohort[i] for i in rng.choice(len(cohort), per_round, replace=False)]


@pytest.mark.slow
@_both_options
def test_reaches_the_optimum_with_a_quarter_of_the_clients_in_a_round(option):
  clients = _scalar_quadratics(1.0, 2)
  cohorts = list(_sampled(clients.cohort, 5, 100))
  *_, end = _distances(_line(option), cohorts, [1.0], [0.0])
  assert end < 1e-6


@pytest.mark.slow
def test_fed_avg_with_a_quarter_of_the_clients_in_a_round_wanders_about():
  clients = _scalar_quadratics(1.0, 2)
  cohorts = list(_sampled(clients.cohort, 5, 60))
  distances = _distances(_line_fed_avg(), cohorts, [1.0], [0.0])
  assert np.median(distances[-30:]) > 0.1
  steps = [abs(a - b) for a, b in itertools.pairwise(distances[-30:])]
  assert np.median(steps) > 0.01  # It does not even stand still.


# Unequal numbers of local steps.

_SIZES = (4, 9, 1, 6, 13)  # In batches of 4: K_i = 1, 3, 1, 2, 4.


@pytest.mark.slow
@_both_options
@pytest.mark.parametrize('weighting', ['uniform', 'examples'])
def test_reaches_the_optimum_with_unequal_numbers_of_steps(option, weighting):
  """At x*, with c = 0 and c_i = grad f_i(x*), all of a client's steps are 0.

  That holds however many they are, and however the dy_i are weighted: x* is that of
  the mean of the f_i, each once, because c is the mean of the c_i.
  """
  clients = _random_quadratics(_random_hessians(len(_SIZES)), _SIZES)
  process_ = _scaffold(
    option,
    d=_D,
    num_clients=len(_SIZES),
    rate=_RATE,
    batch_size=4,
    weighting=weighting,
  )
  *_, (x, (c,), of_clients) = _rounds(process_, [clients.cohort] * 60, [3.0, -2.0, 1.0])
  np.testing.assert_allclose(x, clients.optimum, atol=1e-9)
  np.testing.assert_allclose(c['w'], 0, atol=1e-9)
  c_i = [kept.value['control_variates']['w'] for kept in of_clients]
  np.testing.assert_allclose(c_i, clients.gradients_there, atol=1e-9)


@pytest.mark.slow
def test_fed_avg_with_unequal_numbers_of_steps_does_not_reach_it():
  clients = _random_quadratics(_random_hessians(len(_SIZES)), _SIZES)
  distances = _distances(
    _small_fed_avg(batch_size=4),
    [clients.cohort] * 30,
    [3.0, -2.0, 1.0],
    clients.optimum,
  )
  np.testing.assert_allclose(distances[-1], distances[-2], rtol=1e-3)
  assert distances[-1] > 0.1
