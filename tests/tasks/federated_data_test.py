"""Tests of federated data."""

import numpy as np
import pytest

from tasks.federated_data import FederatedData


def _data():
  return FederatedData(
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
    FederatedData({'a': {'x': x, 'y': y}, 'b': {'x': x, 'y': y[:1]}})
  with pytest.raises(ValueError, match=r"'b' has examples of .*float32\[3\]"):
    FederatedData({'a': {'x': x, 'y': y}, 'b': {'x': x.astype(np.float32), 'y': y}})
  with pytest.raises(ValueError, match='at least one client'):
    FederatedData({})
