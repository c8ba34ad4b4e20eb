"""MimeMVR and MimeLiteMVR against their numpy oracle."""

import numpy as np
import pytest

from tests.oracles import mime as oracle
from tests.tff_algorithms import algorithms, problems
from tests.tff_algorithms.mime_framework_test import COHORTS
from tff_algorithms import client_inputs
from tff_algorithms.mime_mvr import build_mime_mvr

pytestmark = [pytest.mark.usefixtures('runtime'), pytest.mark.slow]

ETA = 0.1
either = pytest.mark.parametrize('lite', [False, True], ids=['mime_mvr', 'lite'])


def assert_agrees(cohorts, *, lite, a, **arguments):
  """Runs both and compares x, m and c after every round, and the metrics."""
  problem = problems.mlp()
  common = dict(a=a, learning_rate=ETA, batch_size=4, epochs=2, lite=lite, **arguments)
  process = build_mime_mvr(problem.model, shuffle=False, **common)
  expected, expected_metrics = oracle.mime_mvr(
    problem.oracle.loss_and_gradient, problem.weights, cohorts, **common
  )
  state = process.initialize()
  for cohort, theirs, metrics in zip(cohorts, expected, expected_metrics, strict=True):
    output = algorithms.next_round(process, state, cohort)
    before, state = state, output.state
    problems.assert_close(state.server.weights.trainable, theirs)
    term, train = state.server.terms[0], output.metrics['client_work']['train']
    problems.assert_close(term.m, metrics['m'])
    if lite:
      assert term.c == ()
    else:
      problems.assert_close(term.c, metrics['c'])
    if metrics['num_clients']:
      problems.assert_close(term.x_old, before.server.weights.trainable, 0)
    assert train['num_clients'] == metrics['num_clients']
    assert train['num_clients_left_out'] == metrics['num_left_out']
    for name in ('client_drift', 'gradient_norm'):
      reference = metrics[name.removeprefix('client_')]
      np.testing.assert_allclose(train[name], reference, rtol=1e-3, atol=1e-6)
    # In float32 a root of a difference of squares is good to about so much.
    atol = 1e-6 + 1e-3 * metrics['drift']
    np.testing.assert_allclose(
      train['client_spread'], metrics['spread'], rtol=1e-3, atol=atol
    )
  return expected


@pytest.mark.parametrize('a', [0.1, 0.6, 1.0])
@either
def test_agrees_with_the_oracle_over_five_rounds(lite, a):
  assert_agrees(COHORTS, lite=lite, a=a)


@either
def test_agrees_with_the_oracle_for_other_arguments(lite):
  assert_agrees(
    COHORTS, lite=lite, a=0.3, weighting='uniform', server_learning_rate=0.5
  )


@either
def test_a_client_with_a_nan_is_left_out_of_everything(lite):
  """As the oracle does, also in a round where it is alone: x_old stays too."""
  bad = problems.classification_rows(6, seed=3)
  bad['x'][2, 1] = np.nan
  cohorts = [list(cohort) for cohort in COHORTS]
  cohorts[0].append(bad)
  cohorts[1][0], cohorts[2] = bad, [bad]
  assert_agrees(cohorts, lite=lite, a=0.3)


def test_the_first_round_of_mime_mvr_moves_nothing_and_that_of_the_lite_one_does():
  expected = assert_agrees(COHORTS[:1], lite=False, a=0.3)
  problems.assert_close(expected[0], problems.mlp().weights)
  expected = assert_agrees(COHORTS[:1], lite=True, a=0.3)
  with pytest.raises(AssertionError):
    problems.assert_close(expected[0], problems.mlp().weights)


@either
def test_a_cohort_in_both_halves_is_the_cohort_unsplit(lite):
  arguments = dict(a=0.3, learning_rate=ETA, batch_size=4, epochs=2, lite=lite)
  model = problems.mlp().model
  split = build_mime_mvr(model, split_cohort=True, **arguments)
  state = split.initialize()
  for cohort in COHORTS[:3]:
    twice = [problems.dataset(rows) for rows in cohort for _ in range(2)]
    state = split.next(state, client_inputs.in_halves(twice)).state
  expected, _ = problems.run(build_mime_mvr(model, **arguments), COHORTS[:3])
  problems.assert_close(state.server.weights.trainable, expected[-1], 1e-6)


@pytest.mark.parametrize('a', [0.0, -0.1, 1.5, float('nan')])
@either
def test_an_a_that_is_no_share_is_refused(lite, a):
  with pytest.raises(ValueError, match=r'a must be in \(0, 1\]'):
    build_mime_mvr(
      problems.mlp().model, a=a, learning_rate=ETA, batch_size=4, lite=lite
    )


def test_a_negative_rate_is_refused():
  with pytest.raises(ValueError, match='learning_rate'):
    build_mime_mvr(problems.mlp().model, a=0.5, learning_rate=-ETA, batch_size=4)


def test_the_rate_is_a_hyperparameter():
  arguments = dict(a=0.5, batch_size=4, shuffle=False, lite=True)
  model = problems.mlp().model
  process = build_mime_mvr(model, learning_rate=ETA, **arguments)
  state = process.initialize()
  hparams = process.get_hparams(state)
  np.testing.assert_allclose(hparams['base_optimizer']['learning_rate'], ETA)
  hparams['base_optimizer']['learning_rate'] = 3 * ETA
  state = process.set_hparams(state, hparams)
  after = algorithms.next_round(process, state, COHORTS[0]).state
  faster = build_mime_mvr(model, learning_rate=3 * ETA, **arguments)
  expected, _ = problems.run(faster, COHORTS[:1])
  problems.assert_close(after.server.weights.trainable, expected[0], 1e-6)
