"""Tests of the rounds of a run: in this process, on the real runtime."""

import csv
import functools
import json
import logging
import os
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tests.training_loops import disturbed_runs
from tests.training_loops.disturbed_runs import Killed, killed_at, rounds_of
from training_loops import (
  checkpoints,
  evaluation,
  plots,
  records,
  results,
  run,
  train_flags,
  training,
)
from training_loops.options import UserError

pytestmark = pytest.mark.slow


def _flags(output_dir, algorithm='fed_avg', **flags):
  return train_flags.configure(
    **{
      'task': 'digits_mlp',
      'algorithm': algorithm,
      'server_optimizer': None if algorithm == 'server_only' else 'base_adam',
      'num_clients': 6,
      'clients_per_round': 3,
      'rounds': 5,
      'rounds_per_eval': 2,
      'rounds_per_checkpoint': 2,
      'output_dir': output_dir,
      **flags,
    }
  )


@pytest.fixture(scope='module', autouse=True)
def built_once(tmp_path_factory):
  with disturbed_runs.built_once(tmp_path_factory.mktemp('scratch')):
    yield


@pytest.fixture(scope='module')
def reference(tmp_path_factory, runtime):
  """A run that nothing disturbed."""
  path = tmp_path_factory.mktemp('reference') / 'run'
  run.train(_flags(path), runtime=runtime)
  return path


@pytest.fixture
def train(runtime):
  return functools.partial(run.train, runtime=runtime)


def _outcome(path) -> tuple[bytes, bytes]:
  return (path / 'metrics.csv').read_bytes(), (path / 'weights.npz').read_bytes()


def test_a_run_writes_everything_that_was_promised(reference):
  assert sorted(os.listdir(reference)) == sorted(
    [
      '.lock',
      'checkpoints',
      'config.json',
      'curves.png',
      'metrics.csv',
      'result.json',
      'saved_model',
      'tensorboard',
      'timing.csv',
      'train.log',
      'weights.npz',
    ]
  )
  config = json.loads((reference / 'config.json').read_text())
  assert config['flags'] == _flags(reference)
  assert set(config) == {'flags', 'versions', 'git_commit'}


def test_every_evaluated_round_has_a_row_and_the_last_one_too(reference):
  assert rounds_of(reference) == [2, 4, 5]
  with open(reference / 'metrics.csv') as file:
    row = next(csv.DictReader(file))
  assert float(row['train/num_clients']) == 3
  assert {'train/loss', 'train/accuracy', 'eval/loss', 'eval/accuracy'} <= set(row)


def test_the_last_row_is_what_the_written_model_gives(reference):
  rows = training.load_task(_flags(reference)).test.all_rows()
  model = tf.saved_model.load(str(reference / 'saved_model'))
  accuracy = np.mean(np.argmax(model.predict(rows['x']), axis=1) == rows['y'])
  with open(reference / 'metrics.csv') as file:
    last = list(csv.DictReader(file))[-1]
  assert float(last['eval/accuracy']) == pytest.approx(accuracy)


def test_the_same_flags_give_the_same_bytes(reference, train, tmp_path):
  train(_flags(tmp_path / 'a'))
  assert _outcome(tmp_path / 'a') == _outcome(reference)


def test_how_often_a_run_is_saved_does_not_change_it(reference, train, tmp_path):
  train(_flags(tmp_path / 'a', rounds_per_checkpoint=1))
  assert _outcome(tmp_path / 'a') == _outcome(reference)


def test_a_cohort_is_split_in_halves_on_request(train, tmp_path):
  """Also where clients drop out: two at least are left."""
  flags = {'server_optimizer': None, 'dropout_rate': 0.9, 'rounds_per_eval': 1}
  path = tmp_path / 'a'
  train(_flags(path, 'mime_lite', mime_split_cohort=True, **flags))
  with open(path / 'metrics.csv') as file:
    rows = list(csv.DictReader(file))
  assert {float(row['train/num_clients']) for row in rows} == {1}
  assert all(float(row['train/gradient_norm']) > 0 for row in rows)


