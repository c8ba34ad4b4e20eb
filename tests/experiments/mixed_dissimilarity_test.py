"""Tests of the experiment on gradient dissimilarity."""

import csv
import pathlib

import pytest

from experiments import mixed_dissimilarity
from training_loops import compare, results, summaries, train_flags


def _result(g, b):
  flags = train_flags.configure(
    task='digits_mixed', algorithm='one_way_gradient_transfer', output_dir='x'
  )
  names = mixed_dissimilarity._METRICS.values()
  rows = [
    {'round': r, **dict(zip(names, pair, strict=True))}
    for r, pair in enumerate(zip(g, b, strict=True), start=1)
  ]
  return results.Result(pathlib.Path('x'), flags, rows, 60.0, True, 1)


@pytest.mark.parametrize('name', mixed_dissimilarity._TASKS)
def test_a_task_is_trained_one_step_a_round_and_told_of_in_every_round(name):
  task_flags, _ = mixed_dissimilarity._TASKS[name]
  own = {flag: value for flag, value in task_flags.items() if flag != 'task'}
  (flags,) = compare.configure(
    {name: train_flags.as_arguments(own)}, {'task': task_flags['task']}, 1, 'x'
  )
  assert flags['algorithm'] == 'one_way_gradient_transfer'
  assert (flags['max_client_steps'], flags['rounds_per_eval']) == (1, 1)
  assert flags['mixed_diagnostics']


def test_the_page_has_the_maxima_of_the_later_rounds_beside_the_papers(tmp_path):
  quiet = [0.5] * 12
  groups = {}
  for name in mixed_dissimilarity._TASKS:
    first = _result([99.0, *quiet[1:-1], 7.25], [88.0, *quiet[1:]])
    second = _result([99.0, *quiet[1:]], [88.0, *quiet[1:-1], 2.5])
    groups[name] = summaries.Group(name, [first, second])
  flags = dict.fromkeys(('rounds', 'tuning_rounds', 'num_seeds', 'data_dir'))
  directory = tmp_path / 'results'
  mixed_dissimilarity._write(groups, flags, directory)
  page = (directory / 'README.md').read_text(encoding='utf-8')
  assert '| smile classification | 7.25 | 49.04 | 2.5 | 1.26 |' in ' '.join(
    page.split()
  )
  assert '6 minutes of training' in page
  assert '99' not in page
  for name in mixed_dissimilarity._TASKS:
    file = f'{name.replace(" ", "_")}.png'
    assert f'({file})' in page
    assert (directory / file).read_bytes().startswith(b'\x89PNG')
  with open(directory / 'numbers.csv', newline='') as file:
    points = list(csv.DictReader(file))
  assert len(points) == 3 * 2 * 12
  assert points[0] == {
    'task': 'smile classification',
    'metric': 'G~^2',
    'round': '1',
    'mean': '99.0',
    'max': '99.0',
  }
