"""Tests of what is recorded of a run."""

import math

import numpy as np
import tensorflow as tf

from training_loops import records


def _rows(*rounds: int) -> list[records.Row]:
  return [
    records.as_row(r, train={'loss': np.float32(0.1 * r)}, eval={'accuracy': 0.5})
    for r in rounds
  ]


def _timing(*rounds: int) -> list[records.Row]:
  return [{'round': r, 'seconds': float(r)} for r in rounds]


def _events(directory) -> list[tuple[int, str, float]]:
  found = []
  for path in (directory / 'tensorboard').iterdir():
    for event in tf.compat.v1.train.summary_iterator(str(path)):
      for value in event.summary.value:
        number = round(float(tf.make_ndarray(value.tensor)), 4)
        found.append((event.step, value.tag, number))
  return found


def test_a_row_names_its_columns_by_group_and_keeps_the_digits_of_each_type():
  row = records.as_row(
    3,
    train={'loss': np.float32(0.9), 'num_clients': np.int32(10)},
    eval={'loss': np.float64(0.1), 'accuracy': np.array(1 / 3, np.float32)},
  )
  assert row == {
    'round': 3,
    'train/loss': 0.9,
    'train/num_clients': 10,
    'eval/loss': 0.1,
    'eval/accuracy': 0.33333334,
  }
  assert type(row['train/num_clients']) is int


def test_the_best_round_is_the_first_of_the_highest_accuracy():
  rows = [
    {'round': r, 'eval/loss': 1 / r, 'eval/accuracy': a}
    for r, a in ((1, 0.5), (2, 0.8), (3, math.nan), (4, 0.8), (5, 0.7))
  ]
  assert records.best_round(rows) == 2


def test_without_accuracy_the_best_round_has_the_lowest_loss():
  rows = [{'round': r, 'eval/loss': v} for r, v in ((1, math.nan), (2, 3.0), (3, 1.0))]
  assert records.best_round(rows) == 3


def test_of_a_saddle_point_problem_the_best_round_has_the_least_gradient_mapping():
  rows = [
    {'round': r, 'eval/loss': -r, 'eval/gradient_mapping_norm': v}
    for r, v in ((1, 3.0), (2, 0.1), (3, 2.0), (4, math.nan))
  ]
  assert records.best_round(rows) == 2


def test_where_there_is_a_recall_the_best_round_has_the_highest():
  rows = [
    {'round': r, 'eval/loss': 1 / r, 'eval/recall_at_10': v}
    for r, v in ((1, 0.1), (2, 0.3), (3, 0.2))
  ]
  assert records.best_round(rows) == 2


def test_a_column_of_some_rounds_is_empty_in_the_others(tmp_path):
  recorded = records.Records(tmp_path, [], [])
  recorded.add(records.as_row(1, train={'loss': 0.5}, eval={'loss': 1.0}), seconds=1)
  recorded.add(records.as_row(2, train={'norm': 2.0}, eval={'loss': 0.5}), seconds=2)
  recorded.close()
  assert (tmp_path / 'metrics.csv').read_text() == (
    'round,train/loss,eval/loss,train/norm\n1,0.5,1.0,\n2,,0.5,2.0\n'
  )


def test_no_round_is_the_best_of_none():
  assert records.best_round([]) == 0


def test_an_added_round_is_in_every_file(tmp_path):
  recorded = records.Records(tmp_path, [], [])
  for row in _rows(1, 2):
    recorded.add(row, seconds=row['round'] + 0.12345)
  recorded.close()
  assert (tmp_path / 'metrics.csv').read_text() == (
    'round,train/loss,eval/accuracy\n1,0.1,0.5\n2,0.2,0.5\n'
  )
  assert (tmp_path / 'timing.csv').read_text() == 'round,seconds\n1,1.123\n2,2.123\n'
  assert _events(tmp_path) == [
    (1, 'train/loss', 0.1),
    (1, 'eval/accuracy', 0.5),
    (2, 'train/loss', 0.2),
    (2, 'eval/accuracy', 0.5),
  ]


def test_a_continued_run_forgets_the_rounds_that_it_does_again(tmp_path):
  first = records.Records(tmp_path, [], [])
  for row in _rows(1, 2, 3):
    first.add(row, seconds=row['round'])
  first.close()
  content = (tmp_path / 'metrics.csv').read_bytes()

  second = records.Records(tmp_path, first.rows[:1], first.timing[:1])
  assert second.timing[-1]['seconds'] == 1
  for row in _rows(2, 3):
    second.add(row, seconds=row['round'] + 10)
  second.close()
  assert (tmp_path / 'metrics.csv').read_bytes() == content
  assert [step for step, _, _ in _events(tmp_path)] == [1, 1, 2, 2, 3, 3]
  assert second.timing[-1]['seconds'] == 13