def test_another_seed_gives_another_model(reference, train, tmp_path):
  train(_flags(tmp_path / 'a', seed=1))
  assert _outcome(tmp_path / 'a') != _outcome(reference)


def test_a_finished_run_is_left_alone(reference, train):
  before = {p: p.stat().st_mtime_ns for p in reference.rglob('*')}
  assert train(_flags(reference)).is_finished
  assert {p: p.stat().st_mtime_ns for p in reference.rglob('*')} == before


def test_a_finished_run_can_be_given_more_rounds(reference, train, tmp_path):
  path = tmp_path / 'a'
  result = train(_flags(path, rounds=2))
  assert [row['round'] for row in result.rows] == [2]
  result = train(_flags(path))
  assert [row['round'] for row in result.rows] == [2, 4, 5]
  assert _outcome(path) == _outcome(reference)
  assert json.loads((path / 'config.json').read_text())['flags']['rounds'] == 5


def test_a_run_that_is_given_more_rounds_is_not_finished_until_they_are_done(
  train, tmp_path, monkeypatch
):
  path = tmp_path / 'a'
  assert train(_flags(path, rounds=2)).is_finished
  monkeypatch.setattr(plots, 'write_curves', _raise_interrupt)
  with pytest.raises(KeyboardInterrupt):
    train(_flags(path, rounds=4))
  assert not results.load(path).is_finished


def _raise_interrupt(*arguments):
  raise KeyboardInterrupt


@pytest.mark.parametrize('rounds', [1, 3])
def test_fewer_rounds_than_are_done_are_refused_and_the_run_is_left_alone(
  train, tmp_path, monkeypatch, rounds
):
  path = tmp_path / 'a'
  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(evaluation.Evaluator, '__call__', _raise_interrupt)
    train(_flags(path, rounds_per_eval=4))  # Saves round 3, which has no row.
  before = (path / 'config.json').read_bytes()
  with pytest.raises(UserError, match=f'--rounds={rounds} is too few: .* has done 3'):
    train(_flags(path, rounds_per_eval=4, rounds=rounds))
  assert (path / 'config.json').read_bytes() == before


def test_a_run_with_other_flags_is_refused_and_left_alone(reference, train):
  before = {p: p.stat().st_mtime_ns for p in reference.rglob('*')}
  with pytest.raises(UserError, match=r'--batch_size \(there 20, here 21\)'):
    train(_flags(reference, batch_size=21))
  assert {p: p.stat().st_mtime_ns for p in reference.rglob('*')} == before


def test_more_clients_a_round_than_there_are_is_refused_before_anything_is_written(
  train, tmp_path
):
  with pytest.raises(UserError, match='--clients_per_round=7 is more than the 6'):
    train(_flags(tmp_path / 'a', clients_per_round=7))
  assert os.listdir(tmp_path) == []


def test_a_damaged_checkpoint_is_named_and_the_run_continues_from_the_one_before(
  reference, train, tmp_path, caplog
):
  path = tmp_path / 'a'
  train(_flags(path, rounds=4))
  (path / 'result.json').unlink()
  last = path / 'checkpoints' / 'round_00000004.ckpt'
  last.write_bytes(last.read_bytes()[:-1])
  with caplog.at_level(logging.INFO, 'training_loops'):
    train(_flags(path))
  assert 'round_00000004.ckpt is damaged' in caplog.text
  assert 'Continuing after round 2.' in caplog.text
  assert _outcome(path) == _outcome(reference)


def test_with_every_checkpoint_damaged_a_run_starts_again(reference, train, tmp_path):
  path = tmp_path / 'a'
  shutil.copytree(reference, path)
  (path / 'result.json').unlink()
  for checkpoint in (path / 'checkpoints').iterdir():
    checkpoint.write_bytes(b'')
  train(_flags(path))
  assert _outcome(path) == _outcome(reference)


def test_a_checkpoint_of_another_model_is_refused(reference, train, tmp_path):
  path = tmp_path / 'a'
  shutil.copytree(reference, path)
  (path / 'result.json').unlink()
  store = checkpoints.Store(path / 'checkpoints')
  store.save(6, {'x': np.zeros(3)}, {'round': 6, 'rows': [], 'seconds': 0}, 6)
  with pytest.raises(UserError, match='written by another version of fed_avg'):
    train(_flags(path, rounds=9))


