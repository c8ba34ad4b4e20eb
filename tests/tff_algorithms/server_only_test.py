"""Server-only training against its numpy oracle."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.oracles import mime as mvr_oracle
from tests.oracles import numpy_optimizers
from tests.oracles import server_only as oracle
from tests.tff_algorithms import algorithms, fed_avg_test, problems
from tff_algorithms import base_optimizers, schedules
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.server_only import build_server_only

pytestmark = pytest.mark.usefixtures('runtime')

_COHORTS = [
  [problems.classification_rows(n, seed=t + 5 * n) for n in sizes]
  for t, sizes in enumerate([(9, 4, 1), (7, 0, 6), (5, 12), (8, 2), (10, 3)])
]


_OPTIMIZERS = fed_avg_test.SERVER_OPTIMIZERS | {
  'base_adam_corrected': (
    base_optimizers.as_tff_optimizer(
      base_optimizers.adam(0.8, 0.9, 1e-1, bias_correction=True), 0.1
    ),
    numpy_optimizers.BaseServer(
      numpy_optimizers.Adam(0.8, 0.9, 1e-1, bias_correction=True), 0.1
    ),
  )
}


def _agree(cohorts, name, batch_size=4, weighting='examples', **schedule):
  problem = problems.mlp()
  optimizer, numpy_optimizer = _OPTIMIZERS[name]
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
def test_agrees_with_the_oracle_for_adam_with_its_bias_corrected():
  _agree(_COHORTS, 'base_adam_corrected')


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


# Momentum-based variance reduction.

_SGD = base_optimizers.as_tff_optimizer(base_optimizers.sgd(), 0.1)


def _assert_mvr_agrees(cohorts, a, **arguments):
  problem = problems.mlp()
  process = build_server_only(
    problem.model, optimizer=_SGD, mvr_a=a, batch_size=4, **arguments
  )
  expected, expected_metrics = mvr_oracle.server_only_mvr(
    problem.oracle.loss_and_gradient,
    problem.weights,
    cohorts,
    a=a,
    learning_rate=0.1,
    **arguments,
  )
  state = process.initialize()
  for cohort, theirs, metrics in zip(cohorts, expected, expected_metrics, strict=True):
    output = algorithms.next_round(process, state, cohort)
    state, train = output.state, output.metrics['client_work']['train']
    problems.assert_close(state.server.weights.trainable, theirs)
    problems.assert_close(state.server.terms[0].m, metrics['m'])
    np.testing.assert_allclose(
      train['gradient_norm'], metrics['gradient_norm'], rtol=1e-5
    )
    np.testing.assert_allclose(train['update_norm'], metrics['update_norm'], rtol=1e-4)
    assert train['num_clients'] == metrics['num_clients']
    assert train['num_clients_left_out'] == metrics['num_left_out']


@pytest.mark.slow
@pytest.mark.parametrize('a', [0.1, 0.6, 1.0])
def test_mvr_agrees_with_the_oracle(a):
  _assert_mvr_agrees(_COHORTS, a)


@pytest.mark.slow
def test_mvr_agrees_with_the_oracle_for_uniform_weights():
  _assert_mvr_agrees(_COHORTS, 0.3, weighting='uniform')


@pytest.mark.slow
def test_mvr_with_left_out_clients_agrees_with_the_oracle():
  cohorts = [list(cohort) for cohort in _COHORTS]
  bad = problems.classification_rows(6, seed=3)
  bad['x'][2, 1] = np.nan
  cohorts[0].append(bad)
  cohorts[1][0], cohorts[3] = bad, [bad]
  _assert_mvr_agrees(cohorts, 0.3)


@pytest.mark.slow
def test_mvr_with_a_one_is_plain():
  """m = g: nothing of the past is kept."""
  model = problems.mlp().model
  plain, _ = problems.run(build_server_only(model, optimizer=_SGD), _COHORTS)
  mvr, _ = problems.run(build_server_only(model, optimizer=_SGD, mvr_a=1.0), _COHORTS)
  for ours, theirs in zip(mvr, plain, strict=True):
    problems.assert_close(ours, theirs, 1e-6)


@pytest.mark.parametrize('a', [0.0, -0.5, 1.1])
def test_an_a_that_is_no_share_is_refused(a):
  with pytest.raises(ValueError, match=r'mvr_a must be in \(0, 1\]'):
    build_server_only(problems.mlp().model, optimizer=_SGD, mvr_a=a)
