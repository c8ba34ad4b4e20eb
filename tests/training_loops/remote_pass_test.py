"""Tests of dealing clients out; how they are computed is in `remote_context_test`."""

import pytest

from training_loops import remote_pass
from training_loops.failures import WorkersLost


@pytest.mark.parametrize(
  ('clients', 'threads', 'size'),
  [
    (0, 6, 1),
    (1, 6, 1),
    (6, 6, 1),
    (10, 2, 2),
    (100, 6, 4),
    (100, 3, 8),
    (10_000, 6, 32),
  ],
)
def test_each_thread_has_at_least_some_pieces_and_none_is_very_large(
  clients, threads, size
):
  assert remote_pass._piece_size(clients, threads, bytes_of_a_client=4) == size


@pytest.mark.parametrize(
  ('megabytes', 'size'), [(1, 32), (4, 16), (30, 2), (60, 1), (5_000, 1)]
)
def test_pieces_of_large_models_are_small(megabytes, size):
  assert remote_pass._piece_size(10_000, 2, megabytes * 10**6) == size


class _Link:
  session = None

  def __init__(self, num_failures, reason):
    self.num_failures, self.reason = num_failures, reason
    self.address = f'{reason}:1'


def test_workers_are_lost_when_each_has_been_tried_often_enough():
  limit = remote_pass._MAX_FAILURES
  links = [_Link(limit, 'refused'), _Link(limit - 1, 'cut off')]
  assert not remote_pass.are_all_lost(links)
  links[1].num_failures += 1
  assert remote_pass.are_all_lost(links)
  error = remote_pass.all_lost(links)
  assert isinstance(error, WorkersLost)
  assert str(error) == 'no worker is left. refused:1: refused; cut off:1: cut off.'
  links[0].session = object()
  assert not remote_pass.are_all_lost(links)
