"""Identities of the Mime family as properties, in plain TensorFlow and float64.

The phases are those that the public builders make, run here without a runtime; that
the process around them does the same is what the tests against the oracle show.
"""

import collections
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf

from tests.oracles import numpy_models
from tests.tff_algorithms import problems
from tff_algorithms import base_optimizers, process
from tff_algorithms.client_inputs import ClientRows

pytestmark = pytest.mark.slow

PAIRS = {
  'sgd': base_optimizers.sgd(),
  'momentum': base_optimizers.momentum(0.8),
  'adagrad': base_optimizers.adagrad(),
  'adam': base_optimizers.adam(0.8, 0.9, 1e-2, 0.01),
  'adam, bias corrected': base_optimizers.adam(0.8, 0.9, 1e-1, bias_correction=True),
}
every_pair = pytest.mark.parametrize('pair', PAIRS)
RATE = 0.25


def phases_of(build, *arguments, **named):
  """What a builder makes a process of: (() -> its first state, its phases)."""
  with mock.patch.object(
    process, 'build_learning_process', lambda init, phases, *_, **__: (init, phases)
  ):
    return build(*arguments, **named)


def mean_uploads(results, name):
  """The mean of an upload by its weights, in numpy."""
  kept = [r.uploads[name] for r in results if r.uploads[name].weight > 0]
  mean = numpy_models.weighted_mean(
    [upload.value for upload in kept], [float(upload.weight) for upload in kept]
  )
  return collections.OrderedDict(mean)


def run(init_and_phases, cohorts, only_gradient=None):
  """The server's state after every round.

  Args:
    init_and_phases: Of `phases_of`.
    cohorts: For each round the rows of its clients.
    only_gradient: In a split cohort, whether each client sends only a gradient.
  """
  init, phases = init_and_phases
  server, servers = init(), []
  for cohort in cohorts:
    clients = [
      ClientRows(
        tf.constant(i, tf.int64),
        tf.nest.map_structure(tf.constant, rows),
        only_gradient=only_gradient and tf.constant(only_gradient[i]),
      )
      for i, rows in enumerate(cohort)
    ]
    for phase in phases:
      message = phase.message(server)
      results = [phase.work(message, client) for client in clients]
      means = {name: mean_uploads(results, name) for name in phase.aggregators}
      server = phase.finish(server, means)
    server = server._replace(round_num=server.round_num + 1)
    servers.append(server)
  return servers


def x_of(server):
  return server.weights.trainable


def assert_same_rounds(ours, theirs, tolerance):
  """The same x after every round; each moves, so that there is something to compare."""
  for a, b in zip(ours, theirs, strict=True):
    problems.assert_close(x_of(a), x_of(b), tolerance)
  assert np.any(x_of(theirs[-1])['bias'] != problems.logistic().weights['bias'][0])


def distance(server, weights):
  """The norm of x - weights."""
  x = {name: value.numpy() for name, value in x_of(server).items()}
  return numpy_models.norm(numpy_models.map_weights(np.subtract, x, weights))
