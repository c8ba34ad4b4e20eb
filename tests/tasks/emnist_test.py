"""EMNIST by writer against TFF's own loader."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tasks
from tasks import emnist

pytestmark = pytest.mark.slow


@pytest.mark.parametrize('only_digits', [False, True])
def test_holds_what_tffs_loader_gives_with_pixels_inverted(tff_cache, only_digits):
  loaded = tff.simulation.datasets.emnist.load_data(
    only_digits=only_digits, cache_dir=str(tff_cache)
  )
  data = emnist.by_writer(str(tff_cache), only_digits)
  for ours, theirs in zip(data, loaded, strict=True):
    assert list(ours.client_ids) == sorted(theirs.client_ids)
    for client_id in (ours.client_ids[0], ours.client_ids[-1]):
      rows = ours.rows(client_id)
      examples = list(
        theirs.create_tf_dataset_for_client(client_id).as_numpy_iterator()
      )
      assert ours.num_examples(client_id) == len(examples)
      np.testing.assert_array_equal(rows['y'], [e['label'] for e in examples])
      pixels = np.stack([example['pixels'] for example in examples])
      np.testing.assert_array_equal(rows['x'], 1 - pixels)


def test_background_is_zero_and_all_classes_are_there(data_dir):
  task = tasks.load('emnist_logistic', seed=0, data_dir=str(data_dir))
  rows = task.test.all_rows()
  assert np.median(rows['x']) == 0
  assert set(rows['y']) == set(range(62))
  assert rows['x'].dtype == np.float32


def test_there_are_the_published_clients_where_the_data_are_the_published(data_dir):
  all_train, all_test = emnist.by_writer(str(data_dir), only_digits=False)
  if len(all_train.client_ids) != 3400:
    pytest.skip('these are other data in the same format')
  for data, num_examples in ((all_train, 671_585), (all_test, 77_483)):
    assert sum(map(data.num_examples, data.client_ids)) == num_examples
  digits_train, _ = emnist.by_writer(str(data_dir), only_digits=True)
  assert len(digits_train.client_ids) == 3383
