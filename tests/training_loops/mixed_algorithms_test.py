"""Tests of the algorithms of mixed federated learning made of flags."""

import dataclasses
import logging

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tasks
from tff_algorithms import oracles, schedules
from tff_algorithms.elastic import build_elastic
from tff_algorithms.example_transfer import build_example_transfer
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.one_way_gradient_transfer import build_one_way_gradient_transfer
from tff_algorithms.only_central import build_only_central
from tff_algorithms.parallel_training import build_parallel_training
from tff_algorithms.transfer_learning import TransferLearning
from tff_algorithms.two_way_gradient_transfer import build_two_way_gradient_transfer
from training_loops import algorithms, mixed_algorithms, run, train_flags, training
from training_loops.options import UserError

_MIXED = [
  name for name in algorithms.branches() if algorithms.is_mixed({'algorithm': name})
]
_sgd = tff.learning.optimizers.build_sgdm


@pytest.fixture(scope='module')
def task():
  return tasks.load('digits_mixed', seed=0, num_clients=5)


def _flags(algorithm, **flags):
  return train_flags.configure(
    task='digits_mixed', algorithm=algorithm, output_dir='x', **flags
  )


def _weights(process, task, takes=('clients', 'central')) -> list[np.ndarray]:
  """The weights after two rounds."""
  state = process.initialize()
  clients = [task.train.client_dataset(c) for c in task.train.client_ids[:2]]
  own = task.central.data
  for round_num in range(2):
    central = own.client_dataset(own.client_ids[round_num])
    arguments = {'clients': clients, 'central': central}
    state = process.next(state, *(arguments[name] for name in takes)).state
  return state.server.weights.trainable


def _assert_same(ours, theirs, task, **takes):
  pairs = zip(
    _weights(ours, task, **takes), _weights(theirs, task, **takes), strict=True
  )
  for a, b in pairs:
    np.testing.assert_array_equal(a, b)


_LOCAL = dict(
  client_learning_rate=0.2,
  batch_size=7,
  client_epochs=3,
  max_client_steps=4,
  client_weighting='uniform',
  client_lr_schedule='exponential',
  client_lr_half_life=2,
  server_lr_schedule='linear_warmup',
  server_lr_warmup=3,
  server_optimizer='momentum',
  server_learning_rate=0.5,
  server_momentum=0.8,
  seed=5,
)
_ARGUMENTS = dict(
  client_learning_rate=0.2,
  batch_size=7,
  epochs=3,
  max_steps=4,
  weighting='uniform',
  client_schedule=schedules.exponential(2),
  server_schedule=schedules.linear_warmup(3),
  server_optimizer=_sgd(0.5, 0.8),
  seed=5,
)
_WEIGHTS = dict(federated_weight=0.7, central_weight=0.3)
_CENTRAL = dict(central_batch_size=6, central_clip_norm=0.3)
_STEPS = dict(central_steps=3, central_learning_rate=0.4)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('algorithm', 'build'),
  [
    ('parallel_training', build_parallel_training),
    ('two_way_gradient_transfer', build_two_way_gradient_transfer),
  ],
)
def test_every_flag_reaches_parallel_training_and_two_way(
  runtime, task, algorithm, build
):
  common = {**_WEIGHTS, **_CENTRAL, **_STEPS}
  flags = _flags(algorithm, merge_learning_rate=0.6, **_LOCAL, **common)
  theirs = build(task.model, merge_optimizer=_sgd(0.6), **_ARGUMENTS, **common)
  _assert_same(algorithms.build(flags, task), theirs, task)


@pytest.mark.slow
def test_every_flag_reaches_one_way(runtime, task):
  common = {**_WEIGHTS, **_CENTRAL}
  flags = _flags('one_way_gradient_transfer', **_LOCAL, **common)
  theirs = build_one_way_gradient_transfer(task.model, **_ARGUMENTS, **common)
  _assert_same(algorithms.build(flags, task), theirs, task)


@pytest.mark.slow
def test_every_flag_reaches_example_transfer(runtime, task):
  flags = _flags('example_transfer', examples_sent=9, **_LOCAL, **_WEIGHTS)
  theirs = build_example_transfer(task.model, num_sent=9, **_ARGUMENTS, **_WEIGHTS)
  _assert_same(algorithms.build(flags, task), theirs, task)


