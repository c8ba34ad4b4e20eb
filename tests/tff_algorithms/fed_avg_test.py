"""FedAvg against its numpy oracle, and where its fixed points are."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.oracles import fed_avg as oracle
from tests.oracles import numpy_optimizers
from tests.tff_algorithms import problems
from tff_algorithms import base_optimizers, schedules
from tff_algorithms.fed_avg import build_fed_avg

pytestmark = pytest.mark.usefixtures('each_runtime')

# Unequal clients, a partial last batch, one example, none at all; cohorts differ.
_COHORTS = [
  [problems.classification_rows(n, seed=10 * t + i) for i, n in enumerate(sizes)]
  for t, sizes in enumerate([(9, 4, 1), (7, 0, 6), (5, 12), (3, 8, 2, 5), (10, 1)])
]

_pair = base_optimizers.as_tff_optimizer
_optimizers = tff.learning.optimizers
SERVER_OPTIMIZERS = {
  'sgd': (_optimizers.build_sgdm(0.7), numpy_optimizers.TffSgd(0.7)),
  'momentum': (_optimizers.build_sgdm(0.7, 0.9), numpy_optimizers.TffSgd(0.7, 0.9)),
  'adam': (_optimizers.build_adam(0.1), numpy_optimizers.TffAdam(0.1)),
  'adagrad': (_optimizers.build_adagrad(0.1), numpy_optimizers.TffAdagrad(0.1)),
  'yogi': (_optimizers.build_yogi(0.1), numpy_optimizers.TffYogi(0.1)),
  'base_sgd': (
    _pair(base_optimizers.sgd(), 0.7),
    numpy_optimizers.BaseServer(numpy_optimizers.Sgd(), 0.7),
  ),
  'base_momentum': (
    _pair(base_optimizers.momentum(0.8), 0.7),
    numpy_optimizers.BaseServer(numpy_optimizers.Momentum(0.8), 0.7),
  ),
  'base_adagrad': (
    _pair(base_optimizers.adagrad(1e-2, 0.2), 0.1),
    numpy_optimizers.BaseServer(numpy_optimizers.AdaGrad(1e-2, 0.2), 0.1),
  ),
  'base_adam': (
    _pair(base_optimizers.adam(0.8, 0.9, 1e-2, 0.1), 0.1),
    numpy_optimizers.BaseServer(numpy_optimizers.Adam(0.8, 0.9, 1e-2, 0.1), 0.1),
  ),
}

_METRICS = {  # the oracle's names for ours
  'loss': 'loss',
  'accuracy': 'accuracy',
  'num_examples': 'num_examples',
  'num_clients': 'num_clients',
  'num_clients_left_out': 'num_left_out',
  'client_drift': 'drift',
  'client_spread': 'spread',
  'update_norm': 'update_norm',
}


def _agree(problem, cohorts, server_optimizers, ours, theirs, tolerance=1e-5):
  """Runs both and compares weights and metrics after every round."""
  server, numpy_server = server_optimizers
  process = build_fed_avg(problem.model, shuffle=False, server_optimizer=server, **ours)
  weights, metrics = problems.run(process, cohorts)
  expected, expected_metrics = oracle.fed_avg(
    problem.oracle.loss_and_gradient,
    problem.weights,
    cohorts,
    server_optimizer=numpy_server,
    num_correct=problem.oracle.num_correct,
    **theirs,
  )
  for t in range(len(cohorts)):
    problems.assert_close(weights[t], expected[t], tolerance)
    for name, numpy_name in _METRICS.items():
      # The spread is the root of a difference of squares: a float32 rounding of 1e-7
      # there is 3e-4 of the drift.
      atol = 1e-3 * metrics[t]['client_drift'] if name == 'client_spread' else 0
      expected_metric = expected_metrics[t][numpy_name]
      np.testing.assert_allclose(
        metrics[t][name], expected_metric, rtol=1e-4, atol=atol, err_msg=name
      )


every_server_optimizer = pytest.mark.parametrize(
  'name',
  [  # One of them is enough for `make check`.
    pytest.param(name, marks=() if name == 'base_adam' else pytest.mark.slow)
    for name in SERVER_OPTIMIZERS
  ],
)


@every_server_optimizer
def test_agrees_with_the_oracle_for_every_server_optimizer(name):
  arguments = dict(client_learning_rate=0.1, batch_size=4, epochs=2)
  _agree(problems.logistic(), _COHORTS, SERVER_OPTIMIZERS[name], arguments, arguments)


@pytest.mark.slow
@pytest.mark.parametrize(
  'changed',
  [
    dict(weighting='uniform'),
    dict(epochs=3, max_steps=4),
    dict(batch_size=100),
    dict(batch_size=1),
  ],
  ids=str,
)
def test_agrees_with_the_oracle_on_a_network(changed):
  arguments = dict(client_learning_rate=0.3, batch_size=4, epochs=2) | changed
  _agree(problems.mlp(), _COHORTS, SERVER_OPTIMIZERS['sgd'], arguments, arguments)


@pytest.mark.slow
@pytest.mark.parametrize('pair', ['momentum', 'adagrad', 'adam'])
def test_client_optimizers_agree_with_the_oracle(pair):
  numpy_pairs = dict(
    momentum=numpy_optimizers.Momentum(0.9),
    adagrad=numpy_optimizers.AdaGrad(1e-3, 0.1),
    adam=numpy_optimizers.Adam(0.9, 0.99, 1e-3, 0.1),
  )
  pairs = dict(
    momentum=base_optimizers.momentum(0.9),
    adagrad=base_optimizers.adagrad(1e-3, 0.1),
    adam=base_optimizers.adam(0.9, 0.99, 1e-3, 0.1),
  )
  arguments = dict(client_learning_rate=0.05, batch_size=4, epochs=2)
  _agree(
    problems.logistic(),
    _COHORTS,
    SERVER_OPTIMIZERS['sgd'],
    arguments | dict(client_optimizer=pairs[pair]),
    arguments | dict(client_optimizer=numpy_pairs[pair]),
  )


@pytest.mark.slow
@pytest.mark.parametrize('name', ['adam', 'base_momentum'])
def test_schedules_scale_both_learning_rates(name):
  arguments = dict(batch_size=4, epochs=2)
  _agree(
    problems.logistic(),
    _COHORTS,
    SERVER_OPTIMIZERS[name],
    arguments
    | dict(
      client_learning_rate=0.1,
      client_schedule=schedules.exponential(2),
      server_schedule=schedules.linear_warmup(3),
    ),
    arguments
    | dict(
      client_learning_rate=lambda t: 0.1 * 2 ** (-t / 2),
      server_schedule=lambda t: min(1, (t + 1) / 3),
    ),
  )


@pytest.mark.slow
def test_left_out_clients_agree_with_the_oracle():
  cohorts = [[dict(rows) for rows in cohort] for cohort in _COHORTS]
  for t, value in ((0, np.nan), (1, np.inf)):
    cohorts[t][0]['x'] = cohorts[t][0]['x'].copy()
    cohorts[t][0]['x'][3, 2] = value
  cohorts[2] = [cohorts[0][0]]  # a round in which nobody is kept
  problem = problems.logistic()
  arguments = dict(client_learning_rate=0.1, batch_size=4)
  _agree(problem, cohorts, SERVER_OPTIMIZERS['momentum'], arguments, arguments)


@pytest.mark.slow
def test_float64_agrees_to_float64():
  cohorts = [
    [problems.classification_rows(n, seed=n + t, dtype=np.float64) for n in (9, 4, 1)]
    for t in range(5)
  ]
  arguments = dict(client_learning_rate=0.125, batch_size=4, epochs=2)
  process = build_fed_avg(
    problems.mlp(dtype=np.float64).model, shuffle=False, **arguments
  )
  weights, _ = problems.run(process, cohorts)
  problem = problems.mlp(dtype=np.float64)
  expected, _ = oracle.fed_avg(
    problem.oracle.loss_and_gradient,
    problem.weights,
    cohorts,
    server_optimizer=numpy_optimizers.TffSgd(1.0),
    **arguments,
  )
  problems.assert_close(weights[-1], expected[-1], 1e-13)


@pytest.mark.slow
def test_shuffling_takes_every_row_once_in_an_epoch_in_the_documented_order():
  """With the order recomputed from (seed, round, key) the oracle agrees."""
  cohort = [problems.classification_rows(n, seed=n) for n in (9, 6)]
  problem = problems.logistic()
  arguments = dict(client_learning_rate=0.2, batch_size=4, epochs=2)
  process = build_fed_avg(problem.model, seed=7, **arguments)
  weights, _ = problems.run(process, [cohort, cohort])

  fold_in = tf.random.experimental.stateless_fold_in

  def order(t, i, epoch, n):
    first = [tf.io.serialize_tensor(cohort[i][name][0]) for name in ('x', 'y')]
    key = tf.strings.to_hash_bucket_fast(tf.strings.join(first), 2**63 - 1)
    seed = fold_in(fold_in(tf.constant([7, 0], tf.int64), t), key)
    return tf.random.experimental.stateless_shuffle(
      tf.range(n), fold_in(fold_in(seed, 0), epoch)
    ).numpy()

  assert any(list(order(0, 0, 0, 9)) != list(order(t, 0, e, 9)) for t, e in [(0, 1)])
  assert list(order(0, 0, 0, 9)) != list(order(1, 0, 0, 9))
  expected, _ = oracle.fed_avg(
    problem.oracle.loss_and_gradient,
    problem.weights,
    [cohort, cohort],
    server_optimizer=numpy_optimizers.TffSgd(1.0),
    order=order,
    **arguments,
  )
  problems.assert_close(weights[-1], expected[-1])


def _quadratic_client(hessian, optimum):
  return problems.quadratic_rows([np.diag(hessian)], [optimum])


def _steps_at_the_optimum(hessians, optima, epochs):
  """Where one round ends that starts at the optimum of the uniform mean loss."""
  a, b = np.asarray(hessians, np.float64), np.asarray(optima, np.float64)
  best = (a * b).sum(axis=0) / a.sum(axis=0)
  process = build_fed_avg(
    problems.quadratic(best).model,
    client_learning_rate=0.1,
    batch_size=1,
    epochs=epochs,
    weighting='uniform',
  )
  cohort = [_quadratic_client(h, o) for h, o in zip(hessians, optima, strict=True)]
  weights, _ = problems.run(process, [cohort])
  return np.linalg.norm(weights[0]['w'] - best)


@pytest.mark.slow
def test_moves_away_from_the_optimum_where_hessians_differ():
  assert _steps_at_the_optimum([[1, 2], [3, 1]], [[1, 0], [-1, 2]], epochs=5) > 1e-2


@pytest.mark.slow
def test_stays_at_the_optimum_where_hessians_are_equal():
  assert _steps_at_the_optimum([[1, 2], [1, 2]], [[1, 0], [-1, 2]], epochs=5) < 1e-6


@pytest.mark.slow
def test_stays_at_the_optimum_with_one_step():
  assert _steps_at_the_optimum([[1, 2], [3, 1]], [[1, 0], [-1, 2]], epochs=1) < 1e-6


@pytest.mark.slow
def test_contracts_at_the_rate_of_gradient_descent():
  """On f = a w^2 / 2, K steps of size eta shrink w by (1 - eta a)^K a round."""
  process = build_fed_avg(
    problems.quadratic([1.0]).model,
    client_learning_rate=0.1,
    batch_size=1,
    epochs=3,
  )
  cohort = [_quadratic_client([2.0], [0.0])] * 2
  weights, _ = problems.run(process, [cohort] * 4)
  np.testing.assert_allclose(weights[-1]['w'], [0.8 ** (3 * 4)], rtol=1e-5)


@pytest.mark.parametrize(
  'bad',
  [
    dict(client_learning_rate=-0.1),
    dict(client_learning_rate=float('nan')),
    dict(batch_size=0),
    dict(epochs=0),
    dict(max_steps=0),
    dict(weighting='by size'),
  ],
  ids=str,
)
def test_a_bad_argument_is_refused_by_name(bad):
  arguments = dict(client_learning_rate=0.1, batch_size=4) | bad
  with pytest.raises(ValueError, match=next(iter(bad))):
    build_fed_avg(problems.logistic().model, **arguments)


def test_an_aggregator_without_weights_is_refused_for_weighted_clients():
  aggregator = tff.aggregators.UnweightedMeanFactory()
  arguments = dict(client_learning_rate=0.1, batch_size=4, aggregator=aggregator)
  with pytest.raises(ValueError, match='uniform'):
    build_fed_avg(problems.logistic().model, **arguments)
