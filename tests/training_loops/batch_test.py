"""Tests of lists of runs, trained several at a time."""

import os
import pathlib
import signal
import subprocess
import threading

import pytest

from tests.training_loops.child_processes import children, wait_for
from training_loops import batch, files, pool, results, train_flags
from training_loops.options import UserError


def _flags(path, **flags):
  chosen = {'task': 'digits_logistic', 'algorithm': 'fed_avg', 'rounds': 4, **flags}
  return train_flags.configure(output_dir=path, **chosen)


def _write_run(flags, *evaluated: int, is_finished=False):
  """A run as it is after these evaluated rounds."""
  path = pathlib.Path(flags['output_dir'])
  path.mkdir(parents=True)
  files.write_json(path / 'config.json', {'flags': flags})
  lines = ['round,eval/loss', *(f'{round_num},1.0' for round_num in evaluated)]
  (path / 'metrics.csv').write_text('\n'.join([*lines, '']))
  if is_finished:
    files.write_json(path / 'result.json', {'rounds': evaluated[-1], 'best_round': 1})


def _content(directory) -> dict:
  return {p: p.read_bytes() for p in directory.rglob('*') if p.is_file()}


@pytest.fixture(name='no_process')
def that_no_process_is_started(monkeypatch):
  def fail(*arguments, **keywords):
    raise AssertionError('A process was started.')

  monkeypatch.setattr(subprocess, 'Popen', fail)


def test_a_run_is_called_by_its_label_or_its_algorithm_and_its_seed():
  assert batch.name_of(_flags('x', seed=3)) == 'fed_avg, seed 3'
  assert batch.name_of(_flags('x', seed=0, label='Mine')) == 'Mine, seed 0'


def test_runs_that_failed_are_told_of_in_one_line_with_their_reasons():
  error = batch.RunsFailed([('a', 'it burst'), ('b', 'it sank')], 5)
  assert str(error) == '2 of 5 runs failed: a: it burst; b: it sank'


def test_the_rounds_done_are_those_evaluated_and_all_only_with_the_model(tmp_path):
  flags = {name: _flags(tmp_path / name) for name in 'abcde'}
  (tmp_path / 'b').mkdir()
  _write_run(flags['c'])
  _write_run(flags['d'], 1, 3)
  _write_run(flags['e'], 2, 4)
  done = [batch.rounds_done(flags[name]) for name in 'abcde']
  assert done == [0, 0, 0, 3, 3]
  files.write_json(tmp_path / 'e' / 'result.json', {'rounds': 4})
  assert batch.rounds_done(flags['e']) == 4
  # Of more rounds it is a part.
  assert batch.rounds_done({**flags['e'], 'rounds': 9}) == 4
  # And of fewer more than enough.
  assert batch.rounds_done({**flags['e'], 'rounds': 3}) == 3


def test_the_runs_that_exist_are_those_that_have_begun_in_order(tmp_path):
  every_flags = [_flags(tmp_path / name) for name in 'cab']
  for i in (2, 0):
    _write_run(every_flags[i], 2)
  assert batch.existing(every_flags) == [tmp_path / 'c', tmp_path / 'b']


def test_a_failure_is_left_in_the_directory_of_a_run_that_has_begun(tmp_path):
  outcome = pool.Outcome('failed', 'It burst.', 'All of it:\nit burst.')
  for name in ('begun', 'not'):
    if name == 'begun':
      _write_run(_flags(tmp_path / name))
    batch.write_failure(_flags(tmp_path / name), outcome)
  text = (tmp_path / 'begun' / 'failure.txt').read_text()
  assert text.startswith('It burst.\n')
  assert 'All of it:\nit burst.' in text
  assert not (tmp_path / 'not').exists()


def test_runs_that_are_done_are_left_alone_and_no_process_is_started(
  tmp_path, no_process
):
  every_flags = [_flags(tmp_path / str(seed), seed=seed) for seed in range(2)]
  for flags in every_flags:
    _write_run(flags, 2, 4, is_finished=True)
  before = _content(tmp_path)
  batch.train(every_flags)
  batch.train([])
  assert _content(tmp_path) == before


