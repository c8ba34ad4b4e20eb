"""Tests of tables in CSV files."""

import numpy as np
import pytest

from tasks import csv_table


def _table(directory, text):
  path = directory / 'table.csv'
  path.write_text(text, encoding='utf-8', newline='')
  return csv_table.Table(path)


def test_columns_are_read_by_position(tmp_path):
  table = _table(tmp_path, 'name,size,size\nb, 1 ,.5\na,-2,1e1\n')
  assert table.header == ['name', 'size', 'size']
  assert table.texts(0) == ['b', 'a']
  np.testing.assert_array_equal(table.numbers(1), [1, -2])
  np.testing.assert_array_equal(table.numbers(2), [0.5, 10])


def test_a_column_is_found_by_name(tmp_path):
  table = _table(tmp_path, 'a,b,c,c\n1,2,3,4\n')
  assert table.position('b') == 1
  with pytest.raises(ValueError, match=r"table\.csv, line 1: .*'d' is not there.*a, b"):
    table.position('d')
  with pytest.raises(ValueError, match=r"table\.csv, line 1: .*'c' is there twice"):
    table.position('c')


def test_blank_lines_are_skipped_and_counted(tmp_path):
  table = _table(tmp_path, 'a,b\n\n1,2\n , \n,\n3,four\n')
  assert table.texts(0) == ['1', '3']
  with pytest.raises(ValueError, match=r"table\.csv, line 6, column 'b': 'four' is"):
    table.numbers(1)


def test_what_spreadsheets_write_is_read(tmp_path):
  table = _table(tmp_path, '\ufeffa,b\r\n"St. Mary, Bath","two\r\nlines"\r\nc,\r\n')
  assert table.header == ['a', 'b']
  assert table.texts(0) == ['St. Mary, Bath', 'c']
  with pytest.raises(ValueError, match=r"table\.csv, line 4, column 'b'"):
    table.texts(1)


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('', ' is empty: its first line must name'),
    ('a,b\n', ' has no lines below'),
    ('a,b\n\n,\n', ' has no lines below'),
    ('a,b\n1,2\n3\n', ', line 3: 1 fields, where the header has 2'),
    ('a;b\n1,2\n', ', line 2: 2 fields, where the header has 1'),
    ('a,b\n1,"' + 'a' * 200_000, r' cannot be read \(field larger'),
  ],
)
def test_what_is_no_table_is_refused(tmp_path, text, message):
  with pytest.raises(ValueError, match=rf'table\.csv{message}'):
    _table(tmp_path, text)


def test_a_file_that_is_no_text_or_not_there_is_named(tmp_path):
  path = tmp_path / 'table.csv'
  with pytest.raises(ValueError, match=r'table\.csv cannot be read'):
    csv_table.Table(path)
  path.write_bytes(b'\xff\xfe\x00')
  with pytest.raises(ValueError, match=r'table\.csv cannot be read'):
    csv_table.Table(path)


@pytest.mark.parametrize('text', ['', 'x', 'nan', '-inf', '1,5', '1 2'])
def test_what_is_no_finite_number_is_named(tmp_path, text):
  table = _table(tmp_path, f'a,b\n1,1\n1,"{text}"\n')
  with pytest.raises(
    ValueError, match=rf"table\.csv, line 3, column 'b': '{text}' is not a number"
  ):
    table.numbers(1)


def test_an_empty_entry_is_no_text(tmp_path):
  table = _table(tmp_path, 'a,b\n1,x\n1,\n')
  with pytest.raises(ValueError, match=r"line 3, column 'b': there is nothing"):
    table.texts(1)
