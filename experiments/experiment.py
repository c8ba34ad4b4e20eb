"""What experiments share: find the rates, compare with several seeds, write it down.

An experiment is a file in this directory, named after the figure or the table that it
makes. It lists comparisons, and ends with

    if __name__ == '__main__':
      experiment.main(__file__, _TITLE, _TEXT, _COMPARISONS)

`make experiment NAME=...` runs it. Its runs are kept below runs/NAME, where the same
command continues them; what they gave goes to docs/results/NAME.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

import tasks
from training_loops import (
  batch,
  command_line,
  compare,
  cores,
  files,
  progress,
  published,
  reports,
  results,
  summaries,
  sweep_files,
  sweep_results,
  sweeps,
  tables,
  train_flags,
)
from training_loops.options import Section, integer, path

_HERE = pathlib.Path(__file__).parent
_RESULTS = _HERE.parent / 'docs' / 'results'
_TUNING, _PANELS = 'tuning.csv', 'panels.png'

SWEEPS = _HERE / 'sweeps'


@dataclasses.dataclass(frozen=True)
class Entry:
  """An algorithm in a comparison.

  Attributes:
    flags: Its flags.
    sweep: The file in sweeps/ that finds the rest of them; None if they are all there.
    like: The name of an entry before it, whose findings it starts from.
  """

  flags: Mapping[str, Any]
  sweep: str | None = None
  like: str | None = None


@dataclasses.dataclass(frozen=True)
class Picture:
  """A picture more of a comparison, and a CSV file of what is in it.

  Attributes:
    columns: The metrics in it.
    entries: The entries in it, all by default.
  """

  columns: Sequence[str]
  entries: Sequence[str] | None = None


@dataclasses.dataclass(frozen=True)
class Table:
  """A table more of a comparison: where entries end, beside a published table.

  Attributes:
    title: What stands above it.
    columns: The metrics in it, by the head of the column.
    entries: The entries in it, by what they are called there.
    published: What stands in the published table, by the same names.
    against: Those that an entry is compared with seed by seed, by the same names.
    num_evals: The last evaluated rounds that a seed is averaged over.
  """

  title: str
  columns: Mapping[str, str]
  entries: Mapping[str, str]
  published: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)
  against: Mapping[str, str] = dataclasses.field(default_factory=dict)
  num_evals: int = 5


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Algorithms on one task.

  Attributes:
    name: The name of its directory.
    title: What stands above it.
    flags: The flags of all runs.
    entries: The algorithms by name.
    tuning_rounds: The rounds of the runs that find the rates, where there are any.
    num_seeds: How many seeds the tuned algorithms are run with.
    target: The accuracy to reach, or the name of the entry whose final one it is.
    metric: What is compared by, the accuracy by default.
    panels: Entries that are shown side by side, by what stands above each panel.
    pictures: More pictures, by the file's name.
    tables: More tables.
    published: The file in published/ with the paper's numbers.
    published_clients: How many clients the paper's data have.
  """

  name: str
  title: str
  flags: Mapping[str, Any]
  entries: Mapping[str, Entry]
  tuning_rounds: int = 0
  num_seeds: int = 1
  metric: str | None = None
  target: float | str | None = None
  panels: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
  pictures: Mapping[str, Picture] = dataclasses.field(default_factory=dict)
  tables: Sequence[Table] = ()
  published: str | None = None
  published_clients: int | None = None


@dataclasses.dataclass(frozen=True)
class Overview:
  """Comparisons of the same algorithms side by side, above the comparisons themselves.

  Attributes:
    title: What stands above it.
    file: The name of its picture.
    comparisons: The comparisons' names, by what stands above each.
  """

  title: str
  file: str
  comparisons: Mapping[str, str]


@dataclasses.dataclass(frozen=True)
class Finding:
  """What a sweep found for an algorithm.

  Attributes:
    flags: The flags that were searched for, and those taken over.
    value: What the best run reached, as text.
    trials: All runs of the sweep.
    remark: Whether a better value may lie beyond those that were tried.
  """

  flags: Mapping[str, Any]
  value: str
  trials: Sequence[sweep_results.Trial]
  remark: str


