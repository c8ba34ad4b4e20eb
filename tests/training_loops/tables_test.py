"""Tests of tables."""

import csv
import io

from training_loops import tables


def test_columns_line_up():
  assert (
    tables.markdown(['name', 'x'], [['a', '1.25'], ['longer', '2']])
    == """\
| name   |    x |
| ------ | ---: |
| a      | 1.25 |
| longer |    2 |"""
  )


def test_csv_is_a_line_a_row_with_unix_line_ends_and_all_digits():
  content = tables.as_csv(['name', 'x'], [['a', 1 / 3], ['ä', 2], ['', float('nan')]])
  assert content == 'name,x\na,0.3333333333333333\nä,2\n,nan\n'.encode()
  assert tables.as_csv(['name', 'x'], []) == b'name,x\n'


def test_whatever_stands_in_a_cell_of_csv_comes_back_as_it_was():
  cells = ['FedAvg, SGD', 'a "b" c', 'two\nlines', ' space ', "it's", 'a;b\tc']
  content = tables.as_csv(['x, y', *cells[1:]], [cells])
  rows = list(csv.reader(io.StringIO(content.decode(), newline='')))
  assert rows == [['x, y', *cells[1:]], cells]
