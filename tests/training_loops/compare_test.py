"""Tests of comparing algorithms: from command lines to runs, and as a user does it."""

import csv
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from tests.training_loops.child_processes import descendants, is_alive, wait_for
from training_loops import compare, files, results, train_flags
from training_loops.options import UserError

_TASK = {'task': 'digits_logistic'}
_TWO = {'A': ['--algorithm=fed_avg'], 'B': ['--algorithm=fed_prox']}


def _content(directory) -> dict:
  return {p: p.read_bytes() for p in directory.rglob('*') if p.is_file()}


# One run.


def test_the_name_of_a_run_stands_before_a_colon():
  for words in (
    'FedAvg: --algorithm=fed_avg --batch_size=3',
    '  FedAvg :  --algorithm=fed_avg\n  --batch_size=3 ',
    'FedAvg:--algorithm=fed_avg --batch_size=3',
  ):
    expected = ('FedAvg', ['--algorithm=fed_avg', '--batch_size=3'])
    assert compare.parse_run(words) == expected


def test_a_name_may_have_blanks_and_signs():
  name, _ = compare.parse_run('FedProx (ρ = 0.3), slow: --algorithm=fed_prox')
  assert name == 'FedProx (ρ = 0.3), slow'


def test_a_run_without_a_name_is_called_by_its_flags():
  assert compare.parse_run('--algorithm=fed_avg') == (
    'fed_avg',
    ['--algorithm=fed_avg'],
  )
  name, _ = compare.parse_run('--algorithm=fed_avg --batch_size=3')
  assert name == 'fed_avg, batch_size=3'


def test_a_run_that_is_a_flagfile_is_called_by_it():
  words = '--flagfile=some/where/mine.flags'
  assert compare.parse_run(words) == ('mine', [words])
  assert compare.parse_run(f'Mine: {words}') == ('Mine', [words])


def test_a_colon_in_a_flag_is_not_that_of_a_name():
  words = '--algorithm=fed_avg --data_dir=a:b --client_weighting=c: d'
  assert compare.parse_run(words)[1] == words.split()
  name, arguments = compare.parse_run('A: --data_dir=b: --algorithm=fed_avg')
  assert (name, arguments) == ('A', ['--data_dir=b:', '--algorithm=fed_avg'])


def test_quotes_hold_together_what_has_blanks():
  for words in ('A: --data_dir="b  c" --rounds=3', "A: '--data_dir=b  c' --rounds=3"):
    assert compare.parse_run(words) == ('A', ['--data_dir=b  c', '--rounds=3'])


@pytest.mark.parametrize(
  ('words', 'message'),
  [
    ('A: --data_dir="b', 'No closing quotation'),
    ('A:', 'expected flags'),
    ('A: ', 'expected flags'),
    ('', 'expected flags'),
    ('  ', 'expected flags'),
    ('A: --algorithm=fed_avg --seed=3', '--seed is for the comparison as a whole'),
    ('A: --seed 3', '--seed is for the comparison as a whole'),
    ('--output_dir=x', '--output_dir is for the comparison as a whole'),
    ('--algorithm=fed_avg -label=x', '--label is for the comparison as a whole'),
  ],
)
def test_a_run_that_cannot_be_read_is_refused_as_it_was_written(words, message):
  with pytest.raises(UserError) as caught:
    compare.parse_run(words)
  assert str(caught.value).startswith(f'--run={words}: ')
  assert message in str(caught.value)


# All runs.


def test_every_algorithm_is_run_with_the_same_seeds_from_the_first_on():
  every_flags = compare.configure(_TWO, {**_TASK, 'seed': 5}, 3, 'x')
  made = [(f['label'], f['algorithm'], f['seed']) for f in every_flags]
  assert made == [
    *[('A', 'fed_avg', seed) for seed in (5, 6, 7)],
    *[('B', 'fed_prox', seed) for seed in (5, 6, 7)],
  ]
  seeds = [flags['seed'] for flags in compare.configure(_TWO, _TASK, 1, 'x')]
  assert seeds == [0, 0]


