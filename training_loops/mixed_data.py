"""Which rows the server of a mixed algorithm trains on."""

from collections.abc import Mapping
from typing import Any

import tasks
from training_loops import mixed_algorithms
from training_loops.central_data import Batches, Stream
from training_loops.options import UserError

# What a stream of rows is for; see `central_data.Stream`.
_CENTRAL, _CLIENTS = 0, 1


def batches(flags: Mapping[str, Any], task: tasks.Task) -> Batches | None:
  """The server's rows of each round; None where its loss needs none.

  For the centralized oracle they are rows of the server's and of all clients', in the
  proportion of the weights of their losses.

  Raises:
    UserError: If the task is none for the algorithm.
  """
  mixed_algorithms.require_central(flags, task)
  assert task.central is not None
  objective = task.central.objective
  needs_rows = objective is None or objective.batch_spec != ()
  own = task.central.data if needs_rows else None
  streams: list[tuple[Stream, int]] = []
  num_batches = flags.get('central_steps', 1)
  size = mixed_algorithms.central_rows(flags) // num_batches
  if flags['algorithm'] == 'centralized_oracle':
    size_of_clients = size
    if own is not None:
      by = mixed_algorithms.weights(flags, task)
      share = by['federated_weight'] / sum(by.values())
      size_of_clients = round(share * size)
    if size_of_clients:
      pooled = Stream(task.train.all_rows(), flags['seed'], _CLIENTS)
      streams.append((pooled, size_of_clients))
    size -= size_of_clients
  if own is not None and size:
    rows = own.all_rows()
    if not len(next(iter(rows.values()))):
      raise UserError(f'the server of {task.name} has no example with these flags.')
    streams.append((Stream(rows, flags['seed'], _CENTRAL), size))
  return Batches(streams, num_batches) if streams else None
