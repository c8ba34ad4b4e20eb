"""Tests of the partitioners as options."""

import inspect

import numpy as np
import pytest

from tasks import partitioners, partitions

_LABELS = np.arange(400) % 8
_COARSE = _LABELS // 2


def test_every_partitioner_can_be_chosen():
  choice = partitions.choice('iid', 10, has_coarse_labels=True)
  functions = inspect.getmembers(partitioners, inspect.isfunction)
  public = {name for name, _ in functions if not name.startswith('_')}
  assert set(choice.branches) == public


def test_pachinko_needs_coarse_labels_and_nature_comes_first():
  assert 'pachinko' not in partitions.choice('iid', 10).branches
  choice = partitions.choice('writer', 10, by_nature='writer')
  assert next(iter(choice.branches)) == 'writer'
  assert choice.branches['writer'] == {}
  assert partitions.bound('writer') is None


@pytest.mark.parametrize(
  'name', partitions.choice('iid', 10, has_coarse_labels=True).branches
)
def test_options_reach_the_partitioner(name):
  options = partitions.choice('iid', 4, has_coarse_labels=True).branches[name]
  parts = partitions.bound(name, **options)(_LABELS, 3, coarse_labels=_COARSE)
  assert len(parts) == 4
  assert sorted(np.concatenate(parts)) == list(range(400))


def test_a_value_given_makes_a_difference():
  def sizes(**given):
    parts = partitions.bound('log_normal', num_clients=5, **given)(_LABELS, 0)
    return [len(part) for part in parts]

  assert sizes(size_variance=0.0) == [80] * 5
  assert len(set(sizes(size_variance=2.0))) > 1


def test_coarse_labels_are_for_pachinko_alone():
  every = partitions.choice('iid', 4, has_coarse_labels=True).branches
  for name in every:
    partition = partitions.bound(name, **every[name])
    if name == 'pachinko':
      with pytest.raises(ValueError, match='pachinko needs coarse labels'):
        partition(_LABELS, 3)
    else:
      with_them = partition(_LABELS, 3, coarse_labels=_COARSE)
      for own, other in zip(partition(_LABELS, 3), with_them, strict=True):
        np.testing.assert_array_equal(own, other)


def test_coarse_labels_reach_pachinko():
  options = {'num_clients': 4, 'examples_per_client': 100}
  ours = partitions.bound('pachinko', **options)(_LABELS, 3, coarse_labels=_COARSE)
  theirs = partitioners.pachinko(_LABELS, _COARSE, seed=3, **options)
  for own, other in zip(ours, theirs, strict=True):
    np.testing.assert_array_equal(own, other)
