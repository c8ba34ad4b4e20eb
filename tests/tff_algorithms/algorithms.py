"""Every algorithm of the package on a small problem, for tests of what they share."""

import dataclasses
import functools

import numpy as np
import pytest

from tests.tff_algorithms import problems
from tff_algorithms import base_optimizers, models, oracles
from tff_algorithms.client_states import InMemoryClientStates
from tff_algorithms.elastic import build_elastic
from tff_algorithms.extra_step_local_sgd import build_extra_step_local_sgd
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.fed_avg_s import build_fed_avg_s
from tff_algorithms.fed_dyn import build_fed_dyn
from tff_algorithms.fed_prox import build_fed_prox
from tff_algorithms.loc_mime import build_loc_mime
from tff_algorithms.mime import build_mime
from tff_algorithms.mime_lite import build_mime_lite
from tff_algorithms.mime_mvr import build_mime_mvr
from tff_algorithms.minibatch_mirror import (
  build_minibatch_mirror_descent,
  build_minibatch_mirror_prox,
)
from tff_algorithms.one_way_gradient_transfer import build_one_way_gradient_transfer
from tff_algorithms.parallel_training import build_parallel_training
from tff_algorithms.process import StatefulProcess
from tff_algorithms.saddle_point import SaddlePoint
from tff_algorithms.scaffold import build_scaffold
from tff_algorithms.scaffold_catalyst_s import build_scaffold_catalyst_s
from tff_algorithms.scaffold_s import build_scaffold_s
from tff_algorithms.server_only import build_server_only
from tff_algorithms.two_way_gradient_transfer import build_two_way_gradient_transfer

COHORT = [problems.classification_rows(n, seed=n) for n in (9, 4, 5)]


def fed_avg(**arguments):
  defaults = dict(client_learning_rate=0.1, batch_size=4)
  return build_fed_avg(problems.logistic().model, **(defaults | arguments))


def fed_prox(**arguments):
  defaults = dict(client_learning_rate=0.1, batch_size=4, rho=0.1)
  return build_fed_prox(problems.logistic().model, **(defaults | arguments))


def server_only(**arguments):
  optimizer = base_optimizers.as_tff_optimizer(base_optimizers.momentum(), 0.1)
  return build_server_only(problems.logistic().model, optimizer=optimizer, **arguments)


def server_only_mvr(**arguments):
  optimizer = base_optimizers.as_tff_optimizer(base_optimizers.sgd(), 0.1)
  model = problems.logistic().model
  return build_server_only(model, optimizer=optimizer, mvr_a=0.2, **arguments)


def _with_an_aggregator_for_all(arguments):
  """An aggregator is for the gradients too, unless they have one of their own."""
  if 'aggregator' in arguments:
    return {'gradient_aggregator': arguments['aggregator']} | arguments
  return arguments


def _of_mime(build):
  """Builds a process of the Mime framework with momentum."""

  def build_with(**arguments):
    optimizer = base_optimizers.as_tff_optimizer(base_optimizers.momentum(), 0.1)
    defaults = dict(base_optimizer=optimizer, batch_size=4)
    arguments = defaults | _with_an_aggregator_for_all(arguments)
    return build(problems.logistic().model, **arguments)

  return build_with


def _of_mvr(lite):
  def build_with(**arguments):
    defaults = dict(a=0.2, learning_rate=0.1, batch_size=4, lite=lite)
    arguments = defaults | _with_an_aggregator_for_all(arguments)
    return build_mime_mvr(problems.logistic().model, **arguments)

  return build_with


def _of_mixed(build, **own):
  """Builds a process of mixed FL whose central loss needs no rows."""

  def build_with(**arguments):
    defaults = dict(client_learning_rate=0.1, batch_size=4, **own)
    arguments = defaults | _with_an_aggregator_for_all(arguments)
    central = oracles.WeightLoss(problems.half_square)
    return build(problems.logistic().model, central, **arguments)

  return build_with


def _of_elastic(build, **own):
  """Builds a process whose clients hold back a third of their rows."""

  def build_with(**arguments):
    defaults = dict(client_learning_rate=0.1, batch_size=4, **own)
    sensitivity = dict(fraction=0.34, sensitivity_batch_size=1)
    if 'aggregator' in arguments:
      sensitivity['sensitivity_aggregator'] = arguments['aggregator']
    arguments = defaults | sensitivity | arguments
    return build_elastic(build, problems.logistic().model, **arguments)

  return build_with


elastic = _of_elastic(build_fed_avg)

mime = _of_mime(build_mime)
mime_previous = _of_mime(functools.partial(build_mime, control_variate='previous'))
mime_lite = _of_mime(build_mime_lite)
loc_mime = _of_mime(build_loc_mime)
mime_mvr = _of_mvr(lite=False)
mime_lite_mvr = _of_mvr(lite=True)

_CENTRAL = dict(central_batch_size=1, central_steps=2)
parallel_training = _of_mixed(build_parallel_training, **_CENTRAL)
one_way_gradient_transfer = _of_mixed(build_one_way_gradient_transfer)


