"""A pass over the clients that workers on other machines compute.

Apart from `runtimes` because importing it imports TFF.
"""

import collections
from collections.abc import Sequence
import logging
import math
import threading
import time

from training_loops.accumulation import Accumulation
from training_loops.failures import WorkersLost
from training_loops.graph_functions import Run
from training_loops.plan_values import Values
from training_loops.remote_work import RemoteClients
from training_loops.round_plan import ClientPass
from training_loops.worker_link import Session, WorkerLink, WorkerLost

# In how many pieces the clients are dealt out to each thread of a worker: with more,
# fewer wait for the last piece to be done; with fewer, there are fewer messages.
_PIECES_A_THREAD = 4
# What a piece may send back at most, unless it is a single client.
_MAX_PIECE_BYTES = 2**26
_MAX_PIECE = 32
# How many clients a worker has at least, for each that it computes at once: while these
# come and go, the others are computed.
_CLIENTS_A_THREAD = 2
# Of a worker whose number is not known.
_THREADS_UNLESS_KNOWN = 2
# So many pieces for each that is computed may be there before the first one that is
# missing, so that what clients have made does not pile up.
_PIECES_AHEAD = 4

# How often the same clients are given to workers that are then lost. In between there
# is a wait, doubled each time.
_MAX_ATTEMPTS = 4
_FIRST_WAIT_SECONDS = 0.1
# How often in turn all workers must have failed for all to be lost; some 8 s in all.
_MAX_FAILURES = 6

_POLL_SECONDS = 0.1

_logger = logging.getLogger(__name__)


