"""Shows what a task is: its clients and examples in numbers, and some of them.

Prints a table, and writes into a directory label_counts.png where an example has one
class, and examples.png for images or examples.txt for text.
"""

from collections.abc import Iterator, Sequence
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from training_loops import command_line, importing, tables, train_flags
from training_loops.options import REQUIRED, Section, UserError, path

if TYPE_CHECKING:
  import tasks
  from tasks.federated_data import FederatedData, Rows

PROGRAM = command_line.Program(
  module='training_loops.show_task',
  summary=(
    'Shows what a task is: its clients and examples in numbers, which client has which '
    'labels, and some of the examples.'
  ),
  example='--task=digits_logistic --output_dir=shown',
  sections=[
    Section(
      'Task', [o for o in train_flags.PROGRAM.options if o.name in ('task', 'seed')]
    ),
    Section('Output', [path('output_dir', REQUIRED, 'Where pictures are written.')]),
  ],
  lists={'list_tasks': train_flags.PROGRAM.lists['list_tasks']},
)

_NUM_IMAGES = 10
_NUM_LINES = 3
_MOST_CLIENTS = 500  # Whose labels are counted.
_MOST_LABELS = 1000  # That are legible in a picture.


def main(flags: dict[str, Any]) -> None:
  """Prints the numbers and writes the pictures."""
  train_flags.check_task(flags)

  importing.import_tff()
  from training_loops import training

  execute_nothing()
  task = training.load_task(flags)
  directory = pathlib.Path(flags['output_dir'])
  directory.mkdir(parents=True, exist_ok=True)
  try:
    for line in show(task, directory):
      print(line, flush=True)
  except ValueError as error:  # Some data are read only now.
    raise UserError(f'{task.name}: {error}') from error


def execute_nothing() -> None:
  """Does without TFF's default context, which prints an error as a program ends."""
  import tensorflow_federated as tff

  from training_loops import worker_context

  error = RuntimeError('No runtime was started.')
  tff.framework.set_default_context(worker_context.FailedContext(error))


def show(task: 'tasks.Task', directory: pathlib.Path) -> Iterator[str]:
  """Writes the files into the directory, and says line by line what there is."""
  yield f'{sizes_table(task)}\n'
  rows = some_rows(task.train, _NUM_LINES)
  features = [f'{n} {a.dtype}{list(a.shape[1:])}' for n, a in rows.items()]
  yield f'An example: {", ".join(features)}'
  yield f'The model: {num_weights(task):,} weights'
  if _has_class(rows):
    yield from _labels_shown(task, directory / 'label_counts.png')
  if _is_image(rows):
    draw_examples(directory / 'examples.png', task, task.name)
    yield f'Examples: {directory / "examples.png"}'
  elif task.show:
    text = directory / 'examples.txt'
    text.write_text(''.join(f'{line}\n' for line in task.show(rows)), encoding='utf-8')
    yield f'Examples: {text}'


def sizes_table(task: 'tasks.Task') -> str:
  """A Markdown table of clients and examples, for training and for testing."""
  lines = []
  every = {'train': task.train, 'test': task.test}
  if task.central is not None and task.central.data is not None:
    every["the server's"] = task.central.data
  for name, data in every.items():
    sizes = [data.num_examples(client_id) for client_id in data.client_ids]
    numbers = [len(sizes), sum(sizes), min(sizes), np.median(sizes), max(sizes)]
    lines.append([name, *(f'{number:,.10g}' for number in numbers)])
  header = ['', 'clients', 'examples', 'smallest client', 'median', 'largest']
  return tables.markdown(header, lines)


def some_rows(data: 'FederatedData', count: int) -> 'Rows':
  """So many examples, or all that there are, evenly spread over all of them."""
  num_rows = sum(map(data.num_examples, data.client_ids))
  return data.all_rows(np.linspace(0, num_rows - 1, min(count, num_rows)).astype(int))


def num_weights(task: 'tasks.Task') -> int:
  """How many numbers the model learns."""
  import tensorflow as tf

  from tff_algorithms import models

  weights = models.as_model(task.model).initialize(tf.constant([0, 0])).trainable
  return sum(int(tf.size(tensor)) for tensor in tf.nest.flatten(weights))


def draw_examples(picture: pathlib.Path, task: 'tasks.Task', title: str) -> None:
  """Draws ten of the training examples of a task whose inputs are images."""
  from tasks import pictures

  rows = some_rows(task.train, _NUM_IMAGES)
  labels = task.show(rows) if task.show else [str(label) for label in rows['y']]
  pictures.image_grid(picture, list(rows['x']), labels, title)


def draw_label_counts(
  picture: pathlib.Path, labels: Sequence[np.ndarray], title: str
) -> None:
  """Draws how many examples of each label, from 0 on, each client has.

  Args:
    picture: The file.
    labels: For each client those of its examples.
    title: What stands above.
  """
  from tasks import pictures

  num_labels = 1 + np.concatenate(labels).max()
  counts = [np.bincount(own, minlength=num_labels) for own in labels]
  pictures.label_counts(picture, np.array(counts), title)


def _labels_shown(task: 'tasks.Task', picture: pathlib.Path) -> Iterator[str]:
  client_ids = task.train.client_ids[:_MOST_CLIENTS]
  labels = [task.train.rows(client_id)['y'] for client_id in client_ids]
  kinds = np.unique(np.concatenate(labels))
  clients = f'{len(client_ids)} clients'
  if len(client_ids) < len(task.train.client_ids):
    clients = f'the first {clients} of {len(task.train.client_ids):,}'
  yield f'Labels: {len(kinds)} different ones, counted over {clients}'
  if 0 <= kinds.min() <= kinds.max() < _MOST_LABELS:
    draw_label_counts(picture, labels, f'{task.name}: {clients}')
    yield f'Which client has which: {picture}'


def _has_class(rows: 'Rows') -> bool:
  return rows['y'].ndim == 1 and np.issubdtype(rows['y'].dtype, np.integer)


def _is_image(rows: 'Rows') -> bool:
  is_grey, is_coloured = rows['x'].ndim == 3, rows['x'].shape[3:] in ((1,), (3,))
  return _has_class(rows) and (is_grey or is_coloured)


if __name__ == '__main__':
  command_line.run(PROGRAM, main)
