"""Tests of fetching TFF's files."""

import lzma
import os
import pathlib
import shutil
import sqlite3

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


def _write_database(path, page_size=4096):
  with sqlite3.connect(path) as database:
    database.execute(f'PRAGMA page_size = {page_size}')
    database.execute('CREATE TABLE a (b TEXT)')
    database.execute('INSERT INTO a VALUES (?)', ['x' * 100_000])


@pytest.mark.parametrize('page_size', [4096, 65536])
def test_a_download_appears_whole(tmp_path, is_online, page_size):
  def load_data(cache_dir):
    assert not (tmp_path / 'a.sqlite').exists()
    _write_database(pathlib.Path(cache_dir, 'a.sqlite'), page_size)

  path = tff_files.fetch(str(tmp_path), 'a.sqlite', load_data)
  with sqlite3.connect(path) as database:
    assert database.execute('SELECT length(b) FROM a').fetchone() == (100_000,)
  assert os.listdir(tmp_path) == ['a.sqlite']


def test_a_download_that_broke_off_unnoticed_is_noticed(tmp_path, is_online):
  def load_data(cache_dir):
    path = pathlib.Path(cache_dir, 'a.sqlite')
    _write_database(path)
    os.truncate(path, path.stat().st_size // 2)

  with pytest.raises(
    ValueError, match=r'a\.sqlite could not.*it broke off.*--data_dir'
  ):
    tff_files.fetch(str(tmp_path), 'a.sqlite', load_data)
  assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
  'error', [OSError('reset by peer'), lzma.LZMAError('corrupt'), KeyboardInterrupt()]
)
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


def test_what_a_killed_download_left_is_removed_by_the_next(tmp_path, is_online):
  left = []

  def killed(cache_dir):
    left.append(pathlib.Path(cache_dir))
    copy = tmp_path / f'{left[0].name}_of_the_killed'
    shutil.copytree(cache_dir, copy)  # Its lock is held by nobody.
    raise OSError

  def load_data(cache_dir):
    _write_database(pathlib.Path(cache_dir, 'a.sqlite'))

  with pytest.raises(ValueError):
    tff_files.fetch(str(tmp_path), 'a.sqlite', killed)
  assert len(os.listdir(tmp_path)) == 1
  tff_files.fetch(str(tmp_path), 'a.sqlite', load_data)
  assert os.listdir(tmp_path) == ['a.sqlite']
