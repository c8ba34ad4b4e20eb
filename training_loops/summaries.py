"""Runs side by side: joined over seeds, and summed up in a table.

For reports, experiments and notebooks:

    groups = summaries.group(results.load_all(['runs/comparison']))
    groups[0].curve('eval/accuracy').mean
    print(tables.markdown(*summaries.table(summaries.summarize(groups))))

Importing this module does not import TensorFlow.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any

import numpy as np

from training_loops import results, train_flags
from training_loops.options import UserError

# Names of metrics, or their beginnings.
_SHARES = ('accuracy', 'precision', 'recall')
_LOWER_IS_BETTER = (
  'loss',
  'error',
  'perplexity',
  'distance',
  'duality_gap',
  'gradient_mapping_norm',
)
# Options of a task that change how it is trained, and nothing else.
_ONLY_IN_TRAINING = {'selection', 'spreadout'}


@dataclasses.dataclass(frozen=True)
class Curve:
  """One column of metrics.csv over the rounds, of one run or of several seeds.

  Attributes:
    rounds: The rounds that every seed has evaluated.
    mean: The mean over seeds, for each of those rounds.
    low: The lowest of the seeds.
    high: The highest of the seeds.
  """

  rounds: np.ndarray
  mean: np.ndarray
  low: np.ndarray
  high: np.ndarray


@dataclasses.dataclass(frozen=True)
class Group:
  """Runs that differ in their seeds alone.

  Attributes:
    name: What tables and pictures call them.
    runs: The runs, by seed; each has evaluated a round at least.
  """

  name: str
  runs: Sequence[results.Result]

  @property
  def columns(self) -> list[str]:
    """The metrics that every run has in all its rounds."""
    first, *others = (row for run in self.runs for row in run.rows)
    return [n for n in first if n != 'round' and all(n in row for row in others)]

  def curve(self, column: str) -> Curve:
    """A metric over the rounds that all seeds have evaluated."""
    values = [{row['round']: row[column] for row in run.rows} for run in self.runs]
    rounds = sorted(set.intersection(*(set(of_run) for of_run in values)))
    by_seed = np.array([[of_run[r] for r in rounds] for of_run in values], float)
    return Curve(np.array(rounds, int), by_seed.mean(0), by_seed.min(0), by_seed.max(0))


def diverged_round(rows: Sequence[Mapping[str, Any]]) -> int | None:
  """The first evaluated round with a loss that is infinite or not a number."""
  for row in rows:
    losses = (row.get(f'{where}/loss', 0.0) for where in ('train', 'eval'))
    if not all(map(math.isfinite, losses)):
      return row['round']
  return None


def is_share(column: str) -> bool:
  """Whether a metric is a share of 1, and read best in per cent."""
  name = column.rpartition('/')[2]  # `accuracy`, or of a part `wikipedia_accuracy`.
  return any(f'_{share}' in f'_{name}' for share in _SHARES)


def is_lower_better(column: str) -> bool:
  """Whether a metric is the better the lower it is."""
  return any(word in column for word in _LOWER_IS_BETTER)


def check_metric_name(column: str) -> None:
  """Refuses what cannot be a column of metrics.csv, before there is one.

  Raises:
    UserError: If so.
  """
  if not column.startswith(('train/', 'eval/')):
    raise UserError(f'there is no metric {column}: metrics are called eval/{column}.')


def check_target(target: float | None, metric: str | None) -> None:
  """Refuses a target that the metric cannot reach, as an accuracy of 90.

  Args:
    target: The target, if there is one.
    metric: The metric, None where it is the accuracy if there is one.

  Raises:
    UserError: If so.
  """
  if target is not None and target > 1 and is_share(metric or 'accuracy'):
    advice = '' if metric else ', or name another --metric'
    raise UserError(
      f'a target of {target:g} is no share: write {target / 100:g}{advice}.'
    )


def display(column: str, value: float) -> str:
  """A metric's value as text; a dash for what is not a number."""
  if math.isnan(value):
    return '–'
  return f'{value:.1%}' if is_share(column) else f'{value:.4g}'


