"""What is recorded of a run: metrics.csv, timing.csv and TensorBoard events.

All are made of the rows held here, which are part of every checkpoint. A continued
run writes the files anew from them, so that they always tell of exactly the rounds
that the model has seen.
"""

from collections.abc import Mapping
import math
import pathlib
import shutil
from typing import Any

import numpy as np
import tensorflow as tf

from training_loops import files, tables

Row = dict[str, Any]

_HIGHER_IS_BETTER = ('eval/accuracy', 'eval/recall_at_10')
# Of saddle-point problems: their loss is neither minimised nor maximised.
_GRADIENT_MAPPING_NORM = 'eval/gradient_mapping_norm'


def as_row(round_num: int, **groups: Mapping[str, Any]) -> Row:
  """A row of metrics.csv: the round, and a column group/name for every metric.

  A value keeps the digits of its own precision: 0.9, not float32's 0.8999999761581421.
  """
  row: Row = {'round': round_num}
  for group, metrics in groups.items():
    for name, value in metrics.items():
      scalar = np.asarray(value)[()]
      number = int(scalar) if isinstance(scalar, np.integer) else float(str(scalar))
      row[f'{group}/{name}'] = number
  return row


def best_round(rows: list[Row]) -> int:
  """The first round with the highest eval accuracy or recall, or the lowest loss.

  In the place of the loss it is the norm of the gradient mapping where there is one.
  """

  def badness(row):
    better = [name for name in _HIGHER_IS_BETTER if name in row]
    lowest = row.get(_GRADIENT_MAPPING_NORM, row['eval/loss'])
    value = -row[better[0]] if better else lowest
    return math.inf if math.isnan(value) else value

  return min(rows, key=badness)['round'] if rows else 0


def _as_csv(rows: list[Row]) -> bytes:
  if not rows:
    return b''
  header = list(dict.fromkeys(name for row in rows for name in row))
  return tables.as_csv(header, [[row.get(name, '') for name in header] for row in rows])


class Records:
  """The rows so far, and the files made of them."""

  def __init__(self, directory: pathlib.Path, rows: list[Row], timing: list[Row]):
    """Writes the files anew.

    Args:
      directory: The output directory.
      rows: The metrics of the rounds evaluated so far.
      timing: When those were done, in seconds of training.
    """
    self._directory = directory
    self.rows = list(rows)
    self.timing = list(timing)
    events = directory / 'tensorboard'
    shutil.rmtree(events, ignore_errors=True)
    self._events = tf.summary.create_file_writer(str(events))
    for row in self.rows:
      self._write_event(row)
    self._write_files()

  def add(self, row: Row, seconds: float) -> None:
    """Records an evaluated round."""
    self.rows.append(row)
    self.timing.append({'round': row['round'], 'seconds': round(seconds, 3)})
    self._write_event(row)
    self._write_files()

  def close(self) -> None:
    """Flushes the events."""
    with files.written_by_tensorflow():
      self._events.close()

  def _write_event(self, row: Row) -> None:
    with files.written_by_tensorflow(), self._events.as_default(step=row['round']):
      for name, value in row.items():
        if name != 'round':
          tf.summary.scalar(name, value)
      self._events.flush()

  def _write_files(self) -> None:
    for name, rows in (('metrics.csv', self.rows), ('timing.csv', self.timing)):
      files.write_bytes(self._directory / name, _as_csv(rows), durable=False)
