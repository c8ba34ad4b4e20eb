"""Makes the runs of a sweep, several at a time, and ends those that have lost.

    sweep = sweep_files.read('experiments/sweeps/mime_light.yaml', {'task': ...})
    outcome = sweeps.run(sweep, pathlib.Path('runs/light'))
    outcome.best_flags

Importing this module does not import TensorFlow.
"""

from collections.abc import Sequence
import dataclasses
import json
import math
import pathlib
import socket
import time
from typing import Any

from training_loops import (
  batch,
  cores,
  files,
  interrupts,
  ledger,
  pool,
  progress,
  results,
  summaries,
  sweep_files,
  sweep_results,
  train_flags,
)
from training_loops.options import UserError
from training_loops.sweep_files import Point, Sweep
from training_loops.sweep_results import Outcome

# How often to look whether a run on another machine is done, or its machine dead.
_POLL_SECONDS = 5.0
# A run that was stopped may be saving its last round, which may have to end first.
_PATIENCE_SECONDS = 60.0


def check(sweep: Sweep, directory: pathlib.Path) -> list[Point]:
  """The points that are known beforehand; all that can be checked of them is.

  Raises:
    UserError: If training would refuse one of them, or the directory will not do.
  """
  points = ledger.points(sweep)
  for point in points or ledger.corners(sweep):
    flags = sweep.run_flags(point, directory)
  train_flags.check_task(flags)
  files.check_writable(directory)
  _check_directory(sweep, directory)
  return points


def run(
  sweep: Sweep,
  directory: pathlib.Path,
  *,
  jobs: int | None = None,
  storage: str | None = None,
  retry_failed: bool = False,
) -> Outcome:
  """Makes the runs of a sweep that are not made yet.

  Args:
    sweep: What to try.
    directory: Where the runs, and by default the data base, are kept.
    jobs: How many runs are made at a time, one a core by default.
    storage: The URL of a data base.
    retry_failed: Whether to try again what failed at an earlier time.

  Raises:
    UserError: If the sweep, the directory or the data base will not do.
  """
  check(sweep, directory)
  path = directory.resolve()
  where = f'{socket.gethostname()}:{path}'
  shared = None
  if storage:  # Before anything is written.
    shared = ledger.Ledger(sweep, storage, where, is_shared=True)
  directory.mkdir(parents=True, exist_ok=True)
  with files.locked(directory):
    _check_directory(sweep, directory)
    files.write_json(directory / 'sweep.json', {'flags': sweep.common_flags()})
    book = shared or ledger.Ledger(sweep, ledger.sqlite_url(path / 'sweep.db'), where)
    book.take_up(failed=retry_failed)
    try:
      _make_runs(sweep, directory, book, min(jobs or cores.number(), sweep.trials))
    except BaseException as error:
      book.abandon()
      if isinstance(error, KeyboardInterrupt):  # What there is can be looked at.
        sweep_results.write(_outcome(sweep, book), directory)
      raise
    outcome = _outcome(sweep, book)
    sweep_results.write(outcome, directory)
    return outcome


def _outcome(sweep: Sweep, book: ledger.Ledger) -> Outcome:
  return Outcome(sweep, sweep_results.trials(sweep, book))


def _check_directory(sweep: Sweep, directory: pathlib.Path) -> None:
  """Refuses a directory of something else, or of runs with other common flags."""
  file = directory / 'sweep.json'
  if not file.exists():
    if directory.is_dir() and any(p.name[0] != '.' for p in directory.iterdir()):
      raise UserError(f'{directory} holds other files, and no sweep.')
    return
  old, new = json.loads(file.read_text())['flags'], sweep.common_flags()
  differences = [
    f'--{name} (there {old.get(name, "unset")}, here {new.get(name, "unset")})'
    for name in dict.fromkeys([*old, *new])
    if old.get(name) != new.get(name)
  ]
  if differences:
    raise UserError(
      f'{directory} holds a sweep with other flags: {", ".join(differences)}. Give '
      'those, or another --output_dir.'
    )


def _make_runs(
  sweep: Sweep, directory: pathlib.Path, book: ledger.Ledger, jobs: int
) -> None:
  """Makes runs until there are no more to be made."""
  rounds = sweep.run_flags(next(ledger.corners(sweep)), directory)['rounds']
  with (
    pool.Pool(jobs) as runs,
    progress.RunsProgress(sweep.trials * rounds) as shown,
  ):
    for i, _ in enumerate(sweep_results.ended(sweep_results.trials(sweep, book))):
      shown.reached(f'of an earlier time {i}', rounds, is_new=False)
    search = _Search(sweep, directory, book, runs, shown)
    is_told = False
    with interrupts.raised():
      while True:
        search.start_runs()
        if not runs.running:
          num_elsewhere = book.num_elsewhere()
          if not num_elsewhere:
            return
          if not is_told:
            shown.say(f'Waiting for {num_elsewhere} runs on other machines.')
            is_told = True
          time.sleep(_POLL_SECONDS)
          book.take_up()
        for number, event in runs.wait(ledger.HEARTBEAT_SECONDS):
          if isinstance(event, pool.Outcome):
            search.handle_end(number, event)
          else:
            search.handle_row(number, event)
        book.beat()


