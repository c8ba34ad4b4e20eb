"""The algorithms by name: what each is, which flags it uses, how it is built.

To add one: write its entry in `_ALGORITHMS`, with its own flags beside it.
TensorFlow is imported when an algorithm is built, not before.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import typing
from typing import Any

from training_loops import (
  aggregators,
  learning_rate_schedules,
  mixed_algorithms,
  optimizers,
  saddle_algorithms,
)
from training_loops.options import Option, choice, integer, number, switch

if typing.TYPE_CHECKING:
  import tasks
  from tff_algorithms import client_inputs

Config = Mapping[str, Any]

_MOST_BYTES_BY_VALUE = 1 << 28


@dataclasses.dataclass(frozen=True)
class Algorithm:
  """One choice of `--algorithm`.

  Attributes:
    description: What it is, in one line.
    options: The flags that it uses.
    build: (flags, model, **the arguments that all builders take) -> the process. Where
      the server takes part with rows or a loss of its own, (flags, task, model, ...).
    takes: What `next` takes after the state: the clients' arguments, the server's.
    selects: Whether clients may be sent a part of the model, where the task says which.
    is_stateful: Whether its clients keep something from round to round; it is then
      told how many there are in all.
  """

  description: str
  options: Sequence[Option]
  build: Callable[..., Any]
  takes: tuple[str, ...] = ('clients',)
  selects: bool = False
  is_stateful: bool = False


def _fed_prox_rho(default: float) -> Option:
  return number(
    'fed_prox_rho', default, 'Strength of the pull towards the model sent.', at_least=0
  )


def _client_weighting(default: str) -> Option:
  return choice(
    'client_weighting',
    default,
    'How clients count in the mean.',
    {'examples': [], 'uniform': []},
  )


def _local_step_options(weighting: str) -> tuple[Option, ...]:
  """What every algorithm with local steps uses."""
  return (
    number('client_learning_rate', 0.1, 'The learning rate of the clients.', above=0),
    integer('batch_size', 20, 'Examples that a client takes at a time.'),
    integer('client_epochs', 1, 'Passes over the data of a client in a round.'),
    integer('max_client_steps', None, 'Most local steps of a client in a round.'),
    _client_weighting(weighting),
    learning_rate_schedules.schedule_option('client'),
    learning_rate_schedules.schedule_option('server'),
  )


_ELASTIC_TAU = number(
  'elastic_tau', 0.5, 'What the least sensitive weights are boosted by.', at_least=0
)
_ELASTIC_FRACTION = number(
  'elastic_fraction',
  0.1,
  'Share of the data of a client that its sensitivity is taken on, not trained on.',
  above=0,
  below=1,
)
_ELASTIC_BATCH_SIZE = integer(
  'elastic_batch_size',
  None,
  'Examples of a batch of those, by default as many as of a local step; with 1 the '
  'average is over examples.',
)
_ELASTIC = choice(
  'elastic_sensitivity',
  'none',
  'Elastic aggregation: how the sensitivity of the outputs to each weight, by which '
  'its update is scaled, is taken over batches.',
  {
    'none': [],
    'momentum': [
      _ELASTIC_TAU,
      number('elastic_mu', 0.95, 'The decay over batches.', at_least=0, below=1),
      _ELASTIC_FRACTION,
      _ELASTIC_BATCH_SIZE,
    ],
    'average': [_ELASTIC_TAU, _ELASTIC_FRACTION, _ELASTIC_BATCH_SIZE],
  },
)

_LOCAL_STEPS = _local_step_options('examples')
_LOCAL_TRAINING = (
  *_LOCAL_STEPS,
  optimizers.SERVER_OPTIMIZER,
  aggregators.AGGREGATOR,
  _ELASTIC,
)
# Of algorithms whose clients keep something; their papers weight clients alike.
_STATEFUL_TRAINING = (
  *_local_step_options('uniform'),
  optimizers.SERVER_OPTIMIZER,
)

# What every algorithm of the Mime paper uses.
_MIME = (
  *_LOCAL_STEPS,
  number('server_learning_rate', 1.0, 'The learning rate of the server.', above=0),
  switch('mime_gradient_dropout', 'Full gradients with dropout, as in training.'),
  switch(
    'mime_split_cohort',
    'Half of the clients send only gradients, the others only updates.',
  ),
  _ELASTIC,
)
_MIME_CONTROL_VARIATE = choice(
  'mime_control_variate',
  'current',
  "Whose gradients correct the local steps: this round's (two trips a round), or those "
  'of the round before.',
  {'current': [], 'previous': []},
)


def _local_steps(config: Config) -> dict[str, Any]:
  """The arguments that builders take from `_LOCAL_STEPS`, but for the rate."""
  return {
    'batch_size': config['batch_size'],
    'epochs': config['client_epochs'],
    'max_steps': config['max_client_steps'],
    'weighting': config['client_weighting'],
    'client_schedule': learning_rate_schedules.build_schedule('client', config),
    'server_schedule': learning_rate_schedules.build_schedule('server', config),
  }


def _local_training(config: Config) -> dict[str, Any]:
  """The arguments of `build_fed_avg` from `_LOCAL_TRAINING`."""
  return {**_stateful_training(config), 'aggregator': aggregators.build(config)}


def _stateful_training(config: Config) -> dict[str, Any]:
  """The arguments of `build_fed_avg` from `_STATEFUL_TRAINING`."""
  return {
    **_local_steps(config),
    'client_learning_rate': config['client_learning_rate'],
    'server_optimizer': optimizers.build_server_optimizer(config),
  }


def _mime_arguments(config: Config) -> dict[str, Any]:
  """The arguments of `mime_framework.build` from `_MIME`."""
  return {
    **_local_steps(config),
    'server_learning_rate': config['server_learning_rate'],
    'gradient_dropout': config['mime_gradient_dropout'],
    'split_cohort': config['mime_split_cohort'],
  }


def _mime_with_base(config: Config) -> dict[str, Any]:
  """The arguments of the algorithms with a base optimizer."""
  eta = config['client_learning_rate']
  return {
    **_mime_arguments(config),
    'base_optimizer': optimizers.build_base_optimizer(config, eta),
  }


def _fed_avg(config, model, **common):
  from tff_algorithms.fed_avg import build_fed_avg

  return build_fed_avg(model, **_local_training(config), **common)


def _fed_prox(config, model, **common):
  from tff_algorithms.fed_prox import build_fed_prox

  rho = config['fed_prox_rho']
  return build_fed_prox(model, rho=rho, **_local_training(config), **common)


def _scaffold(config, model, **common):
  from tff_algorithms.fed_prox import Proximal
  from tff_algorithms.scaffold import build_scaffold

  rho = config['fed_prox_rho']
  own = [Proximal(rho)] if rho else []
  return build_scaffold(
    model,
    option=int(config['scaffold_option']),
    terms=[*own, *common.pop('terms', ())],
    **_stateful_training(config),
    **common,
  )


def _fed_dyn(config, model, **common):
  from tff_algorithms.fed_dyn import build_fed_dyn

  alpha = config['fed_dyn_alpha']
  return build_fed_dyn(model, alpha=alpha, **_stateful_training(config), **common)


def _mixed(build):
  """One of `mixed_algorithms` that is FedAvg on the clients' side."""

  def build_of_flags(config, task, model, **common):
    return build(config, task, model, _local_training(config), **common)

  return build_of_flags


