"""Mirror descent and mirror-prox against their numpy oracle, and the half step."""

import numpy as np
import pytest

from tests.oracles import saddle_point as oracle
from tests.tff_algorithms import problems, saddle_problems
from tff_algorithms.minibatch_mirror import (
  build_minibatch_mirror_descent,
  build_minibatch_mirror_prox,
)

pytestmark = pytest.mark.slow

_RATE = 2.0**-4
# Name -> the builder, the oracle, and how the metric of the gradient at z is called.
_ALGORITHMS = {
  'descent': (build_minibatch_mirror_descent, oracle.mirror_descent, 'gradient_norm'),
  'prox': (
    build_minibatch_mirror_prox,
    oracle.mirror_prox,
    'FullGradient_gradient_norm',
  ),
}
_both = pytest.mark.parametrize('name', _ALGORITHMS)


@pytest.mark.usefixtures('runtime')
@_both
def test_agrees_with_the_oracle_with_bad_clients(name):
  build, numpy_version, gradient_norm = _ALGORITHMS[name]
  problem = saddle_problems.regression()
  cohorts = saddle_problems.regression_cohorts()
  process = build(problem.objective, learning_rate=_RATE, batch_size=4)
  expected = numpy_version(
    problem.mapping, problem.z0, saddle_problems.named(cohorts), gamma=_RATE
  )
  saddle_problems.assert_agrees(
    saddle_problems.run(process, cohorts), expected, 1e-5, gradient_norm=gradient_norm
  )


@pytest.mark.usefixtures('runtime')
@_both
def test_agrees_in_float64_with_the_means_over_batches_in_shuffled_orders(name):
  build, numpy_version, gradient_norm = _ALGORITHMS[name]
  problem = saddle_problems.regression(np.float64)
  cohorts = saddle_problems.regression_cohorts(np.float64)
  process = build(
    problem.objective, learning_rate=_RATE, batch_size=4, num_batches=5, seed=3
  )
  expected = numpy_version(
    problem.mapping,
    problem.z0,
    saddle_problems.named(cohorts),
    gamma=_RATE,
    num_batches=5,
    batch_size=4,
    order=saddle_problems.order_of(cohorts, seed=3),
  )
  saddle_problems.assert_agrees(
    saddle_problems.run(process, cohorts), expected, 1e-10, gradient_norm=gradient_norm
  )


@pytest.mark.parametrize(
  ('name', 'dtype'), [('descent', np.float32), ('prox', np.float64)]
)
def test_fewer_batches_than_rows_agree_with_the_oracle(name, dtype):
  build, numpy_version, _ = _ALGORITHMS[name]
  saddle_problems.assert_variant_agrees(
    build,
    numpy_version,
    dtype,
    dict(learning_rate=_RATE, batch_size=2, num_batches=2),
    dict(gamma=_RATE, batch_size=2, num_batches=2),
  )


@pytest.mark.usefixtures('runtime')
def test_the_half_step_of_another_round_is_not_used():
  """The second phase alone, without the first before it."""
  process = build_minibatch_mirror_prox(
    saddle_problems.regression().objective, learning_rate=_RATE
  )
  (cohort,) = saddle_problems.regression_cohorts(num_rounds=1, with_bad=False)
  clients = [problems.dataset(rows) for rows in cohort]
  state = process.next(process.initialize(), clients).state
  after = process.phases[1](state, clients).state.server
  assert after.round_num == 2
  saddle_problems.assert_close(
    after.weights.trainable, state.server.weights.trainable, 0
  )
  # With the first it moves on.
  between = process.phases[0](state, clients).state
  moved = process.phases[1](between, clients).state.server.weights.trainable
  assert np.abs(moved.max - state.server.weights.trainable.max).max() > 1e-3


@_both
@pytest.mark.parametrize(
  'bad', [dict(learning_rate=0.0), dict(batch_size=0), dict(num_batches=0)], ids=str
)
def test_a_bad_argument_is_refused_by_name(name, bad):
  build, *_ = _ALGORITHMS[name]
  with pytest.raises(ValueError, match=next(iter(bad))):
    build(saddle_problems.regression().objective, **(dict(learning_rate=0.1) | bad))
