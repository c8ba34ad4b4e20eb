"""Tests of the made-up images."""

import numpy as np

from benchmarks import synthetic_images


def test_clients_are_shaped_as_emnist_and_have_unequal_sizes():
  data = synthetic_images.make(num_clients=200, seed=0)
  rows = data.all_rows()
  assert rows['x'].dtype == np.uint8
  assert rows['x'].shape[1:] == (28, 28)
  assert rows['x'].max() == 254  # Nothing overflows: 199 + 55.
  assert set(rows['y']) == set(range(62))
  sizes = [data.num_examples(client_id) for client_id in data.client_ids]
  assert 110 < np.median(sizes) < 150
  assert min(sizes) >= 1
  assert np.mean([size % 20 != 0 for size in sizes]) > 0.8  # Partial last batches.


def test_data_depend_on_the_seed_alone():
  def content(seed):
    return synthetic_images.make(3, seed).all_rows()['x'].tobytes()

  assert content(1) == content(1)
  assert content(1) != content(2)