@dataclasses.dataclass
class _Run:
  """A run that is being made.

  Attributes:
    point: The values of the flags that are searched for.
    flags: All flags.
    rows: Its rows so far.
    twins: Further trials at the same point, drawn while it was being made.
  """

  point: Point
  flags: dict[str, Any]
  rows: list[dict[str, Any]] = dataclasses.field(default_factory=list)
  twins: list[int] = dataclasses.field(default_factory=list)


class _Search:
  """What goes on between the runs and the ledger."""

  def __init__(self, sweep, directory, book, runs, shown):
    self._sweep = sweep
    self._directory = directory
    self._book = book
    self._runs = runs
    self._shown = shown
    self._made: dict[Any, _Run] = {}

  def start_runs(self) -> None:
    """Starts as many runs as there are and as there is room for."""
    while self._runs.has_room:
      asked = self._book.ask()
      if asked is None:
        return
      self._start(*asked)

  def _start(self, number: int, point: Point) -> None:
    flags = self._sweep.run_flags(point, self._directory)
    for other in self._made.values():
      if other.flags['output_dir'] == flags['output_dir']:
        other.twins.append(number)
        return
    run = self._made[number] = _Run(point, flags)
    try:
      is_done = batch.rounds_done(flags, _PATIENCE_SECONDS) == flags['rounds']
    except UserError as error:
      self._end(number, ledger.State.FAIL, str(error))
      return
    if is_done:
      for row in results.load(flags['output_dir']).rows:
        self._note(run, row)
      self._end(number, ledger.State.COMPLETE)
    else:
      self._runs.start(number, flags)

  def _note(self, run: _Run, row: dict[str, Any]) -> None:
    if self._sweep.metric not in row:
      evals = ', '.join(name for name in row if name.startswith('eval/'))
      raise UserError(f'there is no metric {self._sweep.metric}, but {evals}.')
    run.rows.append(row)

  def handle_row(self, number: Any, row: dict[str, Any]) -> None:
    """Notes what a run has reached; ends one that has lost."""
    self._note(self._made[number], row)
    self._shown.reached(number, row['round'])
    reason = None
    try:
      if summaries.diverged_round([row]):
        reason = f'{sweep_results.DIVERGED} by round {row["round"]}'
      elif self._book.report(number, row[self._sweep.metric], row['round']):
        reason = f'losing at round {row["round"]}'
    except ledger.TakenOver:
      self._runs.stop(number)
      run = self._made.pop(number)
      self._say(run.point, 'another machine makes it, this one was silent for long')
      return
    if reason:
      self._runs.stop(number)
      self._end(number, ledger.State.PRUNED, reason)

  def handle_end(self, number: Any, outcome: pool.Outcome) -> None:
    """Notes how a run ended."""
    if outcome.state == 'done':
      self._end(number, ledger.State.COMPLETE)
    else:
      batch.write_failure(self._made[number].flags, outcome)
      self._end(number, ledger.State.FAIL, outcome.reason)

  def _end(self, number: Any, state: ledger.State, reason: str = '') -> None:
    run = self._made.pop(number)
    value = None
    if state == ledger.State.COMPLETE:
      value = self._value(run.rows)
      if value is None:
        state, reason = ledger.State.FAIL, f'{self._sweep.metric} is not a number'
    seconds = results.load(run.flags['output_dir']).seconds if run.rows else 0.0
    for trial in (number, *run.twins):
      self._book.tell(trial, state, value=value, reason=reason, seconds=seconds)
      self._shown.reached(trial, run.flags['rounds'], is_new=False)
    said = reason or summaries.display(self._sweep.metric, value or 0.0)
    self._say(run.point, said)

  def _value(self, rows: Sequence[dict[str, Any]]) -> float | None:
    """What a run has reached, None if that is not a number."""
    if self._sweep.value == 'final':
      rows = rows[-1:]
    values = [row[self._sweep.metric] for row in rows]
    choose: Any = max if self._sweep.goal == 'maximize' else min
    return choose((v for v in values if not math.isnan(v)), default=None)

  def _say(self, point: Point, said: str) -> None:
    outcome = _outcome(self._sweep, self._book)
    best = 'none yet'
    for trial in outcome.done[:1]:
      best = summaries.display(self._sweep.metric, trial.value)
      best += f' ({sweep_files.point_text(trial.point)})'
    counted = f'{len(sweep_results.ended(outcome.trials))}/{self._sweep.trials}'
    text = f'{counted} {sweep_files.point_text(point)}: {said}'
    self._shown.say(text, f'best {best}')
