"""CIFAR-100 against TFF's own preprocessing."""

import collections

import numpy as np
import pytest
import tensorflow_federated as tff

import tasks

pytestmark = pytest.mark.slow


def _load(tff_cache, name='cifar100', **options):
  return tasks.load(name, 0, data_dir=str(tff_cache), cifar_model='cnn', **options)


def test_rows_are_those_of_tffs_baseline(tff_cache):
  spec = tff.simulation.baselines.ClientSpec(
    num_epochs=1, batch_size=1_000, shuffle_buffer_size=1
  )
  theirs = tff.simulation.baselines.cifar100.create_image_classification_task(
    spec, spec, cache_dir=str(tff_cache)
  ).datasets
  task = _load(tff_cache)
  for ours, clients in (
    (task.train, theirs.train_data),
    (task.test, theirs.test_data),
  ):
    assert list(ours.client_ids) == sorted(clients.client_ids)
    for client_id in (ours.client_ids[0], ours.client_ids[-1]):
      dataset = clients.create_tf_dataset_for_client(client_id)
      ((x, y),) = theirs.train_preprocess_fn(dataset)
      rows = ours.rows(client_id)
      np.testing.assert_allclose(rows['x'], x, atol=1e-6)
      np.testing.assert_array_equal(rows['y'], y)


def _labels(data):
  return collections.Counter(data.all_rows()['y'].tolist())


@pytest.mark.parametrize('partitioner', ['dirichlet', 'iid'])
def test_a_partition_is_of_all_the_pictures(tff_cache, partitioner):
  pool = _load(tff_cache)
  task = _load(tff_cache, 'cifar100_dirichlet', partitioner=partitioner, num_clients=3)
  assert len(task.train.client_ids) == 3
  assert _labels(task.train) == _labels(pool.train)
  assert _labels(task.test) == _labels(pool.test)


def test_the_pool_can_be_allocated_by_pachinko(data_dir):
  task = _load(
    data_dir,
    'cifar100_dirichlet',
    partitioner='pachinko',
    num_clients=50,
    examples_per_client=40,
  )
  sizes = [task.train.num_examples(c) for c in task.train.client_ids]
  assert sizes == [40] * 50
  kinds = [len(set(task.train.rows(c)['y'])) for c in task.train.client_ids]
  assert np.mean(kinds) < 25  # Forty pictures of a hundred kinds would show 33.


def test_there_are_the_published_clients_where_the_data_are_the_published(data_dir):
  task = _load(data_dir)
  assert {task.train.num_examples(c) for c in task.train.client_ids} == {100}
  if len(task.train.client_ids) != 500:
    pytest.skip('these are other data in the same format')
  assert len(task.test.client_ids) == 100