def test_each_run_has_a_directory_of_its_own_below_that_of_all():
  runs = {'a': _TWO['A'], 'a/b': _TWO['A'], 'a/../b': _TWO['A'], 'Ä, c': _TWO['B']}
  every_flags = compare.configure(runs, _TASK, 2, 'x')
  paths = [pathlib.Path(flags['output_dir']) for flags in every_flags]
  assert len(set(paths)) == 8
  assert all(path.parents[1] == pathlib.Path('x') for path in paths)
  assert len({path.parent for path in paths}) == 4


def test_names_that_would_share_a_directory_are_refused():
  with pytest.raises(UserError, match='would share a directory'):
    compare.configure({'a b': _TWO['A'], 'a_b': _TWO['B']}, _TASK, 1, 'x')


def test_the_flags_are_those_that_train_would_have():
  (flags,) = compare.configure(
    {'A': ['--algorithm=fed_avg', '--batch_size=3']},
    {**_TASK, 'rounds': 7, 'dropout_rate': 0.25},
    1,
    'x',
  )
  assert flags == train_flags.configure(
    **_TASK,
    algorithm='fed_avg',
    batch_size=3,
    rounds=7,
    dropout_rate=0.25,
    seed=0,
    label='A',
    output_dir='x/A/seed_0',
  )


def test_of_a_flag_for_all_and_for_one_that_for_one_counts():
  runs = {'A': [*_TWO['A'], '--rounds=7', '--batch_size=3'], 'B': _TWO['B']}
  common = {**_TASK, 'rounds': 9, 'batch_size': 4, 'algorithm': 'fed_prox'}
  first, second = compare.configure(runs, common, 1, 'x')
  chosen = ('algorithm', 'rounds', 'batch_size')
  assert [first[name] for name in chosen] == ['fed_avg', 7, 3]
  assert [second[name] for name in chosen] == ['fed_prox', 9, 4]


def test_a_flagfile_is_read_as_if_its_flags_were_given(tmp_path):
  path = tmp_path / 'mine.flags'
  path.write_text('--algorithm=fed_prox\n--fed_prox_rho=0.5\n')
  (flags,) = compare.configure({'A': [f'--flagfile={path}']}, _TASK, 1, 'x')
  assert (flags['algorithm'], flags['fed_prox_rho']) == ('fed_prox', 0.5)


def test_runs_of_different_tasks_or_of_other_options_of_one_are_refused():
  for other in ('--task=digits_mlp', '--num_clients=20'):
    runs = {'A': _TWO['A'], 'B': [*_TWO['B'], other]}
    with pytest.raises(UserError, match='different tasks') as caught:
      compare.configure(runs, _TASK, 2, 'x')
    assert other in str(caught.value)


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    (['--algorithm=fed_agv'], 'did you mean fed_avg'),
    (['--algorithm=fed_avg', '--fed_prox_rho=1'], '--fed_prox_rho is not used'),
    (['--algorithm=fed_avg', '--rounds=0'], 'expected a whole number'),
    (['--batch_size=3'], '--algorithm is needed'),
    (['fed_avg'], 'unexpected'),
    (['--flagfile=/no/such/file'], '/no/such/file'),
    (['--algorithm=fed_avg', '--straggler_rate=0.5'], 'go together'),
  ],
)
def test_a_refusal_names_the_run(arguments, message):
  with pytest.raises(UserError) as caught:
    compare.configure({'Good': _TWO['A'], 'Bad': arguments}, _TASK, 1, 'x')
  assert str(caught.value).startswith('Bad: ')
  assert message in str(caught.value)
  assert '\n' not in str(caught.value)


def test_a_flag_for_all_that_one_does_not_use_is_refused_with_its_name():
  with pytest.raises(UserError, match=r'^A: --fed_prox_rho is not used'):
    compare.configure(_TWO, {**_TASK, 'fed_prox_rho': 0.5}, 1, 'x')


# As a user runs it.

_FEW = ['--rounds=6', '--rounds_per_eval=2', '--num_seeds=2', '--seed=3']
_RUNS = {'A': '--algorithm=fed_avg', 'B': '--algorithm=fed_prox --fed_prox_rho=0.5'}


def _command(output_dir, *flags: str) -> list[str]:
  return [
    *(sys.executable, '-m', 'training_loops.compare', '--task=digits_logistic'),
    *(f'--output_dir={output_dir}', *flags),
  ]


