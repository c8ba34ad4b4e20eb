"""Tests of what a peer is given. How it answers: tests of `peer_processes`."""

import dataclasses

import numpy as np

from benchmarks.peers import peer
from tests.benchmarks import small_work


def _assert_same(arrays, expected):
  for array, other in zip(arrays, expected, strict=True):
    assert array.dtype == other.dtype
    np.testing.assert_array_equal(array, other)


def test_work_is_read_as_it_was_written(tmp_path):
  work = small_work.make()
  work.save(tmp_path)
  read = peer.Work.load(tmp_path)
  _assert_same(read.weights, work.weights)
  _assert_same([c.x for c in read.clients], [c.x for c in work.clients])
  _assert_same([c.y for c in read.clients], [c.y for c in work.clients])
  arrays = {'clients': (), 'weights': ()}
  assert dataclasses.replace(read, **arrays) == dataclasses.replace(work, **arrays)


def test_weights_keep_their_order(tmp_path):
  weights = [np.full([i], i, np.float32) for i in range(12)]
  peer.save_weights(tmp_path / 'weights.npz', weights)
  _assert_same(peer.load_weights(tmp_path / 'weights.npz'), weights)


def test_a_client_is_as_long_as_its_rows():
  assert [len(client) for client in small_work.make().clients] == [7, 3, 10, 1]