def main(
  file: str,
  title: str,
  text: str,
  comparisons: Sequence[Comparison],
  overviews: Sequence[Overview] = (),
) -> None:
  """Runs an experiment as a program.

  Args:
    file: The experiment's file.
    title: What stands above its results.
    text: What it is about, in Markdown.
    comparisons: What is compared.
    overviews: What is shown side by side.
  """
  name = pathlib.Path(file).stem

  def run(flags: dict[str, Any]) -> None:
    progress.show_on_console()
    chosen = [_chosen(comparison, flags) for comparison in comparisons]
    output_dir, results_dir = (
      pathlib.Path(flags[directory]) for directory in ('output_dir', 'results_dir')
    )
    for comparison in chosen:  # Before anything is trained.
      train_flags.check_task(_task_flags(comparison))
      reports.check_directory(results_dir / comparison.name)
      names = list(comparison.entries)
      published.check(_published(comparison), names, None, _known_target(comparison))
    sections = []
    made: dict[str, reports.Report] = {}
    for comparison in chosen:
      jobs = flags['jobs'] or cores.number()
      findings, report = _run(comparison, output_dir / comparison.name, jobs)
      made[comparison.name] = report
      reports.write_without_text(report, results_dir / comparison.name)
      _write_panels(comparison, report, results_dir / comparison.name / _PANELS)
      _write_pictures(comparison, report, results_dir / comparison.name)
      if _has_sweeps(comparison):
        _write_tuning(findings, results_dir / comparison.name / _TUNING)
      sections.append(_section(comparison, findings, report, jobs))
    above = [_write_overview(overview, made, results_dir) for overview in overviews]
    content = [f'# {title}', text.strip(), f'## How\n\n{how(name, flags)}']
    content += [*above, *sections]
    page = results_dir / 'README.md'
    files.write_bytes(page, ('\n\n'.join(content) + '\n').encode())
    print(f'\n{page}')

  command_line.run(program(file, title), run)


def _write_overview(
  overview: Overview, made: Mapping[str, reports.Report], directory: pathlib.Path
) -> str:
  """Draws the picture, and returns it with a table of the rounds to the target."""
  from training_loops import plots

  chosen = {heading: made[name] for heading, name in overview.comparisons.items()}
  (metric,) = {report.summaries[0].metric for report in chosen.values()}
  panels = {
    heading: {group.name: group.curve(metric) for group in report.groups}
    for heading, report in chosen.items()
  }
  plots.write_panels(directory / overview.file, metric, panels, overview.title)
  parts = [f'## {overview.title}', f'![{overview.title}]({overview.file})']
  (target,) = {report.summaries[0].target for report in chosen.values()}
  if target is not None:
    parts.append(f'Rounds to {summaries.display(metric, target)} of {metric}:')
    parts.append(_rounds_table(chosen))
  return '\n\n'.join(parts)


def _rounds_table(chosen: Mapping[str, reports.Report]) -> str:
  """The rounds to the target, with a column for each comparison."""
  rounds = {
    heading: {s.name: summaries.rounds_text(s.rounds_to_target) for s in r.summaries}
    for heading, r in chosen.items()
  }
  names = dict.fromkeys(name for by_name in rounds.values() for name in by_name)
  rows = [[n, *(by_name.get(n, '') for by_name in rounds.values())] for n in names]
  return tables.markdown(['', *rounds], rows)


def flagfile(name: str, **more: Any) -> dict[str, Any]:
  """The flags in a file of flagfiles/, with more of them or other values."""
  lines = (_HERE / 'flagfiles' / f'{name}.flags').read_text().splitlines()
  words = [line[2:].partition('=') for line in lines if line.startswith('--')]
  return {flag: value or True for flag, _, value in words} | more


def program(file: str, title: str) -> command_line.Program:
  """An experiment as a program.

  Args:
    file: The experiment's file.
    title: What stands above its results.
  """
  name = pathlib.Path(file).stem
  own = 'by default as many as it is about'
  return command_line.Program(
    module=f'experiments.{name}',
    summary=f'{title}. Writes docs/results/{name}.',
    example='--data_dir=data',
    sections=[
      Section(
        'Experiment',
        [
          path('data_dir', None, "Where the data are; TFF's cache by default."),
          batch.JOBS,
          path('output_dir', f'runs/{name}', 'Where the runs are kept.'),
          path('results_dir', str(_RESULTS / name), 'Where the results are written.'),
        ],
      ),
      Section(
        'To try it out',
        [
          integer('rounds', None, f'Rounds of the final runs, {own}.'),
          integer('tuning_rounds', None, f'Rounds of the sweeps, {own}.'),
          integer('num_seeds', None, f'Seeds of the final runs, {own}.'),
        ],
      ),
    ],
  )


def _chosen(comparison: Comparison, flags: dict[str, Any]) -> Comparison:
  """The comparison as the command line has it."""
  own = dict(comparison.flags)
  if flags['rounds']:
    own['rounds'] = flags['rounds']
  if flags['data_dir'] and 'data_dir' in tasks.options(own['task']):
    own['data_dir'] = flags['data_dir']
  return dataclasses.replace(
    comparison,
    flags=own,
    tuning_rounds=flags['tuning_rounds'] or comparison.tuning_rounds,
    num_seeds=flags['num_seeds'] or comparison.num_seeds,
  )


