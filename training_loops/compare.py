"""Trains several algorithms on one task, several at a time, and reports on them."""

from collections.abc import Mapping, Sequence
import pathlib
import re
import shlex
from typing import Any

from training_loops import (
  batch,
  command_line,
  files,
  progress,
  published,
  report,
  reports,
  results,
  summaries,
  train_flags,
)
from training_loops.options import REQUIRED, Section, UserError, integer, path, text

PROGRAM = command_line.Program(
  module='training_loops.compare',
  summary=(
    'Trains several algorithms on one task, with the same seeds and cohorts, several '
    'runs at a time, and ends with a table, a picture and a page. All flags of '
    'training_loops.train are taken too, and are for every run. The same command again '
    'continues where it was stopped.'
  ),
  example=(
    '--run="FedAvg: --algorithm=fed_avg" '
    '--run="FedProx: --algorithm=fed_prox --fed_prox_rho=0.3" '
    '--task=digits_logistic --rounds=100 --num_seeds=3 --output_dir=runs/x'
  ),
  sections=[
    Section(
      'Comparison',
      [
        text(
          'run',
          REQUIRED,
          'The flags of one algorithm, with a name before a colon if you like; '
          '--flagfile=PATH is one.',
          is_repeated=True,
        ),
        integer('num_seeds', 1, 'Seeds for each: --seed, and those after it.'),
        batch.JOBS,
        path('output_dir', REQUIRED, 'Where everything is written.'),
      ],
    ),
    Section('Report', report.OPTIONS),
  ],
  lists=train_flags.PROGRAM.lists,
  run_options=train_flags.PROGRAM.options,
)

# These are the comparison's to set.
_NOT_FOR_ONE = ('label', 'output_dir', 'seed')


def parse_run(words: str) -> tuple[str, list[str]]:
  """The name and the flags in a value of `--run`.

  Raises:
    UserError: If there are none.
  """
  named = re.fullmatch(r'\s*([^-\s:][^:]*?)\s*:(.*)', words, re.DOTALL)
  name, rest = named.groups('') if named else ('', words)
  try:
    arguments = shlex.split(rest)
  except ValueError as error:
    raise UserError(f'--run={words}: {error}.') from None
  if not arguments:
    raise UserError(
      f'--run={words}: expected flags, as in "FedAvg: --algorithm=fed_avg".'
    )
  for argument in arguments:
    flag = argument.lstrip('-').partition('=')[0]
    if flag in _NOT_FOR_ONE:
      raise UserError(f'--run={words}: --{flag} is for the comparison as a whole.')
  return name or _name(arguments), arguments


def _name(arguments: Sequence[str]) -> str:
  """As `fed_avg, batch_size=3`; a flagfile is called by its own name."""
  parts = []
  for argument in arguments:
    flag, _, value = argument.lstrip('-').partition('=')
    short = {'algorithm': value, 'flagfile': pathlib.Path(value).stem}
    parts.append(short.get(flag) or argument.lstrip('-'))
  return ', '.join(parts)


def configure(
  runs: Mapping[str, Sequence[str]],
  run_flags: Mapping[str, Any],
  num_seeds: int,
  output_dir: str | pathlib.Path,
) -> list[dict[str, Any]]:
  """The flags of all runs of a comparison.

  Args:
    runs: The words of each algorithm's command line, by its name; from flags in a
      dict `train_flags.as_arguments` makes them.
    run_flags: The flags that they have in common.
    num_seeds: How many seeds each is run with.
    output_dir: Where the runs go, each in a directory of its own.

  Raises:
    UserError: If a run would be refused, or they cannot be compared.
  """
  first_seed = run_flags.get('seed', 0)
  common = train_flags.as_arguments(
    {n: v for n, v in run_flags.items() if n not in _NOT_FOR_ONE}
  )
  every_flags: list[dict[str, Any]] = []
  for name, arguments in runs.items():
    # What is said on the command line counts more than what a file has, which may be
    # of another time; what is said of one run more than what is said of all.
    from_files = [word for word in arguments if word.startswith('--flagfile=')]
    others = [word for word in arguments if word not in from_files]
    for seed in range(first_seed, first_seed + num_seeds):
      directory = pathlib.Path(output_dir) / files.as_name(name) / f'seed_{seed}'
      own = [f'--label={name}', f'--seed={seed}', f'--output_dir={directory}']
      try:
        flags = train_flags.from_arguments([*from_files, *common, *others, *own])
      except UserError as error:
        raise UserError(f'{name}: {error}') from None
      every_flags.append(flags)
  summaries.check_task({flags['label']: flags for flags in every_flags})
  directories = [flags['output_dir'] for flags in every_flags]
  if len(set(directories)) < len(directories):
    raise UserError('two runs would share a directory: give them other names.')
  return every_flags


def main(flags: dict[str, Any]) -> None:
  """Trains what is not trained yet, then reports."""
  progress.show_on_console()
  runs: dict[str, list[str]] = {}
  for words in flags['run']:
    name, arguments = parse_run(words)
    if name in runs:
      raise UserError(f'there are two runs {name}: give them different names.')
    runs[name] = arguments
  directory = pathlib.Path(flags['output_dir'])
  if 'label' in flags['run_flags']:
    raise UserError('--label is not used: names stand before the colon in --run.')
  every_flags = configure(runs, flags['run_flags'], flags['num_seeds'], directory)
  # What would not do for the report is found before hours of training.
  reports.check_directory(directory)
  arguments_of_report = report.arguments(flags)
  published.check(
    arguments_of_report['numbers'], list(runs), flags['metric'], flags['target']
  )
  failure = None
  try:
    batch.train(every_flags, flags['jobs'])
  except batch.RunsFailed as error:
    failure = error
  done = results.load_all(batch.existing(every_flags))
  if any(result.rows for result in done):
    report.write(done, directory, **arguments_of_report)
  if failure:
    raise failure


if __name__ == '__main__':
  command_line.run(PROGRAM, main)
