"""1-way gradient transfer against its numpy oracle."""

import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.oracles import numpy_optimizers
from tests.tff_algorithms import mixed_problems, problems
from tests.tff_algorithms.mixed_problems import CENTRALS, COHORTS
from tff_algorithms import oracles, schedules
from tff_algorithms.fed_prox import Proximal
from tff_algorithms.one_way_gradient_transfer import build_one_way_gradient_transfer

pytestmark = pytest.mark.usefixtures('runtime')

_agrees = functools.partial(mixed_problems.assert_agrees, 'one_way_gradient_transfer')
_process = functools.partial(mixed_problems.process_of, 'one_way_gradient_transfer')


def test_agrees_with_the_oracle_also_where_rows_are_not_finite():
  """The server's rows are taken a few at a time; the metrics tell equation 7."""
  ours, theirs = mixed_problems.optimizers_of('sgd')
  outputs, _ = _agrees(
    COHORTS, CENTRALS, ours=ours | dict(diagnostics=True), theirs=theirs
  )
  train = outputs[0].metrics['client_work']['train']
  assert {'g_tilde_square', 'b_tilde_square', 'client_flops'} <= train.keys()


@pytest.mark.slow
def test_agrees_with_the_oracle_on_a_network_with_a_clipped_central_gradient():
  """What equation 7 tells is of the gradient before it is clipped."""
  _agrees(
    problem=problems.mlp(),
    weighting='uniform',
    epochs=3,
    max_steps=4,
    central_clip_norm=0.05,
    ours=dict(central_batch_size=512, diagnostics=True),
  )


@pytest.mark.slow
@pytest.mark.parametrize(
  ('server', 'client'), [('momentum', 'adam'), ('adam', 'momentum')]
)
def test_agrees_with_the_oracle_for_other_optimizers(server, client):
  ours, theirs = mixed_problems.optimizers_of(server, client=client)
  _agrees(ours=ours, theirs=theirs)


@pytest.mark.slow
def test_agrees_with_the_oracle_with_a_proximal_term():
  outputs, _ = _agrees(ours=dict(terms=[Proximal(0.7)]), theirs=dict(rho=0.7))
  plain, _ = mixed_problems.expected_of(
    'one_way_gradient_transfer', problems.logistic(), COHORTS[:3], CENTRALS[:3]
  )
  with pytest.raises(AssertionError):  # The term is large enough to be seen.
    problems.assert_close(mixed_problems.weights_of(outputs)[-1], plain[-1])


@pytest.mark.slow
def test_float64_agrees_to_float64():
  """The rate is exact in float32, as it travels."""
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


@pytest.mark.slow
def test_schedules_scale_the_rates_of_clients_and_server():
  """A chain of single rounds of the oracle, each with its rates."""
  problem = problems.logistic()
  learning_process = _process(
    problem.model,
    client_schedule=schedules.exponential(1),
    server_schedule=schedules.linear_warmup(3),
  )
  outputs = mixed_problems.outputs_of(learning_process, COHORTS[:3], CENTRALS[:3])
  x = problem
  for t, found in enumerate(mixed_problems.weights_of(outputs)):
    (expected,), _ = mixed_problems.expected_of(
      'one_way_gradient_transfer',
      x,
      COHORTS[t : t + 1],
      CENTRALS[t : t + 1],
      client_learning_rate=0.1 * 0.5**t,
      theirs=dict(server_learning_rate=(t + 1) / 3),
    )
    problems.assert_close(found, expected)
    x = problems.Problem(problem.model, problem.oracle, expected)


@pytest.mark.slow
def test_the_central_gradient_travels_down_and_nothing_more_up():
  """Against FedAvg: x, the round's number and the rate down, x and a weight up."""
  (output,) = mixed_problems.outputs_of(
    _process(problems.logistic().model), COHORTS[:1], CENTRALS[:1]
  )
  train = output.metrics['client_work']['train']
  size = sum(w.nbytes for w in problems.logistic().weights.values())
  assert train['bytes_down'] == 2 * size + 8
  assert train['bytes_up'] == size + 4


@pytest.mark.parametrize(
  'bad',
  [
    dict(central_batch_size=0),
    dict(central_clip_norm=-1.0),
    dict(federated_weight=0.0),
    dict(central_weight=-0.5),
    dict(weighting='by size'),
  ],
  ids=str,
)
def test_a_bad_argument_is_refused_by_name(bad):
  arguments = dict(client_learning_rate=0.1, batch_size=4) | bad
  with pytest.raises(ValueError, match=next(iter(bad))):
    build_one_way_gradient_transfer(problems.logistic().model, **arguments)
