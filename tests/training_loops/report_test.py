"""End-to-end tests of the report binary, run as a user runs it."""

import json
import os
import subprocess
import sys

import pytest

from training_loops import train_flags

_FILES = ['curves.csv', 'curves.png', 'report.html', 'report.md', 'results.csv']
_HEADER = (
  'round,train/loss,train/num_clients,train/num_clients_left_out,train/bytes_down,'
  'train/bytes_up,eval/loss,eval/accuracy'
)


@pytest.fixture(name='report')
def report_binary(without_tensorflow):
  def run(*arguments) -> subprocess.CompletedProcess:
    return subprocess.run(
      [sys.executable, '-m', 'training_loops.report', *map(str, arguments)],
      capture_output=True,
      text=True,
      timeout=60,
      env=without_tensorflow,
    )

  return run


def _write_run(path, accuracies=(0.25, 0.5), **flags):
  """A finished run that was evaluated after rounds 10, 20..., written by hand."""
  rounds = 10 * len(accuracies)
  chosen = {'task': 'digits_logistic', 'algorithm': 'fed_avg', **flags}
  made = train_flags.configure(**chosen, rounds=rounds, output_dir=path)
  path.mkdir(parents=True)
  (path / 'config.json').write_text(json.dumps({'flags': made, 'versions': {}}))
  lines = [
    f'{10 * (i + 1)},2.0,10.0,0.0,2600,2500,{1 - value},{value}'
    for i, value in enumerate(accuracies)
  ]
  (path / 'metrics.csv').write_text('\n'.join([_HEADER, *lines, '']))
  (path / 'timing.csv').write_text(f'round,seconds\n{rounds},1.5\n')
  result = {'rounds': rounds, 'best_round': 10, 'final': {}}
  (path / 'result.json').write_text(json.dumps(result))


def _content(directory) -> dict:
  return {p: p.read_bytes() for p in directory.rglob('*') if p.is_file()}


def _assert_is_refused(done, message: str):
  assert (done.returncode, done.stdout) == (2, ''), done.stderr
  assert done.stderr.startswith('report: error: ')
  assert message in done.stderr
  assert done.stderr.count('\n') == 1


def test_runs_become_a_table_on_stdout_and_a_report_in_files(tmp_path, report):
  _write_run(tmp_path / 'runs' / 'a' / 'seed_0', seed=0)
  _write_run(tmp_path / 'runs' / 'a' / 'seed_1', (0.25, 0.75), seed=1)
  _write_run(tmp_path / 'b', (0.125,), algorithm='fed_prox', label='Mine')
  numbers = tmp_path / 'published.csv'
  numbers.write_text('name,best\nMine,15%\n')
  before = _content(tmp_path)
  output_dir = tmp_path / 'x' / 'y'
  done = report(
    *(tmp_path / 'runs', tmp_path / 'b', '--target=0.5', '--title=A title'),
    *(f'--published={numbers}', f'--output_dir={output_dir}'),
  )
  assert (done.returncode, done.stderr) == (0, '')
  assert sorted(os.listdir(output_dir)) == _FILES
  header, first, second = (
    [cell.strip() for cell in line.strip('|').split('|')]
    for line in done.stdout.splitlines()
    if line.startswith('|') and '--' not in line
  )
  assert header[:5] == [
    '',
    'seeds',
    'final accuracy',
    'best accuracy',
    'rounds to 50.0%',
  ]
  # (0.5 + 0.75) / 2 = 0.625, and the deviation is 0.25 / sqrt(2) = 0.177.
  assert first[:5] == ['fed_avg', '2', '62.5% ± 17.7', '62.5% ± 17.7', '20']
  assert second[:5] == ['Mine', '1', '12.5%', '12.5%', 'never']
  assert second[-2:] == ['15.0%', '-2.5']
  assert f'Page: {output_dir / "report.html"}\n' in done.stdout
  assert f'Picture: {output_dir / "curves.png"}\n' in done.stdout
  # The same table is in the file, and the runs are as they were.
  text = (output_dir / 'report.md').read_text()
  assert text.startswith('# A title\n')
  assert all(line in text for line in done.stdout.splitlines() if line.startswith('|'))
  after = _content(tmp_path)
  assert {path: after[path] for path in before} == before


