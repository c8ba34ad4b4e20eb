"""Every algorithm of the package on a small problem, for tests of what they share."""

import numpy as np
import pytest

from tests.tff_algorithms import problems
from tff_algorithms import base_optimizers
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.fed_prox import build_fed_prox
from tff_algorithms.server_only import build_server_only

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


BUILDERS = {'fed_avg': fed_avg, 'fed_prox': fed_prox, 'server_only': server_only}
every_algorithm = pytest.mark.parametrize('build', BUILDERS.values(), ids=BUILDERS)


def next_round(process, state, cohort):
  return process.next(state, [problems.dataset(rows) for rows in cohort])


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
