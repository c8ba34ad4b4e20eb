"""Tests of writing the trained model."""

import numpy as np
import pytest
import tensorflow as tf

import tasks
from tff_algorithms import models
from training_loops import exports


@pytest.fixture(scope='module')
def task():
  return tasks.load('digits_mlp', seed=0)


@pytest.fixture(scope='module')
def weights(task):
  return task.model.initialize(tf.constant([3, 0]))


def test_the_arrays_of_the_npz_are_named_by_their_place(tmp_path, weights):
  exports.write_weights(tmp_path / 'w.npz', weights)
  with np.load(tmp_path / 'w.npz') as arrays:
    assert list(arrays) == [f'trainable/{i}' for i in range(4)]
    for i, tensor in enumerate(weights.trainable):
      np.testing.assert_array_equal(arrays[f'trainable/{i}'], tensor)


def test_equal_weights_give_equal_files(tmp_path, weights):
  exports.write_weights(tmp_path / 'a.npz', weights)
  exports.write_weights(tmp_path / 'b.npz', weights)
  assert (tmp_path / 'a.npz').read_bytes() == (tmp_path / 'b.npz').read_bytes()


def test_the_saved_model_predicts_as_the_model_and_replaces_an_older_one(
  tmp_path, task, weights
):
  path = tmp_path / 'saved_model'
  older = models.ModelWeights(tuple(2 * w for w in weights.trainable), ())
  exports.write_saved_model(path, task.model, older)
  exports.write_saved_model(path, task.model, weights)
  x = task.test.all_rows()['x'][:7]
  loaded = tf.saved_model.load(str(path))
  expected = task.model.predict(weights, x, None)
  np.testing.assert_allclose(loaded.predict(x), expected, rtol=1e-5)
  assert [p.name for p in tmp_path.iterdir()] == ['saved_model']
