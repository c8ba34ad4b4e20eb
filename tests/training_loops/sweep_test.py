"""End-to-end tests of sweeps, run as a user runs them."""

import csv
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from tests.training_loops import child_processes
from training_loops import files as training_files
from training_loops import results, sweep_files, sweeps

_FLAGS = (
  'flags: {task: digits_logistic, algorithm: fed_avg, rounds: 4, rounds_per_eval: 2}\n'
)
_RATES = 'search: {client_learning_rate: [0.1, 0.3, 1]}\n'


def _command(tmp_path, text: str, *flags: str) -> list[str]:
  file = tmp_path / 'sweep.yaml'
  file.write_text(text)
  return [
    *(sys.executable, '-m', 'training_loops.sweep', f'--file={file}'),
    f'--output_dir={tmp_path / "out"}',
    *flags,
  ]


def _sweep(tmp_path, text: str, *flags: str, **more) -> subprocess.CompletedProcess:
  return subprocess.run(
    _command(tmp_path, text, *flags),
    capture_output=True,
    text=True,
    timeout=300,
    **more,
  )


def _rows(path: pathlib.Path) -> list[dict[str, str]]:
  with open(path / 'sweep.csv', newline='') as file:
    return list(csv.DictReader(file))


def _metrics(path: pathlib.Path) -> dict[str, bytes]:
  found = path.rglob('metrics.csv')
  return {file.parent.name: file.read_bytes() for file in found}


@pytest.fixture(scope='module')
def reference(tmp_path_factory):
  """A sweep that nothing disturbed, and what it said."""
  path = tmp_path_factory.mktemp('reference')
  return path, _sweep(path, _FLAGS + _RATES)


@pytest.mark.slow
def test_a_sweep_ends_with_a_table_a_flagfile_and_pictures(reference):
  path, done = reference
  assert (done.returncode, done.stderr) == (0, '')
  out = path / 'out'
  runs = {
    name: results.load(out / 'runs' / f'client_learning_rate={name}')
    for name in ('0.1', '0.3', '1')
  }
  best_of = {n: max(row['eval/accuracy'] for row in r.rows) for n, r in runs.items()}
  order = sorted(best_of, key=lambda name: -best_of[name])
  rows = _rows(out)
  assert [row['client_learning_rate'] for row in rows] == order
  assert [row['state'] for row in rows] == ['done'] * 3
  assert [float(row['best eval/accuracy']) for row in rows] == [
    best_of[name] for name in order
  ]
  assert (out / 'best.flags').read_text() == (
    '--task=digits_logistic\n--algorithm=fed_avg\n--rounds=4\n--rounds_per_eval=2\n'
    f'--client_learning_rate={order[0]}\n'
  )
  for name in ('sweep.png', 'best/curves.png'):
    assert (out / name).read_bytes().startswith(b'\x89PNG')
  assert 'client_learning_rate=0.3' in (out / 'best' / 'report.html').read_text()
  lines = done.stdout.splitlines()
  assert [line.split()[0] for line in lines[:3]] == ['1/3', '2/3', '3/3']
  assert f'best {best_of[order[0]]:.1%} (client_learning_rate={order[0]})' in lines[2]
  assert (out / 'sweep.md').read_text().split('\n\n')[1].strip() in done.stdout


@pytest.mark.slow
def test_a_finished_sweep_says_so_at_once_and_makes_no_run(
  reference, without_tensorflow
):
  path, first = reference
  files = list((path / 'out' / 'runs').rglob('*'))
  before = {file: file.stat().st_mtime_ns for file in files}
  done = _sweep(path, _FLAGS + _RATES, env=without_tensorflow)
  assert (done.returncode, done.stderr) == (0, '')
  assert done.stdout.strip() == first.stdout.partition('\n\n')[2].strip()
  assert {file: file.stat().st_mtime_ns for file in files} == before


@pytest.mark.slow
def test_the_best_flags_can_be_trained_with(reference, tmp_path):
  path, _ = reference
  flagfile = path / 'out' / 'best.flags'
  done = subprocess.run(
    [
      *(sys.executable, '-m', 'training_loops.train', f'--flagfile={flagfile}'),
      f'--output_dir={tmp_path / "run"}',
    ],
    capture_output=True,
    text=True,
    timeout=100,
  )
  assert done.returncode == 0
  best = f'client_learning_rate={_rows(path / "out")[0]["client_learning_rate"]}'
  # The numbers do not depend on how many runs there were at a time.
  assert (tmp_path / 'run' / 'metrics.csv').read_bytes() == _metrics(path)[best]


