"""Adding up what clients have made, in the clients' order, whoever is done first."""

from collections.abc import Sequence
import threading

from training_loops.graph_functions import Run
from training_loops.plan_values import Values
from training_loops.round_plan import ClientPass, Function


class Accumulation:
  """What is accumulated over a pass, in which several threads take part.

  A thread that has what a client has made accumulates all that is there to be, unless
  another is at it.
  """

  def __init__(
    self, step: ClientPass, values: Values, clients: Sequence[Values], run: Run
  ):
    """Initializes the accumulation.

    Args:
      step: The pass.
      values: What there is at the server.
      clients: What each client has; gets what is kept of it.
      run: What its calls are a part of.
    """
    self._step = step
    self._values = values
    self._clients = clients
    self._run = run
    self._sums = [values[tensor] for a in step.aggregates for tensor in a.zero]
    self._before = [tensor for a in step.aggregates for tensor in a.before]
    self._after = [tensor for a in step.aggregates for tensor in a.after]
    # What follows is for who holds this, which is notified of each client.
    self.changed = threading.Condition()
    self.num_done = 0
    self._made: dict[int, Values] = {}  # By client.
    self._is_busy = False

  def add(self, i: int, made: Values) -> None:
    """Takes over what a client has made; may be called by several threads at once.

    Args:
      i: The number of the client.
      made: The outputs of its work.
    """
    self._clients[i].update((tensor, made[tensor]) for tensor in self._step.kept)
    with self.changed:
      self._made[i] = made
      if self._is_busy:
        return
      self._is_busy = True
    while True:
      with self.changed:
        following = self._made.pop(self.num_done, None)
        if following is None:
          self._is_busy = False
          return
      known = {**self._values, **self._clients[self.num_done], **following}
      known.update(zip(self._before, self._sums, strict=True))
      known.update(call(self._step.accumulation, known, self._run))
      self._sums = [known[tensor] for tensor in self._after]
      with self.changed:
        self.num_done += 1
        self.changed.notify_all()

  def totals(self) -> Values:
    """What has been accumulated, when all have been added."""
    total = (tensor for a in self._step.aggregates for tensor in a.total)
    return dict(zip(total, self._sums, strict=True))


def call(function: Function, values: Values, run: Run) -> Values:
  """What a function makes of values."""
  outputs = function.call([values[tensor] for tensor in function.inputs], run)
  return dict(zip(function.outputs, outputs, strict=True))