@pytest.mark.parametrize('at_call', [1, 2, 3])
def test_an_interrupt_during_evaluation_saves_the_last_completed_round(
  reference, train, tmp_path, monkeypatch, at_call
):
  path = tmp_path / 'a'
  calls = []
  evaluate = evaluation.Evaluator.__call__

  def interrupted(self, weights, rows):
    calls.append(1)
    if len(calls) == at_call:
      raise KeyboardInterrupt
    return evaluate(self, weights, rows)

  monkeypatch.setattr(evaluation.Evaluator, '__call__', interrupted)
  with pytest.raises(KeyboardInterrupt):
    train(_flags(path, rounds_per_checkpoint=100))
  monkeypatch.undo()
  completed = [1, 3, 4][at_call - 1]
  assert (path / 'checkpoints' / f'round_{completed:08d}.ckpt').exists()
  train(_flags(path))
  assert _outcome(path) == _outcome(reference)


def test_an_interrupt_between_a_row_and_its_round_does_not_count_the_row(
  reference, train, tmp_path, monkeypatch
):
  path = tmp_path / 'a'
  add = records.Records.add

  def interrupted(self, row, seconds):
    add(self, row, seconds)
    if row['round'] == 4:
      raise KeyboardInterrupt

  monkeypatch.setattr(records.Records, 'add', interrupted)
  with pytest.raises(KeyboardInterrupt):
    train(_flags(path))
  monkeypatch.undo()
  train(_flags(path))
  assert rounds_of(path) == [2, 4, 5]
  assert _outcome(path) == _outcome(reference)


def test_killed_between_any_two_operations_on_files_it_ends_as_one_never_killed(
  reference, train, tmp_path, monkeypatch
):
  operation, is_killed = 0, True
  while is_killed:
    path = tmp_path / str(operation)
    with monkeypatch.context() as patch:
      done = killed_at(patch, operation)
      try:
        train(_flags(path))
        is_killed = False
      except Killed:
        pass
    train(_flags(path))
    assert _outcome(path) == _outcome(reference), done
    assert not [p for p in path.rglob('.*') if p.name != '.lock'], done
    operation += 1
  assert operation > 20


def test_a_run_that_diverges_goes_on_and_warns_once(train, tmp_path, caplog):
  with caplog.at_level(logging.WARNING, 'training_loops'):
    result = train(
      _flags(
        tmp_path / 'a', server_optimizer='sgd', client_learning_rate=1e30, rounds=3
      )
    )
  assert result.is_finished
  assert caplog.text.count('the loss of every client') == 1


def test_a_run_whose_clients_hold_nothing_back_warns_once(train, tmp_path, caplog):
  elastic = dict(elastic_sensitivity='momentum', rounds=3, server_optimizer='sgd')
  with caplog.at_level(logging.WARNING, 'training_loops'):
    rows = train(_flags(tmp_path / 'a', elastic_batch_size=1000, **elastic)).rows
    assert [row['train/zeta_min'] for row in rows] == [1.5] * len(rows)
    assert caplog.text.count('Round 1: no client holds back a batch') == 1
    assert caplog.text.count('which takes 10000 examples') == 1
    assert caplog.text.count('no client holds back') == 1
    rows = train(_flags(tmp_path / 'b', elastic_batch_size=1, **elastic)).rows
    assert rows[-1]['train/zeta_min'] == 0.5
  assert caplog.text.count('no client holds back') == 1


def test_evaluation_on_a_subset_sees_so_many_examples(train, tmp_path):
  result = train(_flags(tmp_path / 'a', max_eval_examples=10, rounds=1))
  assert (result.rows[0]['eval/accuracy'] * 10) % 1 == pytest.approx(0, abs=1e-5)


