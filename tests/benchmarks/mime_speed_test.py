"""Tests of the benchmark itself."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import mime_speed


def test_times_stand_beside_the_gradients_they_are_for():
  seconds = {
    'FedAvg': np.array([1.0, 2.0, 1.0]),
    'MimeLite': np.array([1.2, 2.4, 3.0]),
    'Mime': np.array([2.52, 5.04, 2.52]),
  }
  lines = mime_speed.rows_of_table('cnn', 10, seconds)
  assert lines == [
    '| cnn | 10 | FedAvg | 1000 | 1.000 | 1.000 | 1.000 |',
    '| cnn | 10 | MimeLite | 2400 | 1.100 | 1.200 | 1.091 |',
    '| cnn | 10 | Mime | 2520 | 2.100 | 2.520 | 1.200 |',
  ]


def test_a_sensitivity_on_a_tenth_of_the_rows_is_one_gradient_of_them():
  seconds = {'FedAvg': np.array([1.0, 2.0]), 'elastic': np.array([1.02, 2.04])}
  assert mime_speed.rows_of_table('cnn', 10, seconds, 'elastic') == [
    '| cnn | 10 | FedAvg | 1500 | 1.000 | 1.000 | 1.000 |',
    '| cnn | 10 | elastic | 1530 | 1.011 | 1.020 | 1.009 |',
  ]


@pytest.mark.slow
@pytest.mark.parametrize('contest', mime_speed.GRADIENTS)
def test_every_algorithm_is_measured_and_the_table_written(contest, tmp_path):
  output = tmp_path / 'table.md'
  flags = ['--models=logistic', '--epochs=1,2', '--clients_per_round=2', '--rounds=1']
  flags.append(f'--contest={contest}')
  program = subprocess.run(
    [sys.executable, '-m', 'benchmarks.mime_speed', *flags, f'--output={output}'],
    cwd=pathlib.Path(__file__).parents[2],
    capture_output=True,
    text=True,
  )
  assert program.returncode == 0, program.stderr
  table = output.read_text().partition('\n\n')[0].splitlines()
  assert len(table) == 2 + 2 * len(mime_speed.GRADIENTS[contest])
  assert output.read_text() in program.stdout
