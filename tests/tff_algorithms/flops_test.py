"""Counted operations of a gradient."""

import collections

import pytest
import tensorflow as tf

from tests.tff_algorithms import problems
from tff_algorithms import flops, oracles
from tff_algorithms.models import ModelWeights


class _Products(oracles.Oracle):
  """Two products of matrices and nothing else: [B, F] [F, C], then [F, B] [B, C]."""

  def __init__(self, num_features, num_classes):
    self._shape = [num_features, num_classes]

  @property
  def batch_spec(self):
    return tf.TensorSpec([None, self._shape[0]])

  def initial_weights(self, seed):
    return ModelWeights(collections.OrderedDict(w=tf.zeros(self._shape)), ())

  def evaluate(self, weights, batch, seed):
    outputs = tf.matmul(batch, weights.trainable['w'])
    gradient = collections.OrderedDict(w=tf.matmul(batch, outputs, transpose_a=True))
    return oracles.Evaluation(tf.zeros([]), gradient, collections.OrderedDict())

  def finalize_metrics(self, sums):
    return sums


@pytest.mark.parametrize('batch', [1, 3, 16])
@pytest.mark.parametrize(('features', 'classes'), [(5, 3), (7, 1), (10, 20)])
def test_a_product_is_two_operations_for_each_number_of_its_sum(
  batch, features, classes
):
  found = flops.of_a_step(_Products(features, classes), batch)
  assert found == 2 * 2 * batch * features * classes


def _of_logistic(batch, features=50, classes=10):
  model = problems.logistic(features, classes).model
  return flops.of_a_step(oracles.as_oracle(model), batch)


def test_logistic_regression_is_two_products_and_little_more():
  """x W forwards, x^T (p - y) backwards: the rest is per row and class."""
  products = 4 * 16 * 50 * 10
  assert products < _of_logistic(16) < 1.2 * products


def test_more_rows_features_or_classes_are_more_operations():
  base = _of_logistic(8)
  assert _of_logistic(16) > 1.9 * base
  assert _of_logistic(8, features=100) > 1.8 * base
  assert _of_logistic(8, classes=20) > 1.8 * base


def test_a_weight_on_the_loss_adds_one_operation_for_each_weight():
  model = oracles.as_oracle(problems.logistic().model)
  plain, weighted = (
    flops.of_a_step(f, 4) for f in (model, oracles.Weighted(0.5, model))
  )
  assert weighted - plain <= 5 * 3 + 3


def test_functions_within_a_model_are_counted():
  """As tf.function, a call of which the profiler would not look into."""

  class InFunction(_Products):
    @tf.function
    def _gradient(self, batch, w):
      return tf.matmul(batch, tf.matmul(batch, w), transpose_a=True)

    def evaluate(self, weights, batch, seed):
      gradient = self._gradient(batch, weights.trainable['w'])
      evaluation = super().evaluate(weights, batch, seed)
      return evaluation._replace(gradient=collections.OrderedDict(w=gradient))

  assert flops.of_a_step(InFunction(5, 3), 4) == 4 * 4 * 5 * 3
