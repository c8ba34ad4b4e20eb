"""Tests of what is told of measured speed."""

import dataclasses

import matplotlib.image
import numpy as np
import pytest

from benchmarks import speed_report
from benchmarks.speed_report import Goal, Measured

_OURS, _OTHER = 'ours', 'other'
_GOALS = {
  'small': (Goal(_OTHER, 2), Goal(_OTHER, 3, is_open=True)),
  'large': (Goal(_OTHER, 1.5, of='memory'), Goal('absent', 9)),
}


def _measured(factor=2.5):
  """Ours; and another that takes so many times as long in every round."""
  seconds, examples = np.array([0.1, 0.3, 0.2]), np.array([1000, 1000, 500])
  return {
    _OURS: Measured(seconds, examples, megabytes=500.0, first_round=4.25, apart=0.0),
    _OTHER: Measured(
      factor * seconds, examples, megabytes=1250.0, first_round=8.0, apart=2e-6
    ),
  }


def _rows(work, factor=2.5):
  return speed_report.rows_of(work, _measured(factor), _OURS)


def _cells(table):
  return [
    [cell.strip() for cell in line.split('|')[1:-1]] for line in table.split('\n')
  ]


def test_a_row_has_medians_and_ratios_within_rounds():
  own, other = _rows('small')
  assert (own.milliseconds, own.low, own.high) == pytest.approx((200, 150, 250))
  assert own.per_thousand == pytest.approx(0.3)
  assert (own.megabytes, own.first_round, own.times_ours) == (500, 4.25, 1)
  assert other.times_ours == pytest.approx(2.5)


def test_ratios_are_of_the_same_rounds():
  measured = _measured()
  seconds = np.array([0.2, 0.1, 0.4])  # Of its median the ratio would be 1.
  measured[_OTHER] = dataclasses.replace(measured[_OTHER], seconds=seconds)
  _, other = speed_report.rows_of('small', measured, _OURS)
  assert other.times_ours == pytest.approx(2)


def test_the_table_has_a_line_for_each_peer():
  header, _, *lines = _cells(speed_report.table(_rows('small')))
  assert len(header) == 10
  assert lines == [
    ['small', 'ours', '200', '150 - 250', '5', '0.3000', '500', '4.2', '0e+00', '1.00'],
    [
      'small',
      'other',
      '500',
      '375 - 625',
      '2',
      '0.7500',
      '1,250',
      '8.0',
      '2e-06',
      '2.50',
    ],
  ]


def test_goals_stand_beside_what_was_measured_where_it_was():
  rows = _rows('small') + _rows('large')
  _, _, *lines = _cells(speed_report.goal_table(rows, _GOALS, _OURS))
  assert lines == [
    ['small', 'time', 'other', '2', '2.50', 'yes'],
    ['small', 'time', 'other', '3*', '2.50', 'no'],
    ['large', 'memory', 'other', '1.5', '2.50', 'yes'],
  ]
  assert len(speed_report.goal_table(rows[:1], _GOALS, _OURS).splitlines()) == 2


def _update(page, rows):
  speed_report.update(page, rows, _GOALS, _OURS, 'On a machine.')


def test_a_page_keeps_the_rows_of_other_works_in_the_order_of_the_goals(tmp_path):
  page = tmp_path / 'docs' / 'speed.md'
  _update(page, _rows('large', 4))
  _update(page, _rows('small', 5))
  _update(page, _rows('large', 6))
  names = ['docs/speed.csv', 'docs/speed.md', 'docs/speed.png']
  assert sorted(str(p.relative_to(tmp_path)) for p in page.parent.iterdir()) == names
  expected = speed_report.table(_rows('small', 5) + _rows('large', 6))
  assert expected in page.read_text()
  assert 'On a machine.' in page.read_text()
  assert '(speed.png)' in page.read_text()


def test_a_page_keeps_what_stands_around(tmp_path):
  page = tmp_path / 'speed.md'
  _update(page, _rows('small'))
  page.write_text(f'# Speed\n\n{page.read_text()}\nThe end.\n')
  _update(page, _rows('small', 7))
  assert page.read_text().startswith('# Speed\n\n')
  assert page.read_text().endswith('\nThe end.\n')
  assert page.read_text().count('On a machine.') == 1


def test_the_picture_has_a_group_of_bars_for_each_work(tmp_path):
  heights = []
  for works in (['small'], ['small', 'large']):
    for work in works:
      _update(tmp_path / 'speed.md', _rows(work))
    heights.append(len(matplotlib.image.imread(tmp_path / 'speed.png')))
  assert heights[0] < heights[1]