_ONLY_CENTRAL = {
  **_CENTRAL,
  **_STEPS,
  'central_lr_schedule': 'exponential',
  'central_lr_half_life': 2,
}
_CENTRAL_ARGUMENTS = dict(
  **_CENTRAL,
  central_steps=3,
  optimizer=_sgd(0.4),
  schedule=schedules.exponential(2),
  seed=5,
)


@pytest.mark.slow
@pytest.mark.parametrize('algorithm', ['only_central', 'centralized_oracle'])
def test_every_flag_reaches_central_training(runtime, task, algorithm):
  flags = _flags(algorithm, seed=5, **_ONLY_CENTRAL)
  theirs = build_only_central(task.model, **_CENTRAL_ARGUMENTS)
  _assert_same(algorithms.build(flags, task), theirs, task, takes=('central',))


@pytest.mark.slow
@pytest.mark.parametrize('order', ['central_first', 'federated_first'])
def test_every_flag_reaches_transfer_learning(runtime, task, order):
  stages = {'transfer_order': order, 'transfer_round': 1}
  flags = _flags('transfer_learning', **_LOCAL, **_ONLY_CENTRAL, **stages)
  theirs = TransferLearning(
    central=build_only_central(task.model, **_CENTRAL_ARGUMENTS),
    federated=build_fed_avg(task.model, **_ARGUMENTS),
    order=order,
    switch_round=1,
  )
  _assert_same(algorithms.build(flags, task), theirs, task)


_ELASTIC = dict(
  elastic_sensitivity='momentum',
  elastic_mu=0.3,
  elastic_tau=0.8,
  elastic_fraction=0.3,
  elastic_batch_size=5,
)
_ELASTIC_ARGUMENTS = dict(mu=0.3, tau=0.8, fraction=0.3, sensitivity_batch_size=5)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('algorithm', 'build', 'own', 'arguments'),
  [
    ('parallel_training', build_parallel_training, _CENTRAL | _STEPS, {}),
    ('one_way_gradient_transfer', build_one_way_gradient_transfer, _CENTRAL, {}),
    (
      'two_way_gradient_transfer',
      build_two_way_gradient_transfer,
      _CENTRAL | _STEPS,
      {},
    ),
    ('example_transfer', build_example_transfer, {}, {'num_sent': 100}),
  ],
  ids=['parallel_training', 'one_way', 'two_way', 'example_transfer'],
)
def test_every_flag_reaches_elastic_aggregation(
  runtime, task, algorithm, build, own, arguments
):
  ours = algorithms.build(_flags(algorithm, **_LOCAL, **_ELASTIC, **own), task)
  theirs = build_elastic(
    build, task.model, **_ARGUMENTS, **_ELASTIC_ARGUMENTS, **own, **arguments
  )
  _assert_same(ours, theirs, task)


@pytest.mark.slow
def test_of_transfer_learning_the_federated_rounds_are_elastic(runtime, task):
  stages = {'transfer_order': 'federated_first', 'transfer_round': 1}
  flags = _flags('transfer_learning', **_LOCAL, **_ONLY_CENTRAL, **_ELASTIC, **stages)
  theirs = TransferLearning(
    central=build_only_central(task.model, **_CENTRAL_ARGUMENTS),
    federated=build_elastic(
      build_fed_avg, task.model, **_ARGUMENTS, **_ELASTIC_ARGUMENTS
    ),
    order='federated_first',
    switch_round=1,
  )
  _assert_same(algorithms.build(flags, task), theirs, task)


@pytest.mark.slow
def test_what_is_not_said_is_the_tasks_weights_and_the_clients_rate(runtime, task):
  central = dataclasses.replace(task.central, federated_weight=0.9, central_weight=0.1)
  own = dataclasses.replace(task, central=central)
  flags = _flags('parallel_training', server_learning_rate=0.5, central_steps=3)
  ours = algorithms.build(flags, own)
  theirs = build_parallel_training(
    task.model,
    client_learning_rate=0.1,
    batch_size=20,
    central_batch_size=100,
    central_steps=3,
    central_learning_rate=0.1 * 0.5,
    federated_weight=0.9,
    central_weight=0.1,
    server_optimizer=_sgd(0.5),
  )
  _assert_same(ours, theirs, task)


def _norm_task(task):
  """The server's loss is of the weights alone."""
  loss = oracles.WeightLoss(
    lambda w: tf.add_n([tf.reduce_sum(tf.square(t)) for t in w.trainable])
  )
  return dataclasses.replace(task, central=tasks.Central(0.5, 0.5, objective=loss))


