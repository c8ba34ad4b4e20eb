"""Central training against its numpy oracle."""

import numpy as np
import pytest
import tensorflow as tf

from tests.oracles import mixed as oracle
from tests.tff_algorithms import mixed_problems, problems
from tests.tff_algorithms.mixed_problems import CENTRALS
from tff_algorithms import base_optimizers, process, schedules
from tff_algorithms.only_central import build_only_central

pytestmark = pytest.mark.usefixtures('runtime')

_STEPS = dict(central_batch_size=4, central_steps=3)


def _run(only_central, centrals):
  state, outputs = only_central.initialize(), []
  for rows in centrals:
    outputs.append(only_central.next(state, problems.dataset(rows)))
    state = outputs[-1].state
  return outputs


def _expected(problem, centrals, **arguments):
  arguments = _STEPS | dict(central_learning_rate=1.0) | arguments
  return oracle.only_central(
    problem.oracle.loss_and_gradient, problem.weights, centrals, **arguments
  )


@pytest.mark.parametrize(
  'name',
  [
    pytest.param(name, marks=() if name == 'adam' else pytest.mark.slow)
    for name in mixed_problems.SERVER_OPTIMIZERS
  ],
)
def test_agrees_with_the_oracle_over_rounds_that_keep_the_optimizers_state(name):
  """Also where a round is with a NaN, and where rows are fewer than the steps take."""
  problem = problems.mlp()
  optimizer, numpy_optimizer = mixed_problems.SERVER_OPTIMIZERS[name]
  built = build_only_central(
    problem.model, optimizer=optimizer, central_clip_norm=0.3, **_STEPS
  )
  outputs = _run(built, CENTRALS)
  expected, metrics = _expected(
    problem, CENTRALS, central=numpy_optimizer, clip_central_norm=0.3
  )
  for output, x, told in zip(outputs, expected, metrics, strict=True):
    problems.assert_close(output.state.server.weights.trainable, x)
    train = output.metrics['client_work']['train']
    np.testing.assert_allclose(train['loss'], told['central_loss'], rtol=1e-4)
    np.testing.assert_allclose(train['update_norm'], told['update_norm'], rtol=1e-4)
    assert train['num_clients'] == 0
  # 14 rows: 4 + 4 + 4; of 3, thrice those; of 7: 4 + 3 + 4.
  seen = [output.metrics['client_work']['train']['num_examples'] for output in outputs]
  assert seen[:3] == [12, 9, 11]


@pytest.mark.slow
def test_a_round_with_a_nan_changes_nothing_but_its_number():
  built = build_only_central(
    problems.logistic().model,
    optimizer=base_optimizers.as_tff_optimizer(base_optimizers.momentum(), 0.1),
    **_STEPS,
  )
  before, after = _run(built, [CENTRALS[0], CENTRALS[3]])
  server = before.state.server._replace(round_num=2)
  for a, b in zip(
    tf.nest.flatten(after.state.server), tf.nest.flatten(server), strict=True
  ):
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_schedule_scales_the_rate_and_the_state_keeps_it():
  """A chain of single rounds of the oracle, each with its rate."""
  problem = problems.logistic()
  built = build_only_central(
    problem.model,
    optimizer=mixed_problems.SERVER_OPTIMIZERS['sgd'][0],
    schedule=schedules.exponential(1),
    **_STEPS,
  )
  outputs = _run(built, CENTRALS[:3])
  x = problem
  for t, output in enumerate(outputs):
    (expected,), _ = _expected(
      x, CENTRALS[t : t + 1], central_learning_rate=0.7 * 0.5**t
    )
    problems.assert_close(output.state.server.weights.trainable, expected)
    x = problems.Problem(problem.model, problem.oracle, expected)
  hparams = built.get_hparams(outputs[-1].state)
  np.testing.assert_allclose(hparams['optimizer']['learning_rate'], 0.7)


@pytest.mark.slow
def test_one_step_on_all_rows_is_gradient_descent():
  """On f = a (w - b)^2 / 2, w - b shrinks by 1 - eta a."""
  built = build_only_central(
    problems.quadratic([3.0]).model,
    optimizer=base_optimizers.as_tff_optimizer(base_optimizers.sgd(), 0.25),
    central_batch_size=10,
    central_steps=1,
  )
  rows = problems.quadratic_rows([[[2.0]]] * 3, [[1.0]] * 3)
  outputs = _run(built, [rows] * 4)
  found = [float(o.state.server.weights.trainable['w'][0]) for o in outputs]
  np.testing.assert_allclose(found, [1 + 2 * 0.5**t for t in (1, 2, 3, 4)], rtol=1e-6)


@pytest.mark.slow
def test_weights_can_be_read_and_set_and_a_round_takes_two_arguments():
  optimizer, _ = mixed_problems.SERVER_OPTIMIZERS['sgd']
  built = build_only_central(problems.logistic().model, optimizer=optimizer, **_STEPS)
  assert isinstance(built, process.MixedProcess)
  assert list(built.next.type_signature.parameter._asdict()) == ['state', 'central']
  state = built.initialize()
  weights = built.get_model_weights(state)
  trainable = tf.nest.map_structure(lambda w: w + 1, weights.trainable)
  state = built.set_model_weights(state, weights._replace(trainable=trainable))
  problems.assert_close(built.get_model_weights(state).trainable, trainable, 0)


@pytest.mark.parametrize(
  'bad',
  [dict(central_batch_size=0), dict(central_steps=0), dict(central_clip_norm=-1.0)],
  ids=str,
)
def test_a_bad_argument_is_refused_by_name(bad):
  arguments = _STEPS | dict(optimizer=mixed_problems.SERVER_OPTIMIZERS['sgd'][0]) | bad
  with pytest.raises(ValueError, match=next(iter(bad))):
    build_only_central(problems.logistic().model, **arguments)
