"""CelebA's smiles against TFF's own loader."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tasks
from tests.tasks import tff_data

pytestmark = pytest.mark.slow


def _load(directory):
  return tasks.load('celeba_smile', seed=0, data_dir=str(directory))


def _write(directory, train, test):
  """A file of these celebrities: client id -> which of its faces smile."""
  splits = {
    'split_by_clients_train': tff_data.celebrities(train),
    'split_by_clients_test': tff_data.celebrities(test),
  }
  tff_data.write(directory / 'celeba.sqlite', splits)


def _sizes(data):
  return {client_id: data.num_examples(client_id) for client_id in data.client_ids}


def _total(data):
  return sum(_sizes(data).values())


def _check_rows(data, clients, wanted):
  """The first and last clients' rows, against the wanted examples of TFF's."""
  for client_id in (data.client_ids[0], data.client_ids[-1]):
    examples = [
      example
      for celebrity in client_id.split('+')
      for example in clients.create_tf_dataset_for_client(celebrity).as_numpy_iterator()
      if example['smiling'] in wanted
    ]
    rows = data.rows(client_id)
    assert data.num_examples(client_id) == len(examples)
    assert (rows['x'].dtype, rows['y'].dtype) == (np.uint8, np.int32)
    np.testing.assert_array_equal(rows['x'], [e['image'] for e in examples])
    np.testing.assert_array_equal(rows['y'], [e['smiling'] for e in examples])


def test_holds_the_faces_of_tffs_loader_by_whether_they_smile(tff_cache):
  train, test = tff.simulation.datasets.celeba.load_data(cache_dir=str(tff_cache))
  task = _load(tff_cache)
  _check_rows(task.train, train, [True])
  _check_rows(task.central.data, train, [False])
  assert list(task.test.client_ids) == sorted(test.client_ids)
  _check_rows(task.test, test, [True, False])
  _check_rows(task.test_parts['smiling'], test, [True])
  _check_rows(task.test_parts['unsmiling'], test, [False])


def test_three_celebrities_make_a_client_and_a_rest_is_left_out(tff_cache):
  train, _ = tff.simulation.datasets.celeba.load_data(cache_dir=str(tff_cache))
  task = _load(tff_cache)
  grouped = [client_id.split('+') for client_id in task.central.data.client_ids]
  assert {len(group) for group in grouped} == {3}
  assert len(grouped) == len(train.client_ids) // 3
  used = list(itertools.chain(*grouped))
  assert used == sorted(train.client_ids)[: len(used)]
  assert task.train.client_ids == task.central.data.client_ids


def test_both_losses_count_half(tff_cache):
  central = _load(tff_cache).central
  assert (central.federated_weight, central.central_weight) == (0.5, 0.5)
  assert central.objective is None


def test_clients_without_a_face_of_a_kind_are_not_of_that_kind(tmp_path):
  train = {'1': [0, 0], '2': [0], '3': [0], '4': [1], '5': [0, 1], '6': [1], '7': [1]}
  _write(tmp_path, train, {'8': [1, 1], '9': [0, 1, 0]})
  task = _load(tmp_path)
  assert _sizes(task.train) == {'4+5+6': 3}
  assert _sizes(task.central.data) == {'1+2+3': 4, '4+5+6': 1}
  assert _sizes(task.test) == {'8': 2, '9': 3}
  assert list(task.test_parts) == ['smiling', 'unsmiling']
  assert _sizes(task.test_parts['smiling']) == {'8': 2, '9': 1}
  assert _sizes(task.test_parts['unsmiling']) == {'9': 2}
  for data in (task.train, task.central.data, *task.test_parts.values()):
    assert len(data.all_rows()['y']) == _total(data)


@pytest.mark.parametrize(
  ('train', 'message'),
  [
    (
      {'1': [0, 0], '2': [0], '3': [0], '4': [1]},
      r"celeba_smile: no client holds a smiling face in 'split_by_clients_train' of .*"
      r'celeba\.sqlite',
    ),
    (
      {'1': [1, 1], '2': [1], '3': [1]},
      'celeba_smile: no client holds an unsmiling face',
    ),
    ({'1': [0, 1], '2': [0, 1]}, '2 celebrities do not make a client'),
  ],
)
def test_data_without_faces_of_both_kinds_are_refused(tmp_path, train, message):
  _write(tmp_path, train, {'8': [1, 0]})
  with pytest.raises(ValueError, match=message):
    _load(tmp_path)


def test_examples_are_shown_by_what_they_are(tff_cache):
  task = _load(tff_cache)
  rows = task.test.all_rows()
  shown = task.show(rows)
  assert set(shown) == {'smiling', 'unsmiling'}
  assert [text == 'smiling' for text in shown] == list(rows['y'] == 1)


def test_the_model_has_a_hidden_layer_of_64_and_divides_pixels_by_255(tff_cache):
  task = _load(tff_cache)
  rows = task.test.rows(task.test.client_ids[0])
  weights = task.model.initialize(tf.constant([0, 1]))
  kernel, bias, last_kernel, last_bias = [tensor.numpy() for tensor in weights[0]]
  assert (kernel.shape, last_kernel.shape) == ((84 * 84 * 3, 64), (64, 1))
  flat = rows['x'].reshape([len(rows['x']), -1]) / 255
  hidden = np.maximum(flat @ kernel + bias, 0)
  expected = (hidden @ last_kernel + last_bias)[:, 0]
  logits = task.model.predict(weights, tf.constant(rows['x']), None)
  np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-4)
  assert task.model.input_spec == {
    'x': tf.TensorSpec([None, 84, 84, 3], tf.uint8),
    'y': tf.TensorSpec([None], tf.int32),
  }


def test_both_kinds_of_real_faces_are_about_as_many(data_dir):
  task = _load(data_dir)
  smiling, unsmiling = map(_total, task.test_parts.values())
  assert smiling + unsmiling == _total(task.test)
  num_train, num_central = _total(task.train), _total(task.central.data)
  for share in (
    smiling / (smiling + unsmiling),
    num_train / (num_train + num_central),
  ):
    assert 0.4 < share < 0.6


def test_the_smile_can_be_learnt_from_all_real_faces_together(data_dir):
  task = _load(data_dir)
  federated, central = task.train.all_rows(), task.central.data.all_rows()
  x = np.concatenate([federated['x'], central['x']])
  y = np.concatenate([federated['y'], central['y']])
  weights = task.model.initialize(tf.constant([0, 1]))

  @tf.function
  def step(weights, x, y):
    with tf.GradientTape() as tape:
      tape.watch(weights.trainable)
      loss = task.model.loss(y, task.model.predict(weights, x, None))
    gradient = tape.gradient(loss, weights.trainable)
    trainable = tf.nest.map_structure(
      lambda w, g: w - 0.003 * g, weights.trainable, gradient
    )
    return type(weights)(trainable, ())

  generator = np.random.default_rng(0)
  for _ in range(2_000):
    batch = generator.integers(0, len(y), 64)
    weights = step(weights, tf.constant(x[batch]), tf.constant(y[batch]))
  held_out = task.test.all_rows()
  outputs = task.model.predict(weights, tf.constant(held_out['x']), None)
  sums = task.model.metrics(tf.constant(held_out['y']), outputs)
  metrics = task.model.finalize_metrics(sums)
  assert metrics['auc'] > 0.7
  assert metrics['accuracy'] > 0.6


def test_there_are_the_published_clients_where_the_data_are_the_published(data_dir):
  task = _load(data_dir)
  if len(task.test.client_ids) != 935:
    pytest.skip('these are other data in the same format')
  assert len(task.central.data.client_ids) == 2_802
  assert _total(task.test) == 19_859