def group(runs: Sequence[results.Result]) -> list[Group]:
  """Joins the runs that differ in their seeds alone, and names them.

  A group is called by its runs' label, or else by the flags in which it differs from
  the other groups. Runs without an evaluated round are left out; of two runs with the
  same flags and seed the longer counts.

  Raises:
    UserError: If no run is left, or they are of different tasks.
  """
  runs = [run for run in runs if run.rows]
  if not runs:
    raise UserError('there is nothing to show: no run has evaluated a round yet.')
  check_task({run.path: run.flags for run in runs})
  by_identity: dict[tuple, dict[int, results.Result]] = {}
  for run in runs:
    seeds = by_identity.setdefault(_identity(run.flags), {})
    seed = run.flags.get('seed', 0)
    if seed not in seeds or len(run.rows) > len(seeds[seed].rows):
      seeds[seed] = run
  joined = [[seeds[s] for s in sorted(seeds)] for seeds in by_identity.values()]
  names = _names([members[0].flags for members in joined])
  return [Group(*pair) for pair in zip(names, joined, strict=True)]


def check_task(every_flags: Mapping[Any, Mapping[str, Any]]) -> None:
  """Makes sure that all runs are of one task, with the same options.

  Args:
    every_flags: The flags of each, by what to call it.

  Raises:
    UserError: If not.
  """
  tasks = {name: task_of(flags) for name, flags in every_flags.items()}
  first, *others = tasks
  for other in others:
    if tasks[other] != tasks[first]:
      raise UserError(
        'runs of different tasks cannot be compared: '
        f'{first} is of {" ".join(train_flags.as_arguments(tasks[first]))}, '
        f'{other} of {" ".join(train_flags.as_arguments(tasks[other]))}.'
      )


def task_of(flags: Mapping[str, Any]) -> dict[str, Any]:
  """The flags that make the task: the data, the model and how it is evaluated."""
  ignored = train_flags.free_names() | _ONLY_IN_TRAINING
  chosen = {'task': flags['task'], **train_flags.task_options(flags)}
  return {name: value for name, value in chosen.items() if name not in ignored}


def _identity(flags: Mapping[str, Any]) -> tuple:
  """All flags but the seed and those that do not change the numbers."""
  ignored = (train_flags.free_names() | {'seed'}) - {'rounds', 'label'}
  return tuple(sorted((n, str(v)) for n, v in flags.items() if n not in ignored))


def _names(every_flags: Sequence[Mapping[str, Any]]) -> list[str]:
  """A name for each, all different: labels, or flags that tell them apart."""
  names = [str(flags.get('label') or flags['algorithm']) for flags in every_flags]
  for name in dict.fromkeys(names):
    alike = [i for i, other in enumerate(names) if other == name]
    if len(alike) > 1:
      told = _told_apart([every_flags[i] for i in alike])
      for i, flags_told in zip(alike, told, strict=True):
        names[i] = ', '.join(filter(None, [name, flags_told]))
  for i, name in enumerate(names):  # Whatever is still alike is numbered.
    num = 1
    while names[i] in names[:i]:
      num += 1
      names[i] = f'{name} ({num})'
  return names


def _told_apart(every_flags: Sequence[Mapping[str, Any]]) -> list[str]:
  """The flags in which these differ, for each; those not set are left out."""
  ignored = (train_flags.free_names() | {'seed'}) - {'rounds'}
  known = dict.fromkeys(name for flags in every_flags for name in flags)
  varying = [
    name
    for name in known
    if name not in ignored and len({str(f.get(name)) for f in every_flags}) > 1
  ]
  return [
    ', '.join(f'{n}={flags[n]}' for n in varying if flags.get(n) is not None)
    for flags in every_flags
  ]


def main_metric(groups: Sequence[Group]) -> str:
  """What the groups are compared by: the accuracy on test data, or else the loss."""
  is_everywhere = all('eval/accuracy' in group.columns for group in groups)
  return 'eval/accuracy' if is_everywhere else 'eval/loss'


@dataclasses.dataclass(frozen=True)
class Summary:
  """A group in numbers; a list holds one for each seed.

  Attributes:
    name: The group's.
    metric: The column of metrics.csv that is told of.
    target: The value to reach, if any.
    final: The metric after the last evaluated round.
    best: The best value of the metric.
    rounds_to_target: The first evaluated round that reaches the target, or None.
    seconds: Of training, on average over seeds.
    bytes_down: What the server sent to all clients in all rounds.
    bytes_up: What they sent back.
    remark: What is not as it should be: an unfinished run, one that diverged.
  """

  name: str
  metric: str
  target: float | None
  final: list[float]
  best: list[float]
  rounds_to_target: list[int | None]
  seconds: float
  bytes_down: float
  bytes_up: float
  remark: str


def summarize(
  groups: Sequence[Group], metric: str | None = None, target: float | None = None
) -> list[Summary]:
  """The groups in numbers.

  Args:
    groups: From `group`.
    metric: A column of metrics.csv, `main_metric` by default.
    target: The value of the metric to reach.

  Raises:
    UserError: If a group does not have the metric.
  """
  metric = metric or main_metric(groups)
  for one in groups:
    if metric not in one.columns:
      raise UserError(
        f'{one.name} has no metric {metric}; there are {", ".join(one.columns)}.'
      )
  check_target(target, metric)
  return [_summarize(one, metric, target) for one in groups]


