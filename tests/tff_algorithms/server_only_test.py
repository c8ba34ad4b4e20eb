"""Server-only training against its numpy oracle."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.oracles import server_only as oracle
from tests.tff_algorithms import fed_avg_test, problems
from tff_algorithms import schedules
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.server_only import build_server_only

pytestmark = pytest.mark.usefixtures('runtime')

_COHORTS = [
  [problems.classification_rows(n, seed=t + 5 * n) for n in sizes]
  for t, sizes in enumerate([(9, 4, 1), (7, 0, 6), (5, 12), (8, 2), (10, 3)])
]


def _agree(cohorts, name, batch_size=4, weighting='examples', **schedule):
  problem = problems.mlp()
  optimizer, numpy_optimizer = fed_avg_test.SERVER_OPTIMIZERS[name]
  process = build_server_only(
    problem.model,
    optimizer=optimizer,
    batch_size=batch_size,
    weighting=weighting,
    schedule=schedules.inverse_sqrt(2.0) if schedule else None,
  )
  weights, metrics = problems.run(process, cohorts)
  expected, expected_metrics = oracle.server_only(
    problem.oracle.loss_and_gradient,
    problem.weights,
    cohorts,
    optimizer=numpy_optimizer,
    weighting=weighting,
    num_correct=problem.oracle.num_correct,
    **schedule,
  )
  for t in range(len(cohorts)):
    problems.assert_close(weights[t], expected[t])
    for ours, theirs in {'loss': 'loss', 'accuracy': 'accuracy'}.items():
      np.testing.assert_allclose(
        metrics[t][ours], expected_metrics[t][theirs], rtol=1e-4
      )
    assert metrics[t]['num_examples'] == expected_metrics[t]['num_examples']
    assert metrics[t]['num_clients_left_out'] == expected_metrics[t]['num_left_out']


@fed_avg_test.every_server_optimizer
def test_agrees_with_the_oracle_for_every_optimizer(name):
  _agree(_COHORTS, name)


@pytest.mark.slow
def test_agrees_with_the_oracle_for_uniform_weights():
  _agree(_COHORTS, 'base_adam', weighting='uniform')


@pytest.mark.slow
def test_does_not_depend_on_the_batch_size():
  _agree(_COHORTS, 'base_momentum', batch_size=1)
  _agree(_COHORTS, 'base_momentum', batch_size=1000)


@pytest.mark.slow
def test_a_schedule_scales_the_learning_rate():
  _agree(_COHORTS, 'sgd', server_schedule=lambda t: np.sqrt(2 / (2 + t)))


@pytest.mark.slow
def test_left_out_clients_agree_with_the_oracle():
  cohorts = [list(cohort) for cohort in _COHORTS]
  bad = problems.classification_rows(6, seed=3)
  bad['x'][2, 1] = np.nan
  cohorts[1][0], cohorts[3] = bad, [bad]
  _agree(cohorts, 'base_momentum')


@pytest.mark.slow
def test_is_fed_avg_with_one_full_batch_step():
  """With eta_l = 1 the pseudo-gradient of one full step is the gradient."""
  model = problems.mlp().model
  optimizer = tff.learning.optimizers.build_sgdm(0.3, 0.9)
  server_only, _ = problems.run(
    build_server_only(model, optimizer=optimizer, batch_size=4), _COHORTS
  )
  fed_avg, _ = problems.run(
    build_fed_avg(
      model, client_learning_rate=1.0, batch_size=100, server_optimizer=optimizer
    ),
    _COHORTS,
  )
  problems.assert_close(server_only[-1], fed_avg[-1], 1e-5)


@pytest.mark.slow
def test_gradient_descent_reaches_the_weighted_optimum():
  """Clients of 1 and 3 rows: the optimum is the mean over all rows."""
  hessian = np.diag([1.0, 2.0])
  cohort = [
    problems.quadratic_rows([hessian], [[4.0, 0.0]]),
    problems.quadratic_rows([hessian] * 3, [[0.0, 4.0]] * 3),
  ]
  process = build_server_only(
    problems.quadratic([0.0, 0.0]).model,
    optimizer=tff.learning.optimizers.build_sgdm(0.5),
  )
  weights, _ = problems.run(process, [cohort] * 40)
  np.testing.assert_allclose(weights[-1]['w'], [1.0, 3.0], rtol=1e-5)
