"""Tests of replacing files, of locks and of names."""

import errno
import json
import os
import pathlib
import re
import subprocess
import sys

import hypothesis
from hypothesis import strategies as st
import pytest

from training_loops import files
from training_loops.options import UserError


def test_a_file_is_replaced_when_the_block_ends(tmp_path):
  path = tmp_path / 'a'
  path.write_text('old')
  with files.replacing(path) as file:
    file.write(b'new')
    file.flush()
    assert path.read_text() == 'old'
  assert path.read_text() == 'new'
  assert os.listdir(tmp_path) == ['a']


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
  path = tmp_path / 'a'
  path.write_text('old')
  with pytest.raises(KeyboardInterrupt), files.replacing(path) as file:
    file.write(b'new')
    raise KeyboardInterrupt
  assert path.read_text() == 'old'
  assert os.listdir(tmp_path) == ['a']


def test_a_full_disk_leaves_the_old_file_and_is_named(tmp_path, monkeypatch):
  path = tmp_path / 'a'
  path.write_text('old')

  def full(descriptor):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  monkeypatch.setattr(os, 'fsync', full)
  with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
    files.write_bytes(path, b'new')
  assert path.read_text() == 'old'
  assert os.listdir(tmp_path) == ['a']


def test_a_durable_file_is_synced_before_it_is_renamed_and_its_directory_after(
  tmp_path, monkeypatch
):
  calls = []
  fsync, replace = os.fsync, os.replace
  monkeypatch.setattr(os, 'fsync', lambda fd: calls.append('fsync') or fsync(fd))
  monkeypatch.setattr(
    os, 'replace', lambda a, b: calls.append('replace') or replace(a, b)
  )
  files.write_bytes(tmp_path / 'a', b'x')
  assert calls == ['fsync', 'replace', 'fsync']
  calls.clear()
  files.write_bytes(tmp_path / 'a', b'x', durable=False)
  assert calls == ['replace']


def test_a_file_that_tensorflow_cannot_write_is_an_os_error():
  import tensorflow as tf  # Here, as the other tests need not wait for it.

  with (
    pytest.raises(OSError, match=r'^/proc/no; No such file or directory'),
    files.written_by_tensorflow(),
  ):
    tf.io.write_file('/proc/no/file', 'x')


def test_leftovers_of_a_killed_program_are_removed_and_nothing_else(tmp_path):
  for name in ('.a.tmp', '.lock', 'b.tmp'):
    (tmp_path / name).touch()
  files.remove_leftovers(tmp_path)
  assert sorted(os.listdir(tmp_path)) == ['.lock', 'b.tmp']


def test_json_comes_back_as_written(tmp_path):
  content = {'a': [1, 0.1, None, 'ä'], 'b': {'c': True}}
  files.write_json(tmp_path / 'a', content)
  assert json.loads((tmp_path / 'a').read_text()) == content


def test_a_directory_is_locked_until_the_block_ends_however_it_does(tmp_path):
  for error in (None, KeyboardInterrupt):
    try:
      with files.locked(tmp_path):
        message = f'{tmp_path} is in use by another process.'
        with pytest.raises(UserError, match=re.escape(message)), files.locked(tmp_path):
          pytest.fail('It let a second one in.')
        if error:
          raise error
    except KeyboardInterrupt:
      pass
  with files.locked(tmp_path):
    pass
  assert os.listdir(tmp_path) == [files.lock_file(tmp_path).name]


def test_the_lock_of_a_process_that_was_killed_is_free(tmp_path):
  program = f"""
import pathlib, time
from training_loops import files
with files.locked(pathlib.Path({str(tmp_path)!r})):
  print('locked', flush=True)
  time.sleep(100)
"""
  with subprocess.Popen(
    [sys.executable, '-c', program], stdout=subprocess.PIPE, text=True
  ) as process:
    try:
      assert process.stdout.readline() == 'locked\n'
      with pytest.raises(UserError), files.locked(tmp_path):
        pass
    finally:
      process.kill()
  with files.locked(tmp_path):
    pass


def test_a_directory_that_is_there_or_can_be_made_is_writable_and_is_not_made(
  tmp_path, monkeypatch
):
  monkeypatch.chdir(tmp_path)
  for path in (tmp_path, tmp_path / 'a' / 'b', pathlib.Path('a/b'), pathlib.Path('.')):
    files.check_writable(path)
  assert os.listdir(tmp_path) == []


def test_a_file_where_a_directory_should_be_is_named(tmp_path):
  file = tmp_path / 'file'
  file.touch()
  for path in (file, file / 'a' / 'b'):
    with pytest.raises(UserError) as caught:
      files.check_writable(path)
    assert str(caught.value) == f'{file} is not a directory.'


def test_a_directory_that_may_not_be_written_to_is_named(tmp_path, monkeypatch):
  # The administrator may write anywhere, whatever a directory's mode says.
  monkeypatch.setattr(os, 'access', lambda path, mode: path != tmp_path)
  for path in (tmp_path, tmp_path / 'a' / 'b'):
    with pytest.raises(UserError) as caught:
      files.check_writable(path)
    assert str(caught.value) == f'{tmp_path} is not writable.'


@pytest.mark.parametrize(
  ('text', 'name'),
  [
    ('FedAvg', 'FedAvg'),
    ('FedAvg, SGD server', 'FedAvg,_SGD_server'),
    ('client_learning_rate=0.1', 'client_learning_rate=0.1'),
    ('rate=1e-05, epochs=3', 'rate=1e-05,_epochs=3'),
    ('größer', 'größer'),
  ],
)
def test_a_common_text_is_its_own_name(text, name):
  assert files.as_name(text) == name


def test_what_a_name_cannot_hold_is_made_up_for_by_a_few_digits():
  name = files.as_name('../a/b:*?')
  assert re.fullmatch(r'a_b-[0-9a-f]{8}', name)
  long = [files.as_name('x' * 1000 + end) for end in 'ab']
  assert long[0] != long[1]
  assert all(re.fullmatch(r'x{100}-[0-9a-f]{8}', name) for name in long)


# Made of few characters, so that texts which are nearly the same turn up.
_TEXTS = st.text('ab _./-=,\n\0é') | st.text()


@hypothesis.given(_TEXTS, _TEXTS)
@hypothesis.example('a/b', 'a:b')
@hypothesis.example('a', 'a.')
@hypothesis.example('a', ' a')
@hypothesis.example('', '_')
@hypothesis.example('a' * 101, 'a' * 100)
def test_texts_that_differ_in_more_than_kinds_of_gaps_have_different_names(one, two):
  def joined(text):
    return re.sub(r'\s+', '_', text)

  if joined(one) != joined(two):
    assert files.as_name(one) != files.as_name(two)


@hypothesis.given(_TEXTS)
@hypothesis.example('')
@hypothesis.example('..')
@hypothesis.example('/')
@hypothesis.example('\0')
@hypothesis.example('字' * 1000)
@hypothesis.example('字' * 100)
def test_a_name_is_one_component_of_a_path_on_every_file_system(text):
  name = files.as_name(text)
  assert name not in ('', '.', '..')
  assert pathlib.PurePosixPath(name).name == name
  assert not set('/\\:*?"<>|\0\n\t ') & set(name)
  assert len(name.encode()) <= 255
