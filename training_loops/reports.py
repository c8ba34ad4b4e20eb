"""Reports of runs: a page, a picture, a table, and the numbers behind them.

    report = reports.make(runs, title='Servers on digits', target=0.9)
    reports.write(report, pathlib.Path('report'))

Importing this module does not import TensorFlow.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib

import numpy as np

from training_loops import files, published, results, summaries, tables
from training_loops.options import UserError

# What `write` writes.
PAGE, PICTURE, TABLE = 'report.html', 'curves.png', 'report.md'
NUMBERS, CURVES = 'results.csv', 'curves.csv'
_MAX_CHARTS = 6


@dataclasses.dataclass(frozen=True)
class Report:
  """What is told of some runs of one task.

  Attributes:
    title: What stands above.
    sentences: What stands below the title.
    groups: The runs, joined over seeds.
    summaries: The groups in numbers.
    published: Published numbers by name and column.
    notes: What stands below the table.
  """

  title: str
  sentences: Sequence[str]
  groups: Sequence[summaries.Group]
  summaries: Sequence[summaries.Summary]
  published: published.Published
  notes: Sequence[str]

  @property
  def table(self) -> tuple[list[str], list[list[str]]]:
    """The head and the rows of the table."""
    header, rows = summaries.table(self.summaries)
    if not self.published:
      return header, rows
    more, cells = published.columns(self.published, self.summaries)
    return header + more, [a + b for a, b in zip(rows, cells, strict=True)]

  @property
  def columns(self) -> list[str]:
    """The metrics that are drawn, the most important first."""
    metric = self.summaries[0].metric
    common = [
      column
      for column in self.groups[0].columns
      if all(column in group.columns for group in self.groups)
    ]
    evals = [column for column in common if column.startswith('eval/')]
    wanted = dict.fromkeys([metric, 'eval/loss', 'train/loss', *evals])
    return [column for column in wanted if column in common][:_MAX_CHARTS]


def make(
  runs: Sequence[results.Result],
  *,
  title: str | None = None,
  metric: str | None = None,
  target: float | None = None,
  numbers: published.Published | None = None,
  notes: Sequence[str] = (),
) -> Report:
  """Makes a report; nothing is written.

  Args:
    runs: Runs of one task.
    title: What stands above, by default the task.
    metric: The column of metrics.csv to compare by, by default the accuracy.
    target: The value of the metric to reach.
    numbers: Published numbers.
    notes: What stands below the table.

  Raises:
    UserError: If the runs are of different tasks, there is nothing to show, or the
      published numbers do not go with the runs.
  """
  groups = summaries.group(runs)
  every_summary = summaries.summarize(groups, metric, target)
  names = [summary.name for summary in every_summary]
  published.check(numbers or {}, names, every_summary[0].metric, target)
  flags = groups[0].runs[0].flags
  return Report(
    title=title or str(flags['task']),
    sentences=_sentences(groups),
    groups=groups,
    summaries=every_summary,
    published=numbers or {},
    notes=[*_remarks(every_summary, numbers or {}), *_notes(groups, len(runs)), *notes],
  )


def _remarks(
  every_summary: Sequence[summaries.Summary], numbers: published.Published
) -> list[str]:
  """How some of the numbers come about, and which of the published are left out."""
  remarks = []
  if every_summary[0].target is not None:
    remarks.append('Rounds to the target are counted by evaluated rounds.')
  names = [summary.name for summary in every_summary]
  others = [name for name in numbers if name not in names]
  if others:
    remarks.append(f'Published, but not run here: {", ".join(others)}.')
  return remarks


def _common(groups: Sequence[summaries.Group], name: str) -> str:
  values = {str(run.flags.get(name)) for group in groups for run in group.runs}
  return values.pop() if len(values) == 1 else 'different numbers of'


def _sentences(groups: Sequence[summaries.Group]) -> list[str]:
  flags = groups[0].runs[0].flags
  seeds = sorted({run.flags['seed'] for group in groups for run in group.runs})
  return [
    f'Task {flags["task"]}: {_common(groups, "rounds")} rounds of '
    f'{_common(groups, "clients_per_round")} clients, '
    f'{"seed" if len(seeds) == 1 else "seeds"} {", ".join(map(str, seeds))}.'
  ]


def _notes(groups: Sequence[summaries.Group], num_runs: int) -> list[str]:
  shown = sum(len(group.runs) for group in groups)
  notes = []
  if any(len(group.runs) > 1 for group in groups):
    notes.append(
      'Curves are means over seeds, bands go from the lowest seed to the highest; in '
      'the table ± is the standard deviation over seeds.'
    )
  if shown < num_runs:
    notes.append(
      f'{num_runs - shown} of {num_runs} runs are not shown: they repeat another, or '
      'have no evaluated round.'
    )
  first, *others = (run.versions for group in groups for run in group.runs)
  made = ', '.join(f'{name} {version}' for name, version in first.items())
  if any(other != first for other in others):
    notes.append(f'The runs were made with different versions, the first with {made}.')
  elif made:
    notes.append(f'Made with {made}.')
  return notes


def markdown(report: Report) -> str:
  """The report as a Markdown text without the picture."""
  parts = [f'# {report.title}', *report.sentences, tables.markdown(*report.table)]
  return '\n\n'.join([*parts, *report.notes]) + '\n'


def page(report: Report) -> str:
  """The report as one self-contained HTML page."""
  from training_loops import report_page

  metric, target = report.summaries[0].metric, report.summaries[0].target
  charts = [
    report_page.Chart(
      title=column.replace('/', ' '),
      curves={group.name: group.curve(column) for group in report.groups},
      is_share=summaries.is_share(column),
      target=target if column == metric else None,
    )
    for column in report.columns
  ]
  return report_page.render(
    report.title, report.sentences, charts, *report.table, notes=report.notes
  )


def check_directory(directory: pathlib.Path) -> None:
  """Makes sure that a report can be written to a directory.

  Raises:
    UserError: If not.
  """
  files.check_writable(directory)
  for name, what in (('config.json', 'run'), ('sweep.json', 'sweep')):
    if (directory / name).exists():
      raise UserError(f'{directory} is a {what}: a report goes somewhere else.')
  theirs = [n for n in (PICTURE, TABLE, NUMBERS, CURVES) if (directory / n).exists()]
  if theirs and not (directory / PAGE).exists():
    raise UserError(f'{directory} holds {theirs[0]}, which is of no report.')


def write(report: Report, directory: pathlib.Path) -> None:
  """Writes the report's files into a directory, in the place of an older report's.

  Raises:
    UserError: If nothing can be written there.
  """
  write_without_text(report, directory)
  files.write_bytes(directory / TABLE, markdown(report).encode())


def write_without_text(report: Report, directory: pathlib.Path) -> None:
  """Writes all but the Markdown text, for those who have a text of their own.

  Raises:
    UserError: If nothing can be written there.
  """
  from training_loops import plots

  check_directory(directory)
  # The picture shows what the table tells of, and the loss.
  columns = list(dict.fromkeys([report.summaries[0].metric, 'eval/loss']))
  curves = {
    column: {group.name: group.curve(column) for group in report.groups}
    for column in report.columns
  }
  shown = {column: curves[column] for column in columns if column in curves}
  # Whatever can fail does before the first file of an older report is replaced.
  contents = {
    NUMBERS: _numbers(report),
    CURVES: _curves(curves),
    PAGE: page(report).encode(),
  }
  directory.mkdir(parents=True, exist_ok=True)
  first = report.summaries[0]
  targets = {} if first.target is None else {first.metric: first.target}
  plots.write_comparison(directory / PICTURE, shown, report.title, targets)
  for name, content in contents.items():
    files.write_bytes(directory / name, content)


def _numbers(report: Report) -> bytes:
  """Each run in numbers, as they were measured."""
  rows = []
  for group, summary in zip(report.groups, report.summaries, strict=True):
    rounds = ['' if r is None else r for r in summary.rounds_to_target]
    for run, *measured in zip(
      group.runs, summary.final, summary.best, rounds, strict=True
    ):
      sizes = [summaries.num_bytes(run, way) for way in ('down', 'up')]
      measured += [run.seconds, *sizes]
      rows.append([group.name, run.flags['seed'], *measured, run.path])
  metric = report.summaries[0].metric
  measures = [f'final {metric}', f'best {metric}', 'rounds_to_target']
  measures += ['seconds', 'bytes_down', 'bytes_up']
  return tables.as_csv(['name', 'seed', *measures, 'run'], rows)


def _curves(curves: Mapping[str, Mapping[str, summaries.Curve]]) -> bytes:
  """The points of all curves."""
  rows: list[Sequence[object]] = []
  for column, by_name in curves.items():
    for name, curve in by_name.items():
      points = np.stack([curve.mean, curve.low, curve.high], axis=1).tolist()
      rows += [
        (column, name, round_num, *point)
        for round_num, point in zip(curve.rounds.tolist(), points, strict=True)
      ]
  return tables.as_csv(['metric', 'name', 'round', 'mean', 'low', 'high'], rows)
