"""Writes what docs/tasks.md has of tables, texts and pictures.

Run it again when a task or a partitioner has changed:

    python -m experiments.task_gallery --data_dir=DIRECTORY
"""

from collections.abc import Mapping, Sequence
import inspect
import pathlib
import re
import textwrap
from typing import Any

import tasks
from tasks import partitions
from training_loops import command_line, files, show_task
from training_loops.options import Section, UserError, path

PROGRAM = command_line.Program(
  module='experiments.task_gallery',
  summary='Writes the tables, texts and pictures of docs/tasks.md.',
  example='--data_dir=data',
  sections=[
    Section(
      'Files',
      [
        path('data_dir', None, "Where the data are; TFF's cache by default."),
        path('docs_dir', 'docs', 'Where tasks.md is.'),
      ],
    )
  ],
)

# A task whose model depends on which data it is given.
_ANY_DATA = 'tfds'

# Whose the data are is said of those that the pictures in the repository show.
# Pictures of examples: the name of the file, the task, its options, whose data it is.
_IMAGES: Sequence[tuple[str, str, Mapping[str, Any], str]] = (
  (
    'digits',
    'digits_logistic',
    {},
    'Alpaydin and Kaynak (1998), Optical Recognition of Handwritten Digits, from the '
    'UCI Machine Learning Repository by way of scikit-learn; CC BY 4.0.',
  ),
  (
    'emnist',
    'emnist_logistic',
    {},
    'A stand-in for EMNIST by writer: UNIPEN train_r01_v07 (Guyon et al., ICPR 1994, '
    'doi:10.5281/zenodo.1195803), pen strokes drawn as pixels; CC BY 4.0.',
  ),
  (
    'mnist',
    'mnist_mlp',
    {'partitioner': 'iid'},
    'MNIST (LeCun, Cortes, Burges); CC BY-SA 3.0.',
  ),
  (
    'emnist_balanced',
    'emnist_balanced_logistic',
    {},
    'A subset of EMNIST (Cohen et al. 2017), of NIST Special Database 19; public '
    'domain. Classes: 0 to 9 the digits, 10 to 35 the capitals, 36 to 46 abdefghnqrt.',
  ),
  (
    'cifar100',
    'cifar100',
    {'cifar_model': 'cnn'},
    'A subset of CIFAR-100 (Krizhevsky 2009), each picture scaled for the eye. The '
    'data number their classes.',
  ),
)
# Lines of text: the task, whose data they are.
_TEXTS: Mapping[str, str] = {
  'shakespeare': (
    "cut anew from Project Gutenberg's e-text number 100, copyright 1990-1993 World "
    'Library, Inc., for personal, non-commercial use.'
  ),
  'stackoverflow_word': (
    'from smaller sites of the same network, by their users; Stack Exchange, CC BY-SA.'
  ),
  'stackoverflow_tag': 'the same; the words of the title follow those of the sentence.',
}
_NUM_LINES = 3
# Pictures of partitions of the digits, with these options.
_PARTITIONS: Mapping[str, Mapping[str, Any]] = {
  'dirichlet': {'dirichlet_alpha': 0.3},
  'similarity': {'similarity': 10.0},
  'shards': {'shards_per_client': 2},
}
_NUM_CLIENTS = 20
_WIDTH = 120  # Of the document.


def options_text(tree: Mapping[str, Any]) -> str:
  """Options with their defaults, those that the default choices bring along included.

  That of the data's directory is left out: nearly all have it.
  """
  texts = []
  for name, default in tree.items():
    if isinstance(default, tasks.Choice):
      texts.append(f'`{name}={default.default}`')
      brought = options_text(default.branches[default.default])
      texts += [brought] if brought else []
    elif name != 'data_dir':
      texts.append(f'`{name}`' if default is None else f'`{name}={default}`')
  return ', '.join(texts)


def tasks_table(num_weights: Mapping[str, str]) -> str:
  """All tasks: what each is, its options, how many weights its model has."""
  rows = [
    [f'`{name}`', line, options_text(tasks.options(name)), num_weights[name]]
    for name, line in tasks.describe().items()
  ]
  return _table(['task', 'what it is', 'options and defaults', 'weights'], rows)