@pytest.mark.slow
@pytest.mark.parametrize(
  ('signal_number', 'code'), [(signal.SIGKILL, -9), (signal.SIGTERM, 143)]
)
def test_stopped_and_started_again_it_goes_on_and_repeats_nothing(
  tmp_path, signal_number, code
):
  text = _FLAGS.replace('rounds: 4', 'rounds: 60') + _RATES
  undisturbed = tmp_path / 'undisturbed'
  undisturbed.mkdir()
  assert _sweep(undisturbed, text).returncode == 0

  command = _command(tmp_path, text, '--jobs=1')
  with subprocess.Popen(
    command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
  ) as process:
    process.stdout.readline()  # One run is done.
    second = tmp_path / 'out' / 'runs' / 'client_learning_rate=0.3' / 'metrics.csv'
    child_processes.wait_for(second.exists)
    family = child_processes.descendants(process.pid)
    again = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (again.returncode, 'in use by another' in again.stderr) == (2, True)
    process.send_signal(signal_number)
    _, stderr = process.communicate(timeout=100)
  assert process.returncode == code
  assert 'Traceback' not in stderr
  if code > 0:
    assert stderr == (
      'warning: Interrupted; all is saved. The same command continues.\n'
    )
  child_processes.wait_for(lambda: not any(map(child_processes.is_alive, family)))

  first = tmp_path / 'out' / 'runs' / 'client_learning_rate=0.1'
  before = {file: file.stat().st_mtime_ns for file in first.rglob('*')}
  done = subprocess.run(command, capture_output=True, text=True, timeout=200)
  assert (done.returncode, done.stderr) == (0, '')
  assert done.stdout.startswith('2/3 client_learning_rate=0.3: ')
  assert {file: file.stat().st_mtime_ns for file in first.rglob('*')} == before
  assert _metrics(tmp_path / 'out') == _metrics(undisturbed)
  assert [row['state'] for row in _rows(tmp_path / 'out')] == ['done'] * 3


_TASK = """
import os
import signal
import tasks

def task(name, seed):
  if seed == 1:
    os.kill(os.getpid(), signal.SIGKILL)
  if seed == 2:
    raise RuntimeError('two is too much')
  return tasks.load('digits_logistic', seed)
"""


@pytest.mark.slow
def test_runs_that_die_diverge_or_are_refused_are_recorded_and_the_others_made(
  tmp_path,
):
  (tmp_path / 'deadly.py').write_text(_TASK)
  text = textwrap.dedent("""
    flags: {task: deadly.task, algorithm: fed_avg, rounds: 4, rounds_per_eval: 1}
    search:
      seed: [0, 1, 2]
      client_learning_rate: [0.1, 1.0e+38]
      clients_per_round: [10, 51]
  """)
  paths = os.pathsep.join([str(tmp_path), os.environ.get('PYTHONPATH', '')])
  done = _sweep(tmp_path, text, env={**os.environ, 'PYTHONPATH': paths})
  assert (done.returncode, done.stderr) == (0, '')
  found = {
    (int(row['seed']), float(row['client_learning_rate']), row['clients_per_round']): (
      row['state'],
      row['reason'],
    )
    for row in _rows(tmp_path / 'out')
  }
  assert len(found) == 12
  for (seed, rate, clients), (state, reason) in found.items():
    if seed == 1:
      assert (state, 'killed by SIGKILL' in reason) == ('failed', True)
    elif seed == 2:
      assert (state, reason) == ('failed', 'RuntimeError: two is too much')
    elif clients == '51':
      assert (state, '--clients_per_round=51' in reason) == ('failed', True)
    elif rate > 1:
      assert (state, 'diverged by round' in reason) == ('diverged', True)
    else:
      assert (state, reason) == ('done', '')
  assert '--client_learning_rate=0.1\n' in (tmp_path / 'out' / 'best.flags').read_text()


@pytest.mark.slow
def test_if_no_run_can_be_done_it_says_why_and_fails(tmp_path):
  text = _FLAGS + 'search: {clients_per_round: [51, 52]}\n'
  done = _sweep(tmp_path, text)
  assert done.returncode == 1
  assert done.stderr.startswith('sweep: error: no run of the sweep was done: ')
  assert '--clients_per_round=51 is more than the 50 clients' in done.stderr
  assert done.stderr.count('\n') == 1


