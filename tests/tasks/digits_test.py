"""Tests of the digits tasks."""

import numpy as np
import pytest
from sklearn import datasets
import tensorflow as tf

import tasks


@pytest.fixture(scope='module', params=['digits_logistic', 'digits_mlp'])
def task(request):
  return tasks.load(request.param, seed=3)


def _sorted_examples(x, y):
  return sorted(map(tuple, np.column_stack([x.reshape(len(x), -1), y])))


def test_train_and_test_together_are_the_data_set(task):
  digits = datasets.load_digits()
  train, test = task.train.all_rows(), task.test.all_rows()
  x, y = (
    np.concatenate([train['x'], test['x']]),
    np.concatenate([train['y'], test['y']]),
  )
  assert x.dtype == np.float32
  assert y.dtype == np.int32
  assert x.min() == 0
  assert x.max() == 1
  assert _sorted_examples(16 * x, y) == _sorted_examples(digits.data, digits.target)


def test_every_client_trains_and_a_fifth_is_held_out(task):
  assert len(task.train.client_ids) == 50
  assert task.train.client_ids == task.test.client_ids
  for client_id in task.train.client_ids:
    num_train = task.train.num_examples(client_id)
    num_test = task.test.num_examples(client_id)
    assert num_train >= 1
    assert num_test == round((num_train + num_test) / 5)


def test_labels_are_skewed(task):
  most = [
    np.bincount(task.train.rows(client_id)['y']).max()
    for client_id in task.train.client_ids
  ]
  # With alike clients it would be little more than a tenth.
  assert sum(most) / len(task.train.all_rows()['y']) > 0.4


def test_rows_match_what_the_model_expects(task):
  for name, spec in task.model.input_spec.items():
    rows = task.train.all_rows()[name]
    assert spec.is_compatible_with(tf.convert_to_tensor(rows))


def test_options_and_seed_determine_the_clients(task):
  def load(seed=3, **options):
    rows = tasks.load(task.name, seed, **options).train.rows('client_000')
    return [rows['x'].tobytes(), rows['y'].tobytes()]

  assert load() == load(num_clients=50, dirichlet_alpha=0.3)
  assert load() != load(seed=4)
  assert load() != load(num_clients=49)
  assert load() != load(dirichlet_alpha=0.5)


def test_model_can_be_fitted(task):
  """Full-batch gradient descent gets most held-out digits right."""
  weights = task.model.initialize(tf.constant([0, 0])).trainable
  train, test = (
    tf.nest.map_structure(tf.constant, data.all_rows())
    for data in (task.train, task.test)
  )

  def predict(weights, x):
    return task.model.predict(tf_weights(weights), x, None)

  def tf_weights(weights):
    return task.model.initialize(tf.constant([0, 0]))._replace(trainable=weights)

  @tf.function
  def step(weights):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      loss = task.model.loss(train['y'], predict(weights, train['x']))
    gradient = tape.gradient(loss, weights)
    return tf.nest.map_structure(lambda w, g: w - 0.5 * g, weights, gradient)

  def accuracy(weights):
    sums = task.model.metrics(test['y'], predict(weights, test['x']))
    return float(task.model.finalize_metrics(sums)['accuracy'])

  assert accuracy(weights) < 0.3
  for _ in range(200):
    weights = step(weights)
  assert accuracy(weights) > 0.9


def test_clients_have_the_lower_digits_and_the_server_the_upper_ones():
  mixed, plain = (tasks.load(n, seed=3) for n in ('digits_mixed', 'digits_logistic'))
  clients, server = mixed.train.all_rows(), mixed.central.data.all_rows()
  assert set(clients['y']) == set(range(5))
  assert set(server['y']) == set(range(5, 10))
  both = [np.concatenate([clients[name], server[name]]) for name in ('x', 'y')]
  train = plain.train.all_rows()
  assert _sorted_examples(*both) == _sorted_examples(train['x'], train['y'])
  assert mixed.train.client_ids == plain.train.client_ids
  assert (mixed.central.federated_weight, mixed.central.central_weight) == (0.5, 0.5)


def test_what_is_held_out_of_the_mixed_task_is_all_digits_and_each_part():
  mixed, plain = (tasks.load(n, seed=3) for n in ('digits_mixed', 'digits_logistic'))
  for name in ('x', 'y'):
    np.testing.assert_array_equal(
      mixed.test.all_rows()[name], plain.test.all_rows()[name]
    )
  parts = {name: data.all_rows()['y'] for name, data in mixed.test_parts.items()}
  assert set(parts['clients']) == set(range(5))
  assert set(parts['server']) == set(range(5, 10))
  assert sum(map(len, parts.values())) == len(mixed.test.all_rows()['y'])
