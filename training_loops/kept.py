"""Results that are kept for the computations they are of."""

from collections.abc import Callable
from typing import Any


class Kept:
  """A function of computations that remembers its latest results, by identity.

  Hashing a computation takes as long as shipping it.
  """

  def __init__(
    self,
    limit: int,
    function: Callable[[Any], Any],
    forget: Callable[[Any], None] = lambda result: None,
  ):
    self._limit = limit
    self._function = function
    self._forget = forget
    # With the computation itself, and thereby its id.
    self._results: dict[int, tuple[Any, Any]] = {}

  def __call__(self, comp: Any) -> Any:
    if id(comp) not in self._results:
      while len(self._results) >= self._limit:
        self._forget(self._results.pop(next(iter(self._results)))[1])
      self._results[id(comp)] = (comp, self._function(comp))
    return self._results[id(comp)][1]
