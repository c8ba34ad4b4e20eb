"""Extra-step local SGD against its numpy oracle."""

import functools

import numpy as np
import pytest

from tests.oracles import saddle_point as oracle
from tests.tff_algorithms import saddle_problems
from tff_algorithms.extra_step_local_sgd import build_extra_step_local_sgd

pytestmark = pytest.mark.slow

_extra_step = functools.partial(oracle.fed_avg_s, extra_step=True)
_RATE = 2.0**-5


@pytest.mark.usefixtures('runtime')
def test_agrees_with_the_oracle_with_bad_clients():
  problem = saddle_problems.regression()
  cohorts = saddle_problems.regression_cohorts()
  process = build_extra_step_local_sgd(
    problem.objective,
    client_learning_rate=_RATE,
    local_steps=5,
    batch_size=4,
    shuffle=False,
  )
  expected = _extra_step(
    problem.mapping,
    problem.z0,
    saddle_problems.named(cohorts),
    gamma_l=_RATE,
    tau=5,
    batch_size=4,
  )
  saddle_problems.assert_agrees(saddle_problems.run(process, cohorts), expected, 1e-5)


@pytest.mark.usefixtures('runtime')
def test_agrees_in_float64_with_random_synchronization_and_orders():
  """And gamma_g != gamma_l, and the average iterate."""
  problem = saddle_problems.regression(np.float64)
  cohorts = saddle_problems.regression_cohorts(np.float64)
  process = build_extra_step_local_sgd(
    problem.objective,
    client_learning_rate=_RATE,
    server_learning_rate=1.5 * _RATE,
    sync_probability=0.25,
    batch_size=4,
    average_mu=0.5,
    seed=3,
  )
  expected = _extra_step(
    problem.mapping,
    problem.z0,
    saddle_problems.named(cohorts),
    gamma_l=_RATE,
    gamma_g=1.5 * _RATE,
    tau=saddle_problems.drawn_steps(0.25, 3, len(cohorts)),
    batch_size=4,
    order=saddle_problems.order_of(cohorts, seed=3),
    mu=0.5,
  )
  saddle_problems.assert_agrees(saddle_problems.run(process, cohorts), expected, 1e-10)


def test_a_step_on_all_rows_agrees_with_the_oracle():
  saddle_problems.assert_variant_agrees(
    build_extra_step_local_sgd,
    _extra_step,
    np.float64,
    dict(client_learning_rate=2 * _RATE, batch_size=100, local_steps=3),
    dict(gamma_l=2 * _RATE, batch_size=100, tau=3),
  )
