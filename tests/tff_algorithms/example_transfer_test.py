"""Example transfer: what clients train on, and what travels."""

import collections

import numpy as np
import pytest
import tensorflow as tf

from tests.oracles import fed_avg as oracle
from tests.oracles import numpy_models, numpy_optimizers
from tests.tff_algorithms import mixed_problems, problems
from tests.tff_algorithms.mixed_problems import CENTRALS, COHORTS
from tff_algorithms import models
from tff_algorithms.example_transfer import build_example_transfer

pytestmark = pytest.mark.usefixtures('runtime')

_NUM_IDS = 40


def _counting_model():
  """Rows are ids; the metrics count how often each was trained on."""
  return models.Model(
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None], tf.int32), y=tf.TensorSpec([None], tf.int32)
    ),
    initialize=lambda seed: models.ModelWeights(
      collections.OrderedDict(w=tf.zeros([1])), ()
    ),
    predict=lambda w, x, seed: tf.one_hot(x, _NUM_IDS) + 0 * w.trainable['w'],
    loss=lambda y, outputs: tf.reduce_mean(outputs),
    metrics=lambda y, outputs: collections.OrderedDict(
      seen=tf.reduce_sum(outputs, axis=0)
    ),
    finalize_metrics=lambda sums: sums,
  )


def _ids(*numbers):
  ids = np.asarray(numbers, np.int32)
  return collections.OrderedDict(x=ids, y=np.zeros_like(ids))


_SERVERS = list(range(30, 40))
_CLIENTS = [_ids(*range(8)), _ids(*range(8, 12)), _ids(), _ids(*range(12, 28))]


def _train(clients=_CLIENTS, servers=_SERVERS, num_rounds=1, **arguments):
  """The train metrics of every round."""
  defaults = dict(client_learning_rate=0.1, batch_size=3, num_sent=8)
  built = build_example_transfer(_counting_model(), **(defaults | arguments))
  rounds = [clients] * num_rounds, [_ids(*servers)] * num_rounds
  outputs = mixed_problems.outputs_of(built, *rounds)
  return [output.metrics['client_work']['train'] for output in outputs]


@pytest.mark.slow
@pytest.mark.parametrize(('w_f', 'w_c'), [(0.5, 0.5), (0.8, 0.2), (0.25, 0.75)])
def test_the_share_of_the_servers_rows_is_their_weight(w_f, w_c):
  """Of 28 rows at clients, each trained on once, and 28 w_c / w_f more."""
  (train,) = _train(federated_weight=w_f, central_weight=w_c)
  assert train['num_examples'] == round(28 / w_f)
  seen = train['seen']
  np.testing.assert_allclose(np.sum(seen[30:]) / np.sum(seen), w_c, rtol=1e-6)
  np.testing.assert_array_equal(seen[:28], np.ones(28))
  assert np.sum(seen[28:30]) == 0
  # Eight are sent, and a client that takes more of them has some twice.
  np.testing.assert_array_equal(seen[38:], [0, 0])
  assert train['num_clients'] == 3


@pytest.mark.slow
def test_each_epoch_takes_the_same_rows_of_the_server_and_another_round_others():
  one = [_ids(*range(4))]
  first, second, *_ = (
    train['seen'][30:] for train in _train(clients=one, num_rounds=4, epochs=2)
  )
  assert sorted(first) == sorted(second) == [0] * 6 + [2] * 4
  rounds = _train(clients=one, num_rounds=4)
  assert len({tuple(train['seen'][30:]) for train in rounds}) > 1


@pytest.mark.slow
def test_rows_fewer_than_are_sent_repeat():
  """Three rows in place of eight, four taken by a client of four."""
  (train,) = _train(clients=[_ids(*range(8))], servers=(30, 31, 32), num_sent=8)
  np.testing.assert_array_equal(train['seen'][30:33], [3, 3, 2])


@pytest.mark.slow
def test_the_rows_that_are_sent_count_as_sent():
  """x, the round's number, the rate, and 8 rows of 2 int32; up: x and a weight."""
  (train,) = _train()
  assert train['bytes_down'] == 4 + 4 + 4 + 8 * 8
  assert train['bytes_up'] == 4 + 4


@pytest.mark.slow
def test_without_weight_of_the_server_it_is_fed_avg():
  problem = problems.logistic()
  arguments = dict(client_learning_rate=0.1, batch_size=4, epochs=2)
  built = build_example_transfer(
    problem.model,
    num_sent=5,
    federated_weight=1.0,
    central_weight=0.0,
    shuffle=False,
    **arguments,
  )
  outputs = mixed_problems.outputs_of(built, COHORTS[:3], CENTRALS[:3])
  expected, _ = oracle.fed_avg(
    problem.oracle.loss_and_gradient,
    problem.weights,
    COHORTS[:3],
    server_optimizer=numpy_optimizers.TffSgd(1.0),
    **arguments,
  )
  for ours, theirs in zip(mixed_problems.weights_of(outputs), expected, strict=True):
    problems.assert_close(ours, theirs)


@pytest.mark.slow
def test_one_full_step_is_a_step_on_the_mixed_loss_of_each_client():
  """All of the server's rows are taken, as many as the client has: w_f = w_c."""
  problem, n = problems.logistic(), 6
  cohort = [problems.classification_rows(n, seed=i) for i in (1, 2)]
  central = problems.classification_rows(n, seed=3)
  built = build_example_transfer(
    problem.model, client_learning_rate=0.5, batch_size=100, num_sent=n
  )
  (output,) = mixed_problems.outputs_of(built, [cohort], [central])
  gradient = problem.oracle.loss_and_gradient
  gradients = [gradient(problem.weights, rows)[1] for rows in (*cohort, central)]
  mean = numpy_models.weighted_mean(gradients, [0.25, 0.25, 0.5])
  expected = numpy_models.map_weights(lambda x, g: x - 0.5 * g, problem.weights, mean)
  problems.assert_close(output.state.server.weights.trainable, expected)


@pytest.mark.slow
def test_what_is_not_finite_changes_nothing_but_the_number_of_the_round():
  problem = problems.logistic()
  built = build_example_transfer(
    problem.model, client_learning_rate=0.1, batch_size=4, num_sent=9
  )
  state = built.initialize()
  bad = mixed_problems.next_round(built, state, COHORTS[0][:1], CENTRALS[3])
  problems.assert_close(bad.state.server.weights.trainable, problem.weights, 0)
  assert bad.state.server.round_num == 1
  # A client with a NaN: as if it were not there.
  with_it, without = (
    mixed_problems.next_round(built, state, cohort, CENTRALS[0]).state
    for cohort in (COHORTS[2], COHORTS[2][:2])
  )
  problems.assert_close(
    with_it.server.weights.trainable, without.server.weights.trainable, 1e-6
  )


@pytest.mark.parametrize(
  'bad',
  [dict(num_sent=0), dict(federated_weight=0.0), dict(central_weight=-1.0)],
  ids=str,
)
def test_a_bad_argument_is_refused_by_name(bad):
  arguments = dict(client_learning_rate=0.1, batch_size=4, num_sent=8) | bad
  with pytest.raises(ValueError, match=next(iter(bad))):
    build_example_transfer(problems.logistic().model, **arguments)
