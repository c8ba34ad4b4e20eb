"""Searches for the best flags: a grid, a random or a Bayesian search, in parallel."""

from collections.abc import Sequence
import pathlib
from typing import Any

from training_loops import (
  batch,
  command_line,
  progress,
  reports,
  sweep_files,
  sweep_results,
  sweeps,
  tables,
  train_flags,
)
from training_loops.options import REQUIRED, Section, path, switch, text
from training_loops.sweep_files import Point, Sweep

PROGRAM = command_line.Program(
  module='training_loops.sweep',
  summary=(
    'Searches for the best values of flags of training_loops.train, those that a small '
    'YAML file names. Other flags of training_loops.train are taken here too, and are '
    'for every run. The same command again continues where it was stopped.'
  ),
  example=(
    '--file=experiments/sweeps/mime_light.yaml --task=digits_logistic '
    '--algorithm=fed_avg --rounds=100 --output_dir=runs/light'
  ),
  sections=[
    Section(
      'Sweep',
      [
        path('file', REQUIRED, 'What to try, in YAML.'),
        batch.JOBS,
        switch('dry_run', 'Lists the runs and makes none.'),
        switch('retry_failed', 'Tries again what failed at an earlier time.'),
        text(
          'storage',
          None,
          'The data base, as postgresql://...; several machines may share one. A file '
          'in --output_dir by default.',
        ),
        path('output_dir', REQUIRED, 'Where everything is written.'),
      ],
    )
  ],
  lists=train_flags.PROGRAM.lists,
  run_options=train_flags.PROGRAM.options,
)


def main(flags: dict[str, Any]) -> None:
  """Makes the runs, or lists them."""
  progress.show_on_console()
  sweep = sweep_files.read(flags['file'], flags['run_flags'])
  directory = pathlib.Path(flags['output_dir'])
  if flags['dry_run']:
    print(_listed(sweep, sweeps.check(sweep, directory)))
    return
  outcome = sweeps.run(
    sweep,
    directory,
    jobs=flags['jobs'],
    storage=flags['storage'],
    retry_failed=flags['retry_failed'],
  )
  print(f'\n{tables.markdown(*sweep_results.table(outcome))}\n')
  print(f'Best: {" ".join(train_flags.as_arguments(outcome.best_flags))}')
  print(f'The same for --flagfile: {directory / sweep_results.BEST_FLAGS}')
  print(f'Picture: {directory / sweep_results.PICTURE}')
  print(f'The best curves: {directory / sweep_results.BEST_REPORT / reports.PAGE}')


def _listed(sweep: Sweep, points: Sequence[Point]) -> str:
  common = ' '.join(train_flags.as_arguments(sweep.flags))
  head = f'{sweep.trials} runs ({sweep.sampler}), each with {common}'
  if not points:
    spaces = ', '.join(f'{name} of {space}' for name, space in sweep.search.items())
    return f'{head}, and as results come in: {spaces}.'
  rows = [[str(i + 1), *map(str, point.values())] for i, point in enumerate(points)]
  return f'{head}:\n\n{tables.markdown(["run", *sweep.search], rows)}'


if __name__ == '__main__':
  command_line.run(PROGRAM, main)
