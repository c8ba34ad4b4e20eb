"""Tests of the benchmark itself."""

import pathlib
import subprocess
import sys

import numpy as np
import pytest

from benchmarks import scaling
from benchmarks.scaling import Block, Megabytes, OfSize

_ROOT = pathlib.Path(__file__).parents[2]
_SIZES = [
  OfSize(10, np.array([0.1, 0.3, 0.2]), np.array([500, 500, 1000]), Megabytes(600, 80)),
  OfSize(1_000, np.array([2.0]), np.array([100_000]), Megabytes(1_600, 90)),
]
_BLOCKS = [
  Block(100, np.array([0.01] * 100), Megabytes(600, 80)),
  Block(200, np.array([0.02] * 100), Megabytes(601.5, 80.25)),
]


def _run(*flags, **arguments):
  return subprocess.run(
    [sys.executable, '-m', 'benchmarks.scaling', *flags],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=300,
    **arguments,
  )


def _cells(table):
  lines = table.splitlines()[2:]
  return [[cell.strip() for cell in line.split('|')[1:-1]] for line in lines]


def test_sizes_have_medians_and_the_most_memory():
  assert _cells(scaling.size_table(_SIZES)) == [
    ['10', '0.200', '0.150 - 0.250', '0.2000', '600', '80'],
    ['1,000', '2.000', '2.000 - 2.000', '0.0200', '1,600', '90'],
  ]


def test_blocks_have_medians_and_the_memory_after_them():
  assert _cells(scaling.block_table(_BLOCKS)) == [
    ['1 - 100', '10.0', '10.0 - 10.0', '600.0', '80.0'],
    ['101 - 200', '20.0', '20.0 - 20.0', '601.5', '80.2'],
  ]


def test_a_long_run_is_cut_in_ten():
  done = []

  def run(cohort):
    done.append(cohort)
    return float(len(done))

  blocks = scaling.measure_blocks(run, [[i] for i in range(30)])
  assert done == [[i] for i in range(30)]
  assert [block.last_round for block in blocks] == list(range(3, 31, 3))
  assert [list(block.seconds) for block in blocks[:2]] == [[1, 2, 3], [4, 5, 6]]
  assert all(block.resident.program > 10 for block in blocks)


def test_rounds_to_warm_up_do_not_count():
  seconds = iter([9.0, 9.0, 1.0, 2.0])
  cohorts = [[0, 1], [2, 3], [0, 2], [1, 3]]
  own = scaling.measure_size(lambda cohort: next(seconds), cohorts, [10, 20, 30, 40])
  assert own.num_clients == 2
  assert own.seconds.tolist() == [1, 2]
  assert own.examples.tolist() == [40, 60]


@pytest.mark.parametrize(
  'flag',
  [
    '--clients=0',
    '--clients=',
    '--clients=3000',
    '--num_clients=5',
    '--long_run_clients=3000',
    '--runtime=cloud',
  ],
)
def test_a_wrong_value_is_told_before_anything_slow(flag, without_tensorflow):
  done = _run(flag, env=without_tensorflow)
  assert done.returncode == 1
  assert 'Traceback' not in done.stderr
  assert 'Flags parsing error' in done.stderr


def test_help_needs_no_tensorflow(without_tensorflow):
  assert '--clients' in _run('--helpshort', env=without_tensorflow).stdout


@pytest.mark.slow
def test_benchmark_writes_its_tables_and_its_picture(tmp_path):
  page = tmp_path / 'scaling.md'
  flags = ['--clients=5,2', '--num_clients=10', '--rounds=2', '--block=2']
  names = ['in_process', 'local', 'remote']
  flags += ['--long_run_clients=3', *(f'--runtime={name}' for name in names)]
  done = _run(*flags, f'--output={page}')
  assert done.returncode == 0, done.stderr
  paragraphs = page.read_text().split('\n\n')
  assert [p for p in paragraphs if p.startswith('`')] == [
    f'`--runtime={name}`:' for name in names
  ]
  tables = [p for p in paragraphs if p.startswith('|')]
  assert all(table in done.stdout for table in tables)
  for of_sizes, of_blocks, workers in zip(
    tables[::2], tables[1::2], (False, True, True), strict=True
  ):
    assert [cells[0] for cells in _cells(of_sizes)] == ['2', '5']
    assert len(_cells(of_blocks)) == 10
    assert (_cells(of_sizes)[0][-1] != '0') == workers
  assert sorted(p.name for p in tmp_path.iterdir()) == ['scaling.md', 'scaling.png']