def _summarize(one: Group, metric: str, target: float | None) -> Summary:
  sign = -1 if is_lower_better(metric) else 1

  def reached(run):
    for row in run.rows:
      if target is not None and sign * row[metric] >= sign * target:
        return row['round']
    return None

  def best(run):
    return sign * max((sign * row[metric] for row in run.rows), key=_nan_last)

  return Summary(
    name=one.name,
    metric=metric,
    target=target,
    final=[run.rows[-1][metric] for run in one.runs],
    best=[best(run) for run in one.runs],
    rounds_to_target=[reached(run) for run in one.runs],
    seconds=_mean([run.seconds for run in one.runs]),
    bytes_down=_mean([num_bytes(run, 'down') for run in one.runs]),
    bytes_up=_mean([num_bytes(run, 'up') for run in one.runs]),
    remark='; '.join(dict.fromkeys(filter(None, map(_remark, one.runs)))),
  )


def _nan_last(value: float) -> float:
  return -math.inf if math.isnan(value) else value


def _mean(values: Sequence[float]) -> float:
  return float(np.mean(values))


def num_bytes(run: results.Result, way: str) -> float:
  """What all clients of all rounds received or sent; evaluated rounds stand for all."""

  def in_round(row):
    if f'train/bytes_{way}' not in row and row.get('train/num_clients') == 0:
      return 0.0  # A round of the server alone.
    clients = ('train/num_clients', 'train/num_clients_left_out')
    num_clients = sum(row.get(name, math.nan) for name in clients)
    return row.get(f'train/bytes_{way}', math.nan) * num_clients

  return _mean([in_round(row) for row in run.rows]) * run.rows[-1]['round']


def _remark(run: results.Result) -> str:
  diverged = diverged_round(run.rows)
  if diverged is not None:
    return f'diverged by round {diverged}'
  if not run.is_finished:
    return f'stopped after round {run.rows[-1]["round"]} of {run.flags["rounds"]}'
  return ''


def spread(column: str, values: Sequence[float]) -> str:
  """The mean of a metric over seeds, with its standard deviation if there are several.

  As `91.2% ± 0.4`.
  """
  mean = display(column, _mean(values))
  if len(values) == 1 or not np.isfinite(values).all():
    return mean
  deviation = float(np.std(values, ddof=1))
  digits = f'{100 * deviation:.1f}' if is_share(column) else f'{deviation:.2g}'
  return f'{mean} ± {digits}'


def table(summaries: Sequence[Summary]) -> tuple[list[str], list[list[str]]]:
  """The head and the rows of a table with a row a group, as text."""
  metric, target = summaries[0].metric, summaries[0].target
  name = metric.rpartition('/')[2].replace('_', ' ')
  # The column of seeds and that of remarks are there if they say something.
  has_seeds = any(len(summary.final) > 1 for summary in summaries)
  has_remarks = any(summary.remark for summary in summaries)
  header = ['', *(['seeds'] if has_seeds else []), f'final {name}', f'best {name}']
  if target is not None:
    header.append(f'rounds to {display(metric, target)}')
  header += ['seconds', 'MB down', 'MB up', *(['remark'] if has_remarks else [])]
  rows = []
  for summary in summaries:
    row = [summary.name, *([str(len(summary.final))] if has_seeds else [])]
    row += [spread(metric, summary.final), spread(metric, summary.best)]
    if target is not None:
      row.append(rounds_text(summary.rounds_to_target))
    row.append(f'{summary.seconds:.1f}')
    row += [_megabytes(size) for size in (summary.bytes_down, summary.bytes_up)]
    rows.append(row + ([summary.remark] if has_remarks else []))
  return header, rows


def _megabytes(size: float) -> str:
  if math.isnan(size):
    return '–'
  return f'{size / 1e6:,.0f}' if size >= 1e8 else f'{size / 1e6:.3g}'


def rounds_text(of_seeds: Sequence[int | None]) -> str:
  """`120`, `120 (2 of 3 seeds)`, `never`."""
  reached = [rounds for rounds in of_seeds if rounds is not None]
  if not reached:
    return 'never'
  text = f'{_mean(reached):.0f}'
  if len(reached) < len(of_seeds):
    text += f' ({len(reached)} of {len(of_seeds)} seeds)'
  return text
