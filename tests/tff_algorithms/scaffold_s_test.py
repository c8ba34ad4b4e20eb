"""SCAFFOLD-S against its numpy oracle."""

import numpy as np
import pytest

from tests.oracles import saddle_point as oracle
from tests.tff_algorithms import saddle_problems
from tff_algorithms.scaffold_s import build_scaffold_s

pytestmark = pytest.mark.slow

_RATE = 2.0**-5


@pytest.mark.usefixtures('runtime')
def test_agrees_with_the_oracle_with_bad_clients():
  """And gamma_g != gamma_l, the rows as they come."""
  problem = saddle_problems.regression()
  cohorts = saddle_problems.regression_cohorts()
  process = build_scaffold_s(
    problem.objective,
    client_learning_rate=_RATE,
    server_learning_rate=1.5 * _RATE,
    local_steps=5,
    batch_size=4,
    shuffle=False,
  )
  expected = oracle.scaffold_s(
    problem.mapping,
    problem.z0,
    saddle_problems.named(cohorts),
    gamma_l=_RATE,
    gamma_g=1.5 * _RATE,
    tau=5,
    batch_size=4,
  )
  saddle_problems.assert_agrees(saddle_problems.run(process, cohorts), expected, 1e-5)


@pytest.mark.usefixtures('runtime')
def test_agrees_in_float64_with_random_synchronization_and_orders():
  problem = saddle_problems.regression(np.float64)
  cohorts = saddle_problems.regression_cohorts(np.float64)
  process = build_scaffold_s(
    problem.objective,
    client_learning_rate=_RATE,
    sync_probability=0.25,
    batch_size=4,
    seed=3,
  )
  expected = oracle.scaffold_s(
    problem.mapping,
    problem.z0,
    saddle_problems.named(cohorts),
    gamma_l=_RATE,
    tau=saddle_problems.drawn_steps(0.25, 3, len(cohorts)),
    batch_size=4,
    order=saddle_problems.order_of(cohorts, seed=3),
  )
  saddle_problems.assert_agrees(saddle_problems.run(process, cohorts), expected, 1e-10)


@pytest.mark.parametrize(
  ('dtype', 'ours', 'theirs'),
  [
    (np.float64, dict(local_steps=4, batch_size=100), dict(tau=4, batch_size=100)),
    (
      np.float32,
      dict(client_learning_rate=0.0, server_learning_rate=_RATE, local_steps=3),
      dict(gamma_l=0.0, gamma_g=_RATE, tau=3),
    ),
  ],
  ids=['all rows', 'gamma_l = 0'],
)
def test_variants_agree_with_the_oracle(dtype, ours, theirs):
  ours = dict(client_learning_rate=_RATE, batch_size=4) | ours
  theirs = dict(gamma_l=_RATE, batch_size=4) | theirs
  saddle_problems.assert_variant_agrees(
    build_scaffold_s, oracle.scaffold_s, dtype, ours, theirs
  )
