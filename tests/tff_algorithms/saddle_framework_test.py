"""What the saddle-point algorithms share: arguments, phases, what comes out."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_algorithms import algorithms, problems, saddle_problems
from tff_algorithms.extra_step_local_sgd import build_extra_step_local_sgd
from tff_algorithms.fed_avg_s import build_fed_avg_s
from tff_algorithms.minibatch_mirror import (
  build_minibatch_mirror_descent,
  build_minibatch_mirror_prox,
)
from tff_algorithms.models import ModelWeights
from tff_algorithms.scaffold_catalyst_s import build_scaffold_catalyst_s
from tff_algorithms.scaffold_s import build_scaffold_s

_OBJECTIVE = saddle_problems.regression().objective


def _build(build=build_fed_avg_s, objective=_OBJECTIVE, **arguments):
  defaults = dict(client_learning_rate=0.125, batch_size=4, local_steps=2)
  if build is build_scaffold_catalyst_s:
    defaults['theta'] = 1.0
  return build(objective, **(defaults | arguments))


# Arguments.


@pytest.mark.parametrize(
  ('bad', 'message'),
  [
    (dict(client_learning_rate=-0.1), 'client_learning_rate must be 0 or a positive'),
    (dict(client_learning_rate=float('nan')), 'client_learning_rate must be 0 or'),
    (dict(client_learning_rate=0.0), 'a server_learning_rate above 0 is needed'),
    (
      dict(client_learning_rate=0.0, server_learning_rate=0.0),
      'a server_learning_rate above 0 is needed',
    ),
    (dict(server_learning_rate=-1.0), 'learning_rate must be a positive number'),
    (dict(local_steps=0), 'local_steps must be a whole number of at least 1'),
    (dict(local_steps=1.5), 'local_steps must be a whole number of at least 1'),
    (dict(sync_probability=0.0), r'sync_probability must be in \(0, 1\]'),
    (dict(sync_probability=1.5), r'sync_probability must be in \(0, 1\]'),
    (dict(batch_size=0), 'batch_size must be a whole number of at least 1'),
    (dict(schedule='sqrt'), 'schedule must be one of constant, inverse_sqrt'),
    (dict(weighting='by size'), 'weighting must be one of examples, uniform'),
    (dict(average_mu=0.0), 'average_mu must be a positive number'),
    (dict(average_mu=32.0), r'needs 0 < client_learning_rate \* average_mu < 4'),
    (
      dict(client_learning_rate=0.0, server_learning_rate=0.1, average_mu=1.0),
      r'needs 0 < client_learning_rate \* average_mu < 4',
    ),
    (
      dict(aggregator=tff.aggregators.UnweightedMeanFactory(), weighting='examples'),
      'UnweightedMeanFactory.* cannot weight clients',
    ),
  ],
  # No address of an object, which another process has elsewhere.
  ids=lambda value: value if isinstance(value, str) else ', '.join(value),
)
@pytest.mark.parametrize('build', [build_fed_avg_s, build_scaffold_s])
def test_a_bad_argument_is_refused(build, bad, message):
  with pytest.raises(ValueError, match=message):
    _build(build, **bad)


def test_a_bad_extrapolation_rate_is_refused():
  with pytest.raises(ValueError, match='extrapolation_rate must be 0 or a positive'):
    _build(build_extra_step_local_sgd, extrapolation_rate=-0.1)


_BUILDERS = {
  'fed_avg_s': lambda objective: _build(build_fed_avg_s, objective),
  'extra_step': lambda objective: _build(build_extra_step_local_sgd, objective),
  'scaffold_s': lambda objective: _build(build_scaffold_s, objective),
  'catalyst': lambda objective: _build(build_scaffold_catalyst_s, objective),
  'mirror_descent': lambda objective: build_minibatch_mirror_descent(
    objective, learning_rate=0.1
  ),
  'mirror_prox': lambda objective: build_minibatch_mirror_prox(
    objective, learning_rate=0.1
  ),
}


@pytest.mark.parametrize('name', _BUILDERS)
def test_an_objective_without_weights_to_maximise_over_is_refused(name):
  build = _BUILDERS[name]
  with pytest.raises(ValueError, match=r'trainable weights are a SaddlePoint\(min='):
    build(problems.logistic().model)


def test_a_model_with_unseeded_dropout_is_refused_where_gradients_are_compared():
  keras = tf.keras.Sequential(
    [tf.keras.layers.Dropout(0.5, input_shape=(5,)), tf.keras.layers.Dense(3)]
  )
  model = tff.learning.models.functional_model_from_keras(
    keras,
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=problems.logistic().model.input_spec,
  )
  with pytest.raises(ValueError, match='compares two gradients on one batch'):
    build_extra_step_local_sgd(model, client_learning_rate=0.1, batch_size=4)


# Phases.

_TWO_PHASES = {
  'scaffold_s': algorithms.scaffold_s,
  'scaffold_catalyst_s': algorithms.scaffold_catalyst_s,
  'minibatch_mirror_prox': algorithms.minibatch_mirror_prox,
}


@pytest.mark.slow
@pytest.mark.usefixtures('runtime')
@pytest.mark.parametrize('build', _TWO_PHASES.values(), ids=_TWO_PHASES)
def test_phase_by_phase_is_next_to_the_last_bit(build):
  """And each compiles alone: see process_test."""
  process = build()
  with pytest.raises(ValueError, match='broadcast dependent on aggregate'):
    tff.backends.mapreduce.get_map_reduce_form_for_computation(process.next)
  state = expected = process.initialize()
  clients = [problems.dataset(rows) for rows in algorithms.COHORT]
  for _ in range(2):
    expected = process.next(expected, clients).state
    for phase in process.phases:
      state = phase(state, clients).state
  assert expected.server.round_num == 2
  for a, b in zip(tf.nest.flatten(state), tf.nest.flatten(expected), strict=True):
    np.testing.assert_array_equal(a, b)


# What comes out.


@pytest.mark.slow
@pytest.mark.usefixtures('runtime')
def test_the_average_is_the_model_and_rates_can_be_set():
  process = _build(average_mu=1.0, server_learning_rate=0.25)
  (cohort,) = saddle_problems.regression_cohorts(num_rounds=1, with_bad=False)
  clients = [problems.dataset(rows) for rows in cohort]
  state = process.initialize()
  hparams = process.get_hparams(state)
  assert hparams['client_learning_rate'] == 0.125
  assert hparams['server_optimizer']['learning_rate'] == 0.25
  # With gamma_g = 0 z~ stays, and with gamma_l = 0 all z_i do: so does the average.
  hparams['client_learning_rate'] = 0.0
  hparams['server_optimizer']['learning_rate'] = 0.0
  still = process.next(process.set_hparams(state, hparams), clients).state
  start = saddle_problems.regression_start()
  found = process.get_model_weights(still)
  saddle_problems.assert_close(found.trainable, start, 1e-6)
  # Else it is neither the start nor the last iterate, and what is set comes out.
  state = process.next(state, clients).state
  found = process.get_model_weights(state).trainable
  saddle_problems.assert_close(found, state.server.output.trainable, 1e-6)
  for other in (start, state.server.weights.trainable):
    assert np.abs(found.max - other.max).max() > 1e-3
  weights = ModelWeights(tf.nest.map_structure(lambda t: 2 * t, start), ())
  state = process.set_model_weights(state, weights)
  found = process.get_model_weights(state).trainable
  saddle_problems.assert_close(found, weights.trainable, 0)


@pytest.mark.slow
@pytest.mark.usefixtures('runtime')
def test_drift_and_spread_are_those_of_the_clients_last_iterates():
  """Whatever gamma_g is."""
  process = _build(
    client_learning_rate=0.0625, server_learning_rate=0.5, batch_size=100
  )
  (cohort,) = saddle_problems.regression_cohorts(num_rounds=1, with_bad=False)
  mapping, z0 = saddle_problems.regression()[1:]
  moves = []
  for rows in cohort:
    z = z0
    for _ in range(2):
      _, (g_x, g_y) = mapping(z, rows)
      z = tuple(
        [p - 0.0625 * g for p, g in zip(part, of_part, strict=True)]
        for part, of_part in zip(z, (g_x, g_y), strict=True)
      )
    moves.append(saddle_problems.vector(z) - saddle_problems.vector(z0))
  (metrics,) = saddle_problems.run(process, [cohort]).metrics
  drift = np.mean(np.linalg.norm(moves, axis=1))
  np.testing.assert_allclose(metrics['client_drift'], drift, rtol=1e-5)
  spread = np.sqrt(np.mean(np.sum((moves - np.mean(moves, axis=0)) ** 2, axis=1)))
  np.testing.assert_allclose(metrics['client_spread'], spread, rtol=1e-3)
  assert metrics['client_steps'] == 2
