"""What a round of a run is given, whatever the algorithm takes."""

import pathlib
from typing import Any

import tasks
from tff_algorithms import client_inputs
from training_loops import (
  algorithms,
  central_data,
  feeding,
  mixed_data,
  sampling,
  train_flags,
)


class RoundArguments:
  """What a round of the process is given: the clients' arguments, the server's."""

  def __init__(
    self,
    flags: dict[str, Any],
    task: tasks.Task,
    sampler: sampling.Sampler,
    directory: pathlib.Path,
  ):
    """Initializes the feeds of clients and server.

    Args:
      flags: The run's flags.
      task: The task.
      sampler: What draws the clients.
      directory: Where files go that nobody needs after the run, empty.

    Raises:
      ValueError: If the data cannot be had.
      UserError: If the task is none for the algorithm.
    """
    self._flags = flags
    self._sampler = sampler
    self._clients: feeding.Feed | None = None
    self._central: central_data.CentralFeed | None = None
    if algorithms.uses_clients(flags):
      own = directory / 'clients'
      own.mkdir()
      layout = feeding.open_layout(task, flags.get('client_data_dir'))
      self._clients = feeding.Feed(
        task,
        own,
        has_limits=flags['straggler_rate'] > 0,
        layout=layout,
        is_sent=train_flags.sends_to_clients(flags),
      )
    if algorithms.is_mixed(flags):
      batches = mixed_data.batches(flags, task)
      if batches:
        own = directory / 'central'
        own.mkdir()
        objective = task.central and task.central.objective
        spec = task.model.input_spec
        if objective and objective.batch_spec != ():
          spec = objective.batch_spec
        features = feeding.features_of(spec)
        self._central = central_data.CentralFeed(batches, own, features)

  @property
  def client_input(self) -> client_inputs.ClientInput | None:
    """What a client's argument is, where there are clients."""
    return self._clients.client_input if self._clients else None

  @property
  def central_input(self) -> client_inputs.ClientInput | None:
    """What the server's argument is, where it has rows."""
    return self._central.central_input if self._central else None

  def arguments(self, round_num: int, client_states: Any = None) -> list[Any]:
    """What `next` takes after the state.

    Args:
      round_num: The round.
      client_states: What hands out what clients have kept, where they keep something:
        its `read` takes their ids.
    """
    arguments: list[Any] = []
    if self._clients:
      participants = self._sampler.draw(round_num)
      clients = self._clients.arguments(participants)
      halves = algorithms.splits_cohort(self._flags)
      arguments.append(client_inputs.in_halves(clients) if halves else clients)
      if client_states is not None:
        arguments.append(client_states.read([p.client_id for p in participants]))
    if self._central:
      arguments.append(self._central.argument(round_num))
    return arguments

  def prepare(self, round_num: int) -> None:
    """Begins with what a round to come needs, and returns."""
    if self._clients:
      self._clients.prepare(self._sampler.draw(round_num))
    if self._central:
      self._central.prepare(round_num)

  def close(self) -> None:
    """Waits for what is being written."""
    for feed in (self._clients, self._central):
      if feed:
        feed.close()
