"""Identities of the saddle-point algorithms as properties, in float64.

The phases are those that the public builders make, run here without a runtime; that
the process around them does the same is what the tests against the oracle show.
"""

import functools

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests.tff_algorithms import problems, saddle_problems
from tff_algorithms import base_optimizers, oracles, saddle_point
from tff_algorithms.catalyst_stopping import InnerRounds
from tff_algorithms.extra_step_local_sgd import build_extra_step_local_sgd
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.fed_avg_s import build_fed_avg_s
from tff_algorithms.fed_prox import Proximal
from tff_algorithms.mime import build_mime
from tff_algorithms.minibatch_mirror import (
  build_minibatch_mirror_descent,
  build_minibatch_mirror_prox,
)
from tff_algorithms.saddle_point import SaddlePoint
from tff_algorithms.scaffold_catalyst_s import build_scaffold_catalyst_s
from tff_algorithms.scaffold_s import build_scaffold_s

pytestmark = pytest.mark.slow

_RATE = 0.0625
_OBJECTIVE = saddle_problems.regression(np.float64).objective
_ALL_ROWS = 100

_BUILDERS = {
  'fed_avg_s': build_fed_avg_s,
  'extra_step': build_extra_step_local_sgd,
  'scaffold_s': build_scaffold_s,
  'catalyst': build_scaffold_catalyst_s,
}


@functools.cache
def _local(name, tau=3, batch_size=2, rate=_RATE, **arguments):
  """An algorithm with local steps, traced once for all examples."""
  return saddle_problems.Phases(
    _BUILDERS[name],
    _OBJECTIVE,
    client_learning_rate=rate,
    local_steps=tau,
    batch_size=batch_size,
    **arguments,
  )


@functools.cache
def _descent(rate, prox=False):
  build = build_minibatch_mirror_prox if prox else build_minibatch_mirror_descent
  return saddle_problems.Phases(build, _OBJECTIVE, learning_rate=rate)


def _sgd(rate):
  return base_optimizers.as_tff_optimizer(base_optimizers.sgd(), rate)


# Clients of any size, an empty one among them, and any start within the convexity.
_cohorts = st.builds(
  lambda sizes, seed: [
    [
      saddle_problems.regression_rows(n, seed + 10 * t + i, np.float64)
      for i, n in enumerate(sizes)
    ]
    for t in range(3)
  ],
  st.lists(st.integers(1, 9), min_size=1, max_size=3).map(lambda sizes: [*sizes, 0]),
  st.integers(0, 1000),
)
_starts = st.integers(0, 1000).map(
  lambda seed: np.random.default_rng(seed).uniform(-1, 1, 7)
)
_taus = st.sampled_from([1, 3])


def _assert_same(ours, theirs, cohorts, z, tolerance=1e-12):
  pairs = zip(ours.zs(cohorts, z), theirs.zs(cohorts, z), strict=True)
  for a, b in pairs:
    assert np.linalg.norm(a - b) <= tolerance * np.linalg.norm(b)


@settings(max_examples=6)
@given(_cohorts, _starts, _taus)
def test_catalyst_with_theta_zero_is_scaffold_s(cohorts, z, tau):
  catalyst = _local('catalyst', tau, theta=0.0)
  _assert_same(catalyst, _local('scaffold_s', tau), cohorts, z)


@settings(max_examples=6)
@given(_cohorts, _starts)
def test_catalyst_with_one_round_each_is_scaffold_s_with_the_term_of_fed_prox(
  cohorts, z
):
  """zbar is z~ then."""
  catalyst = _local('catalyst', theta=0.5, stopping=InnerRounds(1))
  proximal = _local('scaffold_s', terms=(Proximal(0.5),))
  _assert_same(catalyst, proximal, cohorts, z)


@settings(max_examples=6)
@given(_cohorts, _starts, _taus)
def test_an_extra_step_of_size_zero_is_none(cohorts, z, tau):
  extra = _local('extra_step', tau, extrapolation_rate=0.0)
  _assert_same(extra, _local('fed_avg_s', tau), cohorts, z)


@settings(max_examples=6)
@given(_cohorts, _starts, st.sampled_from([2, _ALL_ROWS]))
def test_scaffold_s_with_one_step_is_mirror_descent(cohorts, z, batch_size):
  """G_i(z; b) - G_i(z; b) + G(z) = G(z) on every batch b, whatever gamma_l."""
  scaffold = _local('scaffold_s', 1, batch_size, server_learning_rate=0.125)
  _assert_same(scaffold, _descent(0.125), cohorts, z)


