"""The local loop in plain TensorFlow, without a runtime: its laws as properties."""

import collections

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import tensorflow as tf

from tests.oracles import fed_avg as oracle
from tests.oracles import numpy_models
from tests.tff_algorithms import problems
from tff_algorithms import local_loop, models, oracles, structures

_SEED = tf.constant([3, 5], tf.int64)


def _loop(problem, rows, *, rate=lambda t: 0.1, **changed):
  """By default 2 epochs of SGD in batches of 4, the rate a function of the step."""

  def sgd(t, s, y, g):
    return s, structures.subtract(y, structures.scale(rate(t), g))

  arguments = dict(
    num_steps=local_loop.num_local_steps(rows, 4, 2, None),
    batch_size=4,
    seed=_SEED,
    shuffle=False,
    update=sgd,
    s=(),
  )
  x = problem.model.initialize(_SEED)
  return local_loop.local_loop(
    oracles.ModelLoss(problem.model), x, rows, **(arguments | changed)
  )


shapes = st.tuples(
  st.integers(1, 6),  # features
  st.integers(2, 4),  # classes
  st.integers(0, 11),  # rows
  st.integers(1, 12),  # batch size
)


@settings(max_examples=20)
@given(shapes, st.integers(1, 3), st.one_of(st.none(), st.integers(1, 4)))
def test_is_sgd_over_consecutive_batches(shape, epochs, max_steps):
  features, classes, n, batch_size = shape
  problem = problems.logistic(features, classes)
  rows = problems.classification_rows(n, features, classes)
  num_steps = local_loop.num_local_steps(rows, batch_size, epochs, max_steps)
  outcome = _loop(problem, rows, num_steps=num_steps, batch_size=batch_size)
  y, steps, seen = problem.weights, 0, 0
  for batch in oracle.batches(rows, batch_size, epochs, max_steps):
    _, g = problem.oracle.loss_and_gradient(y, batch)
    y = numpy_models.map_weights(lambda a, b: a - 0.1 * b, y, g)
    steps, seen = steps + 1, seen + len(batch['y'])
  problems.assert_close(outcome.weights, y)
  assert (outcome.num_steps, outcome.num_seen) == (steps, seen)


@settings(max_examples=15)
@given(shapes)
def test_a_full_gradient_counts_every_row_once_whatever_the_batch_size(shape):
  features, classes, n, batch_size = shape
  # In float64: the rows' gradients may nearly cancel.
  problem = problems.logistic(features, classes, dtype=np.float64)
  rows = problems.classification_rows(n, features, classes, dtype=np.float64)
  outcome = local_loop.full_gradient(
    oracles.ModelLoss(problem.model), problem.model.initialize(_SEED), rows, batch_size
  )
  if n == 0:
    assert structures.global_norm(outcome.gradient) == 0
    return
  loss, gradient = problem.oracle.loss_and_gradient(problem.weights, rows)
  problems.assert_close(outcome.gradient, gradient, 1e-10)
  np.testing.assert_allclose(outcome.loss_sum / n, loss, rtol=1e-5)


@settings(max_examples=15)
@given(shapes)
def test_without_other_terms_the_gradients_add_up_to_the_way_travelled(shape):
  """x - y = eta sum g: SCAFFOLD's option II and equation 10 of mixed FL rest on it."""
  features, classes, n, batch_size = shape
  problem = problems.logistic(features, classes)
  rows = problems.classification_rows(n, features, classes)
  num_steps = local_loop.num_local_steps(rows, batch_size, 2, None)
  outcome = _loop(
    problem, rows, num_steps=num_steps, batch_size=batch_size, sum_gradients=True
  )
  for name, x in problem.weights.items():
    np.testing.assert_allclose(
      x - outcome.weights[name], 0.1 * outcome.gradient_sum[name], atol=1e-5
    )


