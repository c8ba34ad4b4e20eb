"""What is seen of a run while it goes on.

On a terminal: a bar with the round, the metrics, rounds a second and the time left.
Otherwise, in a pipe or a file: a plain line for each evaluated round.
"""

from collections.abc import Hashable, Iterator, Mapping
import contextlib
import logging
import pathlib
import shutil
import sys
import time
from typing import Any

import tqdm

# All that is said goes through this logger and its children.
_LOGGER = logging.getLogger('training_loops')
# The lines of the rounds; the bar takes their place on a terminal.
_ROUNDS = logging.getLogger('training_loops.rounds')


def _is_terminal() -> bool:
  return sys.stdout.isatty() and sys.stderr.isatty()


class _Console(logging.Handler):
  """Prints without breaking a bar; warnings go to stderr."""

  def emit(self, record: logging.LogRecord) -> None:
    if record.name == _ROUNDS.name and _is_terminal():
      return
    stream = sys.stdout
    text = record.getMessage()
    if record.levelno >= logging.WARNING:
      stream, text = sys.stderr, f'{record.levelname.lower()}: {text}'
    tqdm.tqdm.write(text, file=stream)
    stream.flush()


def show_on_console() -> None:
  """Makes a program print what is said."""
  _LOGGER.addHandler(_Console())
  _LOGGER.setLevel(logging.INFO)
  _LOGGER.propagate = False


@contextlib.contextmanager
def logged_to(path: pathlib.Path) -> Iterator[None]:
  """Appends what is said within the block to a file, with the time of day."""
  handler = logging.FileHandler(path)
  handler.setFormatter(logging.Formatter('%(asctime)s %(levelname)s %(message)s'))
  _LOGGER.addHandler(handler)
  try:
    yield
  finally:
    _LOGGER.removeHandler(handler)
    handler.close()


def _bar(rounds: int, done: int = 0, title: str = '') -> tqdm.tqdm:
  # Some terminals (in containers) have no size at first, and would show nothing.
  columns, lines = shutil.get_terminal_size((0, 0))
  size = {'dynamic_ncols': True} if columns and lines else {'ncols': 80, 'nrows': 24}
  return tqdm.tqdm(
    desc=title or None,
    total=rounds,
    initial=done,
    unit='round',
    disable=not _is_terminal(),
    **size,
  )


class Progress:
  """The rounds of one run, as they are done."""

  def __init__(self, rounds: int, done: int = 0, title: str = ''):
    """Starts showing.

    Args:
      rounds: How many there are in all.
      done: How many were done at an earlier time.
      title: What stands before the bar, and before each line.
    """
    self._title, self._rounds, self._first = title, rounds, done
    self._start = time.monotonic()
    self._bar = _bar(rounds, done, title)

  def __enter__(self) -> 'Progress':
    return self

  def __exit__(self, *exception: object) -> None:
    self._bar.close()

  def round_done(self, train_metrics: Mapping[str, Any]) -> None:
    """Moves the bar on by a round."""
    self._bar.set_postfix_str(describe(train_metrics), refresh=False)
    self._bar.update()

  def evaluated(self, row: Mapping[str, Any]) -> None:
    """Says what an evaluated round gave."""
    round_num = row['round']
    speed = (round_num - self._first) / max(time.monotonic() - self._start, 1e-9)
    left = tqdm.tqdm.format_interval((self._rounds - round_num) / speed)
    parts = [f'{self._title} round {round_num}/{self._rounds}'.strip()]
    parts += [f'{group}: {describe_group(row, group)}' for group in ('train', 'eval')]
    parts.append(f'{speed:.2f} rounds/s, {left} left')
    _ROUNDS.info(' | '.join(parts))


class RunsProgress:
  """Many runs, as their rounds are done: on a terminal a bar over all rounds.

  What was done at an earlier time is not in the speed that the time left is told by.
  """

  def __init__(self, rounds: int):
    """Starts showing.

    Args:
      rounds: How many there are in all, in all runs.
    """
    self._rounds = rounds
    self._reached: dict[Hashable, int] = {}
    self._known = 0  # Rounds that took no time now: of an earlier time, or given up.
    self._start = time.monotonic()
    self._bar = _bar(rounds)

  def __enter__(self) -> 'RunsProgress':
    return self

  def __exit__(self, *exception: object) -> None:
    self._bar.close()

  def reached(self, key: Hashable, round_num: int, *, is_new: bool = True) -> None:
    """A run stands at a round.

    Args:
      key: The run.
      round_num: The round.
      is_new: Whether the rounds up to it took time since the last call.
    """
    step = max(0, round_num - self._reached.get(key, 0))
    self._reached[key] = self._reached.get(key, 0) + step
    if not is_new:
      self._known += step
    self._bar.update(step)

  def seconds_left(self) -> float | None:
    """How long the rest will take, once that can be told."""
    done = sum(self._reached.values())
    seconds = time.monotonic() - self._start
    new = done - self._known
    return (self._rounds - done) * seconds / new if new else None

  def say(self, text: str, status: str = '') -> None:
    """Says a line, with the time left; a status stays in sight beside a bar."""
    if not self._bar.disable:
      self._bar.set_postfix_str(status)
      _LOGGER.info(text)
      return
    left = self.seconds_left()
    time_left = '' if left is None else f'{tqdm.tqdm.format_interval(left)} left'
    _LOGGER.info(' | '.join(filter(None, [text, status, time_left])))


def describe_group(row: Mapping[str, Any], group: str) -> str:
  """The loss and the accuracy of train or eval in a row of metrics.csv."""
  prefix = f'{group}/'
  return describe(
    {n.removeprefix(prefix): v for n, v in row.items() if n.startswith(prefix)}
  )


def describe(metrics: Mapping[str, Any]) -> str:
  """The loss and the accuracy, where there is one, in a few words."""
  shown = ('loss', 'accuracy')
  return ' '.join(f'{n} {float(metrics[n]):.4f}' for n in shown if n in metrics)
