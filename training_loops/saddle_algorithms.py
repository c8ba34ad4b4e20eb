"""The saddle-point algorithms by name, and their flags.

Importing this module does not import TensorFlow.
"""

from collections.abc import Mapping
from typing import Any

from training_loops import aggregators
from training_loops.options import Option, UserError, choice, integer, number

Config = Mapping[str, Any]

_LOCAL_STEPS = 20

_WEIGHTING = choice(
  'client_weighting',
  'uniform',
  'How clients count in the mean.',
  {'examples': [], 'uniform': []},
)
_BATCH_SIZE = integer('batch_size', 20, 'Examples that a client takes at a time.')
_LOCAL_TRAINING = (
  number(
    'client_learning_rate',
    0.1,
    'gamma_l, the learning rate of the clients; with 0 they stay where they start.',
    at_least=0,
  ),
  number(
    'server_learning_rate',
    None,
    "gamma_g, the server's, of the sum of the local steps; by default the clients'.",
    above=0,
  ),
  integer(
    'local_steps',
    None,
    f'tau, the local steps of every client in a round, {_LOCAL_STEPS} by default.',
  ),
  number(
    'sync_probability',
    None,
    'p, in place of tau: clients synchronise after each step with this probability.',
    above=0,
    at_most=1,
  ),
  _BATCH_SIZE,
  _WEIGHTING,
)
_AVERAGE_MU = number(
  'average_mu',
  None,
  'mu, for the weighted average of the iterates to come out, and not the last.',
  above=0,
)
_SCHEDULE = choice(
  'step_schedule',
  'constant',
  'Of both rates over the local steps k of the run; inverse_sqrt is 1 / (sqrt(k) + 1).',
  {'constant': [], 'inverse_sqrt': []},
)

FED_AVG_S = (*_LOCAL_TRAINING, _SCHEDULE, _AVERAGE_MU, aggregators.AGGREGATOR)
EXTRA_STEP_LOCAL_SGD = (*_LOCAL_TRAINING, _AVERAGE_MU, aggregators.AGGREGATOR)
# Without an aggregator: their clients upload gradients too.
SCAFFOLD_S = (*_LOCAL_TRAINING, _AVERAGE_MU)
SCAFFOLD_CATALYST_S = (
  *_LOCAL_TRAINING,
  number('catalyst_theta', 1.0, 'Strength of the pull towards zbar.', at_least=0),
  choice(
    'catalyst_stopping',
    'decrease',
    'When zbar moves: once the gradient mapping of the sub-problem is small enough, '
    'after so many rounds, or by the distance to the solution where a task knows it.',
    {
      'decrease': [
        number(
          'catalyst_decrease',
          0.5,
          'What part of its norm at zbar is small enough.',
          above=0,
          below=1,
        )
      ],
      'rounds': [integer('catalyst_inner_rounds', 1, 'Rounds of a sub-problem.')],
      'prox_accuracy': [
        number('catalyst_epsilon', 1e-6, 'The accuracy asked in the end.', above=0)
      ],
    },
  ),
)


def _mirror(communications: str) -> tuple[Option, ...]:
  return (
    number('server_learning_rate', 0.1, 'The learning rate of the server.', above=0),
    integer(
      'local_steps',
      None,
      f'tau, the batches that a client averages its gradient over{communications}; by '
      'default it takes all its examples.',
    ),
    _BATCH_SIZE,
    _WEIGHTING,
    aggregators.AGGREGATOR,
  )


MIRROR_DESCENT = _mirror('')
MIRROR_PROX = _mirror(', twice a round')


def _require_saddle(config: Config, objective: Any) -> None:
  """Checks that an objective has a gradient mapping.

  Raises:
    UserError: If it has none.
  """
  if not getattr(objective, 'is_gradient_mapping', False):
    raise UserError(
      f'--algorithm={config["algorithm"]} needs a task with weights to minimise over '
      f'and others to maximise over, and {config["task"]} is none; '
      '--task=quadratic_game is one.'
    )


