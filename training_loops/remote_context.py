"""A TFF context whose clients are computed by workers on other machines.

Apart from `runtimes` because importing it imports TFF.
"""

from collections.abc import Sequence
import logging
import time

from training_loops import in_process_context, remote_pass
from training_loops.failures import RuntimeFailure
from training_loops.graph_functions import Run
from training_loops.plan_values import Values
from training_loops.remote_work import RemoteWork
from training_loops.round_plan import ClientPass
from training_loops.worker_link import WorkerLink

_POLL_SECONDS = 0.02

_logger = logging.getLogger(__name__)


class RemoteContext(in_process_context.InProcessContext):
  """Runs what is the server's in this process, and what is the clients' on workers.

  The result of a round is that of `InProcessContext`, which accumulates in the same
  order. A round of several phases is as many passes, one after the other.
  """

  def __init__(self, links: Sequence[WorkerLink]):
    """Initializes the context.

    Args:
      links: The workers.
    """
    super().__init__(num_threads=1, make_work=RemoteWork)
    self._links = links

  def run_clients(
    self, step: ClientPass, values: Values, clients: Sequence[Values], run: Run
  ) -> None:
    """Adds the totals to values, and to each client's values what is kept of it."""
    running = remote_pass.RemotePass(step, values, clients, self._links, run)
    values.update(running.run())


def wait_until_connected(links: Sequence[WorkerLink]) -> None:
  """Waits until all workers have been tried, and at least one is there.

  Raises:
    WorkersLost: If none is.
    RuntimeFailure: If one is of another version.
  """
  while not all(link.session or link.num_failures for link in links):
    time.sleep(_POLL_SECONDS)
  for link in links:
    if link.is_other_version:
      raise RuntimeFailure(f'worker {link.address} cannot be used: {link.reason}.')
  while not any(link.session for link in links):
    if remote_pass.are_all_lost(links):
      raise remote_pass.all_lost(links)
    time.sleep(_POLL_SECONDS)
  for link in links:
    if link.session is None:
      _logger.warning(
        'Worker %s is not there: %s. It is used as soon as it is.',
        link.address,
        link.reason,
      )
      link.is_told = True