def _mime(config, model, **common):
  from tff_algorithms import loc_mime, mime

  is_local = config['algorithm'] == 'loc_mime'
  build_mime = loc_mime.build_loc_mime if is_local else mime.build_mime
  control_variate = config['mime_control_variate']
  return build_mime(
    model, control_variate=control_variate, **_mime_with_base(config), **common
  )


def _mime_lite(config, model, **common):
  from tff_algorithms.mime_lite import build_mime_lite

  return build_mime_lite(model, **_mime_with_base(config), **common)


def _mime_mvr(config, model, **common):
  from tff_algorithms.mime_mvr import build_mime_mvr

  return build_mime_mvr(
    model,
    a=config['mvr_a'],
    learning_rate=config['client_learning_rate'],
    lite=config['algorithm'] == 'mime_lite_mvr',
    **_mime_arguments(config),
    **common,
  )


def _server_only(config, model, **common):
  from tff_algorithms.server_only import build_server_only

  return build_server_only(
    model,
    optimizer=optimizers.build_base_optimizer(config, config['server_learning_rate']),
    mvr_a=config.get('mvr_a'),
    batch_size=config['batch_size'],
    weighting=config['client_weighting'],
    schedule=learning_rate_schedules.build_schedule('server', config),
    **common,
  )


_MIXED = ('clients', 'central')

