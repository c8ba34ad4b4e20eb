"""Published numbers from a small CSV file, to stand beside ours.

    name,best,rounds
    FedAvg,91.2%,320
    FedProx,0.907,

`name` is that of a row of our table. The other columns are any of `final`, `best` and
`rounds` (to the target), empty where nothing was published; a share may be written in
per cent. Further columns (`source`, `remark`) are for the reader of the file.

Importing this module does not import TensorFlow.
"""

from collections.abc import Mapping, Sequence
import csv
import math
import pathlib

import numpy as np

from training_loops import summaries
from training_loops.options import UserError

COLUMNS = ('final', 'best', 'rounds')

Published = Mapping[str, Mapping[str, float]]


def read(path: str | pathlib.Path) -> dict[str, dict[str, float]]:
  """The numbers by name and column.

  Raises:
    UserError: If the file cannot be read as such a table.
  """
  try:
    with open(path, newline='', encoding='utf-8-sig') as file:
      reader = csv.DictReader(file, skipinitialspace=True)
      header = [name.strip() for name in reader.fieldnames or []]
      reader.fieldnames = header
      rows = list(reader)
  except (OSError, UnicodeDecodeError, csv.Error) as error:
    raise UserError(f'{path} cannot be read: {error}.') from None
  if 'name' not in header or not set(COLUMNS) & set(header):
    raise UserError(
      f'{path} needs a heading with the columns name and one at least of '
      f'{", ".join(COLUMNS)}; it has {", ".join(header) or "none"}.'
    )
  numbers: dict[str, dict[str, float]] = {}
  for row in rows:
    if not any(cell for cell in row.values()):
      continue  # Spreadsheets leave such rows.
    name = (row['name'] or '').strip()
    if not name or name in numbers:
      raise UserError(
        f'{path} has {f"two rows {name}" if name else "no name in a row"}.'
      )
    numbers[name] = {
      column: _number(path, name, column, text)
      for column in COLUMNS
      if (text := (row.get(column) or '').strip())
    }
  return numbers


def _number(path: str | pathlib.Path, name: str, column: str, text: str) -> float:
  try:
    value = float(text.removesuffix('%')) / (100 if text.endswith('%') else 1)
  except ValueError:
    value = math.nan
  if not math.isfinite(value):
    raise UserError(f'{path}: the {column} of {name} is {text!r}, not a number.')
  return value


def check(
  numbers: Published, names: Sequence[str], metric: str | None, target: float | None
) -> None:
  """Makes sure that published numbers can stand beside ours, which need not be there.

  Args:
    numbers: The published numbers.
    names: The names of our runs.
    metric: What they are compared by, None where it is the accuracy if there is one.
    target: The value to reach, if any.

  Raises:
    UserError: If none of the names is one of ours, rounds come without a target, or a
      share is above 1.
  """
  if numbers and not set(numbers) & set(names):
    raise UserError(
      f'none of the published numbers is of a run here: they are of '
      f'{", ".join(numbers)}, the runs are {", ".join(names)}.'
    )
  for name, row in numbers.items():
    if 'rounds' in row and target is None:
      raise UserError('there are published rounds to a target, but no --target here.')
    for column in ('final', 'best'):
      if summaries.is_share(metric or 'accuracy') and row.get(column, 0) > 1:
        advice = '' if metric else '; or name another --metric'
        raise UserError(
          f'the published {column} of {name} is {row[column]:g}: a share is written as '
          f'{row[column] / 100:g} or {row[column]:g}%{advice}.'
        )


def columns(
  numbers: Published, every_summary: Sequence[summaries.Summary]
) -> tuple[list[str], list[list[str]]]:
  """The heads and the cells of further columns: what was published, and ours minus it.

  Args:
    numbers: From `read`, checked by `check`.
    every_summary: The rows of our table.
  """
  metric = every_summary[0].metric
  shown = [c for c in COLUMNS if any(c in row for row in numbers.values())]
  header = [text for c in shown for text in (f'published {c}', 'ours minus it')]
  rows = []
  for summary in every_summary:
    row = []
    for column in shown:
      value = numbers.get(summary.name, {}).get(column)
      row += ['', ''] if value is None else _pair(metric, column, value, summary)
    rows.append(row)
  return header, rows


def _pair(
  metric: str, column: str, value: float, summary: summaries.Summary
) -> list[str]:
  if column == 'rounds':
    ours = [r for r in summary.rounds_to_target if r is not None]
    return [f'{value:g}', f'{np.mean(ours) - value:+.0f}' if ours else 'never']
  difference = float(np.mean(getattr(summary, column)) - value)
  if summaries.is_share(metric):
    return [summaries.display(metric, value), f'{100 * difference:+.1f}']
  return [summaries.display(metric, value), f'{difference:+.2g}']
