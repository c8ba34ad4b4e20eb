"""Tests of the benchmark itself."""

import pathlib
import subprocess
import sys

import pytest

from benchmarks import client_states

_SECONDS = {
  client_states.SCAFFOLD: [2.0, 2.0],
  client_states.FED_AVG: [1.5, 1.5],
  client_states.READ: [0.02, 0.04],
  client_states.WRITE: [0.05, 0.05],
  client_states.COMMIT: [0.3],
}


def test_a_commit_is_shared_by_ten_rounds():
  share, with_commits = client_states.shares_of_round(_SECONDS)
  assert share == pytest.approx((0.03 + 0.05) / 2.0)
  assert with_commits == pytest.approx((0.03 + 0.05 + 0.03) / 2.0)


def test_without_a_commit_there_is_none_to_share():
  shares = client_states.shares_of_round({**_SECONDS, client_states.COMMIT: []})
  assert shares == pytest.approx((0.04, 0.04))


def test_the_table_has_a_row_for_each_part():
  lines = client_states.table(_SECONDS).splitlines()
  assert len(lines) == 2 + 5
  assert [cell.strip() for cell in lines[4].split('|')[1:-1]] == [
    "of it, reading the cohort's states",
    '30',
    '40',
    '1.5%',
  ]


def test_memory_is_that_of_the_processes_alive():
  assert client_states.peak_megabytes()['the program'] > 10


@pytest.mark.slow
def test_benchmark_writes_its_table(tmp_path):
  output = tmp_path / 'table.md'
  program = subprocess.run(
    [sys.executable, '-m', 'benchmarks.client_states', '--num_clients=4']
    + ['--clients=2', '--rounds=8', f'--output={output}', f'--directory={tmp_path}'],
    cwd=pathlib.Path(__file__).parents[2],
    capture_output=True,
    text=True,
  )
  assert program.returncode == 0, program.stderr
  text = output.read_text()
  assert text.count('\n|') == 6
  assert 'The store: 4 clients, 0.0 GB on disk' in text
  assert [p.name for p in tmp_path.iterdir()] == ['table.md']