@pytest.fixture(name='runs')
def good_and_bad_runs(tmp_path):
  """A run `a`, what goes wrong beside it, and an old report."""
  _write_run(tmp_path / 'a')
  _write_run(tmp_path / 'mlp', task='digits_mlp')
  _write_run(tmp_path / 'fewer', num_clients=20)
  _write_run(tmp_path / 'no_rows')
  (tmp_path / 'no_rows' / 'metrics.csv').write_text('')
  _write_run(tmp_path / 'no_numbers')
  (tmp_path / 'no_numbers' / 'metrics.csv').write_text('round,eval/loss\n1,x\n')
  _write_run(tmp_path / 'no_config')
  (tmp_path / 'no_config' / 'config.json').write_text('{')
  _write_run(tmp_path / 'no_result')
  (tmp_path / 'no_result' / 'result.json').write_text('{')
  (tmp_path / 'no_run' / 'below').mkdir(parents=True)
  (tmp_path / 'unknown.csv').write_text('name,best\nFedAgv,0.5\n')
  (tmp_path / 'no_table.csv').write_text('a,b\n')
  (tmp_path / 'old').mkdir()
  for name in _FILES:
    (tmp_path / 'old' / name).write_text('old')
  return tmp_path


@pytest.mark.parametrize(
  ('words', 'flags', 'message'),
  [
    ([], [], 'name the directory of a run'),
    (['no_run'], [], 'no_run is no run and holds none'),
    (['a', 'no_run'], [], 'no_run is no run and holds none'),
    (['a', 'absent'], [], 'absent is no run: there is no such directory'),
    (['a/config.json'], [], 'is no run: it is a file'),
    (['a', 'mlp'], [], '--task=digits_mlp'),
    (['a', 'fewer'], [], '--num_clients=20'),
    (['no_rows'], [], 'no run has evaluated a round yet'),
    (['no_config'], [], 'config.json cannot be read'),
    (['no_numbers'], [], 'metrics.csv'),
    (['no_result'], [], 'result.json'),
    (['a'], ['--metric=eval/acuracy'], 'no metric eval/acuracy'),
    (['a'], ['--target=high'], '--target=high: expected a number'),
    (['a'], ['--published={}/absent.csv'], 'absent.csv cannot be read'),
    (['a'], ['--published={}/no_table.csv'], 'no_table.csv needs a heading'),
    (['a'], ['--published={}/unknown.csv'], 'FedAgv'),
    (['a'], ['--rounds=3'], 'unknown flag --rounds'),
  ],
)
def test_a_mistake_is_one_line_and_exit_code_2_and_leaves_an_older_report(
  runs, report, words, flags, message
):
  before = _content(runs)
  done = report(
    *(runs / word for word in words),
    *(flag.format(runs) for flag in flags),
    f'--output_dir={runs / "old"}',
  )
  _assert_is_refused(done, message)
  assert _content(runs) == before


def test_where_a_report_cannot_be_written_nothing_is(runs, report):
  before = _content(runs)
  done = report(runs / 'a', f'--output_dir={runs / "unknown.csv"}')
  _assert_is_refused(done, 'not a directory')
  done = report(runs / 'a')
  _assert_is_refused(done, '--output_dir is needed')
  assert _content(runs) == before


def test_the_picture_of_a_run_is_not_overwritten_by_a_report_on_it(runs, report):
  (runs / 'a' / 'curves.png').write_text('of the run')
  before = _content(runs)
  done = report(runs / 'a', f'--output_dir={runs / "a"}')
  _assert_is_refused(done, str(runs / 'a'))
  assert _content(runs) == before


def test_help_says_what_stands_before_the_flags(report):
  done = report('--helpshort')
  assert (done.returncode, done.stderr) == (0, '')
  assert 'python -m training_loops.report runs/a runs/b --output_dir=report' in (
    done.stdout
  )
  assert '--published=PATH' in done.stdout
