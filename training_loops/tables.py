"""Tables that read well as text and as Markdown, and CSV."""

from collections.abc import Sequence
import csv
import io
from typing import Any


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """A Markdown table, its first column to the left and the others to the right."""
  header, *rows = (
    [cell.replace('|', r'\|') for cell in row] for row in (header, *rows)
  )
  every_row = [header, *rows]
  widths = [max(len(row[i]) for row in every_row) for i in range(len(header))]

  def line(row: Sequence[str]) -> str:
    first, *others = (
      cell.rjust(width) for cell, width in zip(row, widths, strict=True)
    )
    return f'| {" | ".join([first.strip().ljust(widths[0]), *others])} |'

  rule = ['-' * widths[0], *('-' * (width - 1) + ':' for width in widths[1:])]
  return '\n'.join([line(header), line(rule), *map(line, rows)])


def as_csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
  """The content of a CSV file."""
  text = io.StringIO()
  writer = csv.writer(text, lineterminator='\n')
  writer.writerow(header)
  writer.writerows(rows)
  return text.getvalue().encode()
