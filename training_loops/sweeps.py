"""Makes the runs of a sweep, several at a time, and ends those that have lost.

    sweep = sweep_files.read('experiments/sweeps/mime_light.yaml', {'task': ...})
    outcome = sweeps.run(sweep, pathlib.Path('runs/light'))
    outcome.best_flags

Importing this module does not import TensorFlow.
"""

from collections.abc import Sequence
import json
import pathlib
import socket
from typing import Any

from training_loops import (
  batch,
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
    files.write_json(directory / 'sweep.json', sweep.identity())
    book = shared or ledger.Ledger(sweep, f'sqlite:///{path / "sweep.db"}', where)
    book.take_up(failed=retry_failed)
    try:
      _make_runs(sweep, directory, book, min(jobs or pool.num_cores(), sweep.trials))
    except BaseException:
      book.take_up()
      raise
    outcome = Outcome(sweep, sweep_results.trials(sweep, book))
    sweep_results.write(outcome, directory)
    return outcome


def _check_directory(sweep: Sweep, directory: pathlib.Path) -> None:
  file = directory / 'sweep.json'
  if not file.exists():
    if directory.is_dir() and any(p.name[0] != '.' for p in directory.iterdir()):
      raise UserError(f'{directory} holds other files, and no sweep.')
    return
  old, new = json.loads(file.read_text()), sweep.identity()
  differences = [
    f'{name} (there {old.get(name)}, here {new.get(name)})'
    for name in dict.fromkeys([*old, *new])
    if old.get(name) != new.get(name)
  ]
  if differences:
    raise UserError(
      f'{directory} holds another sweep: {"; ".join(differences)}. Give that, or '
      'another --output_dir.'
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
    with interrupts.raised():
      while search.start_runs() or runs.running:
        for number, event in runs.wait(ledger.HEARTBEAT_SECONDS):
          if isinstance(event, pool.Outcome):
            search.handle_end(number, event)
          else:
            search.handle_row(number, event)
        book.beat()


class _Search:
  """What goes on between the runs and the ledger."""

  def __init__(self, sweep, directory, book, runs, shown):
    self._sweep = sweep
    self._directory = directory
    self._book = book
    self._runs = runs
    self._shown = shown
    self._points: dict[Any, Point] = {}
    self._flags: dict[Any, dict[str, Any]] = {}
    self._rows: dict[Any, list[dict[str, Any]]] = {}

  def start_runs(self) -> bool:
    """Starts as many runs as there is room for; returns whether there are more."""
    while self._runs.has_room:
      asked = self._book.ask()
      if asked is None:
        return False
      self._start(*asked)
    return True

  def _start(self, number: int, point: Point) -> None:
    flags = self._sweep.run_flags(point, self._directory)
    self._points[number] = point
    self._flags[number], self._rows[number] = flags, []
    try:
      is_done = batch.rounds_done(flags) == flags['rounds']
    except UserError as error:
      self._end(number, ledger.State.FAIL, str(error))
      return
    if is_done:
      self._rows[number] = results.load(flags['output_dir']).rows
      self._end(number, ledger.State.COMPLETE)
    else:
      self._runs.start(number, flags)

  def handle_row(self, number: Any, row: dict[str, Any]) -> None:
    """Notes what a run has reached; ends one that has lost."""
    metric = self._sweep.metric
    if metric not in row:
      evals = ', '.join(name for name in row if name.startswith('eval/'))
      raise UserError(f'there is no metric {metric}, but {evals}.')
    self._rows[number].append(row)
    self._shown.reached(number, row['round'])
    reason = None
    if summaries.diverged_round([row]):
      reason = f'{sweep_results.DIVERGED} by round {row["round"]}'
    elif self._book.report(number, row[metric], row['round']):
      reason = f'losing at round {row["round"]}'
    if reason:
      self._runs.stop(number)
      self._end(number, ledger.State.PRUNED, reason)

  def handle_end(self, number: Any, outcome: pool.Outcome) -> None:
    """Notes how a run ended."""
    if outcome.state == 'done':
      self._end(number, ledger.State.COMPLETE)
    else:
      batch.write_failure(self._flags[number], outcome)
      self._end(number, ledger.State.FAIL, outcome.reason)

  def _end(self, number: Any, state: ledger.State, reason: str = '') -> None:
    flags, rows = self._flags.pop(number), self._rows.pop(number)
    value = None
    if state == ledger.State.COMPLETE:
      value = self._value([row[self._sweep.metric] for row in rows])
    seconds = results.load(flags['output_dir']).seconds if rows else 0.0
    self._book.tell(number, state, value=value, reason=reason, seconds=seconds)
    self._shown.reached(number, flags['rounds'], is_new=False)
    self._say(sweep_files.point_text(self._points.pop(number)), value, reason)

  def _value(self, values: Sequence[float]) -> float:
    if self._sweep.value == 'final':
      return values[-1]
    return max(values) if self._sweep.goal == 'maximize' else min(values)

  def _say(self, name: str, value: float | None, reason: str) -> None:
    trials = sweep_results.trials(self._sweep, self._book)
    status = 'none yet'
    for best in Outcome(self._sweep, trials).done[:1]:
      status = summaries.display(self._sweep.metric, best.value)
      status += f' ({sweep_files.point_text(best.point)})'
    said = reason
    if value is not None:
      said = summaries.display(self._sweep.metric, value)
    counted = f'{len(sweep_results.ended(trials))}/{self._sweep.trials}'
    self._shown.say(f'{counted} {name}: {said}', f'best {status}')
