"""Threads that do what they are given; they do not outlive the program."""

from collections.abc import Callable
import concurrent.futures
import queue
import threading
from typing import Any


class Threads:
  """A number of threads that take what there is to do in turn."""

  def __init__(self, number: int):
    """Starts them; they end with this object, or with the program."""
    self._number = number
    self._tasks: queue.SimpleQueue = queue.SimpleQueue()
    for _ in range(number):
      threading.Thread(target=_work, args=(self._tasks,), daemon=True).start()

  def __del__(self) -> None:
    for _ in range(self._number):
      self._tasks.put(None)

  def start(self, function: Callable[[], Any]) -> concurrent.futures.Future:
    """Has a function called by one of them."""
    future: concurrent.futures.Future = concurrent.futures.Future()
    self._tasks.put((function, future))
    return future


def _work(tasks: queue.SimpleQueue) -> None:
  while task := tasks.get():
    function, future = task
    try:
      future.set_result(function())
    except BaseException as error:
      future.set_exception(error)
    del task, function, future  # What they hold is not kept until the next comes.
