"""A list of runs, trained several at a time.

    flags = [train_flags.configure(..., label='FedAvg', output_dir='runs/a'), ...]
    progress.show_on_console()  # A line for each run that is done.
    batch.train(flags)

Importing this module does not import TensorFlow.
"""

from collections.abc import Sequence
import pathlib
import time
from typing import Any

from training_loops import (
  cores,
  files,
  interrupts,
  pool,
  progress,
  results,
  run_directory,
  runtimes,
  train_flags,
)
from training_loops.options import UserError, integer

JOBS = integer(
  'jobs', None, 'Runs at a time, sharing the cores; one a core by default.'
)


class RunsFailed(runtimes.RuntimeFailure):
  """Some of many runs failed."""

  def __init__(self, failures: Sequence[tuple[str, str]], num_runs: int):
    told = '; '.join(f'{name}: {reason}' for name, reason in failures)
    super().__init__(f'{len(failures)} of {num_runs} runs failed: {told}')


def name_of(flags: dict[str, Any]) -> str:
  """What a run is called while it is made."""
  return f'{flags["label"] or flags["algorithm"]}, seed {flags["seed"]}'


def rounds_done(flags: dict[str, Any], patience: float = 10.0) -> int:
  """The last evaluated round of a run that may not have begun, or all if finished.

  Args:
    flags: The run's flags.
    patience: How many seconds to wait for a process that is in its directory: one that
      was stopped may be saving its last round.

  Raises:
    UserError: If its directory holds another run, or is in use.
  """
  directory = run_directory.RunDirectory(flags['output_dir'])
  deadline = time.monotonic() + patience
  while True:
    try:
      directory.check(flags)
      break
    except files.InUse:
      if time.monotonic() > deadline:
        raise
      time.sleep(0.1)
  if directory.finished_rounds() >= flags['rounds']:
    return flags['rounds']
  if not directory.config_file.exists():
    return 0
  rows = results.load(directory.path).rows
  # Without its model a run is not done.
  return min(rows[-1]['round'], flags['rounds'] - 1) if rows else 0


def existing(every_flags: Sequence[dict[str, Any]]) -> list[pathlib.Path]:
  """The directories of those runs that have begun."""
  directories = [run_directory.RunDirectory(f['output_dir']) for f in every_flags]
  return [directory.path for directory in directories if directory.config_file.exists()]


def write_failure(flags: dict[str, Any], outcome: pool.Outcome) -> None:
  """Leaves all that is known of a failure in the run's directory, if it has begun."""
  directory = run_directory.RunDirectory(flags['output_dir'])
  if directory.config_file.exists():
    directory.failure_file.write_text(f'{outcome.reason}\n\n{outcome.details}\n')


def train(every_flags: Sequence[dict[str, Any]], jobs: int | None = None) -> None:
  """Trains all runs, those from an earlier time from where they stand.

  Args:
    every_flags: The flags of each.
    jobs: How many are made at a time, one a core by default.

  Raises:
    UserError: If a run is refused. Those that were being made are saved.
    RunsFailed: If runs failed, once all others are done.
  """
  done = [rounds_done(flags) for flags in every_flags]
  todo = [i for i, flags in enumerate(every_flags) if done[i] < flags['rounds']]
  for i in todo:
    train_flags.check_task(every_flags[i])
  failures: list[tuple[str, str]] = []
  num_ended = len(every_flags) - len(todo)
  jobs = min(jobs or cores.number(), max(1, len(todo)))
  total = sum(flags['rounds'] for flags in every_flags)
  with pool.Pool(jobs) as runs, progress.RunsProgress(total) as shown:
    for i, rounds in enumerate(done):
      shown.reached(i, rounds, is_new=False)
    rows: dict[Any, dict[str, Any]] = {}
    with interrupts.raised():
      while todo or runs.running:
        while todo and runs.has_room:
          runs.start(todo[0], every_flags[todo[0]])
          del todo[0]
        for i, event in runs.wait():
          flags = every_flags[i]
          if not isinstance(event, pool.Outcome):
            rows[i] = event
            shown.reached(i, event['round'])
            continue
          if event.state == 'refused':
            raise UserError(f'{name_of(flags)}: {event.reason}')
          num_ended += 1
          said = progress.describe_group(rows.get(i, {}), 'eval')
          if event.state == 'failed':
            said = event.reason
            failures.append((name_of(flags), said))
            write_failure(flags, event)
            shown.reached(i, flags['rounds'], is_new=False)
          shown.say(f'{num_ended}/{len(every_flags)} {name_of(flags)}: {said}')
  if failures:
    raise RunsFailed(failures, len(every_flags))