@pytest.mark.slow
def test_a_loss_of_the_servers_own_is_what_it_differentiates(runtime, task):
  own = _norm_task(task)
  flags = {'central_batch_size': 6, 'seed': 5}
  ours = algorithms.build(_flags('one_way_gradient_transfer', **flags), own)
  theirs = build_one_way_gradient_transfer(
    task.model,
    own.central.objective,
    client_learning_rate=0.1,
    batch_size=20,
    **flags,
  )
  state, other = ours.initialize(), theirs.initialize()
  clients = [task.train.client_dataset(c) for c in task.train.client_ids[:2]]
  ours, theirs = ours.next(state, clients), theirs.next(other, clients)
  for a, b in zip(
    *(output.state.server.weights.trainable for output in (ours, theirs)), strict=True
  ):
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_the_oracle_of_a_loss_of_the_weights_alone_has_both_losses(runtime, task):
  flags = _flags('centralized_oracle', **_WEIGHTS, seed=5, **_ONLY_CENTRAL)
  both = oracles.Sum(
    oracles.Weighted(0.7, oracles.as_oracle(task.model)),
    oracles.Weighted(0.3, _norm_task(task).central.objective),
  )
  ours = algorithms.build(flags, _norm_task(task))
  theirs = build_only_central(both, **_CENTRAL_ARGUMENTS)
  _assert_same(ours, theirs, task, takes=('central',))


@pytest.mark.slow
def test_diagnostics_are_told_on_request(runtime, task, tmp_path):
  flags = _flags('parallel_training', mixed_diagnostics=True, num_clients=5)
  flags |= {'output_dir': str(tmp_path / 'run'), 'rounds': 1, 'clients_per_round': 2}
  (row,) = run.train(flags, runtime=runtime).rows
  assert row['train/b_tilde_square'] >= 1
  assert row['train/client_flops'] > 0


@pytest.mark.slow
def test_weights_that_do_not_add_up_to_one_are_warned_of_and_taken(
  runtime, tmp_path, caplog
):
  flags = _flags('one_way_gradient_transfer', federated_weight=1.0, central_weight=0.5)
  flags |= {'output_dir': str(tmp_path / 'run'), 'rounds': 1}
  with caplog.at_level(logging.WARNING):
    assert run.train(flags, runtime=runtime).is_finished
  assert 'add up to 1.5, not to 1' in caplog.text


@pytest.mark.parametrize('algorithm', _MIXED)
def test_a_task_whose_server_has_nothing_is_refused_with_a_way_out(algorithm):
  plain = tasks.load('digits_logistic', seed=0, num_clients=5)
  message = (
    rf'--algorithm={algorithm} needs a task whose server has data or a loss of its '
    r'own, and digits_logistic with these flags has neither; --task=digits_mixed has\.'
  )
  with pytest.raises(UserError, match=message):
    algorithms.build(_flags(algorithm), plain)
  with pytest.raises(UserError, match=message):
    training.build_process(_flags(algorithm), plain)


@pytest.mark.parametrize('algorithm', _MIXED)
def test_some_need_data_of_the_server_and_not_only_a_loss(task, algorithm):
  flags = _flags(algorithm)
  needs_data = ('only_central', 'example_transfer', 'transfer_learning')
  if algorithm not in needs_data:
    mixed_algorithms.require_central(flags, _norm_task(task))
    return
  message = rf'--algorithm={algorithm} needs a task whose server has data of its own'
  with pytest.raises(UserError, match=message):
    mixed_algorithms.require_central(flags, _norm_task(task))


def test_the_oracle_needs_one_loss_for_all_rows(task):
  loss = oracles.Weighted(2.0, oracles.as_oracle(task.model))
  central = dataclasses.replace(task.central, objective=loss)
  own = dataclasses.replace(task, central=central)
  with pytest.raises(UserError, match='needs one loss for all rows'):
    mixed_algorithms.require_central(_flags('centralized_oracle'), own)
  mixed_algorithms.require_central(_flags('only_central'), own)


def test_the_server_only_trains_where_the_algorithm_says_so():
  assert set(_MIXED) == {
    'parallel_training',
    'one_way_gradient_transfer',
    'two_way_gradient_transfer',
    'only_central',
    'centralized_oracle',
    'example_transfer',
    'transfer_learning',
  }
  without_clients = {
    name
    for name in algorithms.branches()
    if not algorithms.uses_clients({'algorithm': name})
  }
  assert without_clients == {'only_central', 'centralized_oracle'}