def test_a_directory_of_another_run_is_refused_before_anything_begins(
  tmp_path, no_process
):
  _write_run(_flags(tmp_path / 'b', batch_size=3), 2)
  before = _content(tmp_path)
  with pytest.raises(UserError, match='--batch_size'):
    batch.train([_flags(tmp_path / 'a'), _flags(tmp_path / 'b')])
  assert _content(tmp_path) == before
  assert os.listdir(tmp_path) == ['b']


def test_data_that_are_not_there_are_refused_before_anything_begins(
  tmp_path, no_process
):
  absent = _flags(
    tmp_path / 'b',
    task='emnist_logistic',
    data_dir=_file(tmp_path),  # Nothing can be put below a file.
  )
  with pytest.raises(UserError):
    batch.train([_flags(tmp_path / 'a'), absent])
  assert os.listdir(tmp_path) == ['file']


def _file(tmp_path) -> pathlib.Path:
  path = tmp_path / 'file'
  path.write_text('')
  return path


def _has_open(pid: int, path: pathlib.Path) -> bool:
  links = pathlib.Path(f'/proc/{pid}/fd').iterdir()
  return any(os.path.realpath(link) == str(path.resolve()) for link in links)


def _kill(path: pathlib.Path, victim: str) -> None:
  """Waits until a run has evaluated a round, and kills its process or its worker."""
  wait_for(lambda: (path / 'metrics.csv').exists() and results.load(path).rows)
  (process,) = (
    pid for pid in children(os.getpid()) if _has_open(pid, path / 'train.log')
  )
  (worker,) = children(process)
  os.kill({'process': process, 'worker': worker}[victim], signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('victim', 'reason'),
  [
    ('process', 'its process was killed by SIGKILL (often for want of memory)'),
    ('worker', 'was killed by SIGKILL (often for want of memory)'),
  ],
)
def test_a_run_that_dies_is_told_of_once_the_others_are_done_and_can_be_continued(
  tmp_path, victim, reason
):
  # The two are one run, but for what happens to them.
  flags = {'rounds': 200, 'rounds_per_eval': 10, 'rounds_per_checkpoint': 20}
  flags['runtime'] = 'local'  # With a worker.
  every_flags = [_flags(tmp_path / name, label=name, **flags) for name in ('a', 'b')]
  killer = threading.Thread(target=_kill, args=(tmp_path / 'a', victim))
  killer.start()
  before = children(os.getpid())
  with pytest.raises(batch.RunsFailed) as caught:
    batch.train(every_flags, jobs=2)
  killer.join()
  message = str(caught.value)
  assert message.startswith('1 of 2 runs failed: a, seed 0: ')
  assert reason in message
  assert '\n' not in message
  failure = (tmp_path / 'a' / 'failure.txt').read_text()
  assert reason in failure.partition('\n')[0]
  assert not results.load(tmp_path / 'a').is_finished
  assert results.load(tmp_path / 'b').is_finished
  assert children(os.getpid()) == before  # Nothing is left behind.

  batch.train(every_flags, jobs=2)
  assert not (tmp_path / 'a' / 'failure.txt').exists()
  assert results.load(tmp_path / 'a').is_finished
  metrics = [(tmp_path / name / 'metrics.csv').read_bytes() for name in ('a', 'b')]
  assert metrics[0] == metrics[1]


@pytest.mark.slow
def test_a_run_that_is_refused_is_named_and_the_others_are_stopped(tmp_path):
  every_flags = [
    _flags(tmp_path / 'a', label='Good', rounds=2000, rounds_per_eval=1),
    _flags(tmp_path / 'b', label='Bad', clients_per_round=51),
  ]
  before = children(os.getpid())
  with pytest.raises(UserError) as caught:
    batch.train(every_flags, jobs=2)
  assert str(caught.value) == (
    'Bad, seed 0: --clients_per_round=51 is more than the 50 clients of '
    'digits_logistic.'
  )
  assert not (tmp_path / 'b').exists()
  assert not (tmp_path / 'a' / 'result.json').exists()
  assert not (tmp_path / 'a' / 'failure.txt').exists()
  assert children(os.getpid()) == before