def test_a_full_disk_that_a_client_meets_is_told_as_one(train, tmp_path, monkeypatch):
  def full(*arguments):
    raise RuntimeError('status: INTERNAL; /tmp/x/2.new; No space left on device')

  with monkeypatch.context() as patch:
    build = training.build_process

    def build_full(*arguments):
      process = build(*arguments)
      patch.setattr(process, '_next_fn', full)
      return process

    patch.setattr(training, 'build_process', build_full)
    with pytest.raises(OSError, match=r'No space left on device: .*TMPDIR'):
      train(_flags(tmp_path / 'a', rounds=1))
  train(_flags(tmp_path / 'a', rounds=1))


def test_where_the_optimum_is_known_the_distance_to_it_is_told(train, tmp_path):
  quadratics = {
    'task': 'quadratics',
    'algorithm': 'server_only',
    'dimension': 3,
    'convexity': 1.0,
    'smoothness': 1.0,
    'hessian_dissimilarity': 0.0,
    'server_learning_rate': 0.5,
  }
  flags = train_flags.configure(
    **quadratics,
    num_clients=4,
    clients_per_round=4,
    rounds=3,
    rounds_per_eval=1,
    output_dir=tmp_path / 'a',
  )
  rows = train(flags).rows
  distances = [row['eval/distance_to_optimum'] for row in rows]
  # From distance 1, and half of it is left after each step.
  np.testing.assert_allclose(distances, [0.5, 0.25, 0.125], rtol=1e-5)


def test_of_a_saddle_point_problem_it_is_told_how_far_its_solution_is(train, tmp_path):
  flags = train_flags.configure(
    task='quadratic_game',
    algorithm='minibatch_mirror_prox',
    heterogeneity=0.0,
    server_learning_rate=0.5,
    rounds=3,
    rounds_per_eval=1,
    output_dir=tmp_path / 'a',
  )
  rows = train(flags).rows
  # G(z) = M z in every coordinate, from z = (1, 1), and mirror-prox steps by it.
  mapping = np.array([[1e-5, -0.5], [0.5, 1.0]])
  step = np.eye(2) - 0.5 * mapping @ (np.eye(2) - 0.5 * mapping)
  z = np.ones(2)
  for row in rows:
    z = step @ z
    expected = {
      'distance_to_optimum': np.sqrt(10) * np.linalg.norm(z),
      'distance_of_x': np.sqrt(10) * abs(z[0]),
      'duality_gap': 10 * (1e-5 * z[0] ** 2 + z[1] ** 2) / 2,
      'gradient_mapping_norm': np.sqrt(10) * np.linalg.norm(mapping @ z),
    }
    for name, value in expected.items():
      np.testing.assert_allclose(row[f'eval/{name}'], value, rtol=1e-6)


@pytest.mark.parametrize('algorithm', ['fed_prox', 'server_only'])
def test_the_other_algorithms_continue_to_the_same_bytes_too(
  train, tmp_path, algorithm
):
  train(_flags(tmp_path / 'a', algorithm))
  train(_flags(tmp_path / 'b', algorithm, rounds=2))
  train(_flags(tmp_path / 'b', algorithm))
  assert _outcome(tmp_path / 'a') == _outcome(tmp_path / 'b')


def _mixed_flags(output_dir, algorithm, **flags):
  own = {'central_steps': 2, 'central_batch_size': 8, 'client_learning_rate': 0.2}
  if algorithm == 'transfer_learning':
    own |= {'transfer_round': 3, 'rounds_per_eval': 1}
  return _flags(output_dir, algorithm, **{'task': 'digits_mixed', **own, **flags})


@pytest.fixture(scope='module')
def mixed_references(tmp_path_factory, runtime):
  """Runs of mixed algorithms that nothing disturbed, by the algorithm."""
  path = tmp_path_factory.mktemp('mixed')
  for algorithm in ('two_way_gradient_transfer', 'transfer_learning'):
    run.train(_mixed_flags(path / algorithm, algorithm), runtime=runtime)
  return path


@pytest.mark.parametrize(
  ('algorithm', 'rounds'),
  [
    ('two_way_gradient_transfer', 2),
    ('transfer_learning', 2),
    ('transfer_learning', 3),
    ('transfer_learning', 4),
  ],
)
def test_mixed_algorithms_continue_to_the_same_bytes(
  mixed_references, train, tmp_path, algorithm, rounds
):
  path = tmp_path / 'a'
  train(_mixed_flags(path, algorithm, rounds=rounds))
  train(_mixed_flags(path, algorithm))
  assert _outcome(path) == _outcome(mixed_references / algorithm)


