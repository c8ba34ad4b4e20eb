"""The algorithms of mixed federated learning by name, and their flags.

Importing this module does not import TensorFlow.
"""

from collections.abc import Mapping
import typing
from typing import Any

from training_loops import learning_rate_schedules
from training_loops.options import Option, UserError, choice, integer, number, switch

if typing.TYPE_CHECKING:
  import tasks

Config = Mapping[str, Any]

_CHUNK_ROWS = 256


def _central_learning_rate(default: float | None, more: str = '') -> Option:
  return number(
    'central_learning_rate',
    default,
    f'The learning rate of the central steps{more}.',
    above=0,
  )


_WEIGHTS = (
  number(
    'federated_weight', None, "w_f, of the clients' loss; the task's own.", above=0
  ),
  number(
    'central_weight', None, "w_c, of the server's loss; the task's own.", at_least=0
  ),
)
_CENTRAL_BATCH_SIZE = integer(
  'central_batch_size', 100, 'Examples that the server takes at a time.'
)
_CENTRAL_CLIP_NORM = number(
  'central_clip_norm', None, 'What the norm of a central gradient is cut to.', above=0
)


def _central_steps(default: int) -> Option:
  return integer('central_steps', default, 'Steps of the server in a round.')


_DIAGNOSTICS = switch(
  'mixed_diagnostics',
  'Tells how unlike the gradients of clients and server are, G~ and B~ (clients upload '
  'a gradient more), and the operations of a client.',
)

ONE_WAY = (*_WEIGHTS, _CENTRAL_BATCH_SIZE, _CENTRAL_CLIP_NORM, _DIAGNOSTICS)
PARALLEL = (
  *ONE_WAY,
  _central_steps(2),
  _central_learning_rate(None, ", by default the clients' times the server's"),
  number('merge_learning_rate', 1.0, 'The learning rate of the merge.', above=0),
)
ONLY_CENTRAL = (
  _CENTRAL_BATCH_SIZE,
  _CENTRAL_CLIP_NORM,
  _central_steps(10),
  _central_learning_rate(0.1),
  learning_rate_schedules.schedule_option('central'),
)
CENTRALIZED_ORACLE = (*_WEIGHTS, *ONLY_CENTRAL)
EXAMPLE_TRANSFER = (
  *_WEIGHTS,
  integer('examples_sent', 100, 'Examples of the server that every client is sent.'),
)
TRANSFER_LEARNING = (
  *ONLY_CENTRAL,
  choice(
    'transfer_order',
    'central_first',
    'Which of the two is trained on first.',
    {'central_first': [], 'federated_first': []},
  ),
  integer('transfer_round', 50, 'Rounds until the other one is trained on.'),
)


def weights(config: Config, task: 'tasks.Task') -> dict[str, float]:
  """w_f and w_c: as given, or the task's own."""
  central = task.central
  return {
    name: getattr(central, name) if config[name] is None else config[name]
    for name in ('federated_weight', 'central_weight')
  }


def require_central(config: Config, task: 'tasks.Task') -> None:
  """Checks that the task has what the server needs for the algorithm.

  Raises:
    UserError: If it does not.
  """
  algorithm = config['algorithm']
  if task.central is None:
    raise UserError(
      f'--algorithm={algorithm} needs a task whose server has data or a loss of its '
      f'own, and {task.name} with these flags has neither; --task=digits_mixed has.'
    )
  needs_data = algorithm in ('only_central', 'example_transfer', 'transfer_learning')
  if needs_data and task.central.data is None:
    raise UserError(
      f'--algorithm={algorithm} needs a task whose server has data of its own; that of '
      f'{task.name} has a loss without data.'
    )
  objective = task.central.objective
  if algorithm == 'centralized_oracle' and objective and objective.batch_spec != ():
    raise UserError(
      f'--algorithm=centralized_oracle needs one loss for all rows, and the server of '
      f'{task.name} has another than the clients.'
    )


