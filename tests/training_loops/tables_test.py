"""Tests of tables."""

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