def _two_way_with_an_aggregator_for_all(model, central, **arguments):
  if 'aggregator' in arguments:
    arguments['steps_aggregator'] = arguments['aggregator']
  return build_two_way_gradient_transfer(model, central, **arguments)


two_way_gradient_transfer = _of_mixed(_two_way_with_an_aggregator_for_all, **_CENTRAL)


def _logistic_game():
  """Logistic regression whose bias is an adversary's."""
  logistic = problems.logistic().model

  def initialize(seed):
    weights = logistic.initialize(seed).trainable
    return models.ModelWeights(SaddlePoint(weights['kernel'], weights['bias']), ())

  def predict(weights, x, seed):
    return x @ weights.trainable.min + weights.trainable.max

  return dataclasses.replace(logistic, initialize=initialize, predict=predict)


def _of_saddle(build, **own):
  """Builds a process with local steps for the game."""

  def build_with(**arguments):
    defaults = dict(client_learning_rate=0.1, batch_size=4, local_steps=3, **own)
    arguments = defaults | _with_an_aggregator_for_all(arguments)
    return build(_logistic_game(), **arguments)

  return build_with


def _of_mirror(build):
  def build_with(**arguments):
    return build(_logistic_game(), learning_rate=0.1, **arguments)

  return build_with


fed_avg_s = _of_saddle(build_fed_avg_s)
extra_step_local_sgd = _of_saddle(build_extra_step_local_sgd)
scaffold_s = _of_saddle(build_scaffold_s)
scaffold_catalyst_s = _of_saddle(build_scaffold_catalyst_s, theta=0.5)
minibatch_mirror_descent = _of_mirror(build_minibatch_mirror_descent)
minibatch_mirror_prox = _of_mirror(build_minibatch_mirror_prox)

# Of full gradients alone: these do not depend on how rows are batched.
SERVER_STEPS_ONLY = (
  server_only,
  server_only_mvr,
  minibatch_mirror_descent,
  minibatch_mirror_prox,
)
SADDLE = {
  'fed_avg_s': fed_avg_s,
  'extra_step_local_sgd': extra_step_local_sgd,
  'scaffold_s': scaffold_s,
  'scaffold_catalyst_s': scaffold_catalyst_s,
  'minibatch_mirror_descent': minibatch_mirror_descent,
  'minibatch_mirror_prox': minibatch_mirror_prox,
}
MIME_FAMILY = {
  'mime': mime,
  'mime_previous': mime_previous,
  'mime_lite': mime_lite,
  'loc_mime': loc_mime,
  'mime_mvr': mime_mvr,
  'mime_lite_mvr': mime_lite_mvr,
}
BUILDERS = {
  'fed_avg': fed_avg,
  'fed_prox': fed_prox,
  'elastic': elastic,
  'server_only': server_only,
  'server_only_mvr': server_only_mvr,
  **MIME_FAMILY,
  'parallel_training': parallel_training,
  'one_way_gradient_transfer': one_way_gradient_transfer,
  'two_way_gradient_transfer': two_way_gradient_transfer,
  **SADDLE,
}
every_algorithm = pytest.mark.parametrize('build', BUILDERS.values(), ids=BUILDERS)


def scaffold(**arguments):
  defaults = dict(num_clients=9, client_learning_rate=0.1, batch_size=4)
  return build_scaffold(problems.logistic().model, **(defaults | arguments))


def fed_dyn(**arguments):
  defaults = dict(num_clients=9, alpha=0.1, client_learning_rate=0.1, batch_size=4)
  return build_fed_dyn(problems.logistic().model, **(defaults | arguments))


scaffold_elastic = _of_elastic(build_scaffold, num_clients=9)

ELASTIC = {'elastic': elastic, 'scaffold_elastic': scaffold_elastic}
# Those whose clients keep something are no learning processes.
_ALL = BUILDERS | {'scaffold': scaffold, 'fed_dyn': fed_dyn} | ELASTIC
every_algorithm_stateful_ones_too = pytest.mark.parametrize(
  'build', _ALL.values(), ids=_ALL
)


_IN_STREAMS = {name: build for name, build in _ALL.items() if name not in ELASTIC}
every_algorithm_that_takes_streams = pytest.mark.parametrize(
  'build', _IN_STREAMS.values(), ids=_IN_STREAMS
)


def next_round(process, state, cohort):
  """A round, in which clients that keep something do so for the first time."""
  datasets = [problems.dataset(rows) for rows in cohort]
  if not isinstance(process, StatefulProcess):
    return process.next(state, datasets)
  states = InMemoryClientStates(process).read([f'c{i}' for i in range(len(cohort))])
  return process.next(state, datasets, states)


def poisoned(value, n=6):
  """A client with one bad number in its data."""
  rows = problems.classification_rows(n, seed=9)
  rows['x'][n // 2, 1] = value
  return rows


def assert_states_close(actual, expected, rtol):
  import tensorflow as tf

  leaves = zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True)
  for a, b in leaves:
    np.testing.assert_allclose(a, b, rtol=rtol)
