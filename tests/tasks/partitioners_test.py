"""Tests of partitioners."""

import numpy as np
import pytest

from tasks import partitioners

_LABELS = np.random.default_rng(0).integers(10, size=1000)


def _label_shares(parts):
  """For each client, the share of its most frequent label; their weighted mean."""
  most = [np.bincount(_LABELS[part]).max() for part in parts]
  return sum(most) / len(_LABELS)


@pytest.mark.parametrize('alpha', [1e-3, 0.3, 1.0, 1e4])
@pytest.mark.parametrize('num_clients', [1, 7, 100, 1000])
def test_dirichlet_uses_every_example_once_and_leaves_no_client_empty(
  alpha, num_clients
):
  for seed in range(5):
    parts = partitioners.dirichlet(_LABELS, num_clients, alpha, seed)
    assert len(parts) == num_clients
    assert min(map(len, parts)) >= 1
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(1000))


def test_dirichlet_depends_on_the_seed_alone():
  same = [partitioners.dirichlet(_LABELS, 20, 0.3, seed=5) for _ in range(2)]
  other = partitioners.dirichlet(_LABELS, 20, 0.3, seed=6)
  for a, b in zip(*same, strict=True):
    np.testing.assert_array_equal(a, b)
  assert any(not np.array_equal(a, b) for a, b in zip(same[0], other, strict=True))


def test_dirichlet_labels_are_the_more_skewed_the_smaller_alpha_is():
  # Alike clients have each of ten labels in a tenth of their examples.
  shares = [
    _label_shares(partitioners.dirichlet(_LABELS, 10, alpha, seed=0))
    for alpha in (0.01, 0.3, 1e5)
  ]
  assert shares[0] > 0.6
  assert 0.2 < shares[1] < 0.6
  assert shares[2] < 0.15


def test_dirichlet_mean_share_of_a_client_is_the_same_for_all():
  sizes = np.array(
    [
      [len(part) for part in partitioners.dirichlet(_LABELS, 4, 1.0, s)]
      for s in range(200)
    ]
  )
  # A share of a label has variance 3/80, so a mean of ten labels and 200 draws has a
  # standard deviation of .0043 of 1,000 examples.
  np.testing.assert_allclose(sizes.mean(axis=0), 250, atol=4 * 4.3)


@pytest.mark.parametrize(
  ('num_clients', 'alpha'), [(0, 1.0), (1001, 1.0), (5, 0.0), (5, float('inf'))]
)
def test_dirichlet_refuses_what_it_cannot_do(num_clients, alpha):
  with pytest.raises(ValueError, match='must be'):
    partitioners.dirichlet(_LABELS, num_clients, alpha, seed=0)