@pytest.mark.slow
def test_a_losing_run_is_ended_early(tmp_path):
  text = textwrap.dedent("""
    flags: {task: digits_logistic, algorithm: fed_avg, rounds: 40, rounds_per_eval: 5}
    search: {client_learning_rate: [1, 0.9, 0.8, 0.7, 1.0e-4]}
    pruner: median
    prune_after: 10
  """)
  done = _sweep(tmp_path, text, '--jobs=1')
  assert done.returncode == 0
  rows = {row['client_learning_rate']: row for row in _rows(tmp_path / 'out')}
  losing = rows['0.0001']
  assert (losing['state'], losing['reason']) == ('pruned', 'losing at round 10')
  run = results.load(tmp_path / 'out' / 'runs' / 'client_learning_rate=0.0001')
  assert not run.is_finished
  assert run.rows[-1]['round'] < 40


@pytest.mark.slow
def test_two_processes_share_a_sweep_through_a_data_base(tmp_path):
  text = _FLAGS + 'search: {client_learning_rate: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]}\n'
  storage = f'--storage=sqlite:///{tmp_path / "shared.db"}'
  machines = [tmp_path / name for name in ('a', 'b')]
  for machine in machines:
    machine.mkdir()
  processes = [
    subprocess.Popen(
      _command(machine, text, '--jobs=1', storage),
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
      text=True,
    )
    for machine in machines
  ]
  for process in processes:
    _, stderr = process.communicate(timeout=300)
    assert (process.returncode, stderr) == (0, '')
  made = [set(_metrics(machine)) for machine in machines]
  assert not made[0] & made[1]
  assert made[0] | made[1] == {
    f'client_learning_rate=0.{digit}' for digit in range(1, 7)
  }
  # Both wait for the other and tell of all.
  for machine in machines:
    assert [row['state'] for row in _rows(machine / 'out')] == ['done'] * 6


def test_a_dry_run_lists_the_runs_and_writes_nothing(tmp_path, without_tensorflow):
  done = _sweep(tmp_path, _FLAGS + _RATES, '--dry_run', env=without_tensorflow)
  assert (done.returncode, done.stderr) == (0, '')
  rows = [line.split('|')[1:-1] for line in done.stdout.splitlines()[4:]]
  assert [[cell.strip() for cell in row] for row in rows] == [
    ['1', '0.1'],
    ['2', '0.3'],
    ['3', '1'],
  ]
  assert os.listdir(tmp_path) == ['sweep.yaml']


def test_a_dry_run_of_a_bayesian_search_says_what_it_searches(tmp_path):
  text = 'search: {client_learning_rate: {low: 0.1, high: 1}}\nsampler: tpe\ntrials: 7'
  done = _sweep(tmp_path, _FLAGS + text, '--dry_run')
  assert done.returncode == 0
  assert '7 runs (tpe)' in done.stdout
  assert 'client_learning_rate' in done.stdout


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('search: {}', 'the search is empty'),
    ('search: {client_rate: [1]}', 'unknown flag --client_rate'),
    ('search: {server_learning_rate: [1, -1]}', 'expected a number above 0'),
    ('search: {client_learning_rate: [1], fed_prox_rho: [1]}', 'is not used with'),
    (
      'search: {server_learning_rate: {low: -1, high: 1}}\nsampler: tpe\ntrials: 3',
      'expected a number above 0',
    ),
  ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
  tmp_path, without_tensorflow, text, message
):
  done = _sweep(tmp_path, _FLAGS + text, env=without_tensorflow)
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr.startswith('sweep: error: ')
  assert message in done.stderr
  assert done.stderr.count('\n') == 1
  assert os.listdir(tmp_path) == ['sweep.yaml']


def test_a_data_base_that_is_none_is_one_line_and_nothing_is_written(tmp_path):
  done = _sweep(tmp_path, _FLAGS + _RATES, '--storage=nonsense')
  assert (done.returncode, done.stdout) == (2, '')
  assert 'nonsense is no data base that can be used' in done.stderr
  assert done.stderr.count('\n') == 1
  assert os.listdir(tmp_path) == ['sweep.yaml']


@pytest.mark.slow
def test_tasks_may_be_searched_for_too(tmp_path):
  flags = 'flags: {task: digits_logistic, algorithm: fed_avg, rounds: 2}\n'
  done = _sweep(tmp_path, flags + 'search: {num_clients: [20, 50]}\n')
  assert (done.returncode, done.stderr) == (0, '')
  assert [row['state'] for row in _rows(tmp_path / 'out')] == ['done'] * 2
  assert (tmp_path / 'out' / 'best' / 'report.html').exists()


def test_a_directory_with_other_files_is_left_alone(tmp_path):
  out = tmp_path / 'out'
  out.mkdir()
  (out / 'thesis.tex').write_text('precious')
  done = _sweep(tmp_path, _FLAGS + _RATES)
  assert (done.returncode, 'holds other files' in done.stderr) == (2, True)
  assert os.listdir(out) == ['thesis.tex']


