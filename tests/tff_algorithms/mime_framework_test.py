"""The algorithms of the Mime paper against their numpy oracle, and what they share."""

import numpy as np
import pytest

from tests.oracles import mime as oracle
from tests.oracles import numpy_optimizers
from tests.tff_algorithms import problems
from tff_algorithms import base_optimizers
from tff_algorithms.loc_mime import build_loc_mime
from tff_algorithms.mime import build_mime
from tff_algorithms.mime_lite import build_mime_lite

pytestmark = [pytest.mark.usefixtures('runtime'), pytest.mark.slow]

# Unequal clients, an empty one and ones of a single example among them.
COHORTS = [
  [problems.classification_rows(n, seed=t + 5 * n) for n in sizes]
  for t, sizes in enumerate([(9, 4, 1), (7, 0, 6), (5, 12), (8, 1, 3), (10, 3)])
]
ETA = 0.05

PAIRS = {
  'sgd': (base_optimizers.sgd(), numpy_optimizers.Sgd()),
  'momentum': (base_optimizers.momentum(0.8), numpy_optimizers.Momentum(0.8)),
  'adagrad': (base_optimizers.adagrad(), numpy_optimizers.AdaGrad(1e-7, 0.1)),
  'adam': (
    base_optimizers.adam(0.8, 0.9, 1e-2, 0.01),
    numpy_optimizers.Adam(0.8, 0.9, 1e-2, 0.01),
  ),
  'adam, bias corrected': (
    base_optimizers.adam(0.8, 0.9, 1e-1, bias_correction=True),
    numpy_optimizers.Adam(0.8, 0.9, 1e-1, bias_correction=True),
  ),
}
# Name -> how it is built, and the oracle's arguments.
ALGORITHMS = {
  'mime': (build_mime, dict(control_variate='current'), {}),
  'mime, previous': (build_mime, dict(control_variate='previous'), {}),
  'mime_lite': (build_mime_lite, {}, dict(corrected=False)),
  'loc_mime': (build_loc_mime, {}, dict(updates_locally=True)),
}


def process_and_expected(algorithm, pair, problem, **changed):
  """A process, and the weights of its oracle after every round of COHORTS."""
  build, own, theirs = ALGORITHMS[algorithm]
  base, numpy_base = PAIRS[pair]
  common = dict(batch_size=4, epochs=2, **own, **changed)
  process = build(
    problem.model,
    base_optimizer=base_optimizers.as_tff_optimizer(base, ETA),
    shuffle=False,
    **common,
  )
  expected = oracle.mime(
    problem.oracle.loss_and_gradient,
    problem.weights,
    COHORTS,
    base=numpy_base,
    learning_rate=ETA,
    **common,
    **theirs,
  )
  return process, *expected


@pytest.mark.parametrize('pair', PAIRS)
@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_agrees_with_the_oracle_over_five_rounds(algorithm, pair):
  problem = problems.mlp()
  process, expected, expected_metrics = process_and_expected(algorithm, pair, problem)
  weights, metrics = problems.run(process, COHORTS)
  for ours, theirs in zip(weights, expected, strict=True):
    problems.assert_close(ours, theirs)
  for ours, theirs in zip(metrics, expected_metrics, strict=True):
    for name in ('client_drift', 'client_spread', 'gradient_norm'):
      reference = theirs[name.removeprefix('client_')]
      np.testing.assert_allclose(ours[name], reference, rtol=1e-3, atol=1e-6)
    assert ours['num_clients'] == theirs['num_clients']
