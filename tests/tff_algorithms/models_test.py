"""Models: Keras and functional models accepted, and a model handed to TFF's tools."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_algorithms import problems
from tff_algorithms import models
from tff_algorithms.fed_avg import build_fed_avg


def _keras_model():
  """The logistic regression of `problems` in Keras, with its weights."""
  weights = problems.logistic().weights
  model = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(5,))])
  model.set_weights([weights['kernel'], weights['bias']])
  return model


def _functional_model():
  return tff.learning.models.functional_model_from_keras(
    _keras_model(),
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=problems.logistic().model.input_spec,
    metrics_constructor=collections.OrderedDict(
      accuracy=tf.keras.metrics.SparseCategoricalAccuracy
    ),
  )


@pytest.mark.slow
def test_a_keras_model_trains_as_the_same_model_written_here(runtime):
  cohorts = [[problems.classification_rows(n, seed=n) for n in (9, 0, 4)]] * 3
  arguments = dict(client_learning_rate=0.1, batch_size=4, epochs=2)
  ours, our_metrics = problems.run(
    build_fed_avg(problems.logistic().model, **arguments), cohorts
  )
  keras, keras_metrics = problems.run(
    build_fed_avg(_functional_model(), **arguments), cohorts
  )
  np.testing.assert_allclose(keras[-1][0], ours[-1]['kernel'], rtol=1e-5)
  for name in ('loss', 'accuracy', 'num_examples'):
    np.testing.assert_allclose(
      keras_metrics[-1][name], our_metrics[-1][name], rtol=1e-5
    )


@pytest.mark.slow
def test_non_trainable_weights_act_but_stay_as_they_are_set(runtime):
  """Outputs x W + b with a frozen b, which also moves where W ends up."""

  @tf.function
  def predict_on_batch(weights, x, training):
    (kernel,), (bias,) = weights
    return x @ kernel + bias

  model = tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros([5, 3], np.float32),), (np.zeros(3, np.float32),)),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=lambda output, label, sample_weight=None: models.cross_entropy(
      label, output
    ),
    input_spec=problems.logistic().model.input_spec,
  )
  process = build_fed_avg(model, client_learning_rate=0.1, batch_size=4)
  state = process.initialize()
  clients = [problems.dataset(problems.classification_rows(8))]
  plain = process.get_model_weights(process.next(state, clients).state)
  np.testing.assert_array_equal(plain.non_trainable[0], np.zeros(3))
  bias = np.array([5.0, 0.0, 0.0], np.float32)
  weights = process.get_model_weights(state)._replace(non_trainable=(bias,))
  state = process.set_model_weights(state, weights)
  shifted = process.get_model_weights(process.next(state, clients).state)
  np.testing.assert_array_equal(shifted.non_trainable[0], bias)
  assert np.abs(shifted.trainable[0] - plain.trainable[0]).max() > 1e-3


@pytest.mark.slow
def test_as_functional_model_evaluates_in_tff(runtime):
  problem = problems.logistic()
  rows = problems.classification_rows(20)
  functional = models.as_functional_model(problem.model)
  evaluate = tff.learning.algorithms.build_fed_eval(functional)
  output = evaluate.next(evaluate.initialize(), [problems.dataset(rows)])
  metrics = output.metrics['client_work']['eval']['current_round_metrics']
  right = problem.oracle.num_correct(problem.weights, rows)
  np.testing.assert_allclose(metrics['accuracy'], right / 20, rtol=1e-6)


def test_something_else_is_refused_with_a_hint():
  with pytest.raises(TypeError, match='functional_model_from_keras'):
    models.as_model(_keras_model())


def test_cross_entropy_is_the_mean_over_the_batch():
  problem = problems.logistic()
  rows = problems.classification_rows(6)
  logits = rows['x'] @ problem.weights['kernel'] + problem.weights['bias']
  loss, _ = problem.oracle.loss_and_gradient(problem.weights, rows)
  np.testing.assert_allclose(models.cross_entropy(rows['y'], logits), loss, rtol=1e-6)


@pytest.mark.parametrize('label', [-1, 3])
def test_cross_entropy_of_a_label_out_of_range_is_nan(label):
  loss = models.cross_entropy(tf.constant([0, label]), tf.zeros([2, 3]))
  assert np.isnan(loss)


def test_cross_entropy_of_a_label_out_of_range_adds_nothing_to_the_gradient():
  logits = tf.constant([[1.0, -1.0, 0.5], [2.0, 0.0, 1.0]])
  _, gradient = _cross_entropy_and_gradient(tf.constant([1, 3]), logits)
  _, of_first = _cross_entropy_and_gradient(tf.constant([1]), logits[:1])
  np.testing.assert_allclose(gradient, [of_first[0] / 2, [0, 0, 0]], rtol=1e-6)


@pytest.mark.parametrize('dtype', [tf.float32, tf.float64])
@pytest.mark.parametrize('scale', [1e-3, 1.0, 1e3])
def test_cross_entropy_and_its_gradient_are_tensorflows(dtype, scale):
  # With differences of thousands most probabilities are below the smallest number.
  logits = scale * tf.random.stateless_normal([2, 5, 7], [0, 1], dtype=dtype)
  y = tf.random.stateless_uniform([2, 5], [0, 2], 0, 7, tf.int64)
  loss, gradient = _cross_entropy_and_gradient(y, logits)
  with tf.GradientTape() as tape:
    tape.watch(logits)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
    expected = tf.reduce_mean(losses)
  tolerance = 1e-6 if dtype == tf.float32 else 1e-14
  np.testing.assert_allclose(loss, expected, rtol=tolerance)
  np.testing.assert_allclose(
    gradient, tape.gradient(expected, logits), rtol=tolerance, atol=tolerance
  )


def test_cross_entropy_of_a_class_that_cannot_be_is_finite_for_the_others():
  logits = tf.constant([[0.0, 0.0, -np.inf]])
  np.testing.assert_allclose(models.cross_entropy([1], logits), np.log(2), rtol=1e-6)
  assert models.cross_entropy([2], logits).numpy() == np.inf


@pytest.mark.parametrize('value', [np.nan, np.inf])
def test_cross_entropy_of_what_is_no_number_is_none_either(value):
  assert np.isnan(models.cross_entropy([0, 1], tf.constant([[value, 0], [0.0, 1]])))


def _cross_entropy_and_gradient(y, logits):
  with tf.GradientTape() as tape:
    tape.watch(logits)
    loss = models.cross_entropy(y, logits)
  return loss, tape.gradient(loss, logits)


# Randomness that cannot be seeded.


def _functional(predict):
  """A functional model of one kernel with these predictions in training."""

  @tf.function
  def predict_on_batch(weights, x, training):
    (kernel,), _ = weights
    return (predict(x) if training else x) @ kernel

  return tff.learning.models.FunctionalModel(
    initial_weights=((np.zeros([5, 3], np.float32),), ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=lambda output, label, sample_weight=None: models.cross_entropy(
      label, output
    ),
    input_spec=problems.logistic().model.input_spec,
  )


def _in_a_loop(x):
  return tf.while_loop(
    lambda i, x: i < 2, lambda i, x: (i + 1, tf.nn.dropout(x, 0.5)), (0, x)
  )[1]


@pytest.mark.parametrize(
  'predict',
  [
    lambda x: tf.nn.dropout(x, 0.5),
    tf.function(lambda x: tf.nn.dropout(x, 0.5)),
    tf.function(tf.function(lambda x: tf.nn.dropout(x, 0.5))),
    lambda x: x + tf.random.normal(tf.shape(x)),
    lambda x: x + tf.random.truncated_normal(tf.shape(x)),
    lambda x: tf.random.shuffle(x),
    lambda x: tf.cond(tf.size(x) > 3, lambda: tf.nn.dropout(x, 0.5), lambda: x),
    _in_a_loop,
  ],
  ids=['dropout', 'function', 'two', 'normal', 'truncated', 'shuffle', 'cond', 'while'],
)
def test_randomness_without_a_seed_is_found_wherever_it_is(predict):
  assert models.has_stateful_randomness(_functional(predict))


@pytest.mark.parametrize(
  'predict',
  [
    lambda x: x,
    tf.function(lambda x: tf.tanh(x)),
    lambda x: tf.nn.experimental.stateless_dropout(x, 0.5, seed=[1, 2]),
  ],
  ids=['plain', 'function', 'stateless'],
)
def test_a_model_without_it_has_none(predict):
  assert not models.has_stateful_randomness(_functional(predict))


def _keras(*layers):
  return tff.learning.models.functional_model_from_keras(
    tf.keras.Sequential([tf.keras.layers.Input((5,)), *layers]),
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=problems.logistic().model.input_spec,
  )


def test_keras_layers_with_dropout_are_told_from_those_without():
  dense, dropout = tf.keras.layers.Dense, tf.keras.layers.Dropout
  assert models.has_stateful_randomness(_keras(dropout(0.5), dense(3)))
  assert not models.has_stateful_randomness(_keras(dense(4, 'relu'), dense(3)))


def test_a_model_of_ours_is_always_seeded():
  assert not models.has_stateful_randomness(problems.logistic().model)


def test_a_functional_model_made_a_model_of_ours_is_not_seeded_by_that():
  functional = _functional(lambda x: tf.nn.dropout(x, 0.5))
  assert models.has_stateful_randomness(models.as_model(functional))
