"""Tests of optimizers made of flags."""

import numpy as np
import pytest
import tensorflow as tf

from training_loops import optimizers, options

_GRADIENTS = np.array([[1.0, -2.0], [0.5, 3.0], [-1.0, 0.25]], np.float32)


def _steps(optimizer) -> np.ndarray:
  """Where three gradients lead from zero."""
  weights = tf.zeros([2])
  state = optimizer.initialize(tf.TensorSpec([2]))
  for gradient in _GRADIENTS:
    state, weights = optimizer.next(state, weights, tf.constant(gradient))
  return weights.numpy()


def _reference(rule, rate: float) -> np.ndarray:
  """The same with a numpy rule: (gradient, memory) -> step."""
  memory: dict = {}
  return -rate * sum(rule(g.astype(np.float64), memory) for g in _GRADIENTS)


def _sgd(g, memory):
  return g


def _heavy_ball(g, memory):
  memory['m'] = g + 0.5 * memory.get('m', 0)
  return memory['m']


def _averaged_momentum(g, memory):
  memory['m'] = 0.5 * g + 0.5 * memory.get('m', 0)
  return memory['m']


def _adagrad_new(g, memory):  # TFF's: divides by the root of the new v.
  memory['v'] = memory.get('v', 0.2) + g**2
  return g / np.sqrt(memory['v'] + 0.01)


def _adagrad_old(g, memory):  # The Mime paper's: of the old one.
  v = memory.get('v', 0.2)
  memory['v'] = v + g**2
  return g / (np.sqrt(v) + 0.01)


def _adam_old(g, memory):
  m, v = memory.get('m', 0), memory.get('v', 0.2)
  memory['m'], memory['v'] = 0.3 * g + 0.7 * m, 0.2 * g**2 + 0.8 * v
  return memory['m'] / (np.sqrt(v) + 0.01)


_CONSTANTS = {
  'momentum': 0.5,
  'beta_1': 0.7,
  'beta_2': 0.8,
  'epsilon': 0.01,
  'initial_accumulator': 0.2,
  'bias_correction': False,
}


def _flags(prefix: str, **chosen):
  """All constants set, so that each optimizer can take its own."""
  constants = {f'{prefix}_{name}': value for name, value in _CONSTANTS.items()}
  return {'server_learning_rate': 0.3, **constants, **chosen}


@pytest.mark.parametrize(
  ('name', 'rule'),
  [
    ('sgd', _sgd),
    ('momentum', _heavy_ball),
    ('adagrad', _adagrad_new),
    ('base_momentum', _averaged_momentum),
    ('base_adagrad', _adagrad_old),
    ('base_adam', _adam_old),
  ],
)
def test_a_server_optimizer_uses_its_rate_and_its_constants(name, rule):
  optimizer = optimizers.build_server_optimizer(_flags('server', server_optimizer=name))
  np.testing.assert_allclose(_steps(optimizer), _reference(rule, 0.3), rtol=1e-5)


@pytest.mark.parametrize('name', ['adam', 'yogi'])
@pytest.mark.parametrize(
  'constant', ['server_learning_rate', *(c for c in _CONSTANTS if 'bias' not in c)]
)
def test_every_flag_of_adam_and_yogi_matters_and_no_other(name, constant):
  flags = _flags('server', server_optimizer=name)
  constant = constant if constant in flags else f'server_{constant}'
  changed = {**flags, constant: flags[constant] / 2}
  before, after = (
    _steps(optimizers.build_server_optimizer(f)) for f in (flags, changed)
  )
  used = {option.name for option in optimizers.SERVER_OPTIMIZER.branches[name]}
  assert (np.abs(before - after) > 1e-6).any() == (constant in used)


@pytest.mark.parametrize(
  ('name', 'rule'),
  [
    ('sgd', _sgd),
    ('momentum', _averaged_momentum),
    ('adagrad', _adagrad_old),
    ('adam', _adam_old),
    ('tff_adagrad', _adagrad_new),
    ('mvr', _sgd),
  ],
)
def test_a_base_optimizer_uses_its_rate_and_its_constants(name, rule):
  optimizer = optimizers.build_base_optimizer(_flags('base', base_optimizer=name), 0.3)
  np.testing.assert_allclose(_steps(optimizer), _reference(rule, 0.3), rtol=1e-5)


def test_adams_bias_is_corrected_on_request():
  """Algorithm 4: U, m and v are divided by 1 - beta^t in every round."""
  memory = {'m': 0.0, 'v': 0.2, 't': 1}

  def rule(g, _):
    m, v, t = memory['m'], memory['v'], memory['t']
    memory['m'] = (0.3 * g + 0.7 * m) / (1 - 0.7**t)
    memory['v'] = (0.2 * g**2 + 0.8 * v) / (1 - 0.8**t)
    memory['t'] = t + 1
    return memory['m'] / (np.sqrt(v) + 0.01)

  flags = _flags('base', base_optimizer='adam') | {'base_bias_correction': True}
  optimizer = optimizers.build_base_optimizer(flags, 0.3)
  np.testing.assert_allclose(_steps(optimizer), _reference(rule, 0.3), rtol=1e-5)


@pytest.mark.parametrize('name', ['adam', 'yogi', 'adagrad'])
def test_tffs_base_optimizers_are_its_server_optimizers(name):
  base = optimizers.build_base_optimizer(
    _flags('base', base_optimizer=f'tff_{name}'), 0.3
  )
  server = optimizers.build_server_optimizer(_flags('server', server_optimizer=name))
  np.testing.assert_array_equal(_steps(base), _steps(server))


def _base_optimizer(flags):
  return optimizers.build_base_optimizer(flags, 0.1)


@pytest.mark.parametrize(
  ('option', 'build'),
  [
    (optimizers.SERVER_OPTIMIZER, optimizers.build_server_optimizer),
    (optimizers.BASE_OPTIMIZER, _base_optimizer),
    (optimizers.SERVER_BASE_OPTIMIZER, _base_optimizer),
  ],
)
def test_every_name_can_be_built_of_the_flags_it_brings(option, build):
  for name in option.branches:
    build(options.used([option], {option.name: name}))
