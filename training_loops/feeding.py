"""The way of the data into a round: clients by id, their rows in files of their own.

A client's rows are made once, when it is first drawn, and written to a file, from which
the client reads them itself in that round and in all later ones: only ids travel. Where
it is known what the rows are made of, the files stay for other runs (`tasks.layouts`)
and are compared with their checksums when a run first uses them; others are in a
scratch directory, which TMPDIR names. The kernel keeps files in memory as long as there
is room, so that memory is used up to a bound, and the disk beyond it. While a round is
computed, the rows of the next are made. Clients that are computed where these files are
not are sent their contents.
"""

from collections.abc import Sequence
import concurrent.futures
import logging
import pathlib
import threading
from typing import Any

import numpy as np

import tasks
from tasks import client_files, layouts
from tasks.client_files import Condition, Feature
from tff_algorithms import client_inputs, models
from training_loops.sampling import Participant

# For a client without a limit, where others have one: more steps than any takes.
_NO_LIMIT = np.iinfo(np.int32).max

_logger = logging.getLogger(__name__)


def features(model: models.Model) -> tuple[Feature, ...]:
  """What a row must have for the model."""
  return features_of(model.input_spec)


def features_of(batch_spec: Any) -> tuple[Feature, ...]:
  """What a row must have for batches of this spec."""
  specs = dict(zip('xy', models.x_and_y(batch_spec), strict=True))
  return tuple(
    Feature(name, spec.dtype.name, tuple(spec.shape[1:]))
    for name, spec in specs.items()
  )


class Feed:
  """Feeds the clients of a task to a process, round by round."""

  def __init__(
    self,
    task: tasks.Task,
    directory: pathlib.Path,
    has_limits: bool,
    layout: layouts.Layout | None = None,
    is_sent: bool = False,
  ):
    """Initializes the feed.

    Args:
      task: The task.
      directory: Where the files go, empty; not used where there is a layout.
      has_limits: Whether some clients have a limit to their steps.
      layout: Where the rows stay for other runs; it is closed with the feed.
      is_sent: Whether the content of a client's file goes into the round, for clients
        that cannot read it where they are computed.

    Raises:
      ValueError: If an id is too long for the name of a file.
    """
    self._data = task.train
    self._has_limits = has_limits
    self._layout = layout
    self._is_sent = is_sent
    self._has_mended = False
    self._written: set[str] = set()
    if layout:
      self._files = layout.files
    else:
      self._files = client_files.ClientFiles(directory, features(task.model))
    client_files.check_ids(task.train.client_ids)
    # One thread: the cores are the clients'.
    self._thread = concurrent.futures.ThreadPoolExecutor(max_workers=1)
    self._next: concurrent.futures.Future | None = None
    self._is_closed = threading.Event()

  @property
  def client_input(self) -> client_inputs.ClientInput:
    """What the clients' argument is."""
    if self._is_sent:
      alone = client_inputs.from_content(self._files.parse)
    else:
      alone = client_inputs.from_id(self._files.load)
    return client_inputs.with_max_steps(alone) if self._has_limits else alone

  def prepare(self, participants: Sequence[Participant]) -> None:
    """Begins to make the rows of a round to come, and returns."""
    self._next = self._thread.submit(self._write, participants)

  def arguments(self, participants: Sequence[Participant]) -> list[Any]:
    """What to give the process for each client of a round.

    Raises:
      ValueError: If a client's rows cannot be had, or do not fit the model.
      OSError: If there is no room for them.
    """
    if self._next:
      self._next.result()
    self._write(participants)
    clients = [self._client(participant.client_id) for participant in participants]
    if not self._has_limits:
      return clients
    limits = [participant.max_steps or _NO_LIMIT for participant in participants]
    return [
      {'client': client, 'max_steps': np.int32(limit)}
      for client, limit in zip(clients, limits, strict=True)
    ]

  def _client(self, client_id: str) -> Any:
    name = client_id.encode()  # TFF takes text in ASCII only, but any bytes.
    if not self._is_sent:
      return name
    return {'client_id': name, 'content': self._files.path(client_id).read_bytes()}

  def close(self) -> None:
    """Waits for the client that is being written; nothing is written afterwards."""
    self._is_closed.set()
    self._thread.shutdown(cancel_futures=True)
    if self._layout:
      self._layout.close()

  def _write(self, participants: Sequence[Participant]) -> None:
    for participant in participants:
      client_id = participant.client_id
      if self._is_closed.is_set():
        return
      if client_id not in self._written:
        if self._layout:
          self._provide(self._layout, client_id)
        else:
          self._files.add(client_id, self._data.rows(client_id))
        self._written.add(client_id)

  def _provide(self, layout: layouts.Layout, client_id: str) -> None:
    found = layout.provide(client_id)
    if found == Condition.DAMAGED and not self._has_mended:
      self._has_mended = True  # One line is enough where many are.
      _logger.warning(
        '%s was damaged; it is made anew, as are others that are.',
        layout.files.path(client_id),
      )


def open_layout(task: tasks.Task, parent: str | None) -> layouts.Layout | None:
  """Where the rows of a task's clients stay for other runs.

  Args:
    task: The task.
    parent: The directory of all layouts, a default one if None.

  Returns:
    None where it is not known what the rows are made of, or nothing can be written.
  """
  if task.train.origin is None:
    return None
  try:
    own_parent = None if parent is None else pathlib.Path(parent)
    return layouts.opened(task.train, features(task.model), own_parent)
  except OSError as error:
    _logger.info("Clients' rows are not kept for other runs: %s.", error)
    return None
