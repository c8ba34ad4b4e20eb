"""Tests of replacing files."""

import errno
import json
import os

import pytest

from training_loops import files


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
