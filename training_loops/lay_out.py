"""Lays out the rows of all clients of a task at once, for runs to come.

Runs do so themselves with each client that they draw for the first time; what is there
already is compared with its checksum.
"""

import contextlib
import pathlib
from typing import Any

import tqdm

from training_loops import command_line, importing, show_task, train_flags
from training_loops.options import Section, UserError

PROGRAM = command_line.Program(
  module='training_loops.lay_out',
  summary=(
    'Lays out the rows of all clients of a task on disk, as clients read them. Runs do '
    'so by themselves with the clients that they draw.'
  ),
  example='--task=emnist_cnn',
  sections=[
    Section(
      'Task', [o for o in train_flags.PROGRAM.options if o.name in ('task', 'seed')]
    ),
    Section(
      'Output', [o for o in train_flags.PROGRAM.options if o.name == 'client_data_dir']
    ),
  ],
  lists={'list_tasks': train_flags.PROGRAM.lists['list_tasks']},
)


def main(flags: dict[str, Any]) -> None:
  """Lays out the clients, and says how many there are."""
  train_flags.check_task(flags)

  importing.import_tff()
  from tasks import layouts
  from training_loops import feeding, training

  show_task.execute_nothing()
  task = training.load_task(flags)
  if task.train.origin is None:
    raise UserError(f'the rows of {task.name} are made anew by each run.')
  given = flags['client_data_dir']
  try:
    layout = layouts.opened(
      task.train,
      feeding.features(task.model),
      None if given is None else pathlib.Path(given),
    )
  except OSError as error:
    raise UserError(f'nothing can be laid out: {error}.') from error
  num_whole = size = 0
  with contextlib.closing(layout), training.data_errors(flags):
    for client_id in tqdm.tqdm(task.train.client_ids, unit='client', disable=None):
      num_whole += layout.provide(client_id) == layouts.Condition.WHOLE
      size += layout.files.path(client_id).stat().st_size
  num_clients = len(task.train.client_ids)
  print(
    f'{num_clients:,} clients, {num_clients - num_whole:,} of them new, '
    f'{size / 1e6:,.1f} MB: {layout.files.directory}'
  )


if __name__ == '__main__':
  command_line.run(PROGRAM, main)
