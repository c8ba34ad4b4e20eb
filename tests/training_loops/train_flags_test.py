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


def _defaults(tree):
  """The options with their defaults, those that default choices bring included."""
  values = {}
  for name, default in tree.items():
    if isinstance(default, tasks.Choice):
      values[name] = default.default
      values |= _defaults(default.branches[default.default])
    else:
      values[name] = default
  return values


@pytest.mark.parametrize('task', tasks.names())
def test_the_flags_of_a_task_are_what_it_takes(task):
  flags = train_flags.configure(**{**_NEEDED, 'task': task})
  assert train_flags.task_options(flags) == _defaults(tasks.options(task))


def test_a_task_of_ones_own_takes_no_options_and_must_be_there(tmp_path, monkeypatch):
  (tmp_path / 'my_own_tasks.py').touch()
  monkeypatch.syspath_prepend(tmp_path)
  flags = train_flags.configure(**{**_NEEDED, 'task': 'my_own_tasks.digits'})
  assert train_flags.task_options(flags) == {}
  with pytest.raises(
    UserError, match="no module 'gone_tasks' with a function 'digits'"
  ):
    train_flags.configure(**{**_NEEDED, 'task': 'gone_tasks.digits'})


def test_data_that_cannot_be_had_are_the_users_mistake(tmp_path, monkeypatch):
  monkeypatch.setattr(tasks.downloads, 'is_reachable', lambda url: False)
  flags = train_flags.configure(
    **{**_NEEDED, 'task': 'emnist_cnn', 'data_dir': tmp_path}
  )
  with pytest.raises(UserError, match=r'emnist_all\.sqlite'):
    train_flags.check_task(flags)


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    ({'straggler_rate': 0.5}, '--straggler_rate and --straggler_steps go together'),
    ({'straggler_steps': 2}, '--straggler_rate and --straggler_steps go together'),
    ({'available_share': 0.5}, '--available_share and --rounds_per_day go together'),
    ({'rounds_per_day': 24}, '--available_share and --rounds_per_day go together'),
    (
      {'straggler_rate': 0.5, 'straggler_steps': 1, 'algorithm': 'server_only'},
      '--straggler_rate cuts local steps, and --algorithm=server_only has none',
    ),
    (
      {'algorithm': 'mime', 'mime_split_cohort': True, 'clients_per_round': 1},
      '--mime_split_cohort needs --clients_per_round of at least 2',
    ),
    (
      {'algorithm': 'mime_lite', 'mime_control_variate': 'previous'},
      '--mime_control_variate is not used',
    ),
    ({'algorithm': 'fed_avg', 'mime_split_cohort': True}, '--mime_split_cohort'),
    ({'algorithm': 'mime', 'mvr_a': 0.5}, '--mvr_a is not used'),
    ({'algorithm': 'mime_mvr', 'base_optimizer': 'adam'}, '--base_optimizer is not'),
    ({'algorithm': 'mime', 'base_momentum': 0.5}, '--base_momentum is not used'),
    ({'algorithm': 'mime', 'server_optimizer': 'adam'}, '--server_optimizer is not'),
    ({'aggregator': 'dp'}, '--aggregator=dp needs --client_weighting=uniform'),
    ({'dp_clip': 0.1}, '--dp_clip is not used'),
    ({'algorithm': 'mime', 'aggregator': 'mean'}, '--aggregator is not used'),
    ({'algorithm': 'only_central', 'batch_size': 5}, '--batch_size is not used'),
    ({'algorithm': 'fed_avg', 'central_weight': 0.5}, '--central_weight is not used'),
    (
      {'algorithm': 'one_way_gradient_transfer', 'central_steps': 2},
      '--central_steps is not used',
    ),
    ({'elastic_tau': 1}, '--elastic_tau is not used'),
    ({'elastic_sensitivity': 'none', 'elastic_mu': 0.5}, '--elastic_mu is not used'),
    ({'elastic_sensitivity': 'average', 'elastic_mu': 0.5}, '--elastic_mu is not used'),
    ({'elastic_sensitivity': 'sum'}, 'known are none, momentum, average'),
    ({'elastic_sensitivity': 'average', 'elastic_fraction': 1}, 'above 0 and below 1'),
    ({'elastic_sensitivity': 'average', 'elastic_tau': -1}, 'a number at least 0'),
    ({'elastic_sensitivity': 'momentum', 'elastic_mu': 1}, 'at least 0 and below 1'),
    *(
      (
        {'algorithm': algorithm, 'elastic_sensitivity': 'momentum'},
        f'--elastic_sensitivity is not used with --algorithm={algorithm}; it belongs',
      )
      for algorithm in ('server_only', 'fed_dyn', 'fed_avg_s', 'only_central')
    ),
    (
      {'straggler_rate': 0.5, 'straggler_steps': 1, 'algorithm': 'only_central'},
      '--straggler_rate cuts local steps, and --algorithm=only_central has none',
    ),
  ],
)
def test_flags_that_cannot_be_or_would_have_no_effect_are_refused(flags, message):
  with pytest.raises(UserError, match=message):
    train_flags.configure(**{**_NEEDED, **flags})


@pytest.mark.parametrize(
  ('workers', 'found'),
  [
    ('localhost', 'localhost'),
    (':8470', ':8470'),
    ('worker-1:abc', 'worker-1:abc'),
    ('worker-1:0', 'worker-1:0'),
    ('worker-1:99999', 'worker-1:99999'),
    ('worker-1:8470, worker-2:8470', ' worker-2:8470'),
    ('worker-1:8470,', ''),
    ('::1:8470', '::1:8470'),
    ('http://worker-1:8470', 'http://worker-1:8470'),
  ],
)
def test_workers_that_are_no_addresses_are_refused_by_name(workers, found):
  remote = {'runtime': 'remote', 'certificates': 'x'}
  with pytest.raises(UserError, match=f"with ports .*, found '{found}'"):
    train_flags.configure(**_NEEDED, **remote, workers=workers)
  train_flags.configure(
    **_NEEDED, **remote, workers='[::1]:8470,10.0.0.3:1,a-b.c:65535'
  )


def test_the_data_directory_is_refused_by_name_where_the_task_needs_none():
  with pytest.raises(UserError, match='--data_dir is not used'):
    train_flags.configure(**_NEEDED, data_dir='x')


@pytest.mark.parametrize('algorithm', algorithms.branches())
def test_every_algorithm_has_a_complete_set_of_defaults(algorithm):
  flags = train_flags.configure(**{**_NEEDED, 'algorithm': algorithm})
  needed = ['central_learning_rate', 'central_batch_size']
  if algorithms.uses_clients(flags):
    needed = ['server_learning_rate', 'batch_size']
    if flags['server_learning_rate'] is None:  # The clients' then.
      needed = ['client_learning_rate', 'batch_size']
  assert all(flags[name] > 0 for name in needed)


def test_only_flags_that_leave_the_numbers_alone_may_change():
  assert train_flags.free_names() == {
    'client_data_dir',
    'data_dir',
    'rounds',
    'output_dir',
    'rounds_per_checkpoint',
    'num_threads',
    'workers',
    'certificates',
    'worker_timeout',
    'label',
  }


def test_the_runtime_is_made_of_its_flags():
  flags = train_flags.configure(**_NEEDED, num_threads=3)
  assert train_flags.create_runtime(flags)._num_threads == 3
