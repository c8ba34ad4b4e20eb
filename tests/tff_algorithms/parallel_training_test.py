"""Parallel training against its numpy oracle."""

import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.oracles import numpy_optimizers
from tests.tff_algorithms import mixed_problems, problems
from tests.tff_algorithms.mixed_problems import CENTRALS, COHORTS
from tff_algorithms import oracles, process, schedules
from tff_algorithms.fed_prox import Proximal
from tff_algorithms.parallel_training import build_parallel_training

pytestmark = pytest.mark.usefixtures('runtime')

_agrees = functools.partial(mixed_problems.assert_agrees, 'parallel_training')
_process = functools.partial(mixed_problems.process_of, 'parallel_training')


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
    weighting='uniform',
    epochs=3,
    max_steps=4,
    central_learning_rate=0.3,
    central_clip_norm=0.1,
  )


@pytest.mark.slow
@pytest.mark.parametrize('chosen', mixed_problems.OPTIMIZERS, ids='-'.join)
def test_agrees_with_the_oracle_for_other_optimizers(chosen):
  """The central and the client's are new in each round, the others are kept."""
  ours, theirs = mixed_problems.optimizers_of(*chosen)
  _agrees(ours=ours, theirs=theirs, central_learning_rate=0.05)


@pytest.mark.slow
def test_agrees_with_the_oracle_with_a_proximal_term():
  outputs, _ = _agrees(ours=dict(terms=[Proximal(0.7)]), theirs=dict(rho=0.7))
  plain = mixed_problems.expected_of(
    'parallel_training', problems.logistic(), COHORTS[:3], CENTRALS[:3]
  )
  with pytest.raises(AssertionError):  # The term is large enough to be seen.
    problems.assert_close(mixed_problems.weights_of(outputs)[-1], plain[0][-1])


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
  arguments = dict(
    central_models=[loss], numpy_central=mixed_problems.numpy_half_square
  )
  _agrees(centrals=[None] * 3, ours=dict(diagnostics=True), **arguments)
  learning_process = _process(problems.logistic().model, loss)
  assert isinstance(learning_process, process.PhasedProcess)
  assert isinstance(learning_process, tff.learning.templates.LearningProcess)


@pytest.mark.slow
def test_a_central_loss_may_be_another_one_on_other_rows():
  _agrees(
    centrals=mixed_problems.OUTPUT_ROWS,
    central_models=[mixed_problems.SquaredOutputs()],
    numpy_central=mixed_problems.numpy_squared_outputs,
  )


@pytest.mark.slow
def test_schedules_scale_the_rates_of_clients_and_centre_and_that_of_the_server():
  """A chain of single rounds of the oracle, each with its rates."""
  problem = problems.logistic()
  learning_process = _process(
    problem.model,
    central_learning_rate=0.3,
    client_schedule=schedules.exponential(1),
    server_schedule=schedules.linear_warmup(3),
  )
  outputs = mixed_problems.outputs_of(learning_process, COHORTS[:3], CENTRALS[:3])
  x = problem
  for t, found in enumerate(mixed_problems.weights_of(outputs)):
    (expected,), _ = mixed_problems.expected_of(
      'parallel_training',
      x,
      COHORTS[t : t + 1],
      CENTRALS[t : t + 1],
      client_learning_rate=0.1 * 0.5**t,
      central_learning_rate=0.3 * 0.5**t,
      theirs=dict(server_learning_rate=(t + 1) / 3),
    )
    problems.assert_close(found, expected)
    x = problems.Problem(problem.model, problem.oracle, expected)


@pytest.mark.slow
def test_the_rates_are_hyperparameters():
  """Halved in the state, they act as if built so."""
  model = problems.logistic().model
  learning_process = _process(model, central_learning_rate=0.2)
  state = learning_process.initialize()
  hparams = learning_process.get_hparams(state)
  np.testing.assert_allclose(hparams['central_learning_rate'], 0.2)
  hparams['central_learning_rate'] = 0.1
  hparams['server_optimizer']['server']['learning_rate'] = 0.5
  hparams['server_optimizer']['merge']['learning_rate'] = 0.25
  changed = learning_process.set_hparams(state, hparams)
  found = mixed_problems.next_round(learning_process, changed, COHORTS[0], CENTRALS[0])
  (expected,), _ = mixed_problems.expected_of(
    'parallel_training',
    problems.logistic(),
    COHORTS[:1],
    CENTRALS[:1],
    central_learning_rate=0.1,
    theirs=dict(server_learning_rate=0.5, merge_learning_rate=0.25),
  )
  problems.assert_close(found.state.server.weights.trainable, expected)


@pytest.mark.parametrize(
  'bad',
  [
    dict(central_batch_size=0),
    dict(central_steps=0),
    dict(central_learning_rate=-1.0),
    dict(central_clip_norm=0.0),
    dict(federated_weight=0.0),
    dict(central_weight=-0.5),
    dict(client_learning_rate=float('nan')),
  ],
  ids=str,
)
def test_a_bad_argument_is_refused_by_name(bad):
  with pytest.raises(
    ValueError, match='learning_rate' if 'client' in str(bad) else next(iter(bad))
  ):
    _process(problems.logistic().model, **bad)


def test_a_central_rate_must_be_given_where_the_servers_optimizer_has_none():
  class Fixed(tff.learning.optimizers.Optimizer):
    def initialize(self, specs):
      return ()

    def next(self, state, weights, gradients):
      return state, weights

  with pytest.raises(ValueError, match="no 'learning_rate' hyperparameter"):
    _process(problems.logistic().model, server_optimizer=Fixed())


@pytest.mark.slow
def test_the_operations_of_a_client_are_those_of_its_steps():
  """Three clients with 6, 2 and 2 steps."""
  process_ = _process(problems.logistic().model, diagnostics=True)
  (output,) = mixed_problems.outputs_of(process_, COHORTS[:1], CENTRALS[:1])
  train = output.metrics['client_work']['train']
  np.testing.assert_allclose(train['client_steps'], 10 / 3, rtol=1e-6)
  assert train['client_flops'] > train['client_steps'] * 4 * (4 * 5 * 3)


def test_builds_with_what_is_needed_and_no_more():
  built = build_parallel_training(
    problems.logistic().model,
    client_learning_rate=0.1,
    batch_size=4,
    central_batch_size=8,
    central_steps=2,
  )
  assert isinstance(built, process.MixedProcess)
  names = list(built.next.type_signature.parameter._asdict())
  assert names == ['state', 'clients', 'central']