def _compare(output_dir, *flags: str, environment=None) -> subprocess.CompletedProcess:
  return subprocess.run(
    _command(output_dir, *flags),
    capture_output=True,
    text=True,
    timeout=300,
    env=environment,
  )


def _two() -> list[str]:
  return [f'--run={name}: {flags}' for name, flags in _RUNS.items()]


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    ([], '--run is needed'),
    (['--run='], '--run=: expected a text'),
    (['--run=A:'], '--run=A:: expected flags'),
    (['--run=A: "--algorithm=fed_avg'], 'No closing quotation'),
    (['--run=A: --algorithm=fed_agv'], 'A: --algorithm=fed_agv: did you mean fed_avg'),
    (['--run=A: --algorithm=fed_avg --seed=3'], '--seed is for the comparison'),
    ([*_two(), '--run=A: --algorithm=server_only'], 'two runs A'),
    ([*_two(), '--run=C: --algorithm=fed_avg --task=digits_mlp'], 'different tasks'),
    ([*_two(), '--fed_prox_rho=0.5'], 'A: --fed_prox_rho is not used'),
    ([*_two(), '--round=3'], 'unknown flag --round'),
    ([*_two(), '--rounds=0'], '--rounds=0: expected a whole number'),
    ([*_two(), '--num_seeds=0'], '--num_seeds=0: expected a whole number'),
    ([*_two(), '--jobs=0'], '--jobs=0: expected a whole number'),
    ([*_two(), '--label=C'], '--label'),
    ([*_two(), 'runs/a'], "unexpected 'runs/a'"),
    ([*_two(), '--output_dir=/proc/version/x'], '/proc/version is not a directory'),
    ([*_two(), '--published=/no/such/file'], '/no/such/file cannot be read'),
    ([*_two(), '--published={numbers}'], 'none of the published'),
    ([*_two(), '--published={percent}'], 'written as 0.912 or 91.2%'),
    ([*_two(), '--target=90'], 'a target of 90 is no share: write 0.9'),
    ([*_two(), '--metric=accuracy'], 'metrics are called eval/accuracy'),
  ],
)
def test_a_mistake_is_one_line_and_exit_code_2_at_once_and_nothing_is_written(
  tmp_path, without_tensorflow, flags, message
):
  numbers = tmp_path / 'numbers.csv'
  numbers.write_text('name,best\nC,0.5\n')
  percent = tmp_path / 'percent.csv'
  percent.write_text('name,best\nA,91.2\n')
  flags = [flag.format(numbers=numbers, percent=percent) for flag in flags]
  done = _compare(tmp_path / 'x', *flags, environment=without_tensorflow)
  assert (done.returncode, done.stdout) == (2, ''), done.stderr
  assert done.stderr.startswith('compare: error: ')
  assert message in done.stderr
  assert done.stderr.count('\n') == 1
  assert sorted(os.listdir(tmp_path)) == ['numbers.csv', 'percent.csv']


def test_what_is_said_of_a_run_counts_most_and_a_flagfile_least(tmp_path):
  flagfile = tmp_path / 'best.flags'
  flagfile.write_text('--rounds=1\n--batch_size=1\n--client_epochs=1\n')
  arguments = ['--algorithm=fed_avg', f'--flagfile={flagfile}', '--batch_size=3']
  common = {**_TASK, 'rounds': 2, 'batch_size': 2}
  (flags,) = compare.configure({'A': arguments}, common, 1, tmp_path)
  assert (flags['rounds'], flags['batch_size'], flags['client_epochs']) == (2, 3, 1)


def test_a_directory_of_another_run_is_refused_and_left_alone(
  tmp_path, without_tensorflow
):
  path = tmp_path / 'B' / 'seed_0'
  path.mkdir(parents=True)
  (other,) = compare.configure(
    {'B': ['--algorithm=fed_avg']}, {**_TASK, 'rounds': 100}, 1, tmp_path
  )
  files.write_json(path / 'config.json', {'flags': other})
  before = _content(tmp_path)
  done = _compare(tmp_path, *_two(), environment=without_tensorflow)
  assert (done.returncode, done.stdout) == (2, '')
  assert '--algorithm (there fed_avg, here fed_prox)' in done.stderr
  assert done.stderr.count('\n') == 1
  assert _content(tmp_path) == before


