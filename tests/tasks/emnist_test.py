"""EMNIST by writer, where the real data are."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tasks


@pytest.fixture(scope='module')
def task(data_dir):
  return tasks.load('emnist_logistic', seed=0, data_dir=str(data_dir))


@pytest.mark.slow
def test_holds_what_tffs_loader_gives_with_pixels_inverted(task, data_dir):
  loaded = tff.simulation.datasets.emnist.load_data(
    only_digits=False, cache_dir=str(data_dir)
  )
  for ours, theirs in zip((task.train, task.test), loaded, strict=True):
    assert list(ours.client_ids) == sorted(theirs.client_ids)
    for client_id in (ours.client_ids[0], ours.client_ids[-1]):
      rows = ours.rows(client_id)
      examples = list(
        theirs.create_tf_dataset_for_client(client_id).as_numpy_iterator()
      )
      np.testing.assert_array_equal(rows['y'], [e['label'] for e in examples])
      pixels = np.stack([example['pixels'] for example in examples])
      np.testing.assert_array_equal(rows['x'], 1 - pixels)


@pytest.mark.slow
def test_background_is_zero_and_all_classes_are_there(task):
  rows = task.train.all_rows()
  assert np.median(rows['x']) == 0
  assert set(rows['y']) == set(range(62))
  assert rows['x'].dtype == np.float32


@pytest.mark.slow
def test_a_file_that_cannot_be_had_is_named_with_the_flag(tmp_path, monkeypatch):
  def no_network(*args, **kwargs):
    raise OSError('no network')

  monkeypatch.setattr(tff.simulation.datasets.emnist, 'load_data', no_network)
  with pytest.raises(ValueError, match=r'emnist_all\.sqlite.*--data_dir.*digits'):
    tasks.load('emnist_logistic', seed=0, data_dir=str(tmp_path))