@pytest.mark.slow
def test_a_directory_with_another_sweep_is_left_alone(reference):
  path, _ = reference
  before = (path / 'out' / 'sweep.csv').read_bytes()
  done = _sweep(path, _FLAGS + _RATES, '--batch_size=3')
  assert done.returncode == 2
  assert (
    'holds a sweep with other flags: --batch_size (there unset, here 3)' in done.stderr
  )
  assert done.stderr.count('\n') == 1
  assert (path / 'out' / 'sweep.csv').read_bytes() == before


@pytest.mark.slow
def test_a_search_may_be_extended_and_judged_anew_and_repeats_nothing(
  reference, tmp_path
):
  path, _ = reference
  shutil.copytree(path / 'out', tmp_path / 'out')
  before = _metrics(tmp_path)
  files = [file for file in (tmp_path / 'out' / 'runs').rglob('*') if file.is_file()]
  times = {file: file.stat().st_mtime_ns for file in files}
  text = _FLAGS + 'search: {client_learning_rate: [0.1, 0.2, 1]}\nmetric: eval/loss\n'
  done = _sweep(tmp_path, text)
  assert (done.returncode, done.stderr) == (0, '')
  assert set(_metrics(tmp_path)) - set(before) == {'client_learning_rate=0.2'}
  assert {file: file.stat().st_mtime_ns for file in files} == times
  losses = [float(row['best eval/loss']) for row in _rows(tmp_path / 'out')]
  assert losses == sorted(losses) and len(losses) == 3


_NAN = """
import dataclasses
import tasks

def task(name, seed):
  task = tasks.load('digits_logistic', seed)
  def finalize(sums):
    metrics = task.model.finalize_metrics(sums)
    metrics['odd'] = metrics['accuracy'] * float('nan')
    return metrics
  model = dataclasses.replace(task.model, finalize_metrics=finalize)
  return dataclasses.replace(task, model=model)
"""


@pytest.mark.slow
def test_a_metric_that_is_never_a_number_is_a_reason_to_fail(tmp_path):
  (tmp_path / 'odd.py').write_text(_NAN)
  text = (_FLAGS + _RATES).replace('digits_logistic', 'odd.task')
  paths = os.pathsep.join([str(tmp_path), os.environ.get('PYTHONPATH', '')])
  for _ in range(2):  # The second time the runs are found as they are.
    done = _sweep(
      tmp_path, text + 'metric: eval/odd\n', env={**os.environ, 'PYTHONPATH': paths}
    )
    assert done.returncode == 1
    assert done.stderr == (
      'sweep: error: no run of the sweep was done: eval/odd is not a number.\n'
    )
    (tmp_path / 'out' / 'sweep.db').unlink()


@pytest.mark.slow
def test_a_run_that_is_still_being_saved_is_waited_for(tmp_path):
  assert (
    _sweep(tmp_path, _FLAGS + 'search: {client_learning_rate: [0.1]}').returncode == 0
  )
  directory = tmp_path / 'out' / 'runs' / 'client_learning_rate=0.3'
  directory.mkdir()
  command = _command(tmp_path, _FLAGS + 'search: {client_learning_rate: [0.1, 0.3]}')
  with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
    with training_files.locked(directory):
      assert process.stdout.readline().startswith('1/2 client_learning_rate=0.1')
      time.sleep(2)
    assert 'in use' not in process.stdout.read()
  assert process.returncode == 0
  assert [row['state'] for row in _rows(tmp_path / 'out')] == ['done'] * 2


@pytest.mark.slow
def test_a_metric_that_the_task_does_not_have_is_one_line(tmp_path):
  done = _sweep(tmp_path, _FLAGS + _RATES + 'metric: eval/recall\n')
  assert done.returncode == 2
  assert 'there is no metric eval/recall, but eval/loss, eval/accuracy' in done.stderr
  assert done.stderr.count('\n') == 1


@pytest.mark.slow
def test_as_a_function_it_returns_the_best_flags(tmp_path):
  file = tmp_path / 'sweep.yaml'
  file.write_text(_RATES + 'metric: eval/loss\nvalue: final\n')
  flags = {'task': 'digits_logistic', 'algorithm': 'fed_avg', 'rounds': 2}
  outcome = sweeps.run(sweep_files.read(file, flags), tmp_path / 'out')
  losses = {
    rate: results.load(tmp_path / 'out' / 'runs' / f'client_learning_rate={rate}').rows[
      -1
    ]['eval/loss']
    for rate in ('0.1', '0.3', '1')
  }
  best = min(losses, key=losses.get)
  assert str(outcome.best.point['client_learning_rate']) == best
  assert outcome.best.value == losses[best]
  assert outcome.best_flags == {**flags, **outcome.best.point}
