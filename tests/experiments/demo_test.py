"""Tests of the demonstration."""

import os
import pathlib
import subprocess
import sys

import pytest

from experiments import demo
from training_loops import results

_ROOT = pathlib.Path(__file__).parents[2]


def _result(*accuracies: float) -> results.Result:
  rows = [
    {
      'round': 2 * (i + 1),
      'eval/accuracy': accuracy,
      'train/bytes_down': 3000,
      'train/bytes_up': 2000,
    }
    for i, accuracy in enumerate(accuracies)
  ]
  return results.Result(pathlib.Path('x'), {}, rows, 1.25, True, None)


def test_the_table_says_how_good_how_soon_and_at_what_cost():
  text = demo.table({'A': _result(0.5, 0.95, 0.925), 'B': _result(0.5, 0.85)})
  rows = [[cell.strip() for cell in line.split('|')] for line in text.splitlines()]
  assert rows[2][1:-1] == ['A', '92.5%', '95.0%', '4', '3.00', '2.00', '1.2']
  assert rows[3][1:-1] == ['B', '85.0%', '85.0%', 'never', '3.00', '2.00', '1.2']


@pytest.mark.slow
def test_it_compares_three_algorithms_and_ends_with_the_path_of_a_picture(tmp_path):
  old = tmp_path / 'runs' / 'demo' / 'fed_avg'  # As left by another version.
  old.mkdir(parents=True)
  (old / 'config.json').write_text('{"flags": {"task": "other"}}')
  done = subprocess.run(
    [sys.executable, '-m', 'experiments.demo'],
    cwd=tmp_path,
    env={**os.environ, 'PYTHONPATH': str(_ROOT)},
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert (done.returncode, done.stderr) == (0, '')
  *_, fed_avg, fed_prox, server_only, empty, picture = done.stdout.splitlines()
  for line, name in (
    (fed_avg, 'FedAvg'),
    (fed_prox, 'FedProx'),
    (server_only, 'Server-only'),
  ):
    assert line.startswith(f'| {name} ')
    assert float(line.split('|')[2].strip(' %')) > 90
  assert empty == ''
  assert pathlib.Path(picture).read_bytes().startswith(b'\x89PNG')
