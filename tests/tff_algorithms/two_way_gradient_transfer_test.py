"""2-way gradient transfer against its numpy oracle, and how g~_f comes about."""

import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.oracles import numpy_optimizers
from tests.tff_algorithms import mixed_problems, problems
from tests.tff_algorithms.mixed_problems import CENTRALS, COHORTS
from tff_algorithms import base_optimizers, oracles, schedules
from tff_algorithms.fed_prox import Proximal

pytestmark = pytest.mark.usefixtures('runtime')

_agrees = functools.partial(mixed_problems.assert_agrees, 'two_way_gradient_transfer')
_process = functools.partial(mixed_problems.process_of, 'two_way_gradient_transfer')
# A client optimizer that is given makes clients upload their gradients.
_UPLOADED = dict(client_optimizer=base_optimizers.sgd())


def test_agrees_with_the_oracle_also_where_rows_are_not_finite():
  """The central rate is eta eta_s, and the metrics tell equation 7."""
  ours, _ = mixed_problems.optimizers_of('sgd')
  outputs, _ = _agrees(
    COHORTS,
    CENTRALS,
    ours=ours | dict(diagnostics=True),
    theirs=dict(server_learning_rate=0.7),
  )
  assert 'g_tilde_square' in outputs[0].metrics['client_work']['train']


@pytest.mark.slow
def test_agrees_with_the_oracle_on_a_network_with_clipped_central_gradients():
  _agrees(
    problem=problems.mlp(),
    epochs=3,
    max_steps=4,
    central_learning_rate=0.3,
    central_clip_norm=0.1,
  )


@pytest.mark.slow
@pytest.mark.parametrize('chosen', mixed_problems.OPTIMIZERS, ids='-'.join)
def test_agrees_with_the_oracle_for_other_optimizers(chosen):
  """The clients' optimizer is not SGD, so that they upload their gradients."""
  ours, theirs = mixed_problems.optimizers_of(*chosen)
  _agrees(ours=ours, theirs=theirs, central_learning_rate=0.05)


@pytest.mark.slow
def test_agrees_with_the_oracle_with_a_proximal_term():
  """It is no part of g~_f, which is why gradients are uploaded."""
  outputs, _ = _agrees(ours=dict(terms=[Proximal(0.7)]), theirs=dict(rho=0.7))
  plain, _ = mixed_problems.expected_of(
    'two_way_gradient_transfer', problems.logistic(), COHORTS[:3], CENTRALS[:3]
  )
  with pytest.raises(AssertionError):  # The term is large enough to be seen.
    problems.assert_close(mixed_problems.weights_of(outputs)[-1], plain[-1])


@pytest.mark.slow
def test_float64_agrees_to_float64():
  """The rates are exact in float32, as they travel."""
  rows = functools.partial(problems.classification_rows, dtype=np.float64)
  _agrees(
    [[rows(n, seed=n + t) for n in (9, 4, 0, 1)] for t in range(3)],
    [rows(n) for n in (14, 3, 7)],
    problem=problems.mlp(dtype=np.float64),
    tolerance=1e-12,
    client_learning_rate=0.125,
    theirs=dict(server=numpy_optimizers.TffSgd(1.0)),
  )


@pytest.mark.slow
def test_a_central_loss_of_the_weights_alone_takes_no_third_argument():
  loss = oracles.WeightLoss(problems.half_square)
  _agrees(
    centrals=[None] * 3,
    central_models=[loss],
    numpy_central=mixed_problems.numpy_half_square,
    ours=dict(diagnostics=True),
  )
  learning_process = _process(problems.logistic().model, loss)
  assert isinstance(learning_process, tff.learning.templates.LearningProcess)


@pytest.mark.slow
def test_a_central_loss_may_be_another_one_on_other_rows():
  _agrees(
    centrals=mixed_problems.OUTPUT_ROWS,
    central_models=[mixed_problems.SquaredOutputs()],
    numpy_central=mixed_problems.numpy_squared_outputs,
  )


# Where g~_f comes from.


@pytest.mark.slow
@pytest.mark.parametrize('ours', [{}, _UPLOADED], ids=['recovered', 'uploaded'])
@pytest.mark.parametrize('weighting', ['examples', 'uniform'])
def test_g_f_is_the_mean_of_the_gradients_really_used(weighting, ours):
  """Equation 10, with a client without rows and one with a NaN among the others."""
  outputs, metrics = _agrees(ours=ours, weighting=weighting)
  for output, told in zip(outputs, metrics, strict=True):
    g_f = output.state.server.terms[0].g_f
    problems.assert_close(g_f, told['federated_gradient'])
    problems.assert_close(g_f, told['recovered_gradient'])


