"""Small problems that tests run on both sides: as a `Model`, and as plain numpy."""

import collections
from collections.abc import Sequence
import dataclasses
from typing import Any

import numpy as np
import tensorflow as tf

from tests.oracles import numpy_models
from tff_algorithms import models


@dataclasses.dataclass(frozen=True)
class Problem:
  """A model, the same model in numpy, and the weights both start from."""

  model: models.Model
  oracle: Any
  weights: dict[str, np.ndarray]


def _named(weights, dtype):
  return collections.OrderedDict(
    (name, np.asarray(value, dtype)) for name, value in weights.items()
  )


def _initialize(weights):
  constants = collections.OrderedDict(weights)
  return lambda seed: models.ModelWeights(
    collections.OrderedDict((k, tf.constant(v)) for k, v in constants.items()), ()
  )


def _classifier(predict, oracle, weights, num_features):
  dtype = tf.as_dtype(next(iter(weights.values())).dtype)
  model = models.Model(
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None, num_features], dtype), y=tf.TensorSpec([None], tf.int32)
    ),
    initialize=_initialize(weights),
    predict=predict,
    loss=models.cross_entropy,
    metrics=models.accuracy_sums,
    finalize_metrics=models.accuracy_from_sums,
  )
  return Problem(model, oracle, weights)


def logistic(num_features=5, num_classes=3, seed=0, dtype=np.float32) -> Problem:
  """Multinomial logistic regression from random weights."""
  rng = np.random.default_rng(seed)
  weights = _named(
    {
      'kernel': rng.normal(size=(num_features, num_classes)),
      'bias': rng.normal(size=num_classes),
    },
    dtype,
  )

  def predict(w, x, seed):
    return x @ w.trainable['kernel'] + w.trainable['bias']

  return _classifier(predict, numpy_models.LogisticRegression, weights, num_features)


def mlp(num_features=5, num_hidden=4, num_classes=3, seed=0, dtype=np.float32):
  """A tanh network with one hidden layer from random weights."""
  rng = np.random.default_rng(seed)
  weights = _named(
    {
      'kernel_1': rng.normal(size=(num_features, num_hidden)),
      'bias_1': rng.normal(size=num_hidden),
      'kernel_2': rng.normal(size=(num_hidden, num_classes)),
      'bias_2': rng.normal(size=num_classes),
    },
    dtype,
  )

  def predict(w, x, seed):
    w = w.trainable
    hidden = tf.tanh(x @ w['kernel_1'] + w['bias_1'])
    return hidden @ w['kernel_2'] + w['bias_2']

  return _classifier(predict, numpy_models.Mlp, weights, num_features)


def quadratic(start: Sequence[float], dtype=np.float32) -> Problem:
  """f(w) = mean over rows (A, b) of 0.5 (w - b)^T A (w - b); x = (A, b), y unused."""
  d = len(start)
  weights = _named({'w': start}, dtype)
  tf_dtype = tf.as_dtype(dtype)

  def predict(w, x, seed):
    r = w.trainable['w'] - x['b']
    return 0.5 * tf.einsum('bi,bij,bj->b', r, x['a'], r)

  model = models.Model(
    input_spec=collections.OrderedDict(
      x=collections.OrderedDict(
        a=tf.TensorSpec([None, d, d], tf_dtype), b=tf.TensorSpec([None, d], tf_dtype)
      ),
      y=tf.TensorSpec([None], tf.int32),
    ),
    initialize=_initialize(weights),
    predict=predict,
    loss=lambda y, outputs: tf.reduce_mean(outputs),
    metrics=lambda y, outputs: collections.OrderedDict(),
    finalize_metrics=lambda sums: collections.OrderedDict(),
  )
  return Problem(model, numpy_models.Quadratic, weights)


def half_square(weights: models.ModelWeights) -> tf.Tensor:
  """0.5 ||w||^2, a loss of the weights alone."""
  squares = [tf.reduce_sum(tf.square(w)) for w in tf.nest.flatten(weights.trainable)]
  return 0.5 * tf.add_n(squares)


def classification_rows(n, num_features=5, num_classes=3, seed=0, dtype=np.float32):
  """A client's rows: random features, random labels."""
  rng = np.random.default_rng([seed, n])
  return collections.OrderedDict(
    x=rng.normal(size=(n, num_features)).astype(dtype),
    y=rng.integers(0, num_classes, n).astype(np.int32),
  )


def quadratic_rows(a, b, dtype=np.float32):
  """A client of `quadratic` with rows (a[k], b[k])."""
  a, b = np.asarray(a, dtype), np.asarray(b, dtype)
  return collections.OrderedDict(
    x=collections.OrderedDict(a=a, b=b), y=np.zeros(len(a), np.int32)
  )


def dataset(rows, batch_size=3):
  """An ordinary client data set; its batch size is not the algorithm's."""
  return tf.data.Dataset.from_tensor_slices(rows).batch(batch_size)


def run(process, cohorts):
  """Runs the process over cohorts of rows: (weights, train metrics) of every round."""
  state = process.initialize()
  all_weights, all_metrics = [], []
  for cohort in cohorts:
    output = process.next(state, [dataset(rows) for rows in cohort])
    state = output.state
    all_weights.append(process.get_model_weights(state).trainable)
    all_metrics.append(output.metrics['client_work']['train'])
  return all_weights, all_metrics


def assert_close(actual, expected, tolerance=1e-5):
  """Each tensor agrees to `tolerance` relative to its norm."""
  actual, expected = _by_name(actual), _by_name(expected)
  assert set(actual) == set(expected)
  for name in expected:
    difference = np.linalg.norm(np.asarray(actual[name], np.float64) - expected[name])
    scale = np.linalg.norm(np.asarray(expected[name], np.float64))
    assert difference <= tolerance * scale, f'{name}: {difference} against {scale}'


def _by_name(weights):
  """Weights that are a tuple of tensors by their places."""
  return dict(enumerate(weights)) if isinstance(weights, tuple) else weights
