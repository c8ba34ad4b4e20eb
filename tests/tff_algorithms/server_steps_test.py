"""Server steps and the state they start from."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_algorithms import problems
from tff_algorithms import oracles, schedules, server_steps


def _server(optimizer, **hparams):
  oracle = oracles.as_oracle(problems.logistic().model)
  return server_steps.initial_state(oracle, optimizer, seed=0, hparams=hparams)()


def test_the_first_state_has_the_models_weights_and_the_hyperparameters():
  server = _server(tff.learning.optimizers.build_sgdm(0.5), client_learning_rate=0.25)
  assert server.round_num == 0
  problems.assert_close(server.weights.trainable, problems.logistic().weights, 0)
  assert server.hparams == collections.OrderedDict(client_learning_rate=0.25)


def test_a_schedule_scales_a_step_and_leaves_the_base_rate():
  optimizer = tff.learning.optimizers.build_sgdm(0.5)
  server = _server(optimizer)._replace(round_num=tf.constant(2))
  step = server_steps.optimizer_step(optimizer, 'g', schedules.exponential(1))
  gradient = tf.nest.map_structure(tf.ones_like, server.weights.trainable)
  after = step(server, {'g': gradient})
  moved = server.weights.trainable['bias'] - after.weights.trainable['bias']
  np.testing.assert_allclose(moved, [0.125] * 3, rtol=1e-5)
  assert after.optimizer['learning_rate'] == 0.5


def test_a_schedule_needs_an_optimizer_with_a_learning_rate():
  class Fixed(tff.learning.optimizers.Optimizer):
    def initialize(self, specs):
      return ()

    def next(self, state, weights, gradients):
      return state, weights

  step = server_steps.optimizer_step(Fixed(), 'g', schedules.constant())
  server = _server(Fixed())
  with pytest.raises(ValueError, match='learning_rate'):
    step(server, {'g': server.weights.trainable})
