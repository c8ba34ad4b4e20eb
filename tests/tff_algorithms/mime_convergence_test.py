"""How the Mime family converges, in plain TensorFlow and float64.

Quadratics whose optimum is known, all clients in every round; and the first rounds of
Adam, whose v starts at 0.
"""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tests.tff_algorithms import mime_identities_test, problems
from tests.tff_algorithms.mime_identities_test import distance, run, x_of
from tff_algorithms import base_optimizers

pytestmark = pytest.mark.slow

# Powers of 2, because rates are float32 on the way.
ETA = 0.125
START = [3.0, -2.0, 1.0]
OPTIMUM = {'w': np.zeros(3)}


def _clients(dissimilarity=1.0, hessian_spread=1.0, num_rows=1):
  """Four clients whose gradients at the optimum, 0, are that far from each other.

  Args:
    dissimilarity: The factor on what they want.
    hessian_spread: That on the difference of their Hessians, and their rows'.
    num_rows: The rows of a client.
  """
  rng = np.random.default_rng(0)
  shape = (4, num_rows, 3)
  # Diagonal Hessians, between 0.2 and 2.2 where they spread the most.
  a = 1.2 + hessian_spread * rng.uniform(-1, 1, shape)
  wanted = rng.normal(size=shape)  # a b, summing up to 0.
  b = dissimilarity * (wanted - wanted.mean(axis=(0, 1))) / a
  return [
    problems.quadratic_rows([np.diag(row) for row in a_i], b_i, np.float64)
    for a_i, b_i in zip(a, b, strict=True)
  ]


def _distances(build, clients, num_rounds, batch_size=None, **arguments):
  """How far from the optimum the start and the end of every round are."""
  problem = problems.quadratic(START, np.float64)
  batch_size = batch_size or len(clients[0]['y'])
  arguments = dict(rate=ETA, batch_size=batch_size) | arguments
  servers = run(build, problem, [clients] * num_rounds, **arguments)
  return [np.linalg.norm(START)] + [distance(s, OPTIMUM) for s in servers]


ALGORITHMS = {
  'mime, sgd': (mime_identities_test.mime, {}),
  'mime, momentum': (
    mime_identities_test.mime,
    dict(pair=base_optimizers.momentum(0.5)),
  ),
  'mime, previous c': (mime_identities_test.mime_previous, {}),
  'mime_mvr': (mime_identities_test.mime_mvr, dict(a=0.5)),
}


@pytest.mark.parametrize('name', ALGORITHMS)
def test_reaches_the_optimum_of_clients_that_differ(name):
  build, arguments = ALGORITHMS[name]
  start, *_, end = _distances(build, _clients(), 60, epochs=4, **arguments)
  assert end < 1e-6 * start


@pytest.mark.parametrize('lite', [False, True])
def test_m_of_mvr_forgets_that_it_started_at_zero(lite):
  """With all clients in each round, m - c shrinks by 1 - a; c = (mean of a_i) x."""
  a, clients = 0.25, _clients()
  problem = problems.quadratic(START, np.float64)
  servers = run(
    mime_identities_test.mime_mvr,
    problem,
    [clients] * 5,
    a=a,
    lite=lite,
    rate=ETA,
    batch_size=1,
    epochs=2,
  )
  hessian = np.mean([rows['x']['a'][0] for rows in clients], axis=0)
  first, x = hessian @ START, np.asarray(START)
  for t, server in enumerate(servers, start=1):
    m = hessian @ x - (1 - a) ** t * first
    np.testing.assert_allclose(server.terms[0].m['w'], m, rtol=1e-11, atol=1e-11)
    x = x_of(server)['w']


def test_fed_avg_stalls_at_a_distance_that_grows_with_the_dissimilarity():
  """Its fixed point is linear in b_i, with 0 where the clients have one optimum."""

  def stall(dissimilarity):
    clients = _clients(dissimilarity)
    *_, before, end = _distances(mime_identities_test.fed_avg, clients, 60, epochs=4)
    np.testing.assert_allclose(end, before, rtol=1e-6, atol=1e-6)
    return end

  assert stall(0.0) < 1e-6
  once = stall(1.0)
  assert once > 0.01
  np.testing.assert_allclose([stall(2.0), stall(8.0)], [2 * once, 8 * once], rtol=1e-4)


@pytest.mark.parametrize('batch_size', [1, 2])
def test_mime_reaches_the_optimum_with_minibatches_and_mime_lite_does_not(batch_size):
  """A step's noise is that of (grad f(y; b) - grad f(x; b)), and vanishes with c."""
  clients = _clients(num_rows=5)
  common = dict(num_rounds=40, batch_size=batch_size)
  start, *_, end = _distances(mime_identities_test.mime, clients, **common)
  assert end < 1e-6 * start
  *_, end = _distances(mime_identities_test.mime_lite, clients, **common)
  assert end > 1e-3 * start


