"""Identities between the algorithms as properties, in plain TensorFlow and float64.

A phase is pure functions, so a round runs here without a runtime; that the process
around it does the same is what the tests against the oracles show.
"""

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.oracles import numpy_models
from tests.tff_algorithms import problems
from tff_algorithms import (
  base_optimizers,
  client_optimizers,
  oracles,
  schedules,
  server_steps,
)
from tff_algorithms.client_inputs import ClientRows
from tff_algorithms.fed_prox import Proximal
from tff_algorithms.full_gradient import GRADIENT, FullGradient
from tff_algorithms.local_training import DELTA, LocalTraining

pytestmark = pytest.mark.slow

_MEAN = tff.aggregators.MeanFactory()


def _sgd(rate):
  return base_optimizers.as_tff_optimizer(base_optimizers.sgd(), rate)


def _training(problem, *, batch_size, epochs=1, terms=(), weighting='examples', seed=0):
  return LocalTraining(
    oracle=oracles.as_oracle(problem.model),
    server_step=server_steps.optimizer_step(_sgd(1.0), DELTA),
    client_optimizer=client_optimizers.Fresh(base_optimizers.sgd()),
    terms=terms,
    batch_size=batch_size,
    epochs=epochs,
    max_steps=None,
    shuffle=True,
    weighting=weighting,
    schedule=schedules.constant(),
    aggregator=_MEAN,
    seed=seed,
  )


def _round(problem, phase, cohort, rate=0.25, terms=()):
  """One round from the problem's weights; uploads are averaged in numpy."""
  server = server_steps.initial_state(
    oracles.as_oracle(problem.model),
    _sgd(rate) if isinstance(phase, FullGradient) else _sgd(1.0),
    seed=0,
    terms=terms,
    hparams={'client_learning_rate': rate},
  )()
  message = phase.message(server)
  (name,) = phase.aggregators
  uploads = []
  for i, rows in enumerate(cohort):
    result = phase.work(message, ClientRows(tf.constant(i, tf.int64), rows))
    uploads.append(result.uploads[name])
  kept = [upload for upload in uploads if upload.weight > 0]
  mean = numpy_models.weighted_mean(
    [upload.value for upload in kept], [float(upload.weight) for upload in kept]
  )
  return phase.finish(server, {name: mean}).weights.trainable


sizes = st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any)
shapes = st.tuples(st.integers(1, 5), st.integers(2, 4))  # features, classes


def _problem_and_cohort(shape, client_sizes):
  problem = problems.logistic(*shape, dtype=np.float64)
  cohort = [
    problems.classification_rows(n, *shape, seed=i, dtype=np.float64)
    for i, n in enumerate(client_sizes)
  ]
  return problem, cohort


@settings(max_examples=10)
@given(shapes, sizes, st.integers(1, 6), st.integers(1, 3))
def test_fed_prox_with_rho_zero_is_fed_avg(shape, client_sizes, batch_size, epochs):
  problem, cohort = _problem_and_cohort(shape, client_sizes)
  arguments = dict(batch_size=batch_size, epochs=epochs)
  terms = [Proximal(0.0)]
  prox = _training(problem, terms=terms, **arguments)
  problems.assert_close(
    _round(problem, prox, cohort, terms=terms),
    _round(problem, _training(problem, **arguments), cohort),
    1e-13,
  )


@settings(max_examples=10)
@given(shapes, sizes, st.floats(0.01, 1.0), st.integers(1, 12))
def test_one_full_batch_step_is_server_only(shape, client_sizes, rate, batch_size):
  """x - mean(x - (x - eta g_i)) = x - eta mean g_i."""
  problem, cohort = _problem_and_cohort(shape, client_sizes)
  server_only = FullGradient(
    oracle=oracles.as_oracle(problem.model),
    server_step=server_steps.optimizer_step(_sgd(rate), GRADIENT),
    batch_size=batch_size,
    weighting='examples',
    aggregator=_MEAN,
  )
  fed_avg = _training(problem, batch_size=max(client_sizes))
  # The rates are float32 on the way.
  problems.assert_close(
    _round(problem, fed_avg, cohort, rate),
    _round(problem, server_only, cohort, rate),
    1e-12,
  )


@settings(max_examples=10)
@given(shapes, st.integers(1, 8), st.integers(1, 4), st.integers(1, 6))
def test_clients_of_one_size_count_alike(shape, n, num_clients, batch_size):
  problem, cohort = _problem_and_cohort(shape, [n] * num_clients)
  by_examples = _training(problem, batch_size=batch_size, weighting='examples')
  uniform = _training(problem, batch_size=batch_size, weighting='uniform')
  problems.assert_close(
    _round(problem, by_examples, cohort), _round(problem, uniform, cohort), 1e-12
  )


@settings(max_examples=10)
@given(shapes, sizes, st.integers(1, 4))
def test_a_full_batch_step_does_not_depend_on_the_order_of_rows(
  shape, client_sizes, seed
):
  problem, cohort = _problem_and_cohort(shape, client_sizes)
  batch_size = max(client_sizes)
  one = _training(problem, batch_size=batch_size, epochs=2, seed=0)
  other = _training(problem, batch_size=batch_size, epochs=2, seed=seed)
  problems.assert_close(
    _round(problem, one, cohort), _round(problem, other, cohort), 1e-11
  )


@settings(max_examples=15)
@given(
  st.integers(1, 4),
  st.integers(1, 4),
  st.integers(1, 6),
  st.integers(0, 1000),
)
def test_fed_avg_stays_at_the_optimum_where_hessians_are_alike(
  d, num_clients, epochs, seed
):
  """y - x* contracts to the same multiple of b_i - x* on all clients; these cancel."""
  rng = np.random.default_rng(seed)
  root = rng.normal(size=(d, d))
  hessian = root @ root.T / d
  optima = rng.normal(size=(num_clients, d))
  problem = problems.quadratic(optima.mean(axis=0), np.float64)
  cohort = [problems.quadratic_rows([hessian], [b], np.float64) for b in optima]
  phase = _training(problem, batch_size=1, epochs=epochs)
  after = _round(problem, phase, cohort, rate=0.125)
  np.testing.assert_allclose(after['w'], problem.weights['w'], atol=1e-10)
