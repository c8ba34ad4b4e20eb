"""Tests of what a round of a run is given."""

import contextlib
import os
import types

import numpy as np
import pytest
import tensorflow as tf

import tasks
from tff_algorithms.client_states import ClientState, InMemoryClientStates
from training_loops import mixed_data, round_arguments, train_flags, training
from training_loops.options import UserError


@pytest.fixture(scope='module')
def task():
  return tasks.load('digits_mixed', seed=0, num_clients=6)


def _flags(algorithm, **flags):
  return train_flags.configure(
    task='digits_mixed',
    algorithm=algorithm,
    clients_per_round=3,
    output_dir='x',
    **flags,
  )


@contextlib.contextmanager
def _arguments(task, tmp_path, algorithm, **flags):
  flags = _flags(algorithm, **flags)
  sampler = training.build_sampler(flags, task)
  made = round_arguments.RoundArguments(flags, task, sampler, tmp_path)
  with contextlib.closing(made):
    yield made, sampler


def _read(client_input, argument):
  return tf.function(client_input.load)(tf.constant(argument)).rows


def test_clients_come_first_and_the_server_last(task, tmp_path):
  with _arguments(task, tmp_path, 'parallel_training') as (made, sampler):
    for round_num in (1, 2):
      clients, central = made.arguments(round_num)
      made.prepare(round_num + 1)
      drawn = [each.client_id for each in sampler.draw(round_num)]
      assert clients == [client_id.encode() for client_id in drawn]
      rows = _read(made.client_input, clients[0])
      np.testing.assert_array_equal(rows['y'], task.train.rows(drawn[0])['y'])
      batches = mixed_data.batches(_flags('parallel_training'), task)
      rows = _read(made.central_input, central)
      np.testing.assert_array_equal(rows['x'], batches(round_num)['x'])


def test_states_come_after_the_clients_in_their_order_and_before_the_server(
  task, tmp_path
):
  states = InMemoryClientStates(
    types.SimpleNamespace(initialize_client=lambda: np.float32(-1), cohort_limit=None)
  )
  # All but one have been there before.
  numbers = {c: np.float32(i) for i, c in enumerate(task.train.client_ids[1:])}
  states.write([ClientState(c.encode(), number) for c, number in numbers.items()])
  seen = set()
  with _arguments(task, tmp_path, 'parallel_training') as (made, sampler):
    for round_num in range(1, 7):
      drawn = [each.client_id for each in sampler.draw(round_num)]
      plain_clients, plain_central = made.arguments(round_num)
      clients, kept, central = made.arguments(round_num, states)
      made.prepare(round_num + 1)
      assert clients == plain_clients == [c.encode() for c in drawn]
      assert central == plain_central
      assert kept == [ClientState(c.encode(), numbers.get(c, -1)) for c in drawn]
      seen.update(drawn)
  assert seen == set(task.train.client_ids)
  own = tmp_path / 'fed_avg'
  own.mkdir()
  with _arguments(task, own, 'fed_avg') as (made, sampler):
    clients, kept = made.arguments(1, states)
    assert [state.client_id for state in kept] == clients


def test_a_client_and_a_round_of_the_same_name_do_not_meet(tmp_path):
  """Files are named by clients' ids and by rounds."""
  digits = tasks.load('digits_mixed', seed=0, num_clients=2)
  ids = ['1', '2']
  clients = {
    new: digits.train.rows(old)
    for new, old in zip(ids, digits.train.client_ids, strict=True)
  }
  data = tasks.FederatedData.from_clients(clients)
  task = tasks.Task('own', digits.model, data, data, central=digits.central)
  flags = {**_flags('parallel_training'), 'clients_per_round': 2}
  sampler = training.build_sampler(flags, task)
  made = round_arguments.RoundArguments(flags, task, sampler, tmp_path)
  with contextlib.closing(made):
    for round_num in (1, 2, 3):
      arguments, central = made.arguments(round_num)
      assert (_read(made.central_input, central)['y'] >= 5).numpy().all()
      for argument in arguments:
        own = clients[argument.decode()]
        np.testing.assert_array_equal(_read(made.client_input, argument)['y'], own['y'])


def test_without_a_part_of_the_server_clients_are_all(task, tmp_path):
  with _arguments(task, tmp_path, 'fed_avg') as (made, _):
    assert len(made.arguments(1)) == 1
    assert made.central_input is None
    assert os.listdir(tmp_path) == ['clients']


@pytest.mark.parametrize('algorithm', ['only_central', 'centralized_oracle'])
def test_without_clients_the_server_is_all(task, tmp_path, algorithm):
  steps = {'central_steps': 3, 'central_batch_size': 20}
  with _arguments(task, tmp_path, algorithm, **steps) as (made, _):
    (central,) = made.arguments(1)
    made.prepare(2)
    assert len(_read(made.central_input, central)['y']) == 3 * 20
    assert made.client_input is None
    assert os.listdir(tmp_path) == ['central']


def test_a_cohort_comes_in_halves_on_request(task, tmp_path):
  with _arguments(task, tmp_path, 'mime', mime_split_cohort=True) as (made, _):
    (clients,) = made.arguments(1)
    assert [each['only_gradient'] for each in clients] == [False, True, False]


def test_a_task_without_a_part_of_the_server_is_refused(tmp_path):
  task = tasks.load('digits_logistic', seed=0, num_clients=6)
  message = r'needs a task whose server has.*digits_logistic.*--task=digits_mixed has'
  with (
    pytest.raises(UserError, match=message),
    _arguments(task, tmp_path, 'only_central'),
  ):
    pass