def _run(
  comparison: Comparison, directory: pathlib.Path, jobs: int | None
) -> tuple[dict[str, Finding], reports.Report]:
  findings: dict[str, Finding] = {}
  for name, entry in comparison.entries.items():
    if entry.sweep:
      print(f'{comparison.title}: {name}', flush=True)
    findings[name] = _find(comparison, entry, findings, directory, name, jobs)
  arguments = {
    name: train_flags.as_arguments({**entry.flags, **findings[name].flags})
    for name, entry in comparison.entries.items()
  }
  every_flags = compare.configure(
    arguments, comparison.flags, comparison.num_seeds, directory / 'runs'
  )
  print(f'{comparison.title}: {comparison.num_seeds} seeds each', flush=True)
  batch.train(every_flags, jobs)
  runs = results.load_all(flags['output_dir'] for flags in every_flags)
  return findings, reports.make(
    runs,
    title=comparison.title,
    metric=comparison.metric,
    target=_target(comparison, runs),
    numbers=_published(comparison),
  )


def _known_target(comparison: Comparison) -> float | None:
  """The target, as far as it is known before anything is trained."""
  return None if isinstance(comparison.target, str) else comparison.target


def _target(comparison: Comparison, runs: Sequence[results.Result]) -> float | None:
  if not isinstance(comparison.target, str):
    return comparison.target
  every_summary = summaries.summarize(summaries.group(runs), comparison.metric)
  (goal,) = (s for s in every_summary if s.name == comparison.target)
  return sum(goal.final) / len(goal.final)


def _write_panels(
  comparison: Comparison, report: reports.Report, file: pathlib.Path
) -> None:
  if comparison.panels:
    from training_loops import plots

    metric = report.summaries[0].metric
    curves = {group.name: group.curve(metric) for group in report.groups}
    panels = {
      heading: {name: curves[name] for name in names}
      for heading, names in comparison.panels.items()
    }
    plots.write_panels(file, metric, panels, report.title)


def _write_pictures(
  comparison: Comparison, report: reports.Report, directory: pathlib.Path
) -> None:
  from training_loops import plots

  for file, picture in comparison.pictures.items():
    wanted = comparison.entries if picture.entries is None else picture.entries
    groups = [group for group in report.groups if group.name in wanted]
    curves = {
      column: {group.name: group.curve(column) for group in groups}
      for column in picture.columns
    }
    plots.write_comparison(directory / file, curves, comparison.title)
    rows = [
      [group.name, run.flags['seed'], row['round'], *(row[c] for c in picture.columns)]
      for group in groups
      for run in group.runs
      for row in run.rows
    ]
    content = tables.as_csv(['name', 'seed', 'round', *picture.columns], rows)
    files.write_bytes((directory / file).with_suffix('.csv'), content)


def _has_sweeps(comparison: Comparison) -> bool:
  return any(entry.sweep for entry in comparison.entries.values())


def _published(comparison: Comparison) -> published.Published:
  file = comparison.published
  return published.read(_HERE / 'published' / file) if file else {}


def _task_flags(comparison: Comparison) -> dict[str, Any]:
  """The flags of some run, for what asks about the task alone."""
  entry = next(iter(comparison.entries.values()))
  return train_flags.configure(**comparison.flags, **entry.flags, output_dir='x')


def _find(
  comparison: Comparison,
  entry: Entry,
  before: Mapping[str, Finding],
  directory: pathlib.Path,
  name: str,
  jobs: int | None,
) -> Finding:
  taken = dict(before[entry.like].flags) if entry.like else {}
  if entry.sweep is None:
    return Finding(taken, value='', trials=[], remark='')
  rounds = {'rounds': comparison.tuning_rounds}
  sweep = sweep_files.read(
    SWEEPS / entry.sweep,
    {**comparison.flags, **rounds, **taken, **entry.flags},
  )
  outcome = sweeps.run(sweep, directory / 'tuning' / files.as_name(name), jobs=jobs)
  best = outcome.best
  at_ends = [
    f'{flag} is the {which} tried'
    for flag, value in best.point.items()
    for which, end in (('highest', max), ('lowest', min))
    if isinstance(value, (int, float))
    and value == end(trial.point[flag] for trial in outcome.trials)
  ]
  return Finding(
    flags={**taken, **best.point},
    value=summaries.display(sweep.metric, best.value),
    trials=outcome.trials,
    remark='; '.join(at_ends),
  )


def _write_tuning(findings: Mapping[str, Finding], file: pathlib.Path) -> None:
  """Every run of every sweep, as a CSV file."""
  rows = [
    [name, sweep_files.point_text(trial.point), trial.state, trial.value, trial.reason]
    for name, found in findings.items()
    for trial in found.trials
  ]
  header = ['name', 'searched', 'state', 'value', 'reason']
  files.write_bytes(file, tables.as_csv(header, rows))


