"""Transfer learning: two processes one after the other."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.oracles import mixed as oracle
from tests.tff_algorithms import mixed_problems, problems
from tests.tff_algorithms.mixed_problems import CENTRALS, COHORTS
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.only_central import build_only_central
from tff_algorithms.transfer_learning import ORDERS, TransferLearning

_PROBLEM = problems.logistic()
_STEPS = dict(central_batch_size=4, central_steps=3)


@pytest.fixture(scope='module')
def stages(runtime):
  """The two processes, with momentum at the server in both."""
  optimizer, _ = mixed_problems.SERVER_OPTIMIZERS['momentum']
  central = build_only_central(_PROBLEM.model, optimizer=optimizer, **_STEPS)
  federated = build_fed_avg(
    _PROBLEM.model,
    client_learning_rate=0.1,
    batch_size=4,
    epochs=2,
    shuffle=False,
    server_optimizer=optimizer,
  )
  return central, federated


@pytest.mark.slow
@pytest.mark.parametrize('order', ORDERS)
def test_agrees_with_the_oracle(stages, order):
  """Each stage keeps its optimizer's state, and starts with a new one."""
  _, momentum = mixed_problems.SERVER_OPTIMIZERS['momentum']
  cohorts = [*COHORTS[:3], COHORTS[5]]
  centrals = [*CENTRALS[:3], CENTRALS[5]]
  expected, metrics = oracle.transfer_learning(
    _PROBLEM.oracle.loss_and_gradient,
    _PROBLEM.oracle.loss_and_gradient,
    _PROBLEM.weights,
    cohorts,
    centrals,
    switch_round=2,
    order_of_stages=order,
    keep_central_state=True,
    learning_rate=0.1,
    central_learning_rate=1.0,
    batch_size=4,
    epochs=2,
    server=momentum,
    central=momentum,
    **_STEPS,
  )
  transfer = TransferLearning(*stages, order=order, switch_round=2)
  state = transfer.initialize()
  problems.assert_close(state.server.weights.trainable, _PROBLEM.weights, 0)
  for t, (cohort, central) in enumerate(zip(cohorts, centrals, strict=True)):
    output = mixed_problems.next_round(transfer, state, cohort, central)
    assert isinstance(output, tff.learning.templates.LearningProcessOutput)
    state = output.state
    problems.assert_close(state.server.weights.trainable, expected[t])
    train, told = output.metrics['client_work']['train'], metrics[t]
    assert train['num_clients'] == told['num_clients']
    is_central = (t < 2) == (order == 'central_first')
    loss = told['central_loss' if is_central else 'loss']
    np.testing.assert_allclose(train['loss'], loss, rtol=1e-4)
  assert (state.first.server.round_num, state.second.server.round_num) == (2, 2)


Server = collections.namedtuple('Server', 'round_num weights other')
Own = collections.namedtuple('Own', 'server')
Output = collections.namedtuple('Output', 'state metrics')


class _Stage:
  """A process that writes down what it is given; its weights are a list of that."""

  def __init__(self, name):
    self._name = name

  def initialize(self):
    return Own(Server(0, [], f'of {self._name}'))

  def next(self, state, argument):
    server = state.server
    weights = [*server.weights, argument]
    new = server._replace(round_num=server.round_num + 1, weights=weights)
    return Output(Own(new), self._name)


@pytest.mark.parametrize('order', ORDERS)
def test_the_second_stage_starts_from_the_weights_of_the_first_and_nothing_else(order):
  names = ['central', 'federated']
  stages = {name: _Stage(name) for name in names}
  transfer = TransferLearning(**stages, order=order, switch_round=2)
  state, told = transfer.initialize(), []
  for t in range(5):
    before = state
    output = transfer.next(state, f'clients {t}', f'rows {t}')
    state = output.state
    told.append(output.metrics)
    # The other stage is as it was.
    assert (state.second if t < 2 else state.first) == (
      before.second if t < 2 else before.first
    )
    assert state.server == (state.first if t < 2 else state.second).server
  first, second = names if order == 'central_first' else names[::-1]
  assert told == [first] * 2 + [second] * 3
  argument = {'central': 'rows', 'federated': 'clients'}
  assert state.server.weights == [
    f'{argument[name]} {t}' for t, name in enumerate(told)
  ]
  assert state.server.other == f'of {second}'
  assert state.server.round_num == 3


@pytest.mark.parametrize(
  ('bad', 'message'),
  [
    (dict(order='both'), 'order must be one of central_first, federated_first'),
    (dict(switch_round=0), 'switch_round must be a whole number'),
    (dict(switch_round=1.5), 'switch_round must be a whole number'),
  ],
)
def test_a_bad_argument_is_refused_by_name(bad, message):
  arguments = dict(order='central_first', switch_round=2) | bad
  with pytest.raises(ValueError, match=message):
    TransferLearning(_Stage('central'), _Stage('federated'), **arguments)
