"""What is seen of a run while it goes on.

On a terminal: a bar with the round, the metrics, rounds a second and the time left.
Otherwise, in a pipe or a file: a plain line for each evaluated round.
"""

from collections.abc import Iterator, Mapping
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
    # Some terminals (in containers) have no size at first, and would show nothing.
    columns, lines = shutil.get_terminal_size((0, 0))
    size = {'dynamic_ncols': True} if columns and lines else {'ncols': 80, 'nrows': 24}
    self._bar = tqdm.tqdm(
      desc=title or None,
      total=rounds,
      initial=done,
      unit='round',
      disable=not _is_terminal(),
      **size,
    )

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
    for group in ('train', 'eval'):
      metrics = {
        name.partition('/')[2]: value
        for name, value in row.items()
        if name.startswith(f'{group}/')
      }
      parts.append(f'{group}: {describe(metrics)}')
    parts.append(f'{speed:.2f} rounds/s, {left} left')
    _ROUNDS.info(' | '.join(parts))


def describe(metrics: Mapping[str, Any]) -> str:
  """The loss and the accuracy, where there is one, in a few words."""
  shown = ('loss', 'accuracy')
  return ' '.join(f'{n} {float(metrics[n]):.4f}' for n in shown if n in metrics)
