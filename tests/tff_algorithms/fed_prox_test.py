"""FedProx against its numpy oracle, and its place next to FedAvg."""

import numpy as np
import pytest

from tests.oracles import fed_avg as oracle
from tests.tff_algorithms import fed_avg_test, problems
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.fed_prox import Proximal, build_fed_prox

pytestmark = pytest.mark.usefixtures('runtime')

_COHORTS = [
  [problems.classification_rows(n, seed=t + 5 * n) for n in sizes]
  for t, sizes in enumerate([(9, 4, 1), (7, 0, 6), (5, 12), (8, 2), (10, 3)])
]
_ARGUMENTS = dict(client_learning_rate=0.2, batch_size=4, epochs=3)


@fed_avg_test.every_server_optimizer
def test_agrees_with_the_oracle_for_every_server_optimizer(name):
  problem = problems.mlp()
  server, numpy_server = fed_avg_test.SERVER_OPTIMIZERS[name]
  process = build_fed_prox(
    problem.model, rho=0.5, shuffle=False, server_optimizer=server, **_ARGUMENTS
  )
  weights, _ = problems.run(process, _COHORTS)
  expected, _ = oracle.fed_avg(
    problem.oracle.loss_and_gradient,
    problem.weights,
    _COHORTS,
    server_optimizer=numpy_server,
    rho=0.5,
    **_ARGUMENTS,
  )
  for ours, theirs in zip(weights, expected, strict=True):
    problems.assert_close(ours, theirs)


@pytest.mark.slow
def test_with_rho_zero_is_fed_avg():
  model = problems.mlp().model
  prox, _ = problems.run(build_fed_prox(model, rho=0.0, **_ARGUMENTS), _COHORTS)
  avg, _ = problems.run(build_fed_avg(model, **_ARGUMENTS), _COHORTS)
  for a, b in zip(prox, avg, strict=True):
    problems.assert_close(a, b, 1e-6)


@pytest.mark.slow
def test_two_proximal_terms_are_one_of_their_sum():
  class Second(Proximal):
    name = 'second'

  model = problems.mlp().model
  two, _ = problems.run(
    build_fed_prox(model, rho=0.3, terms=[Second(0.4)], **_ARGUMENTS), _COHORTS
  )
  one, _ = problems.run(build_fed_prox(model, rho=0.7, **_ARGUMENTS), _COHORTS)
  problems.assert_close(two[-1], one[-1], 1e-6)


@pytest.mark.slow
def test_many_steps_end_at_the_proximal_point():
  """argmin a/2 (y - b)^2 + rho/2 (y - x)^2 = (a b + rho x) / (a + rho)."""
  a, b, rho, x = 2.0, 3.0, 0.5, -1.0
  process = build_fed_prox(
    problems.quadratic([x]).model,
    rho=rho,
    client_learning_rate=0.2,
    batch_size=1,
    epochs=60,
  )
  weights, _ = problems.run(process, [[problems.quadratic_rows([[[a]]], [[b]])]])
  np.testing.assert_allclose(weights[0]['w'], [(a * b + rho * x) / (a + rho)], 1e-5)


def test_a_negative_rho_is_refused():
  with pytest.raises(ValueError, match='rho'):
    build_fed_prox(problems.logistic().model, rho=-1.0, **_ARGUMENTS)