def partitioners_table() -> str:
  """All partitioners: what each does, its options."""
  from tasks import partitioners

  every = partitions.choice('iid', _NUM_CLIENTS, has_coarse_labels=True).branches
  rows = []
  for name, options in every.items():
    line, *_ = str(inspect.getdoc(getattr(partitioners, name))).splitlines()
    own = {
      option: value for option, value in options.items() if option != 'num_clients'
    }
    rows.append([f'`{name}`', line, options_text(own)])
  return _table(['partitioner', 'what it does', 'options and defaults'], rows)


def with_part(document: str, name: str, text: str) -> str:
  """A document with another text between the marks of one of its generated parts.

  Raises:
    UserError: If it does not have these marks.
  """
  begin, end = f'<!-- generated: {name} -->\n', '<!-- end -->'
  pattern = f'{re.escape(begin)}.*?{re.escape(end)}'
  changed, count = re.subn(
    pattern, lambda _: f'{begin}{text}\n{end}', document, count=1, flags=re.S
  )
  if not count:
    raise UserError(f'tasks.md has no part that begins with {begin.strip()}.')
  return changed


def main(flags: dict[str, Any]) -> None:
  """Writes the pictures and the document."""
  document = pathlib.Path(flags['docs_dir']) / 'tasks.md'
  images = document.parent / 'images' / 'tasks'
  own = {'data_dir': flags['data_dir']}
  names = [name for name in tasks.names() if name != _ANY_DATA]
  try:
    for name in names:
      tasks.check(name, **_taken(name, own))
    show_task.execute_nothing()
    images.mkdir(parents=True, exist_ok=True)
    num_weights = {_ANY_DATA: 'depends on the data'}
    for name in names:
      task = tasks.load(name, seed=0, **_taken(name, own))
      num_weights[name] = f'{show_task.num_weights(task):,}'
    parts = {
      'tasks': tasks_table(num_weights),
      'partitioners': f'{partitioners_table()}\n\n{_draw_partitions(images)}',
      'images': _draw_images(images, own),
      'texts': _texts(own),
    }
  except ValueError as error:
    raise UserError(str(error)) from error
  text = document.read_text(encoding='utf-8')
  for name, part in parts.items():
    text = with_part(text, name, part)
  files.write_bytes(document, text.encode())
  print(f'{document} is written.')


def _taken(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
  """Those of the options that a task takes."""
  known = tasks.options(name)
  return {option: value for option, value in options.items() if option in known}


def _draw_images(directory: pathlib.Path, own: Mapping[str, Any]) -> str:
  texts = []
  for name, task_name, options, source in _IMAGES:
    task = tasks.load(task_name, seed=0, **options, **_taken(task_name, own))
    show_task.draw_examples(directory / f'{name}.png', task, f'{name}: ten examples')
    caption = textwrap.fill(source, _WIDTH)
    texts.append(f'![{name}](images/tasks/{name}.png)\n\n{caption}')
  return '\n\n'.join(texts)


def _draw_partitions(directory: pathlib.Path) -> str:
  texts = []
  for name, options in _PARTITIONS.items():
    task = tasks.load(
      'digits_logistic', seed=0, partitioner=name, num_clients=_NUM_CLIENTS, **options
    )
    labels = [task.train.rows(client_id)['y'] for client_id in task.train.client_ids]
    ((option, value),) = options.items()
    title = f'digits: --partitioner={name} --{option}={value}'
    show_task.draw_label_counts(directory / f'{name}.png', labels, title)
    texts.append(f'![{title}](images/tasks/{name}.png)')
  return '\n\n'.join(texts)


def _texts(own: Mapping[str, Any]) -> str:
  texts = []
  for name, source in _TEXTS.items():
    task = tasks.load(name, seed=0, **_taken(name, own))
    assert task.show is not None  # It is a task of text.
    lines = task.show(show_task.some_rows(task.train, _NUM_LINES))
    caption = textwrap.fill(f'`{name}`: {source}', _WIDTH)
    texts.append('\n'.join([caption, '', '```', *lines, '```']))
  return '\n\n'.join(texts)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  lines = [header, ['---'] * len(header), *rows]
  return '\n'.join(f'| {" | ".join(line)} |' for line in lines)


if __name__ == '__main__':
  command_line.run(PROGRAM, main)
