"""Tests of the benchmark itself."""

import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest

from benchmarks import fed_avg_speed, turns


def _contestant(weights):
  """A contestant that trains to the given weights, whatever its clients."""
  model_weights = types.SimpleNamespace(trainable=[np.array(weights)])
  process = types.SimpleNamespace(
    initialize=lambda: 0,
    next=lambda state, clients: types.SimpleNamespace(state=state),
    get_model_weights=lambda state: model_weights,
  )
  return turns.Contestant(process, str)


def test_contestant_that_trains_to_other_weights_is_found():
  same = {
    fed_avg_speed._BASELINE: _contestant([1.0, 2.0]),
    'ours': _contestant([1.0, 2.000001]),
  }
  fed_avg_speed._verify(same, [['a']])
  for other in ([1.0, 2.0001], [1.0, np.nan]):
    with pytest.raises(AssertionError, match='ours trains to other weights'):
      fed_avg_speed._verify({**same, 'ours': _contestant(other)}, [['a']])


def test_table_has_medians_and_paired_ratios():
  timing = fed_avg_speed._Timing(
    model='cnn',
    num_clients=10,
    contestant='ours',
    seconds=np.array([0.1, 0.3, 0.2]),
    examples=np.array([1000, 1000, 500]),
    speedup=2.5,
  )
  last = fed_avg_speed._table([timing]).splitlines()[-1]
  assert last == '| cnn | 10 | ours | 200 | 150 - 250 | 0.3000 | 2.50 |'


@pytest.mark.slow
def test_benchmark_measures_every_contestant_and_writes_its_table(tmp_path):
  output = tmp_path / 'table.md'
  program = subprocess.run(
    [sys.executable, '-m', 'benchmarks.fed_avg_speed', '--clients=2', '--rounds=1']
    + [f'--output={output}'],
    cwd=pathlib.Path(__file__).parents[2],
    capture_output=True,
    text=True,
  )
  assert program.returncode == 0, program.stderr
  assert 'Traceback' not in program.stderr
  header, _, *lines = output.read_text().partition('\n\n')[0].splitlines()
  assert 'times faster' in header
  measured = [tuple(cell.strip() for cell in line.split('|')[1:4]) for line in lines]
  assert len(set(measured)) == 2 * 4  # Models, contestants.
  assert output.read_text() in program.stdout
