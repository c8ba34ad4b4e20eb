"""A TFF context that executes computations in this process, by TensorFlow alone.

Apart from `runtimes` because importing it imports TFF.
"""

from collections.abc import Sequence
from concurrent import futures
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from training_loops import kept, plan_values, round_plan, threads
from training_loops.accumulation import Accumulation, call
from training_loops.graph_functions import Run
from training_loops.plan_values import Values
from training_loops.round_plan import ClientPass, MakeFunction, Plan

# More than a program calls in turn. They keep what their functions take of memory, with
# recurrent networks tens of megabytes, after the processes that they are of.
_MAX_PLANS = 16


class InProcessContext(tff.framework.SyncContext):
  """Runs each computation's plan, a number of clients at a time.

  Clients' values are accumulated in the clients' order, so that the same round has the
  same result, and no more than a few clients' are there at a time.

  What draws random numbers by TensorFlow's stateful operations, such as the noise of
  TFF's differential privacy, draws on from round to round.
  """

  def __init__(
    self,
    num_threads: int,
    device: str | None = None,
    make_work: MakeFunction = round_plan.make_function,
  ):
    """Initializes the context.

    Args:
      num_threads: How many clients compute at once.
      device: Where, as TensorFlow names it; None where TensorFlow would.
      make_work: Makes the functions of clients.
    """
    self._num_threads = num_threads
    self._device = device
    self._plans = kept.Kept(_MAX_PLANS, lambda comp: round_plan.make(comp, make_work))
    self._caller = threads.Threads(1)
    self._helpers = threads.Threads(num_threads - 1)

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Calls a computation."""
    # In a thread of its own: a signal can interrupt waiting for it, but not TensorFlow.
    run = Run(self._device)
    future = self._caller.start(lambda: self._invoke(comp, arg, run))
    try:
      return future.result()
    except BaseException:
      run.start_cancel()
      raise

  def wait(self, seconds: float) -> None:
    """Waits until it does nothing any more, after calls that were interrupted."""
    futures.wait([self._caller.start(lambda: None)], timeout=seconds)

  def _invoke(self, comp: Any, arg: Any, run: Run) -> Any:
    plan: Plan = self._plans(comp)
    values, clients = plan_values.given(
      plan.argument, arg, comp.type_signature.parameter
    )
    for step in plan.steps:
      if isinstance(step, ClientPass):
        self.run_clients(step, values, clients, run)
      else:
        values.update(call(step, values, run))
    result_type = comp.type_signature.result
    return plan_values.result(plan.result, result_type, values, clients)

  def run_clients(
    self, step: ClientPass, values: Values, clients: Sequence[Values], run: Run
  ) -> None:
    """Adds the totals to values, and to each client's values what is kept of it."""
    running = _RunningPass(step, values, clients, run, 2 * self._num_threads)
    num_helpers = min(self._num_threads, len(clients)) - 1
    helping = [self._helpers.start(running.work) for _ in range(num_helpers)]
    running.work()
    futures.wait(helping)
    values.update(running.totals())


class _RunningPass:
  """A pass over the clients, in which several threads take part.

  A thread takes one client after the other.
  """

  def __init__(
    self,
    step: ClientPass,
    values: Values,
    clients: Sequence[Values],
    run: Run,
    max_ahead: int,
  ):
    """Initializes the pass.

    Args:
      step: What to do.
      values: What there is at the server.
      clients: What each client has; gets what is kept of it.
      run: What its calls are a part of.
      max_ahead: Of how many clients what they have made may be there at once.
    """
    self._step = step
    self._values = values
    self._clients = clients
    self._run = run
    self._max_ahead = max_ahead
    self._accumulation = Accumulation(step, values, clients, run)
    self._changed = self._accumulation.changed
    # What follows is for who holds that.
    self._num_taken = 0
    self._error: BaseException | None = None

  def work(self) -> None:
    """Takes part until there is no client left, or something has gone wrong."""
    try:
      while (i := self._take()) is not None:
        known = {**self._values, **self._clients[i]}
        self._accumulation.add(i, call(self._step.work, known, self._run))
    except BaseException as error:  # For who asks for the totals.
      with self._changed:
        # TensorFlow stops what else is running, which is not what went wrong.
        if self._error is None or isinstance(self._error, tf.errors.CancelledError):
          self._error = error
        self._changed.notify_all()

  def totals(self) -> Values:
    """What has been accumulated, when all have done; raises what has gone wrong."""
    if self._error is not None:
      raise self._error
    return self._accumulation.totals()

  def _take(self) -> int | None:
    """The number of the next client, None if there is none or something is wrong."""
    with self._changed:
      i = self._num_taken
      if i == len(self._clients):
        return None
      self._num_taken += 1
      self._changed.wait_for(
        lambda: self._error or i < self._accumulation.num_done + self._max_ahead
      )
      return None if self._error else i
