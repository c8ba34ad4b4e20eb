"""Tests of the flags of training."""

import pytest

import tasks
from training_loops import algorithms, train_flags
from training_loops.options import UserError

_NEEDED = {'task': 'digits_logistic', 'algorithm': 'fed_avg', 'output_dir': 'x'}


def test_configure_is_the_command_line_with_python_values():
  assert train_flags.configure(
    **_NEEDED, rounds=7, client_learning_rate=1e-5, max_client_steps=None
  ) == train_flags.from_arguments(
    [
      *(f'--{name}={value}' for name, value in _NEEDED.items()),
      '--rounds=7',
      '--client_learning_rate=0.00001',
    ]
  )


def test_configure_refuses_what_the_command_line_refuses():
  with pytest.raises(UserError, match='--fed_prox_rho is not used'):
    train_flags.configure(**_NEEDED, fed_prox_rho=0.1)


@pytest.mark.parametrize('task', tasks.names())
def test_every_option_of_a_task_is_a_flag_with_the_default_of_the_task(task):
  flags = train_flags.configure(**{**_NEEDED, 'task': task})
  assert train_flags.task_options(flags) == tasks.options(task)


def test_the_data_directory_is_refused_by_name_where_the_task_needs_none():
  with pytest.raises(UserError, match='--data_dir is not used'):
    train_flags.configure(**_NEEDED, data_dir='x')


@pytest.mark.parametrize('algorithm', algorithms.branches())
def test_every_algorithm_has_a_complete_set_of_defaults(algorithm):
  flags = train_flags.configure(**{**_NEEDED, 'algorithm': algorithm})
  assert flags['server_learning_rate'] > 0
  assert flags['batch_size'] > 0


def test_only_flags_that_leave_the_numbers_alone_may_change():
  assert train_flags.free_names() == {
    'data_dir',
    'rounds',
    'output_dir',
    'rounds_per_checkpoint',
    'num_threads',
  }


def test_the_runtime_is_made_of_its_flags():
  flags = train_flags.configure(**_NEEDED, num_threads=3)
  assert train_flags.create_runtime(flags)._num_threads == 3