def _local_training(config: Config) -> dict[str, Any]:
  """The arguments of `saddle_framework.build` that all of these have."""
  tau, p = config['local_steps'], config['sync_probability']
  if tau is not None and p is not None:
    raise UserError('--local_steps and --sync_probability exclude each other.')
  average_mu = config.get('average_mu')
  if average_mu is not None and config.get('aggregator', 'mean') != 'mean':
    raise UserError(
      '--average_mu goes with --aggregator=mean alone: it has clients upload their '
      'iterates too.'
    )
  return {
    'client_learning_rate': config['client_learning_rate'],
    'server_learning_rate': config['server_learning_rate'],
    'local_steps': _LOCAL_STEPS if tau is None else tau,
    'sync_probability': p,
    'batch_size': config['batch_size'],
    'weighting': config['client_weighting'],
    'schedule': config.get('step_schedule', 'constant'),
    'average_mu': average_mu,
    'aggregator': aggregators.build(config) if 'aggregator' in config else None,
  }


def build_with_local_steps(config: Config, objective: Any, **common: Any) -> Any:
  """Builds FedAvg-S, extra-step local SGD or SCAFFOLD-S."""
  from tff_algorithms import extra_step_local_sgd, fed_avg_s, scaffold_s

  _require_saddle(config, objective)
  build = {
    'fed_avg_s': fed_avg_s.build_fed_avg_s,
    'extra_step_local_sgd': extra_step_local_sgd.build_extra_step_local_sgd,
    'scaffold_s': scaffold_s.build_scaffold_s,
  }[config['algorithm']]
  return build(objective, **_local_training(config), **common)


def build_catalyst(config: Config, objective: Any, **common: Any) -> Any:
  """Builds SCAFFOLD-Catalyst-S."""
  from tff_algorithms import catalyst_stopping, scaffold_catalyst_s

  _require_saddle(config, objective)
  try:
    return scaffold_catalyst_s.build_scaffold_catalyst_s(
      objective,
      theta=config['catalyst_theta'],
      stopping=_stopping(config, objective),
      **_local_training(config),
      **common,
    )
  except catalyst_stopping.TooAccurateError as error:
    raise UserError(
      f'--catalyst_stopping=prox_accuracy: {error} --precision=float64 or a larger '
      '--catalyst_epsilon is needed.'
    ) from error


def _stopping(config: Config, objective: Any) -> Any:
  from tff_algorithms import catalyst_stopping

  match config['catalyst_stopping']:
    case 'decrease':
      return catalyst_stopping.SufficientDecrease(config['catalyst_decrease'])
    case 'rounds':
      return catalyst_stopping.InnerRounds(config['catalyst_inner_rounds'])
  if objective.prox is None or objective.convexity is None:
    raise UserError(
      '--catalyst_stopping=prox_accuracy needs a task that knows the solutions of the '
      f'sub-problems, and {config["task"]} does not; --task=quadratic_game does.'
    )
  return catalyst_stopping.ProxAccuracy(
    objective.prox, objective.convexity, config['catalyst_epsilon']
  )


def build_mirror(config: Config, objective: Any, **common: Any) -> Any:
  """Builds minibatch mirror descent or mirror-prox."""
  from tff_algorithms import minibatch_mirror

  _require_saddle(config, objective)
  is_prox = config['algorithm'] == 'minibatch_mirror_prox'
  build = (
    minibatch_mirror.build_minibatch_mirror_prox
    if is_prox
    else minibatch_mirror.build_minibatch_mirror_descent
  )
  return build(
    objective,
    learning_rate=config['server_learning_rate'],
    num_batches=config['local_steps'],
    batch_size=config['batch_size'],
    weighting=config['client_weighting'],
    aggregator=aggregators.build(config),
    **common,
  )
