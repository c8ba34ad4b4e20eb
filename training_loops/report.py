"""Reports on runs: a table, a picture, and a page that opens anywhere."""

from collections.abc import Sequence
import pathlib
from typing import Any

from training_loops import command_line, published, reports, results, tables
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
    'hold some: a table, a picture, and a page that opens anywhere. Runs that differ in '
    'their seeds alone make one curve.'
  ),
  example='runs/a runs/b --output_dir=report',
  sections=[
    Section('Report', [*OPTIONS, path('output_dir', REQUIRED, 'Where it is written.')])
  ],
  words='runs',
)


def read_published(flags: dict[str, Any]) -> published.Published:
  """The numbers that `--published` names, if any."""
  return published.read(flags['published']) if flags['published'] else {}


def make_and_write(
  runs: Sequence[results.Result],
  flags: dict[str, Any],
  numbers: published.Published,
  directory: pathlib.Path,
) -> None:
  """Writes the report that `OPTIONS` describe, and says what it tells and where."""
  report = reports.make(
    runs,
    title=flags['title'],
    metric=flags['metric'],
    target=flags['target'],
    numbers=numbers,
  )
  reports.write(report, directory)
  print(f'\n{tables.markdown(*report.table)}\n')
  print(f'Page: {(directory / reports.PAGE).absolute()}')
  print(f'Picture: {(directory / reports.PICTURE).absolute()}')


def main(flags: dict[str, Any]) -> None:
  """Reads the runs and reports on them."""
  if not flags['runs']:
    raise UserError('name at least one directory of a run: report runs/a runs/b ...')
  directory = pathlib.Path(flags['output_dir'])
  numbers = read_published(flags)
  runs = [results.load(found) for found in results.find(flags['runs'])]
  make_and_write(runs, flags, numbers, directory)


if __name__ == '__main__':
  command_line.run(PROGRAM, main)
