"""Tests of the rows that the server of a mixed algorithm is given."""

import collections
import contextlib
import itertools
import os

import numpy as np
import pytest
import tensorflow as tf

from tasks.client_files import Feature
from training_loops.central_data import Batches, CentralFeed, Stream

_FEATURES = (Feature('x', 'float32', (2,)), Feature('y', 'int32', ()))


def _rows(n, first=0):
  y = np.arange(first, first + n, dtype=np.int32)
  x = np.stack([y, -y], axis=1).astype(np.float32)
  return collections.OrderedDict(x=x, y=y)


def _stream(n=7, seed=0, use=0):
  return Stream(_rows(n), seed, use)


def _taken(stream, start, size) -> list[int]:
  rows = stream.take(start, size)
  np.testing.assert_array_equal(rows['x'], np.stack([rows['y'], -rows['y']], axis=1))
  return rows['y'].tolist()


def test_every_epoch_has_every_row_once_in_another_order():
  epochs = [_taken(_stream(), 7 * epoch, 7) for epoch in range(5)]
  assert all(sorted(epoch) == list(range(7)) for epoch in epochs)
  assert len(set(map(tuple, epochs))) == 5


@pytest.mark.parametrize('size', [1, 3, 7, 10, 20])
def test_wherever_it_is_cut_a_stream_goes_on_where_it_was(size):
  pieces = [_taken(_stream(), start, size) for start in range(0, 5 * size, size)]
  assert list(itertools.chain(*pieces)) == _taken(_stream(), 0, 5 * size)


def test_rows_depend_on_seed_and_use_and_on_nothing_else():
  def order(**arguments):
    return _taken(_stream(50, **arguments), 0, 50)

  assert order() == order(seed=0, use=0)
  assert order(seed=1) != order() != order(use=1)
  assert order(seed=1) != order(use=1)


def test_what_was_taken_before_does_not_matter():
  stream = _stream()
  for start in (30, 2, 15, 7, 2):
    assert _taken(stream, start, 9) == _taken(_stream(), start, 9)


def test_rounds_take_up_where_the_one_before_ended():
  batches = Batches([(_stream(), 3)], num_batches=2)
  rounds = [batches(round_num)['y'].tolist() for round_num in range(1, 6)]
  assert list(itertools.chain(*rounds)) == _taken(_stream(), 0, 30)


def test_a_batch_may_be_larger_than_the_data():
  (batch,) = (Batches([(_stream(3), 8)], 1)(1)['y'],)
  assert np.bincount(batch).tolist() in ([3, 3, 2], [3, 2, 3], [2, 3, 3])


def test_a_batch_has_its_share_of_every_stream():
  others = Stream(_rows(20, first=100), 0, 1)
  batches = Batches([(_stream(50), 4), (others, 1)], num_batches=3)
  rounds = [batches(round_num)['y'].reshape([3, 5]) for round_num in (1, 2)]
  of_both = np.concatenate(rounds)
  assert (of_both[:, :4] < 50).all()
  assert (of_both[:, 4] >= 100).all()
  assert of_both[:, :4].ravel().tolist() == _taken(_stream(50), 0, 24)
  assert of_both[:, 4].tolist() == others.take(0, 6)['y'].tolist()


@pytest.fixture(name='batches')
def some_batches():
  return Batches([(_stream(), 3)], num_batches=2)


@pytest.fixture(name='feed')
def feed_of_batches(batches, tmp_path):
  with contextlib.closing(CentralFeed(batches, tmp_path, _FEATURES)) as feed:
    yield feed


def _read(feed, argument):
  load = tf.function(feed.central_input.load)
  return load(tf.constant(argument)).rows


def test_the_server_reads_the_rows_of_its_round(feed, batches):
  for round_num in (1, 2, 3):
    rows = _read(feed, feed.argument(round_num))
    feed.prepare(round_num + 1)
    for name, expected in batches(round_num).items():
      assert rows[name].dtype == expected.dtype
      np.testing.assert_array_equal(rows[name], expected)


def test_files_of_a_round_are_removed_after_it(feed, tmp_path):
  feed.argument(1)
  first = set(os.listdir(tmp_path))
  feed.prepare(2)
  feed.argument(2)
  second = set(os.listdir(tmp_path))
  assert len(first) == len(second) == 1
  assert not first & second


def test_a_run_that_is_continued_goes_straight_to_its_round(feed, batches, tmp_path):
  feed.argument(1)
  rows = _read(feed, feed.argument(40))
  np.testing.assert_array_equal(rows['y'], batches(40)['y'])
  assert len(os.listdir(tmp_path)) == 1


def test_rows_are_made_once_whether_prepared_or_not(tmp_path):
  made = []

  def rows_of(round_num):
    made.append(round_num)
    return _rows(2)

  with contextlib.closing(CentralFeed(rows_of, tmp_path, _FEATURES)) as feed:
    feed.argument(1)
    feed.prepare(2)
    feed.prepare(2)
    feed.argument(2)
    feed.argument(2)
  assert made == [1, 2]


@pytest.mark.parametrize('prepared', [True, False])
def test_rows_that_do_not_fit_the_loss_are_an_error(tmp_path, prepared):
  batches = Batches([(Stream({'x': np.zeros([4, 5])}, 0, 0), 2)], 1)
  with contextlib.closing(CentralFeed(batches, tmp_path, _FEATURES)) as feed:
    if prepared:
      feed.prepare(1)
    with pytest.raises(
      ValueError, match=r"the server's data has rows of x float64\[5\]"
    ):
      feed.argument(1)
