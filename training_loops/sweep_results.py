"""What a sweep gave: its runs with the best first, as tables, pictures and a flagfile.

Importing this module does not import TensorFlow.
"""

from collections.abc import Sequence
import dataclasses
import math
import pathlib
from typing import Any

from training_loops import (
  batch,
  files,
  ledger,
  reports,
  results,
  runtimes,
  summaries,
  tables,
  train_flags,
)
from training_loops.sweep_files import Point, Sweep

# What `write` writes; the report on the best runs is a directory.
BEST_FLAGS, BEST_REPORT, PICTURE = 'best.flags', 'best', 'sweep.png'
_TABLE, _NUMBERS = 'sweep.md', 'sweep.csv'

_MAX_CURVES = 10
# A trial's reason that begins so is a state of its own.
DIVERGED = 'diverged'
# In the order of the table.
_STATES = ('done', 'pruned', DIVERGED, 'failed', 'running', 'waiting')


@dataclasses.dataclass(frozen=True)
class Trial:
  """A run of a sweep, as far as it got.

  Attributes:
    point: The values of the flags that were searched for.
    state: 'done', 'pruned', 'diverged', 'failed', 'running' or 'waiting'.
    value: What it reached; not a number if nothing.
    reason: Why it was not done.
    seconds: How long it trained.
  """

  point: Point
  state: str
  value: float
  reason: str
  seconds: float


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What a sweep gave.

  Attributes:
    sweep: The sweep.
    trials: All its runs, the best first.
  """

  sweep: Sweep
  trials: Sequence[Trial]

  @property
  def done(self) -> list[Trial]:
    """The runs that are done, the best first."""
    return [trial for trial in self.trials if trial.state == 'done']

  @property
  def best(self) -> Trial:
    """The best run.

    Raises:
      RuntimeFailure: If no run is done.
    """
    if not self.done:
      reasons = '; '.join(dict.fromkeys(trial.reason for trial in self.trials))
      raise runtimes.RuntimeFailure(f'no run of the sweep was done: {reasons}.')
    return self.done[0]

  @property
  def best_flags(self) -> dict[str, Any]:
    """The flags of the best run, as far as they were given or found.

    Raises:
      RuntimeFailure: If no run is done.
    """
    return {**self.sweep.flags, **self.best.point}


def trials(sweep: Sweep, book: ledger.Ledger) -> list[Trial]:
  """All runs, also those of other machines, the best first."""
  sign = -1 if sweep.goal == 'maximize' else 1
  return sorted(
    (_as_trial(sweep, trial) for trial in book.trials()),
    key=lambda t: (_STATES.index(t.state), sign * t.value if t.state == 'done' else 0),
  )


def ended(trials: Sequence[Trial]) -> list[Trial]:
  """Those that will not be made any more."""
  return [trial for trial in trials if trial.state not in ('running', 'waiting')]


def _as_trial(sweep: Sweep, trial: Any) -> Trial:
  reason = trial.user_attrs.get('reason', '')
  names = {'COMPLETE': 'done', 'PRUNED': 'pruned', 'FAIL': 'failed'}
  state = names.get(trial.state.name, trial.state.name.lower())
  if reason.startswith(DIVERGED):
    state = DIVERGED
  return Trial(
    point=ledger.point_of(trial, sweep),
    state=state,
    value=trial.value if state == 'done' else math.nan,
    reason=reason,
    seconds=trial.user_attrs.get('seconds', 0.0),
  )


def table(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
  """The head and the rows of a table with a row a run, the best first."""
  sweep = outcome.sweep
  name = f'{sweep.value} {sweep.metric.rpartition("/")[2]}'
  rows = []
  for trial in outcome.trials:
    value = ''
    if trial.state == 'done':
      value = summaries.display(sweep.metric, trial.value)
    point = [str(trial.point.get(flag, '')) for flag in sweep.search]
    rows.append([trial.state, *point, value, f'{trial.seconds:.1f}', trial.reason])
  header = ['', *sweep.search, name, 'seconds', 'remark']
  if not any(trial.reason for trial in outcome.trials):  # An empty column.
    header, rows = header[:-1], [row[:-1] for row in rows]
  return header, rows


def write(outcome: Outcome, directory: pathlib.Path) -> None:
  """The table, the numbers, the pictures, and the best run's flags as a flagfile."""
  from training_loops import plots

  sweep = outcome.sweep
  title = f'Sweep of {", ".join(sweep.search)}'
  text = f'# {title}\n\n{tables.markdown(*table(outcome))}\n'
  files.write_bytes(directory / _TABLE, text.encode())
  header = [
    'state',
    *sweep.search,
    f'{sweep.value} {sweep.metric}',
    'seconds',
    'reason',
  ]
  rows = [
    [t.state, *(t.point.get(n, '') for n in sweep.search), t.value, t.seconds, t.reason]
    for t in outcome.trials
  ]
  files.write_bytes(directory / _NUMBERS, tables.as_csv(header, rows))
  if not outcome.done:
    return
  lines = train_flags.as_arguments(outcome.best_flags)
  flagfile = ''.join(f'{line}\n' for line in lines)
  files.write_bytes(directory / BEST_FLAGS, flagfile.encode())
  # What was pruned stands where it was left, which says nothing of where it would be.
  measured = [(trial.point, trial.value) for trial in outcome.done]
  plots.write_sweep(
    directory / PICTURE,
    measured,
    sweep.metric,
    title,
    is_lower_better=sweep.goal == 'minimize',
  )
  _write_report(outcome, directory, title)


def _write_report(outcome: Outcome, directory: pathlib.Path, title: str) -> None:
  """A page with the curves of the best runs, as far as they were made here."""
  every_flags = [outcome.sweep.run_flags(t.point, directory) for t in outcome.done]
  # Where the task itself was searched for, those of the best one.
  task = summaries.task_of(every_flags[0])
  every_flags = [flags for flags in every_flags if summaries.task_of(flags) == task]
  best = batch.existing(every_flags)[:_MAX_CURVES]
  if best:
    report = reports.make(
      results.load_all(best),
      title=f'{title}: the best {len(best)} of {len(outcome.trials)} runs',
      metric=outcome.sweep.metric,
    )
    reports.write(report, directory / BEST_REPORT)