def test_a_run_whose_process_cannot_even_begin_tells_why(tmp_path, without_tensorflow):
  done = _compare(tmp_path / 'x', *_two(), environment=without_tensorflow)
  assert done.returncode == 1
  assert done.stderr.startswith('compare: error: 2 of 2 runs failed: ')
  assert done.stderr.count('\n') == 1
  assert 'It was imported.' in done.stderr  # The last words of that process.


@pytest.fixture(scope='module')
def comparison(tmp_path_factory):
  """The directory of two algorithms with two seeds each, and what was said."""
  path = tmp_path_factory.mktemp('comparison') / 'x'
  return path, _compare(path, *_two(), *_FEW, '--jobs=2', '--target=0.1')


@pytest.fixture(scope='module')
def plain_metrics(tmp_path_factory):
  """The metrics.csv of the same four runs, each made by the training binary."""
  metrics = {}
  for name, flags in _RUNS.items():
    for seed in (3, 4):
      path = tmp_path_factory.mktemp('plain') / 'run'
      common = ['--task=digits_logistic', '--rounds=6', '--rounds_per_eval=2']
      command = [sys.executable, '-m', 'training_loops.train', *common, *flags.split()]
      subprocess.run(
        [*command, f'--seed={seed}', f'--output_dir={path}'],
        check=True,
        capture_output=True,
        timeout=300,
      )
      metrics[f'{name}/seed_{seed}'] = (path / 'metrics.csv').read_bytes()
  return metrics


def _metrics(directory) -> dict[str, bytes]:
  return {
    str(path.parent.relative_to(directory)): path.read_bytes()
    for path in directory.rglob('metrics.csv')
  }


@pytest.mark.slow
def test_a_comparison_ends_with_a_table_and_a_report(comparison):
  path, done = comparison
  assert (done.returncode, done.stderr) == (0, '')
  lines = done.stdout.splitlines()
  ended = [line.partition(':')[0] for line in lines if line[:1].isdigit()]
  assert [text.partition(' ')[0] for text in ended] == ['1/4', '2/4', '3/4', '4/4']
  assert sorted(text.partition(' ')[2] for text in ended) == [
    f'{name}, seed {seed}' for name in 'AB' for seed in (3, 4)
  ]
  header, first, second = (
    [cell.strip() for cell in line.strip('|').split('|')]
    for line in lines
    if line.startswith('|') and '--' not in line
  )
  assert header[:3] == ['', 'seeds', 'final accuracy']
  assert 'rounds to 10.0%' in header
  for name, row in (('A', first), ('B', second)):
    finals = []
    for seed in (3, 4):
      with open(path / name / f'seed_{seed}' / 'metrics.csv', newline='') as file:
        finals.append(float(list(csv.DictReader(file))[-1]['eval/accuracy']))
    # Of two numbers the standard deviation is their distance over sqrt(2).
    mean, deviation = sum(finals) / 2, abs(finals[0] - finals[1]) / 2**0.5
    assert row[:3] == [name, '2', f'{mean:.1%} ± {100 * deviation:.1f}']
  names = ('report.html', 'curves.png', 'report.md', 'results.csv', 'curves.csv')
  assert all((path / name).stat().st_size for name in names)
  assert sorted(os.listdir(path)) == sorted([*names, 'A', 'B'])


@pytest.mark.slow
def test_two_runs_at_a_time_give_the_metrics_that_each_would_give_alone(
  comparison, plain_metrics
):
  assert _metrics(comparison[0]) == plain_metrics


@pytest.mark.slow
def test_one_run_at_a_time_gives_the_metrics_that_each_would_give_alone(
  plain_metrics, tmp_path
):
  done = _compare(tmp_path / 'x', *_two(), *_FEW, '--jobs=1')
  assert done.returncode == 0
  assert _metrics(tmp_path / 'x') == plain_metrics


