"""Tests of scratch directories."""

import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import pytest

from tasks import scratch


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
  """The system's temporary directory, for this test alone."""
  monkeypatch.setenv('TMPDIR', str(tmp_path))
  monkeypatch.setattr(tempfile, 'tempdir', None)
  return tmp_path


def test_it_is_gone_after_the_block_also_after_an_error(temporary):
  with pytest.raises(KeyError), scratch.directory() as path:
    (path / 'file').touch()
    assert list(temporary.iterdir()) == [path]
    raise KeyError
  assert not list(temporary.iterdir())


def test_what_is_written_while_it_is_removed_is_removed_by_the_next(temporary):
  with scratch.directory() as path:
    pass
  # As TensorFlow does, which makes the directories of the files that it writes.
  (path / 'states').mkdir(parents=True)
  (path / 'states' / '0.new').touch()
  with scratch.directory() as own:
    assert list(temporary.iterdir()) == [own]


@pytest.mark.parametrize('names', [[], ['lock.new']])
def test_one_that_is_just_being_made_is_left_alone(temporary, names):
  path = temporary / '.tff_algorithms_scratch_other'
  path.mkdir()
  for name in names:
    (path / name).touch()
  with scratch.directory():
    assert [child.name for child in path.iterdir()] == names


def test_it_can_be_made_elsewhere(temporary):
  parent = temporary / 'elsewhere'
  parent.mkdir()
  with scratch.directory(parent) as path:
    assert path.parent == parent
  assert not list(parent.iterdir())


def test_several_live_side_by_side():
  with scratch.directory() as first, scratch.directory() as second:
    (second / 'file').touch()
    assert first != second
    assert first.is_dir()


def test_what_a_killed_process_left_is_removed_by_the_next(temporary):
  source = """
import time
from tasks import scratch
with scratch.directory() as path:
  (path / 'file').touch()
  print(path, flush=True)
  time.sleep(1000)
"""
  with subprocess.Popen(
    [sys.executable, '-c', source],
    cwd=pathlib.Path(__file__).parents[2],
    stdout=subprocess.PIPE,
    text=True,
  ) as process:
    path = pathlib.Path(process.stdout.readline().strip())
    with scratch.directory():
      assert (path / 'file').exists()  # It is still somebody's.
    os.kill(process.pid, signal.SIGKILL)
  assert (path / 'file').exists()
  with scratch.directory() as own:
    assert list(temporary.iterdir()) == [own]