def central_rows(config: Config) -> int:
  """How many of the server's rows a round takes."""
  if 'examples_sent' in config:
    return config['examples_sent']
  return config['central_batch_size'] * config.get('central_steps', 1)


def build_one_way(
  config: Config, task: 'tasks.Task', model: Any, local: Config, **common: Any
) -> Any:
  """1-way gradient transfer of flags; `local` are FedAvg's arguments."""
  from tff_algorithms import one_way_gradient_transfer

  mixed = _mixed(config, task)
  # All of B_c is one batch, taken in pieces that fit in memory.
  mixed['central_batch_size'] = min(config['central_batch_size'], _CHUNK_ROWS)
  return one_way_gradient_transfer.build_one_way_gradient_transfer(
    model, **mixed, **local, **common
  )


def build_parallel(
  config: Config, task: 'tasks.Task', model: Any, local: Config, **common: Any
) -> Any:
  """Parallel training or 2-way transfer of flags; `local` are FedAvg's arguments."""
  import tensorflow_federated as tff

  from tff_algorithms import parallel_training, two_way_gradient_transfer

  build = parallel_training.build_parallel_training
  if config['algorithm'] == 'two_way_gradient_transfer':
    build = two_way_gradient_transfer.build_two_way_gradient_transfer
    if config['aggregator'] == 'dp':
      common['gradient_aggregator'] = local['aggregator']
  return build(
    model,
    central_steps=config['central_steps'],
    central_learning_rate=config['central_learning_rate'],
    merge_optimizer=tff.learning.optimizers.build_sgdm(config['merge_learning_rate']),
    **_mixed(config, task),
    **local,
    **common,
  )


def _mixed(config: Config, task: 'tasks.Task') -> dict[str, Any]:
  """The arguments of the three algorithms from `ONE_WAY`."""
  return {
    **weights(config, task),
    'central_model': task.central and task.central.objective,
    'central_batch_size': config['central_batch_size'],
    'central_clip_norm': config['central_clip_norm'],
    'diagnostics': config['mixed_diagnostics'],
  }


def build_only_central(
  config: Config, task: 'tasks.Task', model: Any, **common: Any
) -> Any:
  """Central training of flags, on whatever rows it is then given."""
  import tensorflow_federated as tff

  from tff_algorithms import only_central, oracles

  objective = task.central.objective if task.central else None
  if objective and config['algorithm'] != 'centralized_oracle':
    model = objective
  elif objective:
    # The server's loss is of another form: rows of both do not make the mixed loss.
    by = weights(config, task)
    model = oracles.Sum(
      oracles.Weighted(by['federated_weight'], oracles.as_oracle(model)),
      oracles.Weighted(by['central_weight'], objective),
    )
  for name in ('client_input', 'terms'):  # The clients' own.
    common.pop(name, None)
  return only_central.build_only_central(
    model,
    optimizer=tff.learning.optimizers.build_sgdm(config['central_learning_rate']),
    central_batch_size=config['central_batch_size'],
    central_steps=config['central_steps'],
    central_clip_norm=config['central_clip_norm'],
    schedule=learning_rate_schedules.build_schedule('central', config),
    **common,
  )


def build_example_transfer(
  config: Config, task: 'tasks.Task', model: Any, local: Config, **common: Any
) -> Any:
  """Example transfer of flags; `local` are FedAvg's arguments."""
  from tff_algorithms import example_transfer

  arguments = {**weights(config, task), **local, **common}
  return example_transfer.build_example_transfer(
    model, num_sent=config['examples_sent'], **arguments
  )


def build_transfer_learning(
  config: Config, task: 'tasks.Task', model: Any, local: Config, **common: Any
) -> Any:
  """Transfer learning of flags; `local` are FedAvg's arguments."""
  from tff_algorithms import fed_avg, transfer_learning

  central = build_only_central(config, task, model, **common)
  common.pop('central_input')
  return transfer_learning.TransferLearning(
    central=central,
    federated=fed_avg.build_fed_avg(model, **local, **common),
    order=config['transfer_order'],
    switch_round=config['transfer_round'],
  )
