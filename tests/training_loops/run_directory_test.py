"""Tests of the output directory."""

import os
import stat
import subprocess
import sys

import pytest

from training_loops import files, train_flags
from training_loops.options import UserError
from training_loops.run_directory import RunDirectory


def _flags(**flags):
  return train_flags.configure(
    task='digits_logistic', algorithm='fed_avg', output_dir='x', **flags
  )


def _made(path, **flags) -> RunDirectory:
  directory = RunDirectory(path)
  with directory.opened(_flags(**flags)):
    files.write_json(directory.config_file, {'flags': _flags(**flags)})
  return directory


def test_checking_a_new_directory_writes_nothing(tmp_path):
  RunDirectory(tmp_path / 'a' / 'b').check(_flags())
  assert os.listdir(tmp_path) == []


def test_opening_a_new_directory_makes_it_with_its_parents(tmp_path):
  directory = RunDirectory(tmp_path / 'a' / 'b')
  with directory.opened(_flags()):
    assert directory.path.is_dir()


def test_the_same_flags_and_other_free_ones_continue_a_run(tmp_path):
  directory = _made(tmp_path / 'a', rounds=10)
  directory.check(_flags(rounds=20, rounds_per_checkpoint=3, num_threads=1))


def test_flags_that_differ_are_all_named_with_both_values(tmp_path):
  directory = _made(tmp_path / 'a', batch_size=5)
  with pytest.raises(UserError) as caught:
    directory.check(_flags(batch_size=6, server_optimizer='momentum', rounds=3))
  message = str(caught.value)
  assert '--batch_size (there 5, here 6)' in message
  assert '--server_optimizer (there sgd, here momentum)' in message
  assert '--server_momentum (there unset, here 0.9)' in message
  assert '--rounds' not in message


def test_a_directory_with_other_files_is_refused(tmp_path):
  (tmp_path / 'thesis.tex').touch()
  with pytest.raises(UserError, match='holds other files'):
    RunDirectory(tmp_path).check(_flags())


def test_a_run_that_was_killed_before_its_config_can_be_started(tmp_path):
  (tmp_path / '.lock').touch()
  (tmp_path / '.config.json.tmp').touch()
  with RunDirectory(tmp_path).opened(_flags()):
    pass


def test_a_file_in_the_way_is_named(tmp_path):
  (tmp_path / 'a').touch()
  with pytest.raises(UserError, match='a is not a directory'):
    RunDirectory(tmp_path / 'a' / 'b').check(_flags())


@pytest.mark.skipif(os.geteuid() == 0, reason='root may write everywhere')
def test_a_place_that_is_not_writable_is_named(tmp_path):
  tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
  with pytest.raises(UserError, match='is not writable'):
    RunDirectory(tmp_path / 'a').check(_flags())


def test_a_second_process_is_kept_out_until_the_first_is_gone(tmp_path):
  path = tmp_path / 'a'
  program = f"""
from training_loops import train_flags
from training_loops.run_directory import RunDirectory
flags = train_flags.configure(
  task='digits_logistic', algorithm='fed_avg', output_dir='x')
with RunDirectory({str(path)!r}).opened(flags):
  print('in', flush=True)
  input()
"""
  with subprocess.Popen(
    [sys.executable, '-c', program],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
  ) as other:
    assert other.stdout.readline() == 'in\n'
    with pytest.raises(UserError, match='in use by another process'):
      RunDirectory(path).check(_flags())
    other.kill()
  RunDirectory(path).check(_flags())


def test_a_directory_that_is_no_run_says_so(tmp_path):
  with pytest.raises(UserError, match=r'is no run: it has no config\.json'):
    RunDirectory(tmp_path).flags()


def test_a_config_that_cannot_be_read_is_named(tmp_path):
  (tmp_path / 'config.json').write_text('{"fla')
  with pytest.raises(UserError, match=r'config\.json cannot be read'):
    RunDirectory(tmp_path).flags()


def test_a_run_is_finished_once_its_result_is_there(tmp_path):
  directory = RunDirectory(tmp_path)
  assert directory.finished_rounds() == 0
  files.write_json(directory.result_file, {'rounds': 7})
  assert directory.finished_rounds() == 7