def test_shuffling_passes_over_every_row_once_in_an_epoch():
  """A model whose gradient at every step is the sum of the rows it was shown."""
  n = 10
  model = models.Model(
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None, n]), y=tf.TensorSpec([None], tf.int32)
    ),
    initialize=lambda seed: models.ModelWeights(
      collections.OrderedDict(w=tf.zeros([n])), ()
    ),
    predict=lambda w, x, seed: tf.linalg.matvec(x, w.trainable['w']),
    loss=lambda y, outputs: tf.reduce_sum(outputs),
    metrics=lambda y, outputs: collections.OrderedDict(),
    finalize_metrics=lambda sums: collections.OrderedDict(),
  )
  rows = collections.OrderedDict(x=np.eye(n, dtype=np.float32), y=np.zeros(n, np.int32))
  problem = problems.Problem(model, None, {})

  def shown(num_steps, shuffle=True):
    outcome = _loop(
      problem, rows, num_steps=num_steps, rate=lambda t: -1.0, shuffle=shuffle
    )
    return outcome.weights['w'].numpy()

  np.testing.assert_array_equal(shown(3), np.ones(n))
  np.testing.assert_array_equal(shown(6), 2 * np.ones(n))
  first, fourth = shown(1), shown(4) - shown(3)
  assert first.sum() == fourth.sum() == 4
  assert not np.array_equal(first, np.repeat([1, 0], [4, 6]))
  assert not np.array_equal(first, fourth)
  np.testing.assert_array_equal(shown(1, False), np.repeat([1, 0], [4, 6]))


def _dropout_problem():
  """Logistic regression with dropout of its inputs."""
  problem = problems.logistic()

  def predict(w, x, seed):
    if seed is not None:
      x = tf.nn.experimental.stateless_dropout(x, 0.5, seed)
    return x @ w.trainable['kernel'] + w.trainable['bias']

  model = problem.model
  return problems.Problem(
    models.Model(
      model.input_spec,
      model.initialize,
      predict,
      model.loss,
      model.metrics,
      model.finalize_metrics,
    ),
    problem.oracle,
    problem.weights,
  )


def test_dropout_follows_the_seed_and_differs_between_steps():
  problem = _dropout_problem()
  rows = problems.classification_rows(4)
  other = tf.constant([3, 6], tf.int64)
  one = _loop(problem, rows, num_steps=3).weights['kernel']
  np.testing.assert_array_equal(
    _loop(problem, rows, num_steps=3).weights['kernel'], one
  )
  assert (
    np.abs(one - _loop(problem, rows, num_steps=3, seed=other).weights['kernel']).max()
    > 1e-4
  )
  # With eta = 0 all steps are at x: twice one mask would be twice one gradient.
  sums = [
    _loop(
      problem, rows, num_steps=k, rate=lambda t: 0.0, sum_gradients=True
    ).gradient_sum['kernel']
    for k in (1, 2)
  ]
  assert np.abs(sums[1] - 2 * sums[0]).max() > 1e-4


def test_two_gradients_of_one_step_see_one_dropout_mask():
  """A term that takes away g(x) at y = x leaves nothing of the first step."""
  problem = _dropout_problem()
  rows = problems.classification_rows(4)

  def minus_gradient_at_x(step):
    return structures.scale(-1.0, step.evaluate(step.x).gradient)

  outcome = _loop(problem, rows, num_steps=5, terms=[minus_gradient_at_x])
  problems.assert_close(outcome.weights, problem.weights, 0)


def test_the_full_gradient_is_taken_without_dropout_unless_seeded():
  problem, plain = _dropout_problem(), problems.logistic()
  rows = problems.classification_rows(6)
  x = problem.model.initialize(_SEED)

  def gradient(of, seed):
    oracle_ = oracles.ModelLoss(of.model)
    return local_loop.full_gradient(oracle_, x, rows, 4, seed).gradient

  problems.assert_close(gradient(problem, None), gradient(plain, None), 0)
  assert (
    np.abs(gradient(problem, _SEED)['kernel'] - gradient(plain, None)['kernel']).max()
    > 1e-4
  )


def test_the_optimizers_state_goes_from_step_to_step():
  """s counts the steps, and is the rate of the next."""
  problem = problems.quadratic([1.0])
  rows = problems.quadratic_rows([[[1.0]]], [[0.0]])

  def update(t, s, y, g):
    return s + 0.25, structures.subtract(y, structures.scale(s, g))

  outcome = _loop(problem, rows, num_steps=3, update=update, s=tf.constant(0.25))
  expected = (1 - 0.25) * (1 - 0.5) * (1 - 0.75)
  np.testing.assert_allclose(outcome.weights['w'], [expected], rtol=1e-6)


def test_the_rate_is_a_function_of_the_step():
  problem = problems.quadratic([1.0])
  rows = problems.quadratic_rows([[[1.0]]], [[0.0]])

  def rate(t):
    return 1 / (2.0 + tf.cast(t, tf.float32))

  outcome = _loop(problem, rows, num_steps=3, rate=rate)
  expected = (1 - 1 / 2) * (1 - 1 / 3) * (1 - 1 / 4)
  np.testing.assert_allclose(outcome.weights['w'], [expected], rtol=1e-6)
