"""Tests of labelled data."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from tasks import labelled_data


def _rows(num_rows):
  return labelled_data.rows(
    np.arange(2.0 * num_rows).reshape(-1, 2), np.arange(num_rows)
  )


def test_training_rows_are_dealt_out_and_test_rows_kept_together():
  data = labelled_data.LabelledData(_rows(5), _rows(3), 5)
  calls = []

  def partition(labels, seed):
    calls.append((labels.tolist(), seed))
    return [np.array([4, 0]), np.array([1, 2, 3])]

  train, test = data.federated(partition, seed=7)
  assert calls == [([0, 1, 2, 3, 4], 7)]
  assert train.client_ids == ('client_000', 'client_001')
  np.testing.assert_array_equal(train.rows('client_000')['x'], [[8, 9], [0, 1]])
  np.testing.assert_array_equal(train.rows('client_000')['y'], [4, 0])
  np.testing.assert_array_equal(train.rows('client_001')['y'], [1, 2, 3])
  assert test.client_ids == ('test',)
  np.testing.assert_array_equal(test.rows('test')['x'], _rows(3)['x'])


def test_rows_have_the_dtypes_of_a_model():
  rows = labelled_data.rows(np.zeros([3, 2], np.float64), np.zeros([3], np.int64))
  assert list(rows) == ['x', 'y']
  assert rows['x'].dtype == np.float32
  assert rows['y'].dtype == np.int32


def test_the_seed_determines_what_is_held_out():
  def held_out(seed):
    return labelled_data.split_rows(_rows(100), seed)[1]['y'].tolist()

  assert held_out(1) == held_out(1)
  assert held_out(1) != held_out(2)


def test_one_row_cannot_be_split():
  with pytest.raises(ValueError, match='1 rows are too few'):
    labelled_data.split_rows(_rows(1), 0)


@hypothesis.given(st.integers(2, 60), st.integers(0, 2**32))
def test_a_fifth_is_held_out_and_nothing_lost(num_rows, seed):
  train, test = labelled_data.split_rows(_rows(num_rows), seed)
  assert len(test['y']) == max(1, round(num_rows / 5))
  assert sorted([*train['y'], *test['y']]) == list(range(num_rows))
  for rows in (train, test):
    assert list(rows['y']) == sorted(rows['y'])
    np.testing.assert_array_equal(rows['x'][:, 0], 2 * rows['y'])
