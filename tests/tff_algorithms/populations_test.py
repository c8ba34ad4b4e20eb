"""Parallel training of several client populations against its numpy oracle."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.oracles import mixed as oracle
from tests.tff_algorithms import algorithms, mixed_problems, problems
from tff_algorithms import base_optimizers
from tff_algorithms.populations import build_parallel_training_of_populations

pytestmark = pytest.mark.usefixtures('runtime')


def _cohort(t, *members):
  return [
    (p, problems.classification_rows(n, seed=10 * t + i))
    for i, (p, n) in enumerate(members)
  ]


# A client without rows, one with a NaN; then a population is not there, or all its
# clients are bad, and at last nobody is usable.
_BAD = algorithms.poisoned(np.nan)
_COHORTS = [
  _cohort(0, (0, 9), (1, 4), (0, 1)),
  [*_cohort(1, (1, 7), (0, 0), (0, 6), (1, 3)), (1, _BAD)],
  _cohort(2, (0, 5), (0, 12)),
  [*_cohort(3, (1, 8), (0, 0)), (0, _BAD)],
  [(1, _BAD)],
  _cohort(5, (1, 3), (0, 2)),
]
_DEFAULTS = dict(batch_size=4, epochs=2, population_weights=(0.75, 0.25))


def _outputs(built, cohorts):
  state, outputs = built.initialize(), []
  for cohort in cohorts:
    clients = [
      collections.OrderedDict(client=problems.dataset(rows), population=np.int32(p))
      for p, rows in cohort
    ]
    outputs.append(built.next(state, clients))
    state = outputs[-1].state
  return outputs


def _build(model, **arguments):
  defaults = dict(_DEFAULTS, client_learning_rate=0.1, shuffle=False)
  return build_parallel_training_of_populations(model, **(defaults | arguments))


def _assert_agrees(problem, cohorts, *, ours, theirs, **common):
  built = _build(problem.model, **ours, **common)
  outputs = _outputs(built, cohorts)
  num_populations = len(common.get('population_weights', (0, 0)))
  expected, metrics = oracle.populations(
    [problem.oracle.loss_and_gradient] * num_populations,
    problem.weights,
    cohorts,
    server_learning_rates=[1.0] * num_populations,
    learning_rate=0.1,
    **(_DEFAULTS | common | theirs),
  )
  for output, x, told in zip(outputs, expected, metrics, strict=True):
    problems.assert_close(output.state.server.weights.trainable, x)
    train = output.metrics['client_work']['train']
    np.testing.assert_allclose(train['loss'], told['loss'], rtol=1e-4)
    np.testing.assert_allclose(train['update_norm'], told['update_norm'], rtol=1e-4)
    assert train['num_clients'] == told['num_clients']
    assert train['num_clients_left_out'] == told['num_left_out']
  return outputs


def test_agrees_with_the_oracle_also_where_a_population_is_not_there():
  _assert_agrees(problems.logistic(), _COHORTS, ours={}, theirs={})


@pytest.mark.slow
def test_agrees_with_the_oracle_for_other_optimizers():
  """Each population has a server optimizer, whose state stays when it is not there."""
  names = ['momentum', 'adam']
  both = [mixed_problems.SERVER_OPTIMIZERS[name] for name in names]
  merge, numpy_merge = mixed_problems.SERVER_OPTIMIZERS['base_momentum']
  pair, numpy_pair = mixed_problems.PAIRS['momentum']
  _assert_agrees(
    problems.mlp(),
    _COHORTS,
    weighting='uniform',
    ours=dict(
      server_optimizers=[ours for ours, _ in both],
      merge_optimizer=merge,
      client_optimizer=pair,
    ),
    theirs=dict(
      servers=[theirs for _, theirs in both], merge=numpy_merge, client=numpy_pair
    ),
  )


@pytest.mark.slow
def test_there_may_be_three_of_them():
  cohorts = [
    _cohort(0, (2, 3), (0, 9), (1, 4), (2, 5)),
    _cohort(1, (1, 7), (2, 6)),
    _cohort(2, (0, 4)),
  ]
  weights = (0.5, 0.25, 0.25)
  _assert_agrees(
    problems.logistic(), cohorts, population_weights=weights, ours={}, theirs={}
  )


@pytest.mark.slow
def test_a_client_sends_its_update_once_and_a_weight_and_a_mark_for_each_population():
  (output,) = _outputs(_build(problems.logistic().model), _COHORTS[:1])
  size = 4 * (5 * 3 + 3)
  train = output.metrics['client_work']['train']
  assert train['bytes_up'] == size + 4 + 2 * 4 + 2 * 4
  assert train['bytes_down'] == size + 8


@pytest.mark.slow
def test_one_population_alone_is_fed_avg_with_its_weight():
  """The mean over its clients, each step of w_p eta."""
  cohort = [(0, rows) for rows in algorithms.COHORT]
  built = _build(problems.logistic().model, population_weights=(0.5, 0.5), epochs=1)
  (output,) = _outputs(built, [cohort])
  fed_avg = algorithms.fed_avg(client_learning_rate=0.05, shuffle=False)
  expected, _ = problems.run(fed_avg, [algorithms.COHORT])
  problems.assert_close(output.state.server.weights.trainable, expected[0])


@pytest.mark.slow
def test_trains_with_tffs_aggregators_also_where_a_population_is_not_there():
  aggregator = tff.learning.robust_aggregator(weighted=True)
  built = _build(problems.logistic().model, aggregator=aggregator)
  for output in _outputs(built, _COHORTS[:4]):
    train = output.metrics['client_work']['train']
    assert np.isfinite(train['loss'])
    assert train['update_norm'] > 0


@pytest.mark.parametrize(
  ('bad', 'message'),
  [
    (dict(population_weights=(1.0,)), 'two or more'),
    (
      dict(aggregator=tff.aggregators.UnweightedMeanFactory(), weighting='uniform'),
      'must count for nothing',
    ),
    (dict(population_weights=(1.0, 0.0)), 'population_weights must be a positive'),
    (
      dict(server_optimizers=[tff.learning.optimizers.build_sgdm(1.0)]),
      '2 population_weights and 1 server_optimizers',
    ),
  ],
)
def test_a_bad_argument_is_refused_by_name(bad, message):
  with pytest.raises(ValueError, match=message):
    _build(problems.logistic().model, **bad)


@pytest.mark.slow
def test_the_rates_of_all_servers_are_hyperparameters():
  optimizers = [
    base_optimizers.as_tff_optimizer(base_optimizers.sgd(), rate) for rate in (0.5, 2.0)
  ]
  built = _build(problems.logistic().model, server_optimizers=optimizers)
  hparams = built.get_hparams(built.initialize())['server_optimizer']
  rates = {name: float(own['learning_rate']) for name, own in hparams.items()}
  assert rates == {'population_0': 0.5, 'population_1': 2.0, 'merge': 1.0}
