"""Summed local steps: what stragglers send, and the weighted average of iterates."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tests.tff_algorithms import saddle_problems
from tff_algorithms import summed_descent
from tff_algorithms.fed_avg_s import build_fed_avg_s

_RATE = 2.0**-4
_TAU = 6


@functools.cache
def _phases(dtype, average_mu):
  """FedAvg-S with tau = 6 on all rows, gamma_g = 3/4 gamma_l."""
  return saddle_problems.Phases(
    build_fed_avg_s,
    saddle_problems.regression(dtype).objective,
    client_learning_rate=_RATE,
    server_learning_rate=0.75 * _RATE,
    local_steps=_TAU,
    batch_size=100,
    average_mu=average_mu,
  )


@pytest.fixture(scope='module')
def cohorts():
  return saddle_problems.regression_cohorts(np.float64, 4, with_bad=False)


def _as_vector(z):
  return np.concatenate([np.ravel(t) for t in (*z[0], *z[1])])


def _path(z, rows, num_steps):
  """The iterates of a client that stops after `num_steps`, and the sum of its G_i."""
  mapping = saddle_problems.regression(np.float64).mapping
  iterates, total = [z], np.zeros(2 * saddle_problems.NUM_FEATURES + 1)
  for _ in range(num_steps):
    z = iterates[-1]
    parts = ([z[:1], z[1:4]], [z[4:]])
    g = _as_vector(mapping(parts, rows)[1])
    total = total + g
    iterates.append(z - _RATE * g)
  return iterates + iterates[-1:] * (_TAU - num_steps), total


def _expected(cohorts, limits, mu):
  """z and the weighted average after every round, from all iterates."""
  z = saddle_problems.vector(saddle_problems.regression_start(np.float64))
  path, zs, averages = [z], [], []
  for cohort in cohorts:
    clients = [
      _path(z, rows, min(limit, _TAU))
      for rows, limit in zip(cohort, limits, strict=False)
      if len(rows['y'])
    ]
    z = z - 0.75 * _RATE * np.mean([total for _, total in clients], axis=0)
    path += [
      np.mean([iterates[j] for iterates, _ in clients], axis=0) for j in range(1, _TAU)
    ]
    path.append(z)
    weights = (1 - _RATE * mu / 4) ** (1.0 - np.arange(len(path)))
    zs.append(z)
    averages.append(np.average(path, axis=0, weights=weights))
  return zs, averages


@pytest.mark.slow
@pytest.mark.parametrize('average_mu', [None, 2.0])
def test_a_straggler_sends_the_sum_of_fewer_steps_and_waits_where_it_stopped(
  cohorts, average_mu
):
  limits = [2, 100, 1, 5]
  zs, averages = _expected(cohorts, limits, average_mu or 1.0)
  phases = _phases(np.float64, average_mu)
  z = saddle_problems.regression_start(np.float64)
  server = phases.start(z)
  for t, cohort in enumerate(cohorts):
    server = phases.next(server, cohort, limits[: len(cohort)])
    found = saddle_problems.vector(server.weights.trainable)
    np.testing.assert_allclose(found, zs[t], rtol=1e-10)
    out = averages[t] if average_mu else zs[t]
    found = saddle_problems.vector(server.output.trainable)
    np.testing.assert_allclose(found, out, rtol=1e-10)
  # Iterations are counted for the stragglers, too.
  assert server.terms[-1].k == 4 * _TAU


@pytest.mark.slow
def test_the_average_is_a_mean_also_where_its_weights_hardly_differ(cohorts):
  """In float32 1 - rho has few digits, or none; the average is that of float64."""
  _, expected = _expected(cohorts, [100] * 4, 1e-5)
  for mu in (1e-5, 1e-8):
    float32 = [
      [
        {name: part.astype(np.float32) for name, part in rows.items()}
        for rows in cohort
      ]
      for cohort in cohorts
    ]
    servers = _phases(np.float32, mu).run(float32)
    for server, z in zip(servers, expected, strict=True):
      out = saddle_problems.vector(server.output.trainable)
      assert np.linalg.norm(out - z) <= 1e-5 * np.linalg.norm(z)


def test_before_any_round_the_start_comes_out():
  server = _phases(np.float64, 2.0).start()
  out = saddle_problems.vector(server.output.trainable)
  np.testing.assert_array_equal(out, saddle_problems.vector(server.weights.trainable))


@pytest.mark.slow
def test_with_weights_that_are_set_the_average_starts_again(cohorts):
  phases = _phases(np.float64, 2.0)
  (server,) = phases.run(cohorts[:1])
  weights = tf.nest.map_structure(lambda t: t + 1, server.weights)
  server = server.with_output(weights)
  z = saddle_problems.vector(weights.trainable)
  np.testing.assert_array_equal(saddle_problems.vector(server.output.trainable), z)
  assert server.terms[-1].k == _TAU  # As before: the run goes on.
  # And is that of a run from there.
  ours = phases.next(server, cohorts[1]).output.trainable
  theirs = phases.next(phases.start(z), cohorts[1]).output.trainable
  np.testing.assert_allclose(
    saddle_problems.vector(ours), saddle_problems.vector(theirs), rtol=1e-12
  )


@pytest.mark.parametrize('gamma_mu', [0.0, 4.0, 5.0, float('nan')])
def test_rates_for_which_there_are_no_weights_are_refused(gamma_mu):
  with pytest.raises(ValueError, match='needs 0 < client_learning_rate'):
    summed_descent.rho_of(gamma_mu / 2.0, 2.0)


@pytest.mark.parametrize('mu', [0.0, -1.0, float('inf')])
def test_mu_is_positive(mu):
  with pytest.raises(ValueError, match='average_mu must be a positive number'):
    summed_descent.rho_of(0.1, mu)
