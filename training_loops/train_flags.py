"""The flags of training, as a tree (see `options`), and reading them.

Importing this module does not import TensorFlow.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import tasks
from training_loops import (
  aggregators,
  algorithms,
  command_line,
  options,
  runtimes,
  task_flags,
  worker_protocol,
)
from training_loops.options import (
  REQUIRED,
  Section,
  UserError,
  choice,
  integer,
  number,
  path,
  switch,
  text,
)

_NUM_THREADS = integer(
  'num_threads', None, 'Clients computed at once, one a core by default.', is_free=True
)

_IN_PROCESS = (
  _NUM_THREADS,
  text('device', None, 'Where, such as /GPU:0; TensorFlow chooses by default.'),
  switch('xla', 'Has XLA compile what it finds worth it.'),
)

_REMOTE = (
  text('workers', REQUIRED, 'Where they are: host:port,host:port.', is_free=True),
  path(
    'certificates',
    REQUIRED,
    'Directory of ca.pem, cert.pem, key.pem (training_loops.make_certificates).',
    is_free=True,
  ),
  integer(
    'worker_timeout',
    120,
    'Seconds that a worker may take for a client; what it has is then computed by '
    'others.',
    is_free=True,
  ),
  choice(
    'client_rows',
    'sent',
    'How rows get to workers: sent, or read from files at the same path there.',
    {'sent': [], 'read': []},
  ),
)

_RUNTIMES = {'in_process': _IN_PROCESS, 'local': [_NUM_THREADS], 'remote': _REMOTE}

_SECTIONS = (
  Section(
    'Task',
    [
      choice(
        'task',
        REQUIRED,
        'Data and model; module.function for one of your own.',
        task_flags.branches(),
        tasks.check_own,
      )
    ],
  ),
  Section(
    'Algorithm',
    [choice('algorithm', REQUIRED, 'How to train.', algorithms.branches())],
  ),
  Section(
    'Training',
    [
      integer('rounds', 100, 'Rounds in all.', is_free=True),
      integer('clients_per_round', 10, 'Clients drawn for a round.'),
      integer('seed', 0, 'Of the partition, the cohorts and the model.', at_least=0),
      integer('rounds_per_eval', 10, 'Evaluates after every so many rounds.'),
      integer('max_eval_examples', None, 'Evaluates on a fixed random subset.'),
    ],
  ),
  Section(
    'Clients of a round',
    [
      choice(
        'sampling',
        'uniform',
        'How they are drawn.',
        {
          'uniform': [],
          'by_examples': [],
          'log_normal': [
            number(
              'sampling_variance', 1.0, 'How unevenly clients are drawn.', at_least=0
            )
          ],
        },
      ),
      number(
        'dropout_rate',
        0.0,
        'Probability of a drawn client to drop out of the round.',
        at_least=0,
        below=1,
      ),
      number(
        'straggler_rate',
        0.0,
        'Probability of a client to be a straggler in the round.',
        at_least=0,
        at_most=1,
      ),
      integer('straggler_steps', None, 'Most local steps of a straggler.'),
      number(
        'available_share',
        1.0,
        'Share of the day that a client is available, each in a time zone of its own.',
        above=0,
        at_most=1,
      ),
      integer('rounds_per_day', None, 'Rounds in a day.'),
    ],
  ),
  Section(
    'Execution',
    [
      choice(
        'runtime',
        'in_process',
        "Where clients are computed: in the program itself, in TFF's worker, or by "
        'workers on other machines.',
        _RUNTIMES,
      ),
      path(
        'client_data_dir',
        None,
        "Where clients' rows stay for other runs, by default in ~/.cache.",
        is_free=True,
      ),
    ],
  ),
  Section(
    'Output',
    [
      path('output_dir', REQUIRED, 'Where everything is written.', is_free=True),
      integer(
        'rounds_per_checkpoint',
        10,
        'Saves after every so many rounds, and after the best.',
        is_free=True,
      ),
      text('label', None, 'What it is called in tables and pictures.', is_free=True),
    ],
  ),
)


def _listed(descriptions: dict[str, str]) -> str:
  width = max(map(len, descriptions))
  return '\n'.join(f'{name:{width}}  {text}' for name, text in descriptions.items())


def _check(flags: Mapping[str, Any]) -> None:
  """Refuses flags that would have no effect, and workers that cannot be."""
  for name, off, partner in (
    ('straggler_rate', 0, 'straggler_steps'),
    ('available_share', 1, 'rounds_per_day'),
  ):
    if (flags[name] != off) != (flags[partner] is not None):
      raise UserError(f'--{name} and --{partner} go together: give both or neither.')
  aggregators.check(flags)
  if flags['runtime'] == 'remote':
    worker_protocol.addresses(flags['workers'])
  if algorithms.splits_cohort(flags) and flags['clients_per_round'] < 2:
    raise UserError(
      '--mime_split_cohort needs --clients_per_round of at least 2: one client for the '
      'gradient and one for the update.'
    )
  if flags['straggler_rate'] and not algorithms.has_local_steps(flags):
    raise UserError(
      f'--straggler_rate cuts local steps, and --algorithm={flags["algorithm"]} has '
      'none.'
    )


PROGRAM = command_line.Program(
  module='training_loops.train',
  summary=(
    'Trains a model on federated data. The same command again continues a run that '
    'was stopped.'
  ),
  example=(
    '--task=digits_logistic --algorithm=fed_avg --rounds=100 --output_dir=runs/x'
  ),
  sections=_SECTIONS,
  lists={
    'list_tasks': (
      'Lists the tasks, with a line on each.',
      lambda: _listed(tasks.describe()),
    ),
    'list_algorithms': (
      'Lists the algorithms, with a line on each.',
      lambda: _listed(algorithms.descriptions()),
    ),
  },
  check=_check,
)


def configure(**flags: Any) -> dict[str, Any]:
  """The flags of a run, checked as on a command line, defaults added.

      configure(task='digits_mlp', algorithm='fed_avg', output_dir='runs/x')

  Args:
    **flags: Flags by name; None stands for the default.

  Raises:
    UserError: If the command line with these flags would be refused.
  """
  return from_arguments(as_arguments(flags))


def as_arguments(flags: Mapping[str, Any]) -> list[str]:
  """Flags as the words of a command line; None stands for the default."""
  return [f'--{name}={value}' for name, value in flags.items() if value is not None]


def from_arguments(arguments: Sequence[str]) -> dict[str, Any]:
  """The flags of a run, from the words of a command line."""
  return command_line.parse(PROGRAM, arguments)


def free_names() -> set[str]:
  """The flags that may change when a run is continued."""
  return {option.name for _, option in options.walk(PROGRAM.options) if option.is_free}


def task_options(flags: Mapping[str, Any]) -> dict[str, Any]:
  """The flags that are options of the chosen task."""
  tree = task_flags.branches().get(flags['task'], ())  # None for a user's own.
  return options.used(tree, flags)


def check_task(flags: Mapping[str, Any]) -> None:
  """Makes sure that the task's files are there or can be had; takes seconds.

  Raises:
    UserError: If not.
  """
  try:
    tasks.check(flags['task'], **task_options(flags))
  except ValueError as error:
    raise UserError(str(error)) from error


def sends_to_clients(flags: Mapping[str, Any]) -> bool:
  """Whether clients' rows are sent to where these are computed, not read there."""
  return flags.get('client_rows') == 'sent'


def create_runtime(flags: dict[str, Any]) -> runtimes.Runtime:
  """The runtime that the flags describe, not yet started."""
  if flags['runtime'] == 'remote':
    return runtimes.create(
      'remote',
      workers=worker_protocol.addresses(flags['workers']),
      certificates=flags['certificates'],
      worker_timeout=flags['worker_timeout'],
    )
  own = {option.name for option in _RUNTIMES[flags['runtime']]}
  return runtimes.create(flags['runtime'], **{name: flags[name] for name in own})
