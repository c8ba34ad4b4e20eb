"""Tests of fetching TFF's files."""

import os
import pathlib

import pytest

from tasks import downloads, tff_files


@pytest.fixture
def is_online(monkeypatch):
  monkeypatch.setattr(downloads, 'is_reachable', lambda url: True)


def test_a_file_that_is_there_is_not_fetched(tmp_path):
  (tmp_path / 'a.sqlite').touch()

  def load_data(cache_dir):
    raise AssertionError(cache_dir)

  path = tff_files.fetch(str(tmp_path), 'a.sqlite', load_data)
  assert path == tmp_path / 'a.sqlite'


def test_a_download_appears_whole(tmp_path, is_online):
  def load_data(cache_dir):
    assert not (tmp_path / 'a.sqlite').exists()
    pathlib.Path(cache_dir, 'a.sqlite').write_text('content')

  path = tff_files.fetch(str(tmp_path), 'a.sqlite', load_data)
  assert path.read_text() == 'content'
  assert os.listdir(tmp_path) == ['a.sqlite']


@pytest.mark.parametrize('error', [OSError('reset by peer'), KeyboardInterrupt()])
def test_a_broken_download_leaves_nothing(tmp_path, is_online, error):
  def load_data(cache_dir):
    pathlib.Path(cache_dir, 'a.sqlite').write_text('half of')
    raise error

  with pytest.raises((ValueError, KeyboardInterrupt)):
    tff_files.fetch(str(tmp_path), 'a.sqlite', load_data)
  assert not os.listdir(tmp_path)


def test_without_a_network_nothing_is_tried(tmp_path, monkeypatch):
  monkeypatch.setattr(downloads, 'is_reachable', lambda url: False)

  def load_data(cache_dir):
    raise AssertionError(cache_dir)

  with pytest.raises(ValueError, match=r'a\.sqlite.*--data_dir'):
    tff_files.fetch(str(tmp_path), 'a.sqlite', load_data)