_ALGORITHMS = {
  'fed_avg': Algorithm(
    'FedAvg / FedOpt: local SGD, any server optimizer (McMahan 2017, Reddi 2021).',
    _LOCAL_TRAINING,
    _fed_avg,
    selects=True,
  ),
  'fed_prox': Algorithm(
    'FedProx: FedAvg with a proximal term in the local loss (Li 2020).',
    (*_LOCAL_TRAINING, _fed_prox_rho(0.1)),
    _fed_prox,
    selects=True,
  ),
  'scaffold': Algorithm(
    'SCAFFOLD: control variates that clients keep, no drift (Karimireddy 2020).',
    (
      *_STATEFUL_TRAINING,
      choice(
        'scaffold_option',
        '2',
        "How a client's control variate is renewed: 1, its gradient at the model sent, "
        'one more pass; 2, the mean gradient of its steps.',
        {'1': [], '2': []},
      ),
      _fed_prox_rho(0.0),
      _ELASTIC,
    ),
    _scaffold,
    is_stateful=True,
  ),
  'fed_dyn': Algorithm(
    'FedDyn: a regularizer that clients keep and adapt (Acar 2021).',
    (
      *_STATEFUL_TRAINING,
      number('fed_dyn_alpha', 0.1, 'Strength of the regularizer.', above=0),
    ),
    _fed_dyn,
    is_stateful=True,
  ),
  'mime': Algorithm(
    "Mime: the server's optimizer in every local step, no drift (Karimireddy 2021).",
    (*_MIME, optimizers.BASE_OPTIMIZER, _MIME_CONTROL_VARIATE),
    _mime,
  ),
  'mime_lite': Algorithm(
    'MimeLite: Mime without the correction (Karimireddy 2021).',
    (*_MIME, optimizers.BASE_OPTIMIZER),
    _mime_lite,
  ),
  'loc_mime': Algorithm(
    'Loc-Mime: Mime with its optimizer updated locally too (Karimireddy 2021).',
    (*_MIME, optimizers.BASE_OPTIMIZER, _MIME_CONTROL_VARIATE),
    _mime,
  ),
  'mime_mvr': Algorithm(
    'MimeMVR: Mime with variance-reduced momentum (Karimireddy 2021).',
    (*_MIME, optimizers.MVR_A),
    _mime_mvr,
  ),
  'mime_lite_mvr': Algorithm(
    'MimeLiteMVR: MimeMVR without its control variate (Karimireddy 2021).',
    (*_MIME, optimizers.MVR_A),
    _mime_mvr,
  ),
  'parallel_training': Algorithm(
    'Mixed FL: clients and server train side by side (Augenstein 2022).',
    (*_LOCAL_TRAINING, *mixed_algorithms.PARALLEL),
    _mixed(mixed_algorithms.build_parallel),
    _MIXED,
    selects=True,
  ),
  'one_way_gradient_transfer': Algorithm(
    "Mixed FL: clients also step along the server's gradient (Augenstein 2022).",
    (*_LOCAL_TRAINING, *mixed_algorithms.ONE_WAY),
    _mixed(mixed_algorithms.build_one_way),
    _MIXED,
    selects=True,
  ),
  'two_way_gradient_transfer': Algorithm(
    "Mixed FL: clients and server step along each other's (Augenstein 2022).",
    (*_LOCAL_TRAINING, *mixed_algorithms.PARALLEL),
    _mixed(mixed_algorithms.build_parallel),
    _MIXED,
    selects=True,
  ),
  'only_central': Algorithm(
    "Central training on the server's own data, without clients.",
    mixed_algorithms.ONLY_CENTRAL,
    mixed_algorithms.build_only_central,
    ('central',),
  ),
  'centralized_oracle': Algorithm(
    "Central training on the data of server and clients, as if they were one's own.",
    mixed_algorithms.CENTRALIZED_ORACLE,
    mixed_algorithms.build_only_central,
    ('central',),
  ),
  'example_transfer': Algorithm(
    'FedAvg with examples of the server sent to the clients (Zhao 2018).',
    (*_LOCAL_TRAINING, *mixed_algorithms.EXAMPLE_TRANSFER),
    _mixed(mixed_algorithms.build_example_transfer),
    _MIXED,
  ),
  'transfer_learning': Algorithm(
    'Central training and then FedAvg, or the reverse.',
    (*_LOCAL_TRAINING, *mixed_algorithms.TRANSFER_LEARNING),
    _mixed(mixed_algorithms.build_transfer_learning),
    _MIXED,
  ),
  'server_only': Algorithm(
    "The centralized baseline: one step a round with the cohort's full gradient.",
    (
      integer('batch_size', 512, 'Examples that a client takes at a time.'),
      _client_weighting('examples'),
      learning_rate_schedules.schedule_option('server'),
      optimizers.SERVER_BASE_OPTIMIZER,
    ),
    _server_only,
  ),
  'fed_avg_s': Algorithm(
    'FedAvg-S: local descent-ascent on a saddle function (Hou 2021).',
    saddle_algorithms.FED_AVG_S,
    saddle_algorithms.build_with_local_steps,
  ),
  'extra_step_local_sgd': Algorithm(
    'FedAvg-S with an extra step in each local one (Beznosikov 2020).',
    saddle_algorithms.EXTRA_STEP_LOCAL_SGD,
    saddle_algorithms.build_with_local_steps,
  ),
  'scaffold_s': Algorithm(
    'SCAFFOLD-S: FedAvg-S without drift, Mime on a saddle function (Hou 2021).',
    saddle_algorithms.SCAFFOLD_S,
    saddle_algorithms.build_with_local_steps,
  ),
  'scaffold_catalyst_s': Algorithm(
    'SCAFFOLD-Catalyst-S: SCAFFOLD-S on one regularized problem after another.',
    saddle_algorithms.SCAFFOLD_CATALYST_S,
    saddle_algorithms.build_catalyst,
  ),
  'minibatch_mirror_descent': Algorithm(
    'Descent-ascent by the server on a saddle function (Hou 2021, section 4.1).',
    saddle_algorithms.MIRROR_DESCENT,
    saddle_algorithms.build_mirror,
  ),
  'minibatch_mirror_prox': Algorithm(
    'Mirror descent that looks one step ahead, two communications a round.',
    saddle_algorithms.MIRROR_PROX,
    saddle_algorithms.build_mirror,
  ),
}


