"""Tests of federated data."""

import os

import numpy as np
import pytest

from tasks import federated_data
from tasks.federated_data import FederatedData


def _data():
  return FederatedData.from_clients(
    {
      'b': {'x': np.arange(6.0).reshape(3, 2), 'y': np.array([1, 2, 3])},
      'a': {'x': np.zeros([0, 2]), 'y': np.zeros([0], int)},
      'c': {'x': np.array([[8.0, 9.0]]), 'y': np.array([4])},
    }
  )


def test_clients_keep_their_order_and_their_rows():
  data = _data()
  assert data.client_ids == ('b', 'a', 'c')
  assert list(data.rows('b')) == ['x', 'y']
  np.testing.assert_array_equal(data.rows('b')['x'], [[0, 1], [2, 3], [4, 5]])
  assert [data.num_examples(client_id) for client_id in 'bac'] == [3, 0, 1]


def test_all_rows_are_those_of_the_clients_in_order():
  rows = _data().all_rows()
  np.testing.assert_array_equal(rows['x'], [[0, 1], [2, 3], [4, 5], [8, 9]])
  np.testing.assert_array_equal(rows['y'], [1, 2, 3, 4])


def test_chosen_rows_are_gathered_and_the_other_clients_not_loaded():
  loaded = []
  everything = _data()

  def load(client_id):
    loaded.append(client_id)
    return everything.rows(client_id)

  data = FederatedData('bac', load, everything.num_examples)
  rows = data.all_rows(np.array([1, 2]))
  np.testing.assert_array_equal(rows['x'], [[2, 3], [4, 5]])
  assert loaded == ['b']
  rows = data.all_rows(np.array([0, 3]))
  np.testing.assert_array_equal(rows['y'], [1, 4])
  assert loaded == ['b', 'b', 'c']


def test_no_rows_at_all_keep_their_shape():
  rows = _data().all_rows(np.array([], int))
  assert rows['x'].shape == (0, 2)
  empty = FederatedData.from_clients({'a': {'x': np.zeros([0, 2]), 'y': np.zeros([0])}})
  assert empty.all_rows()['x'].shape == (0, 2)


def test_rows_beyond_the_bound_are_on_disk_and_the_same(monkeypatch):
  in_memory = _data().all_rows()
  monkeypatch.setattr(federated_data, '_MAX_BYTES_IN_MEMORY', 10)
  on_disk = _data().all_rows()
  assert not isinstance(in_memory['x'], np.memmap)
  for name in in_memory:
    assert isinstance(on_disk[name], np.memmap)
    np.testing.assert_array_equal(on_disk[name], in_memory[name])


def test_nothing_is_loaded_before_it_is_asked_for():
  def load(client_id):
    raise AssertionError(client_id)

  data = FederatedData(['a', 'b'], load, lambda client_id: 7)
  assert data.num_examples('b') == 7


def test_a_partition_deals_out_the_rows():
  rows = {'x': np.arange(10.0), 'y': np.arange(10)}
  parts = [np.array([1, 5]), np.array([], int), np.array([0])]
  data = FederatedData.from_partition(rows, parts)
  assert data.client_ids == ('client_000', 'client_001', 'client_002')
  np.testing.assert_array_equal(data.rows('client_000')['x'], [1.0, 5.0])
  assert [data.num_examples(c) for c in data.client_ids] == [2, 0, 1]
  many = FederatedData.from_partition(rows, [np.array([0])] * 1001)
  assert many.client_ids[7] == 'client_0007'  # So that they sort as they are numbered.


def test_client_dataset_is_a_single_batch_of_all_rows():
  data = _data()
  for client_id in data.client_ids:
    (batch,) = data.client_dataset(client_id)
    np.testing.assert_array_equal(batch['x'], data.rows(client_id)['x'])
    np.testing.assert_array_equal(batch['y'], data.rows(client_id)['y'])


@pytest.mark.slow
def test_client_datasets_of_any_length_are_accepted_by_tff(runtime):
  import tensorflow as tf
  import tensorflow_federated as tff

  spec = {
    'x': tf.TensorSpec([None, 2], tf.float64),
    'y': tf.TensorSpec([None], tf.int64),
  }
  data_type = tff.SequenceType(tff.types.tensorflow_to_type(spec))

  @tff.tensorflow.computation(data_type)
  def count(dataset):
    return dataset.reduce(
      np.int64(0), lambda n, batch: n + tf.size(batch['y'], tf.int64)
    )

  @tff.federated_computation(tff.FederatedType(data_type, tff.CLIENTS))
  def count_all(datasets):
    return tff.federated_sum(tff.federated_map(count, datasets))

  data = _data()
  assert count_all([data.client_dataset(client_id) for client_id in 'bac']) == 4


def test_rows_that_do_not_match_are_refused():
  x, y = np.zeros([2, 3]), np.zeros([2])
  with pytest.raises(ValueError, match="'b' has features of lengths"):
    FederatedData.from_clients({'a': {'x': x, 'y': y}, 'b': {'x': x, 'y': y[:1]}})
  with pytest.raises(ValueError, match=r"'b' has examples of .*float32\[3\]"):
    FederatedData.from_clients(
      {'a': {'x': x, 'y': y}, 'b': {'x': x.astype(np.float32), 'y': y}}
    )
  with pytest.raises(ValueError, match='at least one client'):
    FederatedData.from_clients({})
  with pytest.raises(ValueError, match="'a' is there twice"):
    FederatedData(['a', 'b', 'a'], lambda client_id: {})
  with pytest.raises(ValueError, match='must be text, found 7'):
    FederatedData([7], lambda client_id: {})


def test_ids_and_rows_may_be_any_sequences():
  data = FederatedData(
    np.array(['a', 'b']), lambda client_id: {'x': [1, 2], 'y': [3, 4]}
  )
  assert data.client_ids == ('a', 'b')
  np.testing.assert_array_equal(data.rows('a')['y'], [3, 4])


def test_rows_are_counted_once():
  loaded = []

  def load(client_id):
    loaded.append(client_id)
    return {'x': np.zeros(3), 'y': np.zeros(3)}

  data = FederatedData(['a'], load)
  assert [data.num_examples('a') for _ in range(3)] == [3, 3, 3]
  assert loaded == ['a']


def test_a_full_disk_is_an_error_and_no_crash(monkeypatch):
  def no_room(*args):
    raise OSError(28, 'No space left on device')

  monkeypatch.setattr(federated_data, '_MAX_BYTES_IN_MEMORY', 10)
  monkeypatch.setattr(os, 'posix_fallocate', no_room)
  with pytest.raises(OSError, match='No space left'):
    _data().all_rows()


def test_rows_are_chosen_in_the_order_of_their_indices():
  rows = {'x': np.arange(10.0).reshape(5, 2), 'y': np.arange(5)}
  some = federated_data.chosen(rows, np.array([3, 0]))
  assert list(some) == ['x', 'y']
  np.testing.assert_array_equal(some['x'], [[6, 7], [0, 1]])
  np.testing.assert_array_equal(some['y'], [3, 0])
