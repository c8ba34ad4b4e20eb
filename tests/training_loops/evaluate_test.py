"""Tests of evaluating a run."""

import csv
import subprocess
import sys

import numpy as np
import pytest

import tasks
from training_loops import checkpoints, evaluate, run, run_directory, train_flags
from training_loops.options import UserError


def test_the_table_has_the_percentiles_over_clients():
  accuracies = np.linspace(0, 1, 101)
  clients = {str(i): {'accuracy': a} for i, a in enumerate(accuracies)}
  header, _, row = evaluate.table({'accuracy': 0.75}, clients).splitlines()
  assert [cell.strip() for cell in header.split('|')[2:-1]] == [
    *('all examples', 'mean of clients'),
    *('min', '5 %', '25 %', '50 %', '75 %', '95 %', 'max'),
  ]
  assert [cell.strip() for cell in row.split('|')[1:-1]] == [
    *('accuracy', '0.7500', '0.5000'),
    *('0.0000', '0.0500', '0.2500', '0.5000', '0.7500', '0.9500', '1.0000'),
  ]


def test_the_table_leaves_out_clients_for_whom_a_metric_is_not_defined():
  clients = {'a': {'auc': float('nan')}, 'b': {'auc': 0.25}, 'c': {'auc': 0.75}}
  *_, row = evaluate.table({'auc': 0.6}, clients).splitlines()
  cells = [cell.strip() for cell in row.split('|')[1:-1]]
  assert [*cells[:4], cells[-1]] == ['auc', '0.6000', '0.5000', '0.2500', '0.7500']
  *_, row = evaluate.table({'auc': 0.6}, {'a': clients['a']}).splitlines()
  assert row.count('nan') == 8


def _with_checkpoints(path) -> run_directory.RunDirectory:
  store = checkpoints.Store(path / 'checkpoints')
  for round_num in (2, 4, 6):
    record = {'round': round_num, 'best_round': 2}
    store.save(round_num, {'x': np.zeros(1)}, record, best_round=2)
  return run_directory.RunDirectory(path)


def test_the_last_and_the_best_checkpoint_are_found(tmp_path):
  directory = _with_checkpoints(tmp_path)
  assert evaluate.find_checkpoint(directory, 'last').record['round'] == 6
  assert evaluate.find_checkpoint(directory, 'best').record['round'] == 2


def test_a_best_checkpoint_that_is_damaged_or_gone_is_named(tmp_path):
  directory = _with_checkpoints(tmp_path)
  best = tmp_path / 'checkpoints' / 'round_00000002.ckpt'
  best.write_bytes(b'')
  with pytest.raises(UserError, match='round_00000002'):
    evaluate.find_checkpoint(directory, 'best')
  best.unlink()
  with pytest.raises(UserError, match='round_00000002'):
    evaluate.find_checkpoint(directory, 'best')


def test_a_run_without_checkpoints_has_nothing_to_evaluate(tmp_path):
  with pytest.raises(UserError, match='no whole checkpoint yet'):
    evaluate.find_checkpoint(run_directory.RunDirectory(tmp_path), 'last')


def _evaluate(*flags: str) -> subprocess.CompletedProcess:
  return subprocess.run(
    [sys.executable, '-m', 'training_loops.evaluate', *flags],
    capture_output=True,
    text=True,
    timeout=120,
  )


def test_a_directory_that_is_no_run_is_one_line_and_exit_code_2(tmp_path):
  done = _evaluate(f'--run={tmp_path}')
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr == (
    f'evaluate: error: {tmp_path} is no run: it has no config.json.\n'
  )


@pytest.mark.slow
def test_a_run_is_evaluated_client_by_client(runtime, tmp_path):
  path = tmp_path / 'run'
  result = run.train(
    train_flags.configure(
      task='digits_logistic',
      algorithm='fed_avg',
      # So many that some clients have nothing to be tested on.
      num_clients=300,
      rounds=5,
      output_dir=path,
    ),
    runtime=runtime,
  )
  done = _evaluate(f'--run={path}', '--checkpoint=best')
  assert (done.returncode, done.stderr) == (0, '')

  test = tasks.load('digits_logistic', seed=0, num_clients=300).test
  sizes = {client: test.num_examples(client) for client in test.client_ids}
  assert min(sizes.values()) == 0
  with open(path / 'evaluation.csv') as file:
    rows = {row['client']: row for row in csv.DictReader(file)}
  assert {client: int(row['num_examples']) for client, row in rows.items()} == {
    client: size for client, size in sizes.items() if size
  }
  # Weighted by examples, the clients' accuracies make the accuracy of the run.
  right = sum(float(r['accuracy']) * int(r['num_examples']) for r in rows.values())
  accuracy = right / sum(sizes.values())
  assert accuracy == pytest.approx(result.rows[-1]['eval/accuracy'], abs=1e-6)
  assert f'{accuracy:.4f}' in done.stdout
  assert 'more clients have none' in done.stdout
  assert (path / 'evaluation.md').read_text() in done.stdout
  assert (path / 'evaluation.png').stat().st_size > 10_000

  done = _evaluate(f'--run={path}', '--max_clients=7')
  assert done.returncode == 0
  with open(path / 'evaluation.csv') as file:
    some = list(csv.DictReader(file))
  assert len(some) == 7
  for row in some:
    assert int(row['num_examples']) == sizes[row['client']] > 0
  assert 'of 7 clients.' in done.stdout