def branches() -> dict[str, Sequence[Option]]:
  """The names of all algorithms, with the flags of each."""
  return {name: algorithm.options for name, algorithm in _ALGORITHMS.items()}


def descriptions() -> dict[str, str]:
  """The names of all algorithms, with a line on each."""
  return {name: algorithm.description for name, algorithm in _ALGORITHMS.items()}


def has_local_steps(config: Config) -> bool:
  """Whether the clients of the algorithm take local steps."""
  return 'client_learning_rate' in config


def splits_cohort(config: Config) -> bool:
  """Whether one half of a cohort sends gradients and the other updates."""
  return bool(config.get('mime_split_cohort'))


def uses_clients(config: Config) -> bool:
  """Whether a round of the algorithm has clients."""
  return 'clients' in _ALGORITHMS[config['algorithm']].takes


def is_mixed(config: Config) -> bool:
  """Whether the server takes part with rows or a loss of its own."""
  return 'central' in _ALGORITHMS[config['algorithm']].takes


def _elastic(
  config: Config,
  task: 'tasks.Task',
  client_input: 'client_inputs.ClientInput | None',
) -> dict[str, Any]:
  """The arguments of builders that make an algorithm elastic."""
  from tff_algorithms import elastic

  if task.selection is not None:
    raise ValueError(
      'Elastic aggregation needs the sensitivity to all weights, and clients of '
      f'{task.name} are sent a part of them: --selection=none sends them all.'
    )
  how = {'sensitivity': config['elastic_sensitivity'], 'tau': config['elastic_tau']}
  if 'elastic_mu' in config:
    how['mu'] = config['elastic_mu']
  return elastic.elastic_arguments(
    task.model,
    client_input,
    batch_size=config['elastic_batch_size'] or config['batch_size'],
    weighting=config['client_weighting'],
    seed=config['seed'],
    fraction=config['elastic_fraction'],
    **how,
  )


def _states_travel_as_files(config: Config, model: Any) -> bool:
  """Whether what clients keep goes to them and back in files, and not by value."""
  import tree

  from tff_algorithms import oracles

  if config['runtime'] == 'remote':  # A worker that was given up may be writing yet.
    return False
  if config['runtime'] == 'local':
    return True
  # By value a round has the old and the new states of all its clients in memory.
  weights = oracles.as_oracle(model).initial_weights([0, 0]).trainable
  size = sum(weight.numpy().nbytes for weight in tree.flatten(weights))
  return size * config['clients_per_round'] > _MOST_BYTES_BY_VALUE


def build(
  config: Config,
  task: 'tasks.Task',
  client_input: 'client_inputs.ClientInput | None' = None,
  central_input: 'client_inputs.ClientInput | None' = None,
) -> Any:
  """Builds the process that `--algorithm` and its flags describe.

  Args:
    config: The flags.
    task: The task to train.
    client_input: What the clients' argument is, ordinary data sets by default.
    central_input: What the server's argument is, likewise, where it has one.

  Raises:
    ValueError: If the algorithm does not take these values together.
    UserError: If the task is none for the algorithm.
  """
  algorithm = _ALGORITHMS[config['algorithm']]
  model = task.model if task.objective is None else task.objective
  common: dict[str, Any] = {'client_input': client_input, 'seed': config['seed']}
  if algorithm.selects and task.selection is not None:
    common['selection'] = task.selection
  if algorithm.is_stateful:
    common['num_clients'] = len(task.train.client_ids)
    common['client_states_by_file'] = _states_travel_as_files(config, model)
  if config.get('elastic_sensitivity', 'none') != 'none':
    common |= _elastic(config, task, client_input)
  if not is_mixed(config):
    return algorithm.build(config, model, **common)
  mixed_algorithms.require_central(config, task)
  return algorithm.build(config, task, model, central_input=central_input, **common)
