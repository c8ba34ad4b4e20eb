"""FedAvg-S against its numpy oracle."""

import numpy as np
import pytest

from tests.oracles import saddle_point as oracle
from tests.tff_algorithms import saddle_problems
from tff_algorithms.fed_avg_s import build_fed_avg_s

pytestmark = pytest.mark.slow

# The rates are exact in float32 too.
_RATE = 2.0**-5


@pytest.mark.usefixtures('runtime')
def test_agrees_with_the_oracle_with_bad_clients_and_a_schedule():
  """And gamma_g != gamma_l, the average iterate, the rows as they come."""
  problem = saddle_problems.regression()
  cohorts = saddle_problems.regression_cohorts()
  process = build_fed_avg_s(
    problem.objective,
    client_learning_rate=_RATE,
    server_learning_rate=1.5 * _RATE,
    local_steps=5,
    batch_size=4,
    shuffle=False,
    schedule='inverse_sqrt',
    average_mu=0.5,
  )
  expected = oracle.fed_avg_s(
    problem.mapping,
    problem.z0,
    saddle_problems.named(cohorts),
    gamma_l=_RATE,
    gamma_g=1.5 * _RATE,
    tau=5,
    batch_size=4,
    schedule='inverse_sqrt',
    mu=0.5,
  )
  saddle_problems.assert_agrees(saddle_problems.run(process, cohorts), expected, 1e-5)


@pytest.mark.usefixtures('runtime')
def test_agrees_in_float64_with_random_synchronization_and_orders():
  problem = saddle_problems.regression(np.float64)
  cohorts = saddle_problems.regression_cohorts(np.float64)
  process = build_fed_avg_s(
    problem.objective,
    client_learning_rate=_RATE,
    sync_probability=0.25,
    batch_size=4,
    average_mu=0.5,
    seed=3,
  )
  taus = saddle_problems.drawn_steps(0.25, 3, len(cohorts))
  assert len(set(taus)) > 5
  expected = oracle.fed_avg_s(
    problem.mapping,
    problem.z0,
    saddle_problems.named(cohorts),
    gamma_l=_RATE,
    tau=taus,
    batch_size=4,
    order=saddle_problems.order_of(cohorts, seed=3),
    mu=0.5,
  )
  saddle_problems.assert_agrees(saddle_problems.run(process, cohorts), expected, 1e-10)


@pytest.mark.parametrize(
  ('dtype', 'ours', 'theirs'),
  [
    (
      np.float64,
      dict(sync_probability=0.3, schedule='inverse_sqrt'),
      dict(tau=saddle_problems.drawn_steps(0.3, 0, 20), schedule='inverse_sqrt'),
    ),
    (np.float64, dict(local_steps=4, batch_size=100), dict(tau=4, batch_size=100)),
    (np.float32, dict(local_steps=1, batch_size=100), dict(tau=1, batch_size=100)),
    (
      np.float64,
      dict(local_steps=6, batch_size=2, server_learning_rate=0.5 * _RATE),
      dict(tau=6, batch_size=2, gamma_g=0.5 * _RATE),
    ),
    (
      np.float32,
      dict(client_learning_rate=0.0, server_learning_rate=_RATE, local_steps=3),
      dict(gamma_l=0.0, gamma_g=_RATE, tau=3),
    ),
  ],
  ids=['schedule', 'all rows', 'one step on all rows', 'small batches', 'gamma_l = 0'],
)
def test_variants_agree_with_the_oracle(dtype, ours, theirs):
  ours = dict(client_learning_rate=_RATE, batch_size=4) | ours
  theirs = dict(gamma_l=_RATE, batch_size=4) | theirs
  saddle_problems.assert_variant_agrees(
    build_fed_avg_s, oracle.fed_avg_s, dtype, ours, theirs
  )
