"""SCAFFOLD-Catalyst-S against its numpy oracle, and when its meta-iterations end."""

import numpy as np
import pytest
import tensorflow as tf

import tasks
from tests.oracles import saddle_point as oracle
from tests.tff_algorithms import problems, saddle_problems
from tff_algorithms.catalyst_stopping import (
  InnerRounds,
  MetaIteration,
  ProxAccuracy,
  SubProblem,
  SufficientDecrease,
)
from tff_algorithms.saddle_point import SaddlePoint
from tff_algorithms.scaffold_catalyst_s import build_scaffold_catalyst_s
from training_loops import algorithms, train_flags
from training_loops.options import UserError

_RATE = 2.0**-5


@pytest.mark.slow
@pytest.mark.usefixtures('runtime')
def test_agrees_with_the_oracle_with_bad_clients():
  """And gamma_g != gamma_l, the rows as they come."""
  problem = saddle_problems.regression()
  cohorts = saddle_problems.regression_cohorts()
  process = build_scaffold_catalyst_s(
    problem.objective,
    theta=0.75,
    stopping=SufficientDecrease(0.85),
    client_learning_rate=_RATE,
    server_learning_rate=1.5 * _RATE,
    local_steps=5,
    batch_size=4,
    shuffle=False,
  )
  expected = oracle.scaffold_catalyst_s(
    problem.mapping,
    problem.z0,
    saddle_problems.named(cohorts),
    theta=0.75,
    decrease=0.85,
    gamma_l=_RATE,
    gamma_g=1.5 * _RATE,
    tau=5,
    batch_size=4,
  )
  saddle_problems.assert_agrees(saddle_problems.run(process, cohorts), expected, 1e-5)
  assert 4 < expected[1][-1]['meta_iterations'] < 20


@pytest.mark.slow
@pytest.mark.usefixtures('runtime')
def test_agrees_in_float64_with_random_synchronization_and_orders():
  problem = saddle_problems.regression(np.float64)
  cohorts = saddle_problems.regression_cohorts(np.float64)
  process = build_scaffold_catalyst_s(
    problem.objective,
    theta=0.75,
    stopping=InnerRounds(3),
    client_learning_rate=_RATE,
    sync_probability=0.25,
    batch_size=4,
    seed=3,
  )
  expected = oracle.scaffold_catalyst_s(
    problem.mapping,
    problem.z0,
    saddle_problems.named(cohorts),
    theta=0.75,
    inner_rounds=3,
    gamma_l=_RATE,
    tau=saddle_problems.drawn_steps(0.25, 3, len(cohorts)),
    batch_size=4,
    order=saddle_problems.order_of(cohorts, seed=3),
  )
  saddle_problems.assert_agrees(saddle_problems.run(process, cohorts), expected, 1e-10)
  # The round that nobody took part in is none of the three.
  assert expected[1][-1]['meta_iterations'] == 6


@pytest.mark.slow
@pytest.mark.parametrize(
  ('dtype', 'ours', 'theirs'),
  [
    (np.float32, InnerRounds(2), dict(inner_rounds=2)),
    (np.float64, SufficientDecrease(0.8), dict(decrease=0.8)),
  ],
  ids=['rounds', 'decrease'],
)
def test_stopping_rules_agree_with_the_oracle(dtype, ours, theirs):
  metrics = saddle_problems.assert_variant_agrees(
    build_scaffold_catalyst_s,
    oracle.scaffold_catalyst_s,
    dtype,
    dict(
      theta=1.5,
      stopping=ours,
      client_learning_rate=_RATE,
      local_steps=3,
      batch_size=100,
    ),
    dict(theta=1.5, gamma_l=_RATE, tau=3, batch_size=100, **theirs),
  )
  assert 4 < metrics[-1]['meta_iterations'] < 19


_A, _B = [[1.0, 1.5], [2.0, 1.0], [1.5, 2.5]], [[1.0, 0.0], [-1.0, 0.5], [0.5, 1.0]]


def _prox(clients):
  """The oracle's prox in TensorFlow: (M + theta) z = theta zbar - c."""
  M, c = oracle.QuadraticGame(h=1.0, lam=0.75).linear(clients)

  def prox(zbar, theta):
    dtype = zbar.min.dtype
    inverse = tf.constant(np.linalg.inv(M + theta * np.eye(len(M))), dtype)
    v = theta * tf.concat([zbar.min, zbar.max], axis=0) - tf.constant(c, dtype)
    return SaddlePoint(*tf.split(tf.linalg.matvec(inverse, v), 2))

  return prox