@settings(max_examples=6)
@given(_cohorts, _starts)
def test_scaffold_s_without_a_local_rate_is_mirror_descent_by_all_steps(cohorts, z):
  scaffold = _local('scaffold_s', rate=0.0, server_learning_rate=_RATE)
  _assert_same(scaffold, _descent(3 * _RATE), cohorts, z)


@settings(max_examples=6)
@given(_cohorts, _starts)
def test_fed_avg_s_with_one_step_on_all_rows_is_mirror_descent(cohorts, z):
  one_step = _local('fed_avg_s', 1, _ALL_ROWS)
  _assert_same(one_step, _descent(_RATE), cohorts, z)


@settings(max_examples=6)
@given(_cohorts, _starts)
def test_one_extra_step_of_a_client_alone_is_mirror_prox(cohorts, z):
  alone = [cohort[:1] for cohort in cohorts]
  extra = _local('extra_step', 1, _ALL_ROWS)
  _assert_same(extra, _descent(_RATE, prox=True), alone, z)


@settings(max_examples=6)
@given(_cohorts, _starts)
def test_scaffold_s_on_all_rows_of_a_client_alone_is_fed_avg_s(cohorts, z):
  alone = [cohort[:1] for cohort in cohorts]
  scaffold = _local('scaffold_s', batch_size=_ALL_ROWS)
  _assert_same(scaffold, _local('fed_avg_s', batch_size=_ALL_ROWS), alone, z)


@pytest.mark.parametrize('name', _BUILDERS)
@settings(max_examples=2)
@given(_cohorts, _starts)
def test_always_synchronising_is_one_step(name, cohorts, z):
  own = {'theta': 0.5} if name == 'catalyst' else {}
  always = _local(name, sync_probability=1.0, **own)
  _assert_same(always, _local(name, 1, **own), cohorts, z, tolerance=0)


@functools.cache
def _fed_avg(tau, weighting):
  """As many steps as tau: all clients with rows have a batch in each pass."""
  return saddle_problems.Phases(
    build_fed_avg,
    _OBJECTIVE,
    client_learning_rate=_RATE,
    batch_size=2,
    epochs=tau,
    max_steps=tau,
    weighting=weighting,
    server_optimizer=_sgd(1.0),
  )


@settings(max_examples=6)
@given(_cohorts, _starts, _taus, st.sampled_from(['uniform', 'examples']))
def test_fed_avg_s_of_one_rate_is_fed_avg_on_the_mapping(cohorts, z, tau, weighting):
  """z - gamma mean of sums of G_i is the mean of the z_i."""
  ours = _local('fed_avg_s', tau, weighting=weighting)
  _assert_same(ours, _fed_avg(tau, weighting), cohorts, z)


# A function of x alone.

_LOGISTIC = problems.logistic(dtype=np.float64)


@functools.cache
def _logistic_with_a_y():
  """Logistic regression, and a y that it does not depend on."""
  f = oracles.as_oracle(_LOGISTIC.model)
  return saddle_point.saddle_objective(
    lambda x, y, batch, seed: (
      f.evaluate(saddle_point.ModelWeights(x, ()), batch, seed).loss
    ),
    initialize=lambda seed: SaddlePoint(
      f.initial_weights(seed).trainable, tf.ones([2], tf.float64)
    ),
    batch_spec=f.batch_spec,
  )


@functools.cache
def _of_x_alone(weighting):
  ours = saddle_problems.Phases(
    build_scaffold_s,
    _logistic_with_a_y(),
    client_learning_rate=_RATE,
    local_steps=4,
    batch_size=3,
    weighting=weighting,
  )
  mime = saddle_problems.Phases(
    build_mime,
    _LOGISTIC.model,
    base_optimizer=_sgd(_RATE),
    epochs=4,
    max_steps=4,
    batch_size=3,
    weighting=weighting,
  )
  return ours, mime


@settings(max_examples=8)
@given(
  st.lists(st.integers(1, 9), min_size=1, max_size=4),
  st.integers(0, 1000),
  st.sampled_from(['uniform', 'examples']),
)
def test_scaffold_s_on_a_function_of_x_alone_is_mime_with_sgd(sizes, seed, weighting):
  cohorts = [
    [
      problems.classification_rows(n, seed=seed + 10 * t + i, dtype=np.float64)
      for i, n in enumerate([*sizes, 0])
    ]
    for t in range(3)
  ]
  ours, mime = _of_x_alone(weighting)
  for a, b in zip(ours.run(cohorts), mime.run(cohorts), strict=True):
    saddle_problems.assert_close(a.weights.trainable.min, b.weights.trainable, 1e-12)
    np.testing.assert_array_equal(a.weights.trainable.max, [1, 1])
