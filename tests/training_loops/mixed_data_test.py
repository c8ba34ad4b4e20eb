"""Tests of which rows the server of a mixed algorithm trains on."""

import dataclasses

import numpy as np
import pytest

import tasks
from tasks.federated_data import FederatedData
from tff_algorithms import oracles
from training_loops import mixed_data, train_flags
from training_loops.options import UserError


@pytest.fixture(scope='module')
def task():
  return tasks.load('digits_mixed', seed=0, num_clients=5)


def _flags(algorithm, **flags):
  return train_flags.configure(
    task='digits_mixed', algorithm=algorithm, output_dir='x', **flags
  )


def _batches(task, algorithm, **flags):
  return mixed_data.batches(_flags(algorithm, **flags), task)


def _with_central(task, **changes):
  central = dataclasses.replace(task.central, **changes)
  return dataclasses.replace(task, central=central)


def _without_data(task):
  loss = oracles.WeightLoss(lambda weights: 0.0)
  return _with_central(task, data=None, objective=loss)


@pytest.mark.parametrize(
  ('algorithm', 'flags', 'num_rows'),
  [
    ('parallel_training', {'central_batch_size': 6, 'central_steps': 4}, 24),
    ('two_way_gradient_transfer', {'central_batch_size': 5, 'central_steps': 3}, 15),
    ('one_way_gradient_transfer', {'central_batch_size': 30}, 30),
    ('only_central', {'central_batch_size': 6, 'central_steps': 4}, 24),
    ('transfer_learning', {'central_batch_size': 6, 'central_steps': 2}, 12),
    ('example_transfer', {'examples_sent': 17}, 17),
  ],
)
def test_a_round_has_as_many_of_the_servers_rows_as_it_takes(
  task, algorithm, flags, num_rows
):
  batches = _batches(task, algorithm, **flags)
  for round_num in (1, 2):
    rows = batches(round_num)
    assert rows['x'].shape == (num_rows, 8, 8)
    assert (rows['y'] >= 5).all()


def test_all_rows_of_the_server_come_before_one_comes_again(task):
  num_rows = len(task.central.data.all_rows()['y'])
  batches = _batches(task, 'one_way_gradient_transfer', central_batch_size=100)
  rounds = -(-num_rows // 100)
  pictures = np.concatenate([batches(r)['x'] for r in range(1, rounds + 1)])[:num_rows]
  taken = sorted(picture.tobytes() for picture in pictures)
  own = sorted(picture.tobytes() for picture in task.central.data.all_rows()['x'])
  assert taken == own


def test_rows_depend_on_the_seed(task):
  first, other, again = (
    _batches(task, 'parallel_training', seed=seed)(3)['x'].tobytes()
    for seed in (1, 2, 1)
  )
  assert first == again != other


@pytest.mark.parametrize(
  ('weights', 'of_clients'),
  [
    ({}, 5),
    ({'federated_weight': 0.75, 'central_weight': 0.25}, 8),
    ({'federated_weight': 3.0, 'central_weight': 1.0}, 8),
    ({'federated_weight': 0.2, 'central_weight': 0.8}, 2),
    ({'federated_weight': 1.0, 'central_weight': 0.0}, 10),
    ({'federated_weight': 0.01, 'central_weight': 0.99}, 0),
  ],
)
def test_batches_of_the_oracle_have_rows_of_clients_by_their_weight(
  task, weights, of_clients
):
  batches = _batches(
    task, 'centralized_oracle', central_batch_size=10, central_steps=3, **weights
  )
  for round_num in (1, 2):
    is_clients = batches(round_num)['y'].reshape([3, 10]) < 5
    assert is_clients.sum(axis=1).tolist() == [of_clients] * 3


def test_the_oracle_without_data_of_the_server_has_all_rows_of_clients(task):
  batches = _batches(
    _without_data(task), 'centralized_oracle', central_batch_size=10, central_steps=2
  )
  assert (batches(1)['y'] < 5).all()
  assert len(batches(1)['y']) == 20


@pytest.mark.parametrize(
  'algorithm',
  ['parallel_training', 'one_way_gradient_transfer', 'two_way_gradient_transfer'],
)
def test_a_loss_of_the_weights_alone_takes_no_rows(task, algorithm):
  assert _batches(_without_data(task), algorithm) is None


def test_a_server_without_examples_is_the_users_mistake(task):
  data = task.central.data
  nothing = FederatedData(
    data.client_ids,
    lambda client_id: {name: t[:0] for name, t in data.rows(client_id).items()},
  )
  with pytest.raises(UserError, match='the server of digits_mixed has no example'):
    _batches(_with_central(task, data=nothing), 'parallel_training')
