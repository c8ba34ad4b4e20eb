"""Tests of client files."""

import os

import numpy as np
import pytest
import tensorflow as tf

from tasks import client_files
from tasks.federated_data import FederatedData

_IDS = (
  'plain',
  '../../etc/passwd',
  'a/b',
  'Ünïcode 客户',
  '',
  '.',
  'x' * 180,
  'X' * 180,
)


def _data(dtype=np.uint8):
  generator = np.random.default_rng(0)
  clients = {}
  for n, client_id in enumerate(_IDS):  # The first has no rows.
    x = generator.integers(0, 256, [n, 4, 3]).astype(dtype)
    clients[client_id] = {'x': x, 'y': generator.integers(0, 9, [n], np.int32)}
  return FederatedData.from_clients(clients)


def _load(files, client_id):
  """Reads as a client does: in a graph, the id being a tensor."""
  load = tf.function(files.load, input_signature=[tf.TensorSpec([], tf.string)])
  return load(tf.constant(client_id))


@pytest.mark.parametrize(
  'dtype', [np.uint8, np.int64, np.float32, np.float64, np.float16, '>i2', np.bool_]
)
def test_rows_are_read_as_they_were_written(tmp_path, dtype):
  data = _data(dtype)
  files = client_files.write(data, tmp_path / 'files')
  for client_id in _IDS:
    rows = _load(files, client_id)
    assert list(rows) == ['x', 'y']
    for name in rows:
      expected = data.rows(client_id)[name]
      assert rows[name].dtype == tf.as_dtype(expected.dtype.newbyteorder('='))
      np.testing.assert_array_equal(rows[name], expected)


def test_shape_of_an_example_is_known_while_tracing(tmp_path):
  files = client_files.write(_data(), tmp_path / 'files')

  @tf.function(input_signature=[tf.TensorSpec([], tf.string)])
  def load(client_id):
    rows = files.load(client_id)
    assert rows['x'].shape.as_list() == [None, 4, 3]
    assert rows['y'].shape.as_list() == [None]
    return rows

  load(tf.constant('plain'))


def test_decode_is_applied_to_the_rows(tmp_path):
  def decode(rows):
    return tf.cast(rows['x'], tf.float32) / 255, rows['y']

  data = _data()
  files = client_files.write(data, tmp_path / 'files', decode)
  x, y = _load(files, 'a/b')
  np.testing.assert_allclose(x, data.rows('a/b')['x'] / 255, rtol=1e-6)
  np.testing.assert_array_equal(y, data.rows('a/b')['y'])


def test_path_may_be_relative(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  files = client_files.write(_data(), 'files')
  monkeypatch.chdir('/')
  assert _load(files, 'a/b')['y'].shape == [2]


def test_all_files_stay_inside_the_directory(tmp_path):
  client_files.write(_data(), tmp_path / 'parent' / 'files')
  assert os.listdir(tmp_path / 'parent') == ['files']
  assert len(os.listdir(tmp_path / 'parent' / 'files')) == len(_IDS)


def test_failed_write_leaves_nothing(tmp_path):
  rows = {'x': np.zeros([1, 2])}
  data = FederatedData.from_clients({'fine': rows, 'x' * 200: rows})
  with pytest.raises(ValueError, match='too long'):
    client_files.write(data, tmp_path / 'files')
  assert not os.listdir(tmp_path)


def test_existing_files_are_not_overwritten(tmp_path):
  client_files.write(_data(), tmp_path / 'files')
  before = sorted(os.listdir(tmp_path / 'files'))
  with pytest.raises(FileExistsError):
    client_files.write(
      FederatedData.from_clients({'new': {'x': np.zeros([1, 2])}}), tmp_path / 'files'
    )
  assert sorted(os.listdir(tmp_path / 'files')) == before


def test_removing_a_client_removes_its_files_and_no_others(tmp_path):
  data = _data()
  files = client_files.write(data, tmp_path / 'files')
  files.remove('../../etc/passwd')
  assert len(os.listdir(tmp_path / 'files')) == len(_IDS) - 1
  with pytest.raises(tf.errors.NotFoundError, match='files'):
    _load(files, '../../etc/passwd')
  rows = _load(files, 'a/b')
  np.testing.assert_array_equal(rows['y'], data.rows('a/b')['y'])


def test_unknown_id_is_an_error(tmp_path):
  files = client_files.write(_data(), tmp_path / 'files')
  with pytest.raises(tf.errors.NotFoundError, match='files'):
    _load(files, 'nobody')


@pytest.mark.slow
def test_clients_read_their_rows_inside_a_federated_computation(tmp_path, runtime):
  import tensorflow_federated as tff

  data = _data()
  files = client_files.write(data, tmp_path / 'files')

  @tff.tensorflow.computation(tff.TensorType(np.str_))
  def total(client_id):
    return tf.reduce_sum(tf.cast(files.load(client_id)['x'], tf.int64))

  @tff.federated_computation(tff.FederatedType(tff.TensorType(np.str_), tff.CLIENTS))
  def total_of_all(client_ids):
    return tff.federated_sum(tff.federated_map(total, client_ids))

  expected = data.all_rows()['x'].astype(np.int64).sum()
  # TFF itself takes text in ASCII only, but any bytes.
  assert total_of_all([client_id.encode() for client_id in _IDS]) == expected