@pytest.mark.slow
@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_the_distance_to_the_prox_agrees_with_the_oracle(dtype):
  clients = saddle_problems.game_clients(_A, _B, dtype)
  game = oracle.QuadraticGame(h=1.0, lam=0.75)
  named = list(enumerate(clients))
  ones = [np.ones(2, dtype)]
  common = dict(theta=1.5, tau=4)
  metrics = saddle_problems.assert_variant_agrees(
    build_scaffold_catalyst_s,
    oracle.scaffold_catalyst_s,
    dtype,
    dict(
      theta=1.5,
      stopping=ProxAccuracy(_prox(named), convexity=0.75, epsilon=0.1),
      client_learning_rate=0.0625,
      local_steps=4,
      batch_size=1,
    ),
    dict(prox=game.prox(named, 1.5), mu=0.75, epsilon=0.1, gamma_l=0.0625, **common),
    saddle_problems.Problem(
      saddle_problems.quadratic_game(dtype=dtype), game.mapping, (ones, ones)
    ),
    [clients] * 22,
  )
  assert 4 < metrics[-1]['meta_iterations'] < 20


# Rounds that fail.


@pytest.mark.slow
@pytest.mark.usefixtures('runtime')
@pytest.mark.parametrize(
  ('ours', 'theirs'),
  [
    (InnerRounds(2), dict(inner_rounds=2)),
    (SufficientDecrease(0.8), dict(decrease=0.8)),
  ],
  ids=['rounds', 'decrease'],
)
def test_a_round_in_which_all_updates_fail_is_no_round_of_a_meta_iteration(
  ours, theirs
):
  """Gradients at z~ are finite there, and local steps overflow."""
  game = oracle.QuadraticGame(h=1.0, lam=0.75)
  good = saddle_problems.game_clients(_A, _B, np.float32)
  overflowing = saddle_problems.game_clients([[1e10, 1e10]], [[0.0, 0.0]], np.float32)
  without_rows = [{name: rows[:0] for name, rows in good[0].items()}]
  cohorts = [good] * 22
  for t in (0, 4, 5, 9, 14):
    cohorts[t] = overflowing
  cohorts[10] = without_rows
  ones = [np.ones(2, np.float32)]
  expected = oracle.scaffold_catalyst_s(
    game.mapping,
    (ones, ones),
    saddle_problems.named(cohorts),
    theta=1.5,
    gamma_l=_RATE,
    tau=5,
    **theirs,
  )
  process = build_scaffold_catalyst_s(
    saddle_problems.quadratic_game(dtype=np.float32),
    theta=1.5,
    stopping=ours,
    client_learning_rate=_RATE,
    local_steps=5,
    batch_size=1,
  )
  state = process.initialize()
  for cohort, z, told in zip(cohorts, *expected, strict=True):
    clients = [problems.dataset(rows) for rows in cohort]
    state = process.next(state, clients).state
    saddle_problems.assert_close(state.server.weights.trainable, z)
    kept = state.server.terms[1].kept
    saddle_problems.assert_close(kept.zbar, told['zbar'])
    assert (kept.t, kept.inner_rounds) == (
      told['meta_iterations'],
      told['inner_rounds'],
    )
  failed = [t for t, told in enumerate(expected[1]) if told['num_clients'] == 0]
  assert failed == [0, 4, 5, 9, 10, 14]
  assert [t for t in failed if np.isnan(expected[1][t]['gradient_norm'])] == [10]
  assert 4 < kept.t < 16


# When a meta-iteration ends, by hand.


def _problem(inner_rounds=1, norm=1.0, start_norm=1.0, z=(3.0,), zbar=(0.0,)):
  z, zbar = (SaddlePoint(tf.constant(v), tf.constant(v)) for v in (z, zbar))
  meta = MetaIteration(
    tf.constant(0), zbar, tf.constant(inner_rounds), tf.constant(start_norm)
  )
  return SubProblem(meta, z, tf.constant(norm), 2.0)


def test_rounds_are_counted():
  rule = InnerRounds(3)
  assert [bool(rule.is_solved(_problem(n))) for n in (1, 2, 3)] == [False, False, True]


@pytest.mark.parametrize(
  ('norm', 'is_solved'), [(1.0, False), (0.51, False), (0.5, True)]
)
def test_a_norm_is_compared_with_that_at_the_start(norm, is_solved):
  rule = SufficientDecrease()
  assert bool(rule.is_solved(_problem(norm=2 * norm, start_norm=2.0))) == is_solved


@pytest.mark.parametrize(('epsilon', 'is_solved'), [(71.0, False), (73.0, True)])
def test_the_accuracy_asked_of_a_prox_is_that_of_algorithm_5(epsilon, is_solved):
  """||z - prox||^2 = 2 against (1 / (2 (2 + 1)))^2 epsilon."""

  def prox(zbar, theta):
    assert theta == 2.0
    return SaddlePoint(zbar.min + 2.0, zbar.max + 2.0)

  rule = ProxAccuracy(prox, convexity=1.0, epsilon=epsilon)
  assert bool(rule.is_solved(_problem())) == is_solved


