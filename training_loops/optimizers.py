"""The server's optimizers by name: their flags, and how each is built of them.

Rates and constants default to what the federated papers recommend rather than to what
TFF's optimizers do: Reddi et al. 2021 (beta_2 = 0.99, epsilon = 1e-3), Karimireddy et
al. 2021 (AdaGrad from 0.1, epsilon = 1e-7).
"""

from collections.abc import Mapping, Sequence
import typing
from typing import Any

from training_loops.options import Option, choice, number

if typing.TYPE_CHECKING:
  import tensorflow_federated as tff


def _learning_rate(default: float) -> Option:
  return number(
    'server_learning_rate', default, 'The learning rate of the server.', above=0
  )


def _momentum(prefix: str) -> Option:
  return number(f'{prefix}_momentum', 0.9, 'beta of momentum.', at_least=0, below=1)


def _beta_1(prefix: str) -> Option:
  return number(f'{prefix}_beta_1', 0.9, 'Decay of the mean.', at_least=0, below=1)


def _beta_2(prefix: str) -> Option:
  return number(
    f'{prefix}_beta_2', 0.99, 'Decay of the mean square.', at_least=0, below=1
  )


def _epsilon(prefix: str, default: float = 1e-3) -> Option:
  return number(f'{prefix}_epsilon', default, 'Keeps the divisor from 0.', above=0)


def _accumulator(prefix: str, default: float) -> Option:
  return number(
    f'{prefix}_initial_accumulator', default, 'First mean square.', at_least=0
  )


def _pair_options(prefix: str) -> dict[str, Sequence[Option]]:
  """The base optimizers (U, V), each with the flags of its constants."""
  adam = (_beta_1(prefix), _beta_2(prefix), _epsilon(prefix), _accumulator(prefix, 0.0))
  return {
    'sgd': (),
    'momentum': (_momentum(prefix),),
    'adam': adam,
    'adagrad': (_epsilon(prefix, 1e-7), _accumulator(prefix, 0.1)),
  }


_BASE = _pair_options('base')
_PAIRS = _pair_options('server')
_ADAM = (_beta_1('server'), _beta_2('server'), _epsilon('server'))

SERVER_OPTIMIZER = choice(
  'server_optimizer',
  'sgd',
  'What the server does with the mean of the updates; base_* are the pairs (U, V) of '
  "the Mime paper, the others TFF's.",
  {
    'sgd': [_learning_rate(1.0)],
    'momentum': [_learning_rate(1.0), _momentum('server')],
    'adam': [_learning_rate(0.03), *_ADAM],
    'yogi': [_learning_rate(0.03), *_ADAM, _accumulator('server', 1e-6)],
    'adagrad': [
      _learning_rate(0.1),
      _epsilon('server'),
      _accumulator('server', 0.1),
    ],
    'base_momentum': [_learning_rate(1.0), *_PAIRS['momentum']],
    'base_adam': [_learning_rate(0.03), *_PAIRS['adam']],
    'base_adagrad': [_learning_rate(0.1), *_PAIRS['adagrad']],
  },
)

BASE_OPTIMIZER = choice(
  'base_optimizer',
  'sgd',
  'The pair (U, V) of the Mime paper that steps with the gradients.',
  {
    'sgd': [_learning_rate(0.1)],
    'momentum': [_learning_rate(0.1), *_BASE['momentum']],
    'adam': [_learning_rate(0.03), *_BASE['adam']],
    'adagrad': [_learning_rate(0.1), *_BASE['adagrad']],
  },
)


def build_server_optimizer(
  config: Mapping[str, Any],
) -> 'tff.learning.optimizers.Optimizer':
  """The optimizer that `--server_optimizer` and its flags describe."""
  import tensorflow_federated as tff

  name = config['server_optimizer']
  rate = config['server_learning_rate']
  if name.startswith('base_'):
    return _build_pair(name.removeprefix('base_'), 'server', config)
  if name == 'sgd':
    return tff.learning.optimizers.build_sgdm(rate)
  if name == 'momentum':
    return tff.learning.optimizers.build_sgdm(rate, config['server_momentum'])
  if name == 'adagrad':
    return tff.learning.optimizers.build_adagrad(
      rate,
      initial_preconditioner_value=config['server_initial_accumulator'],
      epsilon=config['server_epsilon'],
    )
  moments = {
    'beta_1': config['server_beta_1'],
    'beta_2': config['server_beta_2'],
    'epsilon': config['server_epsilon'],
  }
  if name == 'adam':
    return tff.learning.optimizers.build_adam(rate, **moments)
  return tff.learning.optimizers.build_yogi(
    rate, initial_preconditioner_value=config['server_initial_accumulator'], **moments
  )


def build_base_optimizer(
  config: Mapping[str, Any],
) -> 'tff.learning.optimizers.Optimizer':
  """The optimizer that `--base_optimizer` and its flags describe."""
  return _build_pair(config['base_optimizer'], 'base', config)


def _build_pair(
  name: str, prefix: str, config: Mapping[str, Any]
) -> 'tff.learning.optimizers.Optimizer':
  from tff_algorithms import base_optimizers

  build = getattr(base_optimizers, name)
  # The flags are named after the arguments, but for these two.
  arguments = {'momentum': 'beta', 'epsilon': 'eps'}
  constants = {}
  for option in _pair_options(prefix)[name]:
    constant = option.name.removeprefix(f'{prefix}_')
    constants[arguments.get(constant, constant)] = config[option.name]
  return base_optimizers.as_tff_optimizer(
    build(**constants), config['server_learning_rate']
  )