class RemotePass:
  """A pass over the clients. They are dealt out in pieces, a few clients each.

  Those of a worker that is lost are dealt out again one by one: the next worker does
  not have to have computed many of them before the first one counts.

  What they make is accumulated here in their order: who computed what, and how often,
  makes no difference.
  """

  def __init__(
    self,
    step: ClientPass,
    values: Values,
    clients: Sequence[Values],
    links: Sequence[WorkerLink],
    run: Run,
  ):
    """Initializes the pass.

    Args:
      step: What to do.
      values: What there is at the server.
      clients: What each client has; gets what is kept of it.
      links: The workers.
      run: What its calls are a part of.
    """
    self._links = links
    self._run = run
    self._num_clients = len(clients)
    self._clients = RemoteClients(step.work, values, clients)
    self._accumulation = Accumulation(step, values, clients, run)
    self._changed = self._accumulation.changed
    threads = sum(s.num_threads for link in links if (s := link.session)) or len(links)
    self._piece = _piece_size(len(clients), threads, step.work.bytes_of_a_client)
    self._num_slots = {link: self._slots_of(link) for link in links}
    self._max_ahead = _PIECES_AHEAD * sum(self._num_slots.values()) * self._piece
    # What follows is for who holds `_changed`.
    starts = range(0, len(clients), self._piece)
    self._waiting = [range(i, min(i + self._piece, len(clients))) for i in starts]
    self._attempts: collections.Counter[int] = collections.Counter()  # By client.
    self._not_before: dict[range, float] = {}
    self._held: dict[range, Session] = {}
    self._lost_sessions: set[Session] = set()
    self._error: BaseException | None = None

  def run(self) -> Values:
    """Does it, and returns the totals.

    Raises:
      WorkersLost: If no worker is left, or the same clients were lost too often.
    """
    threads = [
      threading.Thread(target=self._serve, args=(link,), daemon=True)
      for link, num_slots in self._num_slots.items()
      for _ in range(num_slots)
    ]
    for link in self._links:
      if link.session is None:
        self._tell(link, 'It had no clients')
    for thread in threads:
      thread.start()
    with self._changed:
      while not self._is_over():
        self._changed.wait(_POLL_SECONDS)
        if self._run.is_cancelled:
          self._error = KeyboardInterrupt()
        elif are_all_lost(self._links):
          self._error = all_lost(self._links)
    if self._error is not None:
      for link in self._links:  # Nobody waits for what is on its way.
        link.leave()
    for thread in threads:
      thread.join()
    if self._error is not None:
      raise self._error
    self._clients.close()
    return self._accumulation.totals()

  def _slots_of(self, link: WorkerLink) -> int:
    session = link.session
    num_threads = session.num_threads if session else _THREADS_UNLESS_KNOWN
    return max(2, math.ceil(_CLIENTS_A_THREAD * num_threads / self._piece))

  def _is_over(self) -> bool:
    is_done = self._accumulation.num_done == self._num_clients
    return is_done or self._error is not None

  def _serve(self, link: WorkerLink) -> None:
    """Has a worker compute one piece after the other, until all are done."""
    while (taken := self._take(link)) is not None:
      session, piece = taken
      try:
        for i, made in zip(piece, self._clients.compute(session, piece), strict=True):
          self._accumulation.add(i, made)
        link.proved()
        with self._changed:
          del self._held[piece]
          self._changed.notify_all()
      except WorkerLost as error:
        self._lost(link, session, piece, str(error))
      except BaseException as error:  # For who asks for the totals.
        with self._changed:
          self._error = self._error or error
          self._changed.notify_all()

  def _take(self, link: WorkerLink) -> tuple[Session, range] | None:
    """The next piece, and who is to be asked for it; None if there is none any more."""
    with self._changed:
      while not self._is_over():
        session, piece = link.session, self._first_waiting()
        if session is not None and piece is not None and self._is_its_turn(session):
          self._waiting.remove(piece)
          self._held[piece] = session
          self._changed.notify_all()
          return session, piece
        self._changed.wait(_POLL_SECONDS)
    return None

  def _is_its_turn(self, session: Session) -> bool:
    """Whether no other worker has less to do, for how much it does at once."""
    held = collections.Counter(self._held.values())

    def load(own):
      return held[own] / own.num_threads

    others = ((link.session, slots) for link, slots in self._num_slots.items())
    free = (own for own, slots in others if own is not None and held[own] < slots)
    return load(session) <= min(map(load, free), default=0.0)

  def _first_waiting(self) -> range | None:
    now = time.monotonic()
    due = (p for p in self._waiting if self._not_before.get(p, now) <= now)
    first = min(due, default=None, key=lambda p: p.start)
    is_near = first and first.start < self._accumulation.num_done + self._max_ahead
    return first if is_near else None

  def _lost(
    self, link: WorkerLink, session: Session, piece: range, reason: str
  ) -> None:
    """Has others compute what a worker was to compute."""
    link.lost(session, reason)
    with self._changed:
      if self._error is None and session not in self._lost_sessions:
        self._lost_sessions.add(session)
        held = [p for p, own in self._held.items() if own is session]
        num_clients = sum(map(len, held))
        self._tell(link, f'The {num_clients} clients that it had are computed again')
      del self._held[piece]
      wait = _FIRST_WAIT_SECONDS * 2 ** self._attempts[piece.start]
      for i in piece:
        self._attempts[i] += 1
        alone = range(i, i + 1)
        self._not_before[alone] = time.monotonic() + wait
        self._waiting.append(alone)
      if self._attempts[piece.start] >= _MAX_ATTEMPTS:  # Long since alone.
        self._error = self._error or WorkersLost(
          f'client {piece.start + 1} of the round was given to {_MAX_ATTEMPTS} workers '
          f'in turn, and each was lost; the last, {link.address}: {link.reason}.'
        )
      self._changed.notify_all()

  def _tell(self, link: WorkerLink, what_follows: str) -> None:
    """Tells the user that a worker is lost, once."""
    if link.is_told:
      return
    link.is_told = True
    num_left = sum(link.session is not None for link in self._links)
    _logger.warning(
      'Worker %s is lost: %s. %s; %d of %d workers are left.',
      link.address,
      link.reason,
      what_follows,
      num_left,
      len(self._links),
    )


def are_all_lost(links: Sequence[WorkerLink]) -> bool:
  """Whether no worker is there, and each has been tried often enough."""
  return all(
    link.session is None and link.num_failures >= _MAX_FAILURES for link in links
  )


def all_lost(links: Sequence[WorkerLink]) -> WorkersLost:
  """The error that says so, and why."""
  reasons = '; '.join(f'{link.address}: {link.reason}' for link in links)
  return WorkersLost(f'no worker is left. {reasons}.')


def _piece_size(num_clients: int, num_threads: int, bytes_of_a_client: int) -> int:
  """How many clients are a piece, a power of two so that there are few sizes."""
  fair = num_clients / (_PIECES_A_THREAD * num_threads)
  small = _MAX_PIECE_BYTES // max(1, bytes_of_a_client)
  size = max(1, min(math.ceil(fair), small, _MAX_PIECE))
  return 1 << (size.bit_length() - 1)