_UNWEIGHTED = tff.aggregators.UnweightedMeanFactory()
_WEIGHTED = tff.aggregators.MeanFactory()


@pytest.mark.slow
@pytest.mark.parametrize(
  ('weighting', 'aggregators'),
  [
    ('uniform', dict(aggregator=_UNWEIGHTED)),
    ('uniform', dict(gradient_aggregator=_WEIGHTED)),
    ('examples', dict(gradient_aggregator=_WEIGHTED)),
  ],
  ids=['uniform, zeros count', 'uniform, weighted', 'examples, weighted'],
)
def test_g_f_does_not_depend_on_which_mean_the_aggregators_are(weighting, aggregators):
  """All the clients are usable, so that no zeros count."""
  cohorts = [[rows for rows in COHORTS[0] if len(rows['y'])] for _ in range(2)]
  _agrees(cohorts, CENTRALS[:2], ours=aggregators, weighting=weighting)


@pytest.mark.slow
def test_recovering_g_f_takes_a_scalar_more_than_parallel_training_to_upload():
  """With uniform weights, its weight too: who sends no update sends no steps."""
  model, size = problems.logistic().model, 4 * (5 * 3 + 3)

  def train(algorithm, **arguments):
    process = mixed_problems.process_of(algorithm, model, **arguments)
    (output,) = mixed_problems.outputs_of(process, COHORTS[:1], CENTRALS[:1])
    return output.metrics['client_work']['train']

  two_way = functools.partial(train, 'two_way_gradient_transfer')
  parallel = train('parallel_training')
  assert parallel['bytes_up'] == size + 4
  for weighting, more in (('examples', 4), ('uniform', 8)):
    assert two_way(weighting=weighting)['bytes_up'] == parallel['bytes_up'] + more
  uploaded = two_way(**_UPLOADED)
  assert uploaded['bytes_up'] == parallel['bytes_up'] + 4 + size
  # g~_c goes down either way.
  assert uploaded['bytes_down'] == parallel['bytes_down'] + size


@pytest.mark.slow
def test_a_schedule_of_the_clients_rate_is_taken_into_account_in_recovering_g_f():
  """A chain of single rounds of the oracle, each with its rates.

  g~_f is a difference of weights over a rate that gets small: fewer digits are left.
  """
  problem = problems.logistic()
  process = _process(
    problem.model,
    central_learning_rate=0.3,
    client_schedule=schedules.exponential(1),
    server_schedule=schedules.linear_warmup(3),
  )
  outputs = mixed_problems.outputs_of(process, COHORTS[:3], CENTRALS[:3])
  x, gradients = problem, None
  for t, output in enumerate(outputs):
    (expected,), (told,) = mixed_problems.expected_of(
      'two_way_gradient_transfer',
      x,
      COHORTS[t : t + 1],
      CENTRALS[t : t + 1],
      client_learning_rate=0.1 * 0.5**t,
      central_learning_rate=0.3 * 0.5**t,
      theirs=dict(server_learning_rate=(t + 1) / 3, initial_gradients=gradients),
    )
    server = output.state.server
    problems.assert_close(server.weights.trainable, expected)
    problems.assert_close(server.terms[0].g_f, told['federated_gradient'], 1e-4)
    x = problems.Problem(problem.model, problem.oracle, expected)
    gradients = told['g_tilde_c'], told['g_tilde_f']


@pytest.mark.slow
def test_the_transferred_gradients_start_at_zero():
  transferred = _process(problems.logistic().model).initialize().server.terms[0]
  for gradient in transferred:
    for value in gradient.values():
      np.testing.assert_array_equal(value, np.zeros_like(value))


def test_nothing_is_averaged_past_a_mechanism_of_privacy():
  mechanism = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1.0, 3, 0.1)
  build = functools.partial(
    mixed_problems.process_of,
    'two_way_gradient_transfer',
    problems.logistic().model,
    weighting='uniform',
    aggregator=mechanism,
  )
  with pytest.raises(ValueError, match='pass a gradient_aggregator'):
    build()
  aggregators = build(
    gradient_aggregator=mechanism
  ).initialize.type_signature.result.member.aggregators[0]
  assert 'transfer_gradient_sum' in dir(aggregators)
  assert 'transfer_delta' not in dir(aggregators)
