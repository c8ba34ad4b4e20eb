"""Reports on runs: a table, a picture, and a page that opens anywhere."""

from collections.abc import Sequence
import pathlib
from typing import Any

from training_loops import (
  command_line,
  published,
  reports,
  results,
  summaries,
  tables,
)
from training_loops.options import REQUIRED, Section, UserError, number, path, text

OPTIONS = (
  number('target', None, 'A value to reach, as an accuracy of 0.9.'),
  text('metric', None, 'The column of metrics.csv to compare by; eval/accuracy.'),
  path('published', None, 'A CSV file of published numbers to lay beside ours.'),
  text('title', None, 'What stands above; the task by default.'),
)

PROGRAM = command_line.Program(
  module='training_loops.report',
  summary=(
    'Reports on runs of one task, given by their directories or by directories that '
    'hold some: a table, a picture, and a page that opens anywhere. Runs that differ '
    'in their seeds alone make one curve.'
  ),
  example='runs/a runs/b --output_dir=report',
  sections=[
    Section('Report', [*OPTIONS, path('output_dir', REQUIRED, 'Where it is written.')])
  ],
  words='runs',
)


def arguments(flags: dict[str, Any]) -> dict[str, Any]:
  """The arguments of `reports.make` from `OPTIONS`.

  Raises:
    UserError: If the file of published numbers cannot be read, or something is wrong
      whatever the runs are.
  """
  if flags['metric']:
    summaries.check_metric_name(flags['metric'])
  summaries.check_target(flags['target'], flags['metric'])
  numbers = published.read(flags['published']) if flags['published'] else {}
  chosen = {name: flags[name] for name in ('title', 'metric', 'target')}
  return {**chosen, 'numbers': numbers}


def write(
  runs: Sequence[results.Result], directory: pathlib.Path, **arguments: Any
) -> None:
  """Writes a report and says what it tells, and where it is.

  Args:
    runs: Runs of one task.
    directory: Where the report goes.
    **arguments: Further ones of `reports.make`.
  """
  made = reports.make(runs, **arguments)
  reports.write(made, directory)
  print(f'\n{tables.markdown(*made.table)}\n')
  print(f'Page: {(directory / reports.PAGE).absolute()}')
  print(f'Picture: {(directory / reports.PICTURE).absolute()}')


def main(flags: dict[str, Any]) -> None:
  """Reads the runs and reports on them."""
  if not flags['runs']:
    raise UserError('name the directory of a run at least, as in report runs/a runs/b.')
  runs = results.load_all(flags['runs'])
  write(runs, pathlib.Path(flags['output_dir']), **arguments(flags))


if __name__ == '__main__':
  command_line.run(PROGRAM, main)
