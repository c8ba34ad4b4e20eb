"""Tests of reading TFF's SQLite format."""

import collections
import sqlite3

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks import sql_data
from tests.tasks import tff_data

_FEATURES = {
  'x': tf.io.FixedLenFeature([2], tf.float32),
  'y': tf.io.FixedLenFeature([], tf.int64),
}


def _clients(offset):
  sizes = {"o'hara": 3, 'zoe': 1, 'ann': 2}
  return tff.simulation.datasets.TestClientData(
    {
      client_id: collections.OrderedDict(
        x=offset + np.arange(2.0 * size, dtype=np.float32).reshape([size, 2]),
        y=np.arange(size),
      )
      for client_id, size in sizes.items()
    }
  )


def _rows(examples):
  return collections.OrderedDict(examples)


@pytest.fixture(scope='module', params=[True, False], ids=['indexed', 'without index'])
def path(request, tmp_path_factory):
  path = tmp_path_factory.mktemp('data') / 'some.sqlite'
  splits = {'train': _clients(0), 'test': _clients(100)}
  tff_data.write(path, splits, is_indexed=request.param)
  return path


@pytest.mark.parametrize(('split', 'offset'), [('train', 0), ('test', 100)])
def test_each_client_has_its_examples_of_the_split_in_order(path, split, offset):
  data = sql_data.read(path, split, _FEATURES, _rows)
  assert data.client_ids == ('ann', "o'hara", 'zoe')
  expected = offset + np.arange(6.0).reshape([3, 2])
  np.testing.assert_array_equal(data.rows("o'hara")['x'], expected)
  np.testing.assert_array_equal(data.rows("o'hara")['y'], [0, 1, 2])
  assert [data.num_examples(c) for c in data.client_ids] == [2, 3, 1]


def test_the_first_examples_are_taken_where_there_is_a_limit(path):
  data = sql_data.read(path, 'train', _FEATURES, _rows, max_examples=2)
  assert [data.num_examples(c) for c in data.client_ids] == [2, 2, 1]
  np.testing.assert_array_equal(data.rows("o'hara")['y'], [0, 1])


def test_rows_are_counted_after_preprocessing_where_it_changes_their_number(path):
  def twice(examples):
    return collections.OrderedDict(
      (name, np.concatenate([array, array])) for name, array in examples.items()
    )

  data = sql_data.read(path, 'train', _FEATURES, twice, keeps_count=False)
  assert [data.num_examples(c) for c in data.client_ids] == [4, 6, 2]


def test_what_is_not_there_is_named(path, tmp_path):
  with pytest.raises(ValueError, match="no clients in a split named 'trian'"):
    sql_data.read(path, 'trian', _FEATURES, _rows)
  with pytest.raises(ValueError, match=r'nothing\.sqlite.*unable to open'):
    sql_data.read(tmp_path / 'nothing.sqlite', 'train', _FEATURES, _rows)
  broken = tmp_path / 'broken.sqlite'
  broken.write_bytes(path.read_bytes()[:3000])
  with pytest.raises(ValueError, match=r'broken\.sqlite is not a data base'):
    sql_data.read(broken, 'train', _FEATURES, _rows)
  other = tmp_path / 'other.sqlite'
  with sqlite3.connect(other) as database:
    database.execute('CREATE TABLE cats (name TEXT)')
  with pytest.raises(ValueError, match='no such table'):
    sql_data.read(other, 'train', _FEATURES, _rows)


def test_an_example_without_a_feature_is_named_with_its_client(path):
  features = {'z': tf.io.FixedLenFeature([], tf.int64)}
  data = sql_data.read(path, 'train', features, _rows)
  with pytest.raises(ValueError, match=r"some\.sqlite, client 'ann': .*z"):
    data.rows('ann')


def test_reading_leaves_the_file_as_it_was(path):
  before = path.read_bytes()
  sql_data.read(path, 'train', _FEATURES, _rows).rows('ann')
  assert path.read_bytes() == before
  assert [p.name for p in path.parent.iterdir()] == ['some.sqlite']


def test_a_client_without_examples_has_no_rows(path, tmp_path):
  copy = tmp_path / 'copy.sqlite'
  copy.write_bytes(path.read_bytes())
  with sqlite3.connect(copy) as database:
    database.execute("INSERT INTO client_metadata VALUES ('nobody', 'train', 0)")
    # A stray example of somebody who is no client is nobody's.
    database.execute("INSERT INTO examples VALUES ('train', 'stranger', x'')")
  data = sql_data.read(copy, 'train', _FEATURES, _rows)
  assert data.client_ids == ('ann', 'nobody', "o'hara", 'zoe')
  assert data.rows('nobody')['x'].shape == (0, 2)
  assert len(data.all_rows()['y']) == 6


def test_a_wrong_count_is_noticed(path, tmp_path):
  copy = tmp_path / 'copy.sqlite'
  copy.write_bytes(path.read_bytes())
  with sqlite3.connect(copy) as database:
    database.execute(
      "UPDATE client_metadata SET num_examples = 7 WHERE client_id='ann'"
    )
  with pytest.raises(ValueError, match="'ann' has 2 rows, where 7 were counted"):
    sql_data.read(copy, 'train', _FEATURES, _rows).all_rows()


@pytest.mark.parametrize(
  ('index', 'is_used'),
  [
    ('"odd-name" ON examples (client_id)', True),
    ('a ON examples (split_name, client_id)', True),
    ('a ON examples (split_name)', False),
  ],
)
def test_any_index_that_leads_to_a_client_is_used(tmp_path, index, is_used):
  path = tmp_path / 'some.sqlite'
  tff_data.write(path, {'train': _clients(0)}, is_indexed=False)
  with sqlite3.connect(path) as database:
    database.execute(f'CREATE INDEX {index}')
  assert (sql_data._Database(path, 'train')._row_ids is None) == is_used
  data = sql_data.read(path, 'train', _FEATURES, _rows)
  np.testing.assert_array_equal(data.rows('ann')['y'], [0, 1])
