"""Tests of made-up work."""

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import works
from benchmarks.peers import tff_models

_MODELS = ('logistic', 'cnn', 'lstm')


@pytest.mark.parametrize('model', _MODELS)
def test_work_depends_on_the_seed_alone(model):
  def content(seed):
    work = works.make('fed_avg', model, 3, seed)
    arrays = [array for c in work.clients for array in (c.x, c.y)]
    return [array.tobytes() for array in [*arrays, *work.weights]]

  assert content(1) == content(1)
  assert content(1) != content(2)


@pytest.mark.parametrize(('model', 'median'), [('logistic', 130), ('lstm', 16)])
def test_sizes_are_unequal_and_nearly_all_leave_a_partial_last_batch(model, median):
  work = works.make('fed_avg', model, 200, seed=0)
  sizes = [len(client) for client in work.clients]
  assert 0.9 * median < np.median(sizes) < 1.1 * median
  assert min(sizes) >= 1
  assert max(sizes) > 2 * median
  assert np.mean([size % work.batch_size != 0 for size in sizes]) > 0.7


def test_images_are_bytes_and_their_labels_are_of_all_classes():
  clients = list(works.clients('logistic', 50, seed=0))
  assert all(c.x.dtype == np.uint8 and c.x.shape[1:] == (28, 28) for c in clients)
  assert max(c.x.max() for c in clients) == 254  # Nothing overflows: 199 + 55.
  labels = np.concatenate([c.y for c in clients])
  assert (labels.dtype, set(labels)) == (np.int32, set(range(works.NUM_CLASSES)))


def test_a_text_is_followed_by_its_next_character_and_has_no_padding():
  for client in works.clients('lstm', 5, seed=0):
    np.testing.assert_array_equal(client.x[:, 1:], client.y[:, :-1])
    assert client.x.dtype == client.y.dtype == np.int32
    assert client.x.min() > 0


def test_clients_one_by_one_are_those_of_the_work():
  work = works.make('mime', 'cnn', 3, seed=5)
  for one, other in zip(works.clients('cnn', 3, seed=5), work.clients, strict=True):
    np.testing.assert_array_equal(one.x, other.x)
    np.testing.assert_array_equal(one.y, other.y)


@pytest.mark.parametrize('model', _MODELS)
def test_weights_and_rows_are_what_the_model_takes(model):
  work = works.make('fed_avg', model, 1, seed=0)
  made = tff_models.model(work)
  initial = made.initialize(np.array([0, 0])).trainable
  shapes = [tuple(w.shape) for w in tf.nest.flatten(initial)]
  assert [array.shape for array in work.weights] == shapes
  rows = tff_models.rows(work, 0)
  for name, spec in made.input_spec.items():
    assert spec.is_compatible_with(tf.constant(rows[name]))


def test_everyone_takes_part_once_before_anyone_twice():
  cohorts = works.cohorts(20, 10, 5, seed=0)
  assert sorted(cohorts[0] + cohorts[1]) == list(range(20))
  assert all(len(set(cohort)) == 10 for cohort in cohorts)
  assert len(cohorts) == 5
  assert cohorts == works.cohorts(20, 10, 5, seed=0) != works.cohorts(20, 10, 5, seed=1)


def test_cohorts_are_as_many_as_asked_for():
  assert [len(works.cohorts(20, 10, n, seed=0)) for n in (1, 2, 3)] == [1, 2, 3]
