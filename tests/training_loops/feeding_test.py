"""Tests of the data's way into a round."""

import collections
import contextlib
import dataclasses
import os
import threading

import numpy as np
import pytest
import tensorflow as tf

from tasks.classifiers import classifier
from tasks.federated_data import FederatedData
from tasks.task import Task
from training_loops import feeding
from training_loops.sampling import Participant

_IDS = ['ann', 'Zoë', 'o/hara', 'empty']


def _rows(n):
  return collections.OrderedDict(
    x=np.arange(3.0 * n, dtype=np.float32).reshape([n, 3]),
    y=np.arange(n, dtype=np.int32),
  )


def _task(load=None):
  rows = {client_id: _rows(n) for client_id, n in zip(_IDS, (4, 2, 1, 0), strict=True)}
  model = classifier(
    tf.TensorSpec([None, 3], tf.float32),
    lambda seed: (tf.zeros([3, 2]),),
    lambda weights, x, seed: x @ weights[0],
  )
  data = FederatedData(_IDS, load or rows.__getitem__)
  return Task('toy', model, data, data)


def _cohort(*client_ids, max_steps=None):
  return [Participant(client_id, max_steps) for client_id in client_ids]


@pytest.fixture
def feed(tmp_path):
  with contextlib.closing(feeding.Feed(_task(), tmp_path, has_limits=False)) as feed:
    yield feed


def _loaded(feed, argument):
  load = tf.function(lambda value: feed.client_input.load(value))
  return load(tf.nest.map_structure(tf.constant, argument))


def test_a_client_reads_its_rows_by_what_it_is_given(feed):
  arguments = feed.arguments(_cohort(*_IDS))
  for client_id, argument in zip(_IDS, arguments, strict=True):
    rows = _loaded(feed, argument).rows
    expected = _task().train.rows(client_id)
    for name in expected:
      np.testing.assert_array_equal(rows[name], expected[name])


def test_keys_are_of_the_id_alone(feed, tmp_path):
  (argument,) = feed.arguments(_cohort('ann'))
  (tmp_path / 'other').mkdir()
  other = feeding.Feed(_task(), tmp_path / 'other', has_limits=True)
  (limited,) = other.arguments(_cohort('ann', max_steps=3))
  assert _loaded(feed, argument).key == _loaded(other, limited).key
  other.close()


def test_limits_travel_with_the_ids(tmp_path):
  feed = feeding.Feed(_task(), tmp_path, has_limits=True)
  arguments = feed.arguments([Participant('ann', 3), Participant('Zoë', None)])
  assert _loaded(feed, arguments[0]).max_steps == 3
  assert _loaded(feed, arguments[1]).max_steps == 2**31 - 1
  feed.close()


def test_rows_are_made_once_and_only_of_clients_drawn(tmp_path):
  made = []

  def load(client_id):
    made.append(client_id)
    return _rows(2)

  with contextlib.closing(feeding.Feed(_task(load), tmp_path, False)) as feed:
    feed.arguments(_cohort('ann', 'empty'))
    feed.prepare(_cohort('empty', 'Zoë'))
    feed.arguments(_cohort('empty', 'Zoë'))
    feed.arguments(_cohort('ann', 'Zoë'))
  assert made == ['ann', 'empty', 'Zoë']
  assert len(os.listdir(tmp_path)) == 3


@pytest.mark.parametrize('prepared', [True, False])
def test_rows_that_do_not_fit_the_model_are_an_error(tmp_path, prepared):
  def load(client_id):
    return {**_rows(2), 'x': np.zeros([2, 5])}

  with contextlib.closing(feeding.Feed(_task(load), tmp_path, False)) as feed:
    if prepared:
      feed.prepare(_cohort('ann'))
    with pytest.raises(ValueError, match=r"client 'ann' has rows of x float64\[5\]"):
      feed.arguments(_cohort('ann'))


def test_an_id_too_long_for_a_file_is_found_at_once(tmp_path):
  data = FederatedData(['fine', 'x' * 200], lambda client_id: _rows(1))
  task = dataclasses.replace(_task(), train=data)
  with pytest.raises(ValueError, match='too long'):
    feeding.Feed(task, tmp_path, has_limits=False)


def test_closing_waits_for_one_client_and_not_for_all(tmp_path):
  begun, may_end = threading.Event(), threading.Event()
  made = []

  def load(client_id):
    made.append(client_id)
    begun.set()
    may_end.wait(60)
    return _rows(1)

  feed = feeding.Feed(_task(load), tmp_path, has_limits=False)
  feed.prepare(_cohort(*_IDS))
  begun.wait(60)
  threading.Timer(0.1, may_end.set).start()
  feed.close()
  assert made == ['ann']
