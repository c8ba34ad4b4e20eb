"""Tests of the benchmark itself."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import data_share


def test_shares_are_of_the_same_rounds():
  seconds = {
    'nothing': np.array([0.1, 0.2, 0.3]),
    'clients by id': np.array([0.2, 0.25, 0.3]),
  }
  lines = data_share.table(seconds).splitlines()
  assert [cell.strip() for cell in lines[-1].split('|')[1:-1]] == [
    'clients by id',
    '250',
    '225 - 275',
    '20%',
  ]


def test_the_share_of_a_run_is_between_that_of_known_and_of_new_clients():
  ways = ('nothing', 'clients by id', 'clients by id, all new')
  seconds = dict(zip(ways, np.array([[0.08], [0.08], [0.16]]), strict=True))
  # 3400 (1 - (1 - 10 / 3400) ** 1000) = 3221 of the 10,000 clients drawn are new.
  assert '32% of the clients are new' in data_share.share_of_run(seconds, 10)
  assert 'share 24% of such' in data_share.share_of_run(seconds, 10)


def test_every_way_is_given_every_cohort_and_the_next():
  calls = []
  rounds = {
    'a': lambda *cohorts: calls.append(('a', *cohorts)),
    'b': lambda *cohorts: calls.append(('b', *cohorts)),
  }
  seconds = data_share.measure(rounds, [[t] for t in range(6)])
  assert {name: len(own) for name, own in seconds.items()} == {'a': 2, 'b': 2}
  for name in 'ab':
    own = [call[1:] for call in calls if call[0] == name]
    assert own == [([t], [t + 1]) for t in range(5)]


@pytest.mark.slow
def test_benchmark_writes_its_table(data_dir, tmp_path):
  output = tmp_path / 'table.md'
  program = subprocess.run(
    [sys.executable, '-m', 'benchmarks.data_share', '--clients=2', '--rounds=1']
    + [f'--output={output}', f'--data_dir={data_dir}'],
    cwd=pathlib.Path(__file__).parents[2],
    capture_output=True,
    text=True,
  )
  assert program.returncode == 0, program.stderr
  assert output.read_text().count('\n|') == 5
  assert os.listdir(tmp_path) == ['table.md']
