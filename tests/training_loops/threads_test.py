"""Tests of threads that do what they are given."""

import gc
import threading
import time
import weakref

import pytest

from training_loops.threads import Threads


def _num_threads() -> int:
  return threading.active_count()


def test_results_and_errors_come_back():
  threads = Threads(2)
  assert threads.start(lambda: 3).result() == 3
  with pytest.raises(ZeroDivisionError):
    threads.start(lambda: 1 // 0).result()
  with pytest.raises(SystemExit):
    threads.start(lambda: exit(3)).result()
  assert threads.start(lambda: 4).result() == 4


def test_as_many_work_at_once_as_there_are():
  threads = Threads(3)
  # Passed only when three wait for it.
  barrier = threading.Barrier(3)
  futures = [threads.start(lambda: barrier.wait(timeout=10)) for _ in range(3)]
  assert sorted(future.result() for future in futures) == [0, 1, 2]


def test_one_does_one_thing_after_the_other():
  done: list[int] = []
  thread = Threads(1)
  futures = [thread.start(lambda i=i: done.append(i)) for i in range(20)]
  for future in futures:
    future.result()
  assert done == list(range(20))


def test_threads_end_with_their_object():
  before = _num_threads()
  threads = Threads(4)
  assert _num_threads() == before + 4
  threads.start(lambda: 1).result()
  del threads
  deadline = time.monotonic() + 10
  while _num_threads() > before and time.monotonic() < deadline:
    time.sleep(0.01)
  assert _num_threads() == before


def test_a_thread_that_waits_keeps_nothing_of_what_it_has_done():
  class Large:
    pass

  threads = Threads(1)
  large = Large()
  reference = weakref.ref(large)
  threads.start(lambda large=large: large).result()
  del large
  deadline = time.monotonic() + 10
  while reference() is not None and time.monotonic() < deadline:
    gc.collect()
  assert reference() is None
