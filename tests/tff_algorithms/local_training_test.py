"""The phase of local training: what is sent and what comes back."""

import collections

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import (
  base_optimizers,
  client_inputs,
  client_optimizers,
  local_training,
  mean,
  models,
  oracles,
  schedules,
)


@pytest.mark.parametrize(('weighting', 'weight'), [('examples', 7), ('uniform', 1)])
def test_a_clients_weight_is_its_examples_or_one(weighting, weight):
  n = tf.constant(7.0)
  assert local_training.client_weight(weighting, n) == weight


def test_the_mean_is_the_default_aggregator():
  default = local_training.mean_aggregator(None, 'examples')
  assert isinstance(default, mean.MeanFactory)


def test_an_aggregator_without_weights_serves_uniform_clients():
  unweighted = tff.aggregators.UnweightedMeanFactory()
  assert local_training.mean_aggregator(unweighted, 'uniform') is unweighted
  with pytest.raises(ValueError, match=r'UnweightedMeanFactory.*uniform'):
    local_training.mean_aggregator(unweighted, 'examples')


def _orders(seed, round_num, client_id):
  """The rows that a client's steps take, as the digits of a number.

  With rate 1 and a gradient of -(9 y + row) a step appends a digit to y.
  """
  model = models.Model(
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None], tf.float64), y=tf.TensorSpec([None], tf.float64)
    ),
    initialize=lambda seed: models.ModelWeights((tf.zeros([], tf.float64),), ()),
    predict=lambda w, x, seed: -(4.5 * w.trainable[0] + x) * w.trainable[0],
    loss=lambda y, outputs: tf.reduce_mean(outputs),
    metrics=lambda y, outputs: collections.OrderedDict(),
    finalize_metrics=lambda sums: collections.OrderedDict(),
  )
  phase = local_training.LocalTraining(
    oracle=oracles.as_oracle(model),
    server_step=lambda server, means: server,
    client_optimizer=client_optimizers.Fresh(base_optimizers.sgd()),
    terms=(),
    batch_size=1,
    epochs=2,
    max_steps=None,
    shuffle=True,
    weighting='examples',
    schedule=schedules.constant(),
    aggregator=mean.MeanFactory(),
    seed=seed,
  )
  message = local_training.Message(
    round_num=tf.constant(round_num),
    weights=model.initialize(None),
    optimizer=tf.constant(1.0),
    terms=(),
  )
  rows = collections.OrderedDict(
    x=tf.range(1.0, 7.0, dtype=tf.float64), y=tf.zeros([6], tf.float64)
  )
  given = client_inputs.from_id(lambda _: rows).load(tf.constant(client_id))
  (delta,) = phase.work(message, given).uploads['delta'].value
  return str(int(-delta))


def test_seed_round_and_client_determine_the_batches_on_any_machine():
  base = _orders(0, 1, 'ann')
  assert sorted(base[:6]) == sorted(base[6:]) == list('123456')
  others = [_orders(1, 1, 'ann'), _orders(0, 2, 'ann'), _orders(0, 1, 'ben')]
  assert len({base, *others}) == 4
  # Pinned, so that a change of the order is noticed.
  assert [base, *others] == [
    '156423516243',
    '521463215463',
    '254136563214',
    '642153125364',
  ]
