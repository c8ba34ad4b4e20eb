"""Tables that read well as text and as Markdown, and CSV."""

from collections.abc import Sequence
import csv
import io
import re
from typing import Any

# What may stand in a column of numbers, an empty cell too.
_NUMBER = re.compile(r'[-+]?[\d.]|nan|inf|–|never|$')


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A Markdown table, columns of numbers to the right and the others to the left."""
  cells = [[cell.replace('|', r'\|') for cell in row] for row in (header, *rows)]
  widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
  are_numbers = numeric_columns(header, rows)

  def line(row: Sequence[str]) -> str:
    aligned = (
      cell.rjust(width) if is_number else cell.ljust(width)
      for cell, width, is_number in zip(row, widths, are_numbers, strict=True)
    )
    return f'| {" | ".join(aligned)} |'

  rule = [
    '-' * (width - 1) + ':' if is_number else '-' * width
    for width, is_number in zip(widths, are_numbers, strict=True)
  ]
  return '\n'.join([line(cells[0]), line(rule), *map(line, cells[1:])])


def numeric_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
  """For each column whether numbers stand in it; the first one has names."""
  return [
    i > 0 and all(_NUMBER.match(row[i]) is not None for row in rows)
    for i in range(len(header))
  ]


def as_csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
  """The content of a CSV file."""
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(header)
  writer.writerows(rows)
  return text.getvalue().encode()