def _no_prox(zbar, theta):
  raise NotImplementedError


@pytest.mark.parametrize(
  ('rule', 'name'),
  [
    (lambda: InnerRounds(0), 'inner_rounds'),
    (lambda: SufficientDecrease(0.0), 'factor'),
    (lambda: SufficientDecrease(1.0), 'factor'),
    (lambda: SufficientDecrease(float('nan')), 'factor'),
    (lambda: ProxAccuracy(_no_prox, 0.0, 1.0), 'convexity'),
    (lambda: ProxAccuracy(_no_prox, 1.0, -1.0), 'epsilon'),
  ],
)
def test_a_bad_stopping_rule_is_refused_by_name(rule, name):
  with pytest.raises(ValueError, match=name):
    rule()


@pytest.mark.parametrize('theta', [-0.1, float('nan'), float('inf')])
def test_a_bad_theta_is_refused(theta):
  with pytest.raises(ValueError, match='theta must be 0 or a positive number'):
    build_scaffold_catalyst_s(
      saddle_problems.regression().objective,
      theta=theta,
      client_learning_rate=0.1,
      batch_size=4,
    )


@pytest.mark.slow
def test_a_distance_that_float32_cannot_tell_is_refused():
  """mu sqrt(epsilon) / (2 (theta + mu)) = 5e-9, and 5e-6 with a larger epsilon."""

  def build(dtype, epsilon):
    build_scaffold_catalyst_s(
      saddle_problems.quadratic_game(dtype=dtype),
      theta=1.0,
      stopping=ProxAccuracy(lambda zbar, theta: zbar, 1e-5, epsilon),
      client_learning_rate=0.1,
      batch_size=1,
    )

  with pytest.raises(ValueError, match=r'5e-09, which is lost .* of float32 weights'):
    build(np.float32, 1e-6)
  build(np.float64, 1e-6)
  build(np.float32, 1.0)


@pytest.mark.slow
def test_the_training_binary_says_which_flags_make_an_accuracy_possible():
  def build(**flags):
    config = train_flags.configure(
      task='quadratic_game',
      output_dir='x',
      algorithm='scaffold_catalyst_s',
      catalyst_stopping='prox_accuracy',
      **flags,
    )
    task = tasks.load('quadratic_game', 0, precision=config['precision'])
    algorithms.build(config, task)

  with pytest.raises(UserError, match=r'--precision=float64 .*--catalyst_epsilon'):
    build(precision='float32')
  build(precision='float64')
  build(precision='float32', catalyst_epsilon=1.0)


@pytest.mark.slow
@pytest.mark.usefixtures('runtime')
def test_with_weights_that_are_set_a_meta_iteration_starts_there():
  problem = saddle_problems.regression()
  cohorts = saddle_problems.regression_cohorts(num_rounds=4, with_bad=False)
  process = build_scaffold_catalyst_s(
    problem.objective,
    theta=0.75,
    stopping=InnerRounds(10),
    client_learning_rate=_RATE,
    batch_size=4,
  )
  clients = [[problems.dataset(rows) for rows in cohort] for cohort in cohorts]
  state = process.initialize()
  for cohort in clients[:3]:
    state = process.next(state, cohort).state
  assert state.server.terms[1].kept.inner_rounds == 3
  weights = process.get_model_weights(state)
  elsewhere = tf.nest.map_structure(lambda part: 1.5 * part, weights)
  state = process.next(process.set_model_weights(state, elsewhere), clients[3]).state
  kept = state.server.terms[1].kept
  saddle_problems.assert_close(kept.zbar, elsewhere.trainable, 0)
  assert (kept.t, kept.inner_rounds) == (0, 1)


@pytest.mark.slow
def test_it_starts_at_weights_that_are_set():
  """In the first round zbar is z~: no pull there, whatever theta."""
  objective = saddle_problems.regression(np.float64).objective
  (cohort,) = saddle_problems.regression_cohorts(np.float64, 1, with_bad=False)
  start = saddle_problems.regression_start(np.float64)
  elsewhere = tf.nest.map_structure(lambda t: 1.5 * t, start)
  arguments = dict(client_learning_rate=_RATE, batch_size=4, local_steps=1)
  ends = [
    saddle_problems.Phases(
      build_scaffold_catalyst_s, objective, theta=theta, **arguments
    ).zs([cohort], z=elsewhere)[-1]
    for theta in (0.0, 2.0)
  ]
  np.testing.assert_allclose(*ends, rtol=1e-12)