@pytest.mark.slow
def test_all_runs_of_a_comparison_are_finished_and_bear_their_names(comparison):
  path, _ = comparison
  loaded = [results.load(found) for found in results.find([path])]
  assert [result.is_finished for result in loaded] == [True] * 4
  assert [result.flags['label'] for result in loaded] == ['A', 'A', 'B', 'B']


@pytest.mark.slow
def test_the_same_command_again_changes_no_run_and_needs_no_tensorflow(
  comparison, without_tensorflow
):
  path, first = comparison

  def of_runs():
    return {p: p.stat().st_mtime_ns for name in 'AB' for p in (path / name).rglob('*')}

  def table(done):
    return [line for line in done.stdout.splitlines() if line.startswith('|')]

  before, report = of_runs(), (path / 'report.md').read_bytes()
  done = _compare(
    *(path, *_two(), *_FEW, '--jobs=2', '--target=0.1'), environment=without_tensorflow
  )
  assert (done.returncode, done.stderr) == (0, '')
  assert table(done) == table(first)
  assert of_runs() == before
  assert (path / 'report.md').read_bytes() == report


@pytest.mark.slow
def test_a_run_more_is_all_that_is_trained_and_reported_beside_the_others(comparison):
  path, _ = comparison
  before = _metrics(path)
  third = '--run=C: --algorithm=server_only'
  done = _compare(path, *_two(), third, *_FEW, '--num_seeds=1')
  assert (done.returncode, done.stderr) == (0, '')
  ended = [line for line in done.stdout.splitlines() if line[:1].isdigit()]
  assert len(ended) == 1 and ended[0].startswith('3/3 C, seed 3: ')
  rows = [
    line.split('|')[1].strip() for line in done.stdout.splitlines() if '|' in line
  ]
  assert [name for name in rows if name in ('A', 'B', 'C')] == ['A', 'B', 'C']
  after = _metrics(path)
  assert sorted(set(after) - set(before)) == ['C/seed_3']
  assert {name: after[name] for name in before} == before


@pytest.mark.slow
def test_a_run_that_is_refused_by_its_task_is_one_line_and_nothing_is_written(tmp_path):
  bad = '--run=Bad: --algorithm=fed_avg --clients_per_round=51'
  done = _compare(tmp_path / 'x', bad, '--rounds=2')
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr == (
    'compare: error: Bad, seed 0: --clients_per_round=51 is more than the 50 clients '
    'of digits_logistic.\n'
  )
  assert os.listdir(tmp_path) == []


# Stopped in the middle.

_MANY = ['--rounds=200', '--rounds_per_eval=10', '--rounds_per_checkpoint=7']
_MANY += ['--jobs=2']


@pytest.fixture(scope='module')
def undisturbed(tmp_path_factory):
  path = tmp_path_factory.mktemp('undisturbed') / 'x'
  assert _compare(path, *_two(), *_MANY).returncode == 0
  return _metrics(path)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('signal_number', 'code'),
  [(signal.SIGTERM, 143), (signal.SIGKILL, -9)],
)
def test_stopped_in_the_middle_a_comparison_leaves_no_process_and_can_be_continued(
  undisturbed, tmp_path, signal_number, code
):
  path = tmp_path / 'x'
  runs = [path / name / 'seed_0' for name in 'AB']

  def is_in_the_middle() -> bool:
    return all(
      (run / 'config.json').exists() and results.load(run).rows for run in runs
    )

  with subprocess.Popen(
    _command(path, *_two(), *_MANY),
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
  ) as process:
    try:
      wait_for(is_in_the_middle)
      others = descendants(process.pid)
      process.send_signal(signal_number)
      _, stderr = process.communicate(timeout=60)
    finally:
      process.kill()
  assert process.returncode == code
  assert 'Traceback' not in stderr
  assert len(others) >= 2  # A process for each of the two.
  wait_for(lambda: not any(map(is_alive, others)), seconds=30)
  assert not all(results.load(run).is_finished for run in runs)
  saved = [sorted((run / 'checkpoints').glob('*.ckpt')) for run in runs]
  assert all(saved)
  done = _compare(path, *_two(), *_MANY)
  assert (done.returncode, done.stderr) == (0, '')
  assert _metrics(path) == undisturbed
