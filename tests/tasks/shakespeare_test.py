"""Shakespeare against TFF's own preprocessing."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tasks
from tasks import shakespeare

pytestmark = pytest.mark.slow


@pytest.fixture(scope='module')
def task(tff_cache):
  return tasks.load('shakespeare', seed=0, data_dir=str(tff_cache))


def test_rows_are_those_of_tffs_baseline(task, tff_cache):
  spec = tff.simulation.baselines.ClientSpec(
    num_epochs=1, batch_size=10_000, shuffle_buffer_size=1
  )
  theirs = tff.simulation.baselines.shakespeare.create_character_prediction_task(
    spec, spec, cache_dir=str(tff_cache)
  ).datasets
  for ours, clients in (
    (task.train, theirs.train_data),
    (task.test, theirs.test_data),
  ):
    assert list(ours.client_ids) == sorted(clients.client_ids)
    for client_id in (ours.client_ids[0], ours.client_ids[-1]):
      dataset = clients.create_tf_dataset_for_client(client_id)
      ((x, y),) = theirs.train_preprocess_fn(dataset)
      rows = ours.rows(client_id)
      np.testing.assert_array_equal(rows['x'], x)
      np.testing.assert_array_equal(rows['y'], y)
      assert ours.num_examples(client_id) == len(x)


def test_characters_and_special_ones_have_ids_of_their_own(task):
  assert len(set(shakespeare.CHARACTERS)) == 86
  assert (shakespeare.UNKNOWN, shakespeare.BEGIN, shakespeare.END) == (87, 88, 89)
  rows = task.train.rows(task.train.client_ids[0])
  assert rows['x'].shape[1:] == rows['y'].shape[1:] == (80,)
  assert rows['x'].dtype == np.int32
  assert rows['x'][0, 0] == shakespeare.BEGIN
  np.testing.assert_array_equal(rows['x'][:, 1:], rows['y'][:, :-1])


def test_a_client_without_speeches_has_no_rows():
  rows = shakespeare._preprocess({'snippets': np.array([], object)})
  assert rows['x'].shape == (0, 80)


def test_there_are_one_or_two_layers(tff_cache):
  def num_weights(layers):
    task = tasks.load(
      'shakespeare', seed=0, data_dir=str(tff_cache), lstm_layers=layers
    )
    return len(task.model.initialize(np.array([0, 0])).trainable)

  assert num_weights(2) == num_weights(1) + 3
  with pytest.raises(ValueError, match='--lstm_layers must be 1 or 2'):
    num_weights(3)


def test_there_are_the_published_clients_where_the_data_are_the_published(
  task, data_dir
):
  del data_dir  # Real data only.
  if len(task.train.client_ids) != 715:
    pytest.skip('these are other data in the same format')
  assert len(task.test.client_ids) == 715
