"""Results that are kept for the computations they are of."""

import collections
from collections.abc import Callable
from typing import Any


class Kept:
  """A function of computations that remembers the results latest used, by identity.

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
    # With the computation itself, and thereby its id; the latest used comes last.
    self._results: collections.OrderedDict[int, tuple[Any, Any]] = (
      collections.OrderedDict()
    )

  def __call__(self, comp: Any) -> Any:
    if id(comp) in self._results:
      self._results.move_to_end(id(comp))
    else:
      while len(self._results) >= self._limit:
        self._forget(self._results.popitem(last=False)[1][1])
      self._results[id(comp)] = (comp, self._function(comp))
    return self._results[id(comp)][1]
