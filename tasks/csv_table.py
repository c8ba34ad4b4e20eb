"""Tables in CSV files, with errors that name the file, the line and the column."""

import csv
import math
import pathlib

import numpy as np


class Table:
  """A table in UTF-8, its first line naming the columns; blank lines are skipped.

  Columns go by their positions, from 0 on: `position` finds them by name.

  Attributes:
    header: The names of the columns.
  """

  def __init__(self, path: pathlib.Path):
    """Reads the file.

    Raises:
      ValueError: If it is not there, or not such a table of at least one line.
    """
    self._path = path
    self._lines: dict[int, list[str]] = {}  # The fields, by the number of the line.
    try:
      # What Excel writes begins with a mark that is no part of the first name.
      with path.open(newline='', encoding='utf-8-sig') as file:
        reader = csv.reader(file)
        self.header = next(reader, [])
        for fields in reader:
          if any(field.strip() for field in fields):
            self._lines[reader.line_num] = fields
    except (OSError, UnicodeError, csv.Error) as error:
      raise ValueError(f'{path} cannot be read ({error}).') from error
    if not self.header:
      raise ValueError(f'{path} is empty: its first line must name the columns.')
    if not self._lines:
      raise ValueError(f'{path} has no lines below its header.')
    for line, fields in self._lines.items():
      if len(fields) != len(self.header):
        raise ValueError(
          f'{path}, line {line}: {len(fields)} fields, where the header has '
          f'{len(self.header)}.'
        )

  def position(self, name: str) -> int:
    """Where a column is.

    Raises:
      ValueError: If there is none of that name, or several.
    """
    if self.header.count(name) != 1:
      found = 'is there twice' if name in self.header else 'is not there'
      raise ValueError(
        f'{self._path}, line 1: the column {name!r} {found}; the columns are '
        f'{", ".join(self.header)}.'
      )
    return self.header.index(name)

  def texts(self, column: int) -> list[str]:
    """The entries of a column.

    Raises:
      ValueError: If one is empty.
    """
    for line, fields in self._lines.items():
      if not fields[column]:
        raise self._error(line, column, 'there is nothing')
    return [fields[column] for fields in self._lines.values()]

  def numbers(self, column: int) -> np.ndarray:
    """The entries of a column, as float64.

    Raises:
      ValueError: If one is not a number.
    """
    for line, fields in self._lines.items():
      if not is_number(fields[column]):
        raise self._error(line, column, f'{fields[column]!r} is not a number')
    return np.array([float(fields[column]) for fields in self._lines.values()])

  def _error(self, line: int, column: int, what: str) -> ValueError:
    name = self.header[column]
    return ValueError(f'{self._path}, line {line}, column {name!r}: {what}.')


def is_number(text: str) -> bool:
  """Whether a text is a finite number: a missing one is often written `nan`."""
  try:
    return math.isfinite(float(text))
  except ValueError:
    return False