def _section(
  comparison: Comparison,
  findings: Mapping[str, Finding],
  report: reports.Report,
  jobs: int,
) -> str:
  """The part of the results' page on one comparison."""
  here = comparison.name
  links = (
    f'[The page with all curves]({here}/{reports.PAGE}), '
    f'[the numbers]({here}/{reports.NUMBERS}), [the curves]({here}/{reports.CURVES})'
  )
  tuned = []
  if _has_sweeps(comparison):
    rows = [
      [name, sweep_files.point_text(found.flags), found.value, found.remark]
      for name, found in findings.items()
    ]
    header = ['', 'found', f'best in {comparison.tuning_rounds} rounds', 'remark']
    tuned = ['What the sweeps found, with seed 0:', tables.markdown(header, rows)]
    links += f', [all runs of the sweeps]({here}/{_TUNING})'
  tuning = [trial for found in findings.values() for trial in found.trials]
  runs = [run for group in report.groups for run in group.runs]
  num_runs = len(tuning) + len(runs)
  seconds = sum([*(t.seconds for t in tuning), *(run.seconds for run in runs)])
  took = f'{seconds / 60:.0f} minutes' if seconds > 120 else f'{seconds:.0f} seconds'
  time = f'{num_runs} runs, {took} of training in all, {jobs} runs at a time.'
  return '\n\n'.join(
    [
      f'## {comparison.title}',
      *report.sentences,
      f'![Curves]({here}/{_PANELS if comparison.panels else reports.PICTURE})',
      tables.markdown(*report.table),
      f'{links}.',
      *(_picture(f'{here}/{file}') for file in comparison.pictures),
      *(_table(table, report) for table in comparison.tables),
      *report.notes,
      *tuned,
      _data(comparison),
      time,
    ]
  )


def _picture(file: str) -> str:
  name = pathlib.PurePath(file).name
  numbers = str(pathlib.PurePath(file).with_suffix('.csv'))
  return f'![{name}]({file})\n\n[The numbers of this picture]({numbers})'


def _table(table: Table, report: reports.Report) -> str:
  """A table of where entries end, with its title."""
  groups = {group.name: group for group in report.groups}

  def of_seeds(name, column):
    last = [
      [values[column] for values in run.rows[-table.num_evals :]]
      for run in groups[table.entries[name]].runs
    ]
    return [sum(values) / len(values) for values in last]

  def difference(name, column):
    if name not in table.against:
      return ''
    other = of_seeds(table.against[name], column)
    apart = [a - b for a, b in zip(of_seeds(name, column), other, strict=True)]
    return ('+' if sum(apart) > 0 else '') + summaries.spread(column, apart)

  def published(name, i, column):
    values = table.published.get(name, [])
    return summaries.display(column, values[i]) if i < len(values) else ''

  columns = list(table.columns.values())
  header = ['', *table.columns]
  cells = [
    [name, *(summaries.spread(column, of_seeds(name, column)) for column in columns)]
    for name in table.entries
  ]
  if table.against:
    header += [f'{head}, seed by seed' for head in table.columns]
    for row in cells:
      row += [difference(row[0], column) for column in columns]
  if table.published:
    header += [f'{head}, published' for head in table.columns]
    for row in cells:
      row += [published(row[0], i, column) for i, column in enumerate(columns)]
  over = f'Means over the last {table.num_evals} evaluated rounds:'
  return '\n\n'.join([f'### {table.title}', over, tables.markdown(header, cells)])


def _data(comparison: Comparison) -> str:
  """Which data these were, in numbers, and whether they are the paper's."""
  from training_loops import show_task, training

  show_task.execute_nothing()
  task = training.load_task(_task_flags(comparison))
  parts = [f'The data, as task `{task.name}` has them:', show_task.sizes_table(task)]
  wanted, found = comparison.published_clients, len(task.train.client_ids)
  if wanted is not None and found != wanted:
    parts.append(
      f"**These are not the paper's data**, which have {wanted:,} clients, but others "
      'in the same format ([what they are](../../tasks.md#what-examples-look-like)): '
      'the published figures stand here for orientation and do not carry over.'
    )
  return '\n\n'.join(parts)


def how(name: str, flags: dict[str, Any]) -> str:
  """The command line of an experiment, without where things are on this machine."""
  shown = ('rounds', 'tuning_rounds', 'num_seeds')
  words = [f'--{n}={flags[n]}' for n in shown if flags[n]]
  if flags['data_dir']:
    words.append('--data_dir=DIR')
  arguments = f' ARGS="{" ".join(words)}"' if words else ''
  return f'    make experiment NAME={name}{arguments}'