@pytest.mark.parametrize(
  'algorithm', ['two_way_gradient_transfer', 'transfer_learning']
)
def test_mixed_algorithms_interrupted_in_evaluation_continue_to_the_same_bytes(
  mixed_references, train, tmp_path, monkeypatch, algorithm
):
  path = tmp_path / 'a'
  calls = []
  evaluate = evaluation.Evaluator.__call__

  def interrupted(self, weights, rows):
    calls.append(1)
    if len(calls) == 5:  # A round has three: all rows, and both parts.
      raise KeyboardInterrupt
    return evaluate(self, weights, rows)

  with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
    patch.setattr(evaluation.Evaluator, '__call__', interrupted)
    train(_mixed_flags(path, algorithm, rounds_per_checkpoint=100))
  assert len(rounds_of(path)) == 1
  train(_mixed_flags(path, algorithm))
  assert _outcome(path) == _outcome(mixed_references / algorithm)


def test_killed_between_operations_on_files_a_mixed_run_ends_as_one_never_killed(
  mixed_references, train, tmp_path, monkeypatch
):
  algorithm = 'transfer_learning'
  with monkeypatch.context() as patch:
    done = killed_at(patch, 10**6)
    train(_mixed_flags(tmp_path / 'a', algorithm))
    num_operations = len(done)
  for operation in range(3, num_operations, 5):
    path = tmp_path / str(operation)
    with monkeypatch.context() as patch, pytest.raises(Killed):
      killed_at(patch, operation)
      train(_mixed_flags(path, algorithm))
    train(_mixed_flags(path, algorithm))
    assert _outcome(path) == _outcome(mixed_references / algorithm), operation
  assert num_operations > 20


def test_both_stages_of_transfer_learning_have_their_columns(mixed_references):
  with open(mixed_references / 'transfer_learning' / 'metrics.csv') as file:
    rows = list(csv.DictReader(file))
  assert [float(row['train/num_clients']) for row in rows] == [0, 0, 0, 3, 3]
  assert [bool(row['train/bytes_up']) for row in rows] == [False] * 3 + [True] * 2
  assert all(row['eval/clients_accuracy'] for row in rows)


_REALISTIC = {
  'sampling': 'log_normal',
  'dropout_rate': 0.3,
  'straggler_rate': 0.5,
  'straggler_steps': 1,
  'available_share': 0.7,
  'rounds_per_day': 4,
}


def test_rounds_as_in_practice_continue_to_the_same_bytes_too(train, tmp_path):
  train(_flags(tmp_path / 'a', **_REALISTIC))
  train(_flags(tmp_path / 'b', **_REALISTIC, rounds=2))
  train(_flags(tmp_path / 'b', **_REALISTIC))
  assert _outcome(tmp_path / 'a') == _outcome(tmp_path / 'b')


def test_as_many_clients_train_as_did_not_drop_out(train, tmp_path):
  flags = _flags(tmp_path / 'a', rounds=4, rounds_per_eval=1, dropout_rate=0.5)
  sampler = training.build_sampler(flags, training.load_task(flags))
  sizes = [len(sampler.draw(round_num)) for round_num in range(1, 5)]
  assert [row['train/num_clients'] for row in train(flags).rows] == sizes
  assert min(sizes) < 3


def test_where_all_are_stragglers_all_are_cut(train, tmp_path):
  stragglers = train(
    _flags(tmp_path / 'a', straggler_rate=1.0, straggler_steps=2, batch_size=4)
  )
  cut = train(_flags(tmp_path / 'b', max_client_steps=2, batch_size=4))
  assert stragglers.rows == cut.rows
  assert cut.rows != train(_flags(tmp_path / 'c', batch_size=4)).rows


def test_seconds_go_on_counting_when_a_run_is_continued(train, tmp_path):
  first = train(_flags(tmp_path / 'a', rounds=2))
  second = train(_flags(tmp_path / 'a', rounds=4))
  assert second.seconds > first.seconds > 0
