"""How clients step: fresh statistics, the server's, or a copy of the server's."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import base_optimizers, client_optimizers
from tff_algorithms.models import ModelWeights
from tff_algorithms.server_state import ServerState

_Y = collections.OrderedDict(w=tf.constant([1.0, 2.0]))
_G = collections.OrderedDict(w=tf.constant([0.5, -1.0]))
_SPECS = collections.OrderedDict(w=tf.TensorSpec([2]))


def _server(optimizer, **hparams):
  """The state of a server that has tracked one gradient."""
  state, _ = optimizer.next(optimizer.initialize(_SPECS), _Y, _G)
  return ServerState(
    round_num=tf.constant(1),
    weights=ModelWeights(_Y, ()),
    optimizer=state,
    terms=(),
    hparams=collections.OrderedDict((k, tf.constant(v)) for k, v in hparams.items()),
  )


def _momentum(rate=0.1):
  return base_optimizers.as_tff_optimizer(base_optimizers.momentum(0.8), rate)


def _steps(optimizer, server, factor=1.0, num_steps=2):
  """The states before each step and after the last, and y after them."""
  state = optimizer.start(optimizer.message(server, factor), _SPECS)
  states, y = [state], _Y
  for _ in range(num_steps):
    state, y = optimizer.update(state, y, _G)
    states.append(state)
  return [s['statistics']['w'] for s in states], y['w']


def test_fresh_statistics_start_anew_and_are_updated():
  fresh = client_optimizers.Fresh(base_optimizers.momentum(0.8))
  m, y = _steps(fresh, _server(_momentum(), client_learning_rate=0.5))
  g = _G['w'].numpy()
  np.testing.assert_allclose(m, [0 * g, 0.2 * g, 0.36 * g], rtol=1e-5)
  np.testing.assert_allclose(y, _Y['w'] - 0.5 * (0.2 + 0.36) * g, rtol=1e-5)


def test_the_servers_statistics_stay_fixed():
  """m = 0.2 g of the server: every step is 0.2 g + 0.8 m."""
  servers = client_optimizers.ServersState(_momentum())
  m, y = _steps(servers, _server(_momentum()))
  g = _G['w'].numpy()
  np.testing.assert_allclose(m, [0.2 * g] * 3, rtol=1e-5)
  np.testing.assert_allclose(y, _Y['w'] - 0.1 * 2 * 0.36 * g, rtol=1e-5)


def test_a_copy_of_the_servers_statistics_is_updated():
  servers = client_optimizers.ServersState(_momentum(), updates_locally=True)
  m, y = _steps(servers, _server(_momentum()))
  g = _G['w'].numpy()
  np.testing.assert_allclose(m, [0.2 * g, 0.36 * g, 0.488 * g], rtol=1e-5)
  np.testing.assert_allclose(y, _Y['w'] - 0.1 * (0.36 + 0.488) * g, rtol=1e-5)


@pytest.mark.parametrize('updates_locally', [False, True])
def test_a_schedules_factor_scales_the_rate_that_is_sent(updates_locally):
  servers = client_optimizers.ServersState(_momentum(), updates_locally)
  server = _server(_momentum())
  sent = servers.message(server, tf.constant(0.25))
  np.testing.assert_allclose(sent['learning_rate'], 0.025)
  np.testing.assert_allclose(server.optimizer['learning_rate'], 0.1)
  fresh = client_optimizers.Fresh(base_optimizers.sgd())
  sent = fresh.message(_server(_momentum(), client_learning_rate=0.5), 0.25)
  np.testing.assert_allclose(sent, 0.125)


@pytest.mark.parametrize(
  'make',
  [
    lambda rate: tff.learning.optimizers.build_sgdm(rate, 0.9),
    tff.learning.optimizers.build_adam,
    tff.learning.optimizers.build_adagrad,
    tff.learning.optimizers.build_yogi,
    tff.learning.optimizers.build_rmsprop,
  ],
  ids=['sgdm', 'adam', 'adagrad', 'yogi', 'rmsprop'],
)
def test_an_optimizer_of_tffs_steps_with_a_fixed_state_too(make):
  optimizer = make(0.1)
  server = _server(optimizer)
  servers = client_optimizers.ServersState(optimizer)
  state = servers.start(servers.message(server, 0.5), _SPECS)
  new_state, y = servers.update(state, _Y, _G)
  half = make(0.05)
  half_state = half.set_hparams(server.optimizer, half.get_hparams(state))
  _, expected = half.next(half_state, _Y, _G)
  np.testing.assert_allclose(y['w'], expected['w'], rtol=1e-6)
  assert np.abs(y['w'] - _Y['w']).max() > 1e-4
  tf.nest.map_structure(np.testing.assert_array_equal, new_state, state)
