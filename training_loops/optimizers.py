"""Optimizers by name, the server's and base ones: their flags, how each is built.

Rates and constants default to what the federated papers recommend rather than to what
TFF's optimizers do: Reddi et al. 2021 (beta_2 = 0.99, epsilon = 1e-3), Karimireddy et
al. 2021 (AdaGrad from 0.1, epsilon = 1e-7).
"""

from collections.abc import Mapping, Sequence
import typing
from typing import Any

from training_loops.options import Option, choice, number, switch

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
  adam = (
    _beta_1(prefix),
    _beta_2(prefix),
    _epsilon(prefix),
    _accumulator(prefix, 0.0),
    switch(
      f'{prefix}_bias_correction', "Adam's averages corrected as in Mime's Algorithm 4."
    ),
  )
  return {
    'sgd': (),
    'momentum': (_momentum(prefix),),
    'adam': adam,
    'adagrad': (_epsilon(prefix, 1e-7), _accumulator(prefix, 0.1)),
  }


def _tff_options(prefix: str) -> dict[str, Sequence[Option]]:
  """TFF's own optimizers, each with the flags of its constants."""
  adam = (_beta_1(prefix), _beta_2(prefix), _epsilon(prefix))
  return {
    'sgd': (),
    'momentum': (_momentum(prefix),),
    'adam': adam,
    'yogi': (*adam, _accumulator(prefix, 1e-6)),
    'adagrad': (_epsilon(prefix), _accumulator(prefix, 0.1)),
  }


_SERVER_TFF, _SERVER_PAIRS = _tff_options('server'), _pair_options('server')
_BASE_TFF, _BASE_PAIRS = _tff_options('base'), _pair_options('base')

SERVER_OPTIMIZER = choice(
  'server_optimizer',
  'sgd',
  'What the server does with the mean of the updates; base_* are the pairs (U, V) of '
  "the Mime paper, the others TFF's.",
  {
    'sgd': [_learning_rate(1.0)],
    'momentum': [_learning_rate(1.0), *_SERVER_TFF['momentum']],
    'adam': [_learning_rate(0.03), *_SERVER_TFF['adam']],
    'yogi': [_learning_rate(0.03), *_SERVER_TFF['yogi']],
    'adagrad': [_learning_rate(0.1), *_SERVER_TFF['adagrad']],
    'base_momentum': [_learning_rate(1.0), *_SERVER_PAIRS['momentum']],
    'base_adam': [_learning_rate(0.03), *_SERVER_PAIRS['adam']],
    'base_adagrad': [_learning_rate(0.1), *_SERVER_PAIRS['adagrad']],
  },
)

_BASE: dict[str, Sequence[Option]] = {
  **_BASE_PAIRS,
  **{f'tff_{name}': _BASE_TFF[name] for name in ('adam', 'yogi', 'adagrad')},
}
_BASE_HELP = (
  "The pair (U, V) of the Mime paper that steps with the gradients; tff_* are TFF's, "
  'which step with the new mean square.'
)

# For clients that step with it, at the client learning rate.
BASE_OPTIMIZER = choice('base_optimizer', 'sgd', _BASE_HELP, _BASE)

MVR_A = number(
  'mvr_a', 0.1, '1 - beta of the variance-reduced momentum.', above=0, at_most=1
)

# For server-only training, where the server steps with it.
SERVER_BASE_OPTIMIZER = choice(
  'base_optimizer',
  'sgd',
  f'{_BASE_HELP} mvr is variance-reduced momentum.',
  {
    name: [_learning_rate(0.03 if 'adam' in name else 0.1), *options]
    for name, options in {**_BASE, 'mvr': (MVR_A,)}.items()
  },
)


def build_server_optimizer(
  config: Mapping[str, Any],
) -> 'tff.learning.optimizers.Optimizer':
  """The optimizer that `--server_optimizer` and its flags describe."""
  name, rate = config['server_optimizer'], config['server_learning_rate']
  if name.startswith('base_'):
    return _build_pair(name.removeprefix('base_'), rate, 'server', config)
  return _build_tff(name, rate, 'server', config)


def build_base_optimizer(
  config: Mapping[str, Any], learning_rate: float
) -> 'tff.learning.optimizers.Optimizer':
  """The optimizer that `--base_optimizer` and its flags describe; for mvr, SGD."""
  name = config['base_optimizer']
  if name.startswith('tff_'):
    return _build_tff(name.removeprefix('tff_'), learning_rate, 'base', config)
  return _build_pair('sgd' if name == 'mvr' else name, learning_rate, 'base', config)


def _build_tff(
  name: str, rate: float, prefix: str, config: Mapping[str, Any]
) -> 'tff.learning.optimizers.Optimizer':
  import tensorflow_federated as tff

  if name in ('sgd', 'momentum'):
    momentum = config[f'{prefix}_momentum'] if name == 'momentum' else None
    return tff.learning.optimizers.build_sgdm(rate, momentum)
  constants = _constants(
    _tff_options(prefix)[name],
    prefix,
    config,
    initial_accumulator='initial_preconditioner_value',
  )
  return getattr(tff.learning.optimizers, f'build_{name}')(rate, **constants)


def _build_pair(
  name: str, rate: float, prefix: str, config: Mapping[str, Any]
) -> 'tff.learning.optimizers.Optimizer':
  from tff_algorithms import base_optimizers

  options = _pair_options(prefix)[name]
  constants = _constants(options, prefix, config, momentum='beta', epsilon='eps')
  pair = getattr(base_optimizers, name)(**constants)
  return base_optimizers.as_tff_optimizer(pair, rate)


def _constants(
  options: Sequence[Option], prefix: str, config: Mapping[str, Any], **renamed: str
) -> dict[str, Any]:
  """A builder's arguments by the flags named after them, but for those renamed."""
  constants = {}
  for option in options:
    name = option.name.removeprefix(f'{prefix}_')
    constants[renamed.get(name, name)] = config[option.name]
  return constants