def _rounds_to(accuracy, num_steps, hessian_spread):
  distances = _distances(
    mime_identities_test.mime,
    _clients(hessian_spread=hessian_spread),
    60,
    epochs=num_steps,
    rate=ETA / 4,
  )
  reached = np.asarray(distances) < accuracy * distances[0]
  assert reached[-1]
  return int(np.argmax(reached))


def test_more_local_steps_help_where_hessians_are_alike():
  """Section 4.2: the rounds to an accuracy fall with K at a fixed eta."""
  rounds = [_rounds_to(0.1, k, hessian_spread=0.05) for k in (1, 2, 4, 8, 16)]
  assert all(more < 0.6 * fewer for fewer, more in itertools.pairwise(rounds))


@pytest.mark.parametrize('num_steps', [1, 3, 7])
def test_with_one_hessian_a_round_of_k_steps_is_k_steps_of_gradient_descent(num_steps):
  """y - x* <- (1 - eta a) (y - x*) on every client, whatever its own optimum is."""
  problem = problems.quadratic(START, np.float64)
  a = np.asarray([0.5, 1.0, 2.0])
  rng = np.random.default_rng(1)
  optima = rng.normal(size=(4, 3))
  cohort = [problems.quadratic_rows([np.diag(a)], [b], np.float64) for b in optima]
  common = dict(rate=ETA, batch_size=1, epochs=num_steps)
  servers = run(mime_identities_test.mime, problem, [cohort] * 3, **common)
  x_star = optima.mean(axis=0)
  for t, server in enumerate(servers, start=1):
    expected = (1 - ETA * a) ** (t * num_steps) * (START - x_star)
    np.testing.assert_allclose(x_of(server)['w'] - x_star, expected, rtol=1e-12)


BETA_1 = 0.9
ADAM_ETA = 2.0**-7


def _adam_rounds(algorithm, cohort, *, eps, num_steps, num_rounds=1, **arguments):
  return run(
    getattr(mime_identities_test, algorithm),
    problems.logistic(dtype=cohort[0]['x'].dtype),
    [cohort] * num_rounds,
    pair=base_optimizers.adam(BETA_1, 0.99, eps),
    rate=ADAM_ETA,
    batch_size=4,
    epochs=num_steps,
    max_steps=num_steps,
    **arguments,
  )


def _bounded_clients(dtype):
  """Clients with features in [-1, 1]."""
  cohort = [problems.classification_rows(n, seed=n, dtype=dtype) for n in (9, 1, 4)]
  for rows in cohort:
    rows['x'] = np.clip(rows['x'], -1, 1)
  return cohort


def _largest_move(server, start):
  x = x_of(server)
  return max(np.max(np.abs(x[name] - start[name])) for name in start)


@pytest.mark.parametrize('num_steps', [1, 4])
@pytest.mark.parametrize('algorithm', ['mime', 'mime_lite'])
def test_adam_moves_no_further_than_its_bound_in_the_first_round(algorithm, num_steps):
  """v = 0 and m = 0, so that U = (1 - beta_1) g / eps in all local steps."""
  # A coordinate of a gradient is a feature by a difference of probabilities, at most 1;
  # so is one of a difference of two gradients on a batch, to which Mime adds c.
  g = {'mime': 2, 'mime_lite': 1}[algorithm]
  bound = num_steps * ADAM_ETA * (1 - BETA_1) * g / 1e-3
  cohort, start = _bounded_clients(np.float64), problems.logistic(dtype=np.float64)
  (server,) = _adam_rounds(algorithm, cohort, eps=1e-3, num_steps=num_steps)
  assert 0.1 * bound < _largest_move(server, start.weights) <= bound


@pytest.mark.parametrize('num_steps', [1, 4])
@pytest.mark.parametrize('algorithm', ['mime', 'mime_lite'])
def test_adam_attains_the_bound_where_the_gradient_does(algorithm, num_steps):
  """A model so sure of the wrong class that no step of the round changes its mind."""
  cohort = _bounded_clients(np.float64)
  for rows in cohort:
    rows['x'], rows['y'] = np.ones_like(rows['x']), np.zeros_like(rows['y'])
  start = {'kernel': np.zeros((5, 3)), 'bias': np.asarray([-50.0, 50.0, 0.0])}
  (server,) = _adam_rounds(
    algorithm, cohort, eps=1e-3, num_steps=num_steps, weights=start
  )
  step = num_steps * ADAM_ETA * (1 - BETA_1) / 1e-3
  expected = np.tile([step, -step, 0.0], (5, 1))
  np.testing.assert_allclose(x_of(server)['kernel'], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize('algorithm', ['mime', 'mime_lite', 'loc_mime'])
def test_adam_with_a_tiny_eps_takes_a_large_first_step_and_stays_finite(algorithm):
  cohort, start = _bounded_clients(np.float32), problems.logistic()
  first, *more = _adam_rounds(algorithm, cohort, eps=1e-7, num_steps=4, num_rounds=4)
  assert _largest_move(first, start.weights) > 1e3
  for server in (first, *more):
    for leaf in tf.nest.flatten((x_of(server), server.optimizer)):
      assert np.all(np.isfinite(leaf))
