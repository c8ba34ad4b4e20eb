"""Stack Overflow against TFF's own preprocessing."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tasks
from tasks import stackoverflow

pytestmark = pytest.mark.slow

_SPEC = tff.simulation.baselines.ClientSpec(
  num_epochs=1, batch_size=1_000, shuffle_buffer_size=1
)


@pytest.fixture
def counts(tff_cache, monkeypatch):
  """TFF's baselines with the words and tags that our tasks have."""
  datasets = tff.simulation.datasets.stackoverflow
  words, tags = (
    [entry.decode() for entry in stackoverflow._vocabulary(str(tff_cache), kind, size)]
    for kind, size in (('word', 100), ('tag', 30))
  )
  monkeypatch.setattr(
    datasets, 'load_word_counts', lambda vocab_size: dict.fromkeys(words, 1)
  )
  monkeypatch.setattr(datasets, 'load_tag_counts', lambda: dict.fromkeys(tags, 1))
  return words, tags


def _clients(task, theirs):
  """The smallest clients of each split, ours beside theirs."""
  for ours, clients in (
    (task.train, theirs.train_data),
    (task.test, theirs.test_data),
  ):
    assert list(ours.client_ids) == sorted(clients.client_ids)
    for client_id in sorted(ours.client_ids, key=ours.num_examples)[:2]:
      dataset = clients.create_tf_dataset_for_client(client_id)
      (batch,) = theirs.train_preprocess_fn(dataset)
      assert ours.num_examples(client_id) == len(batch[0])
      yield ours.rows(client_id), batch


def test_words_are_those_of_tffs_baseline(tff_cache, counts):
  del counts  # Patched.
  task = tasks.load(
    'stackoverflow_word', seed=0, data_dir=str(tff_cache), vocabulary_size=100
  )
  theirs = tff.simulation.baselines.stackoverflow.create_word_prediction_task(
    _SPEC, _SPEC, vocab_size=100, cache_dir=str(tff_cache)
  ).datasets
  for rows, (x, y) in _clients(task, theirs):
    np.testing.assert_array_equal(rows['x'], x)
    np.testing.assert_array_equal(rows['y'], y)


def test_bags_of_words_and_tags_are_those_of_tffs_baseline(tff_cache, counts):
  words, tags = counts
  task = tasks.load(
    'stackoverflow_tag',
    seed=0,
    data_dir=str(tff_cache),
    vocabulary_size=100,
    num_tags=30,
  )
  theirs = tff.simulation.baselines.stackoverflow.create_tag_prediction_task(
    _SPEC, _SPEC, word_vocab_size=100, tag_vocab_size=30, cache_dir=str(tff_cache)
  ).datasets
  for rows, (x, y) in _clients(task, theirs):
    bags = tf.reduce_sum(tf.one_hot(rows['x'] - 1, len(words)), axis=1).numpy()
    bags /= np.maximum(bags.sum(axis=1, keepdims=True), 1)
    np.testing.assert_allclose(bags, x, rtol=1e-6)
    assert rows['y'].shape == (len(x), len(tags))
    np.testing.assert_array_equal(rows['y'], y)


def test_a_limit_is_for_training_only(tff_cache):
  def counted(limit):
    task = tasks.load(
      'stackoverflow_word', 0, data_dir=str(tff_cache), max_client_examples=limit
    )
    return [
      max(map(data.num_examples, data.client_ids)) for data in (task.train, task.test)
    ]

  all_train, all_test = counted(None)
  assert counted(2) == [2, all_test]
  assert all_train > 2


def test_the_vocabulary_is_of_the_size_asked_for_and_the_most_frequent(data_dir):
  task = tasks.load(
    'stackoverflow_word', 0, data_dir=str(data_dir), vocabulary_size=1000
  )
  assert task.model.initialize(np.array([0, 0])).trainable[0].shape == [1004, 96]
  words = stackoverflow._vocabulary(str(data_dir), 'word', 10)
  assert {b'a', b'of', b'.'} <= set(words)
  rows = task.train.rows(task.train.client_ids[0])
  assert rows['x'].max() <= 1003


def test_without_tables_and_network_the_missing_one_is_named(tmp_path, monkeypatch):
  def no_network(*args, **kwargs):
    raise Exception('URL fetch failure')

  datasets = tff.simulation.datasets.stackoverflow
  monkeypatch.setattr(datasets, 'load_word_counts', no_network)
  with pytest.raises(ValueError, match=r'stackoverflow\.word_count.*--data_dir'):
    stackoverflow._vocabulary(str(tmp_path), 'word', 10)


def test_there_are_the_published_clients_where_the_data_are_the_published(data_dir):
  task = tasks.load('stackoverflow_word', 0, data_dir=str(data_dir))
  if len(task.train.client_ids) != 342_477:
    pytest.skip('these are other data in the same format')
  assert len(task.test.client_ids) == 204_088
