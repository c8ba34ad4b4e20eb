"""Tests of peers as processes."""

import contextlib
import os
import pathlib
import signal
import sys

import numpy as np
import pytest

from benchmarks.peer_processes import PeerFailure, PeerProcess
from tests.benchmarks import fake_peer, small_work
from tests.training_loops.child_processes import children, is_alive, wait_for


@pytest.fixture(name='work')
def saved_work(tmp_path):
  work = small_work.make()
  work.save(tmp_path)
  return work


@contextlib.contextmanager
def _fake(directory, *arguments):
  module = 'tests.benchmarks.fake_peer'
  process = PeerProcess(pathlib.Path(sys.executable), module, directory, arguments)
  with contextlib.closing(process):
    yield process


def test_a_peer_does_rounds_and_begins_again_from_the_initial_weights(work, tmp_path):
  with _fake(tmp_path) as process:
    for exact, more in ((True, 0), (False, 1_000), (True, 0)):
      process.start(exact)
      process.round([1, 2])
      process.round(np.array([0, 3]))
      for array, initial in zip(process.weights(), work.weights, strict=True):
        np.testing.assert_allclose(array, initial + 6 + 2 * more, rtol=1e-5)


def test_the_seconds_of_a_round_are_part_of_its_age(work, tmp_path):
  with _fake(tmp_path) as process:
    process.start(exact=True)
    seconds = process.round([0])
    assert 0 < seconds < process.age


def test_memory_is_that_of_all_its_processes(work, tmp_path):
  with _fake(tmp_path) as alone, _fake(tmp_path, 'grandchild') as two:
    for process in (alone, two):
      process.start(exact=True)
    assert 5 < alone.peak_megabytes() < two.peak_megabytes()
  assert two.peak_megabytes() == 0


def test_a_peer_that_fails_is_told_with_its_last_words(work, tmp_path):
  with _fake(tmp_path) as process:
    process.start(exact=True)
    with pytest.raises(PeerFailure) as failure:
      process.round([fake_peer.DEADLY])
  assert 'tests.benchmarks.fake_peer failed at' in str(failure.value)
  assert str(failure.value).endswith('RuntimeError: failed, as planned\n')


def test_a_peer_that_does_not_start_is_told_at_the_first_question(work, tmp_path):
  with (
    _fake(tmp_path, 'broken') as process,
    pytest.raises(PeerFailure, match='broken, as planned'),
  ):
    process.start(exact=True)


def test_a_peer_that_was_killed_is_told_at_the_next_question(work, tmp_path):
  before = set(children(os.getpid()))
  with _fake(tmp_path) as process:
    process.start(exact=True)
    (pid,) = set(children(os.getpid())) - before
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(PeerFailure, match='Frameworks like to print'):
      process.round([1])


@pytest.mark.parametrize('failing', [False, True])
def test_nothing_is_left_of_a_peer_nor_of_what_it_started(failing, work, tmp_path):
  before = set(children(os.getpid()))
  with _fake(tmp_path, 'grandchild') as process:
    process.start(exact=True)
    grandchild = int((tmp_path / fake_peer.GRANDCHILD).read_text())
    (own,) = set(children(os.getpid())) - before
    assert is_alive(own) and is_alive(grandchild)
    if failing:
      with pytest.raises(PeerFailure):
        process.round([fake_peer.DEADLY])
  assert not is_alive(own)
  wait_for(lambda: not is_alive(grandchild), seconds=10)  # A signal takes a moment.


def test_one_peer_leaves_the_other_alone(work, tmp_path):
  with _fake(tmp_path) as one:
    one.start(exact=True)
    with _fake(tmp_path, 'grandchild') as other:
      other.start(exact=True)
    one.round([1])
