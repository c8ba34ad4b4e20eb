"""Tests of where TFDS keeps its data."""

import json
import pathlib

import pytest

from tasks import downloads, tfds_files
from tests.tasks import offline


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
  monkeypatch.setattr('tasks.downloads.is_reachable', lambda url: False)


def _prepare(directory: pathlib.Path, name: str) -> pathlib.Path:
  (directory / name).mkdir(parents=True)
  (directory / name / 'dataset_info.json').touch()
  return directory / name


def test_the_newest_version_is_found(tmp_path):
  assert tfds_files.prepared('flowers', tmp_path) is None
  for version in ('2.0.0', '10.0.0', '9.9.9'):
    _prepare(tmp_path, f'flowers/{version}')
  newest = tfds_files.prepared('flowers', tmp_path)
  assert newest == tmp_path / 'flowers' / '10.0.0'


@pytest.mark.parametrize(
  ('name', 'expected'),
  [
    ('flowers:1.2.0', '1.2.0'),
    ('flowers:1.*.*', '1.10.0'),
    ('flowers:3.0.0', None),
    ('flowers/large', None),
    ('flower', None),
  ],
)
def test_a_version_can_be_named(tmp_path, name, expected):
  for version in ('1.2.0', '1.10.0', '2.0.0'):
    _prepare(tmp_path, f'flowers/{version}')
  found = tfds_files.prepared(name, tmp_path)
  assert (found and found.name) == expected


def test_a_configuration_is_named_or_the_default(tmp_path):
  small = _prepare(tmp_path, 'flowers/small/1.0.0')
  large = _prepare(tmp_path, 'flowers/large/1.0.0')
  assert tfds_files.prepared('flowers/small', tmp_path) == small
  assert tfds_files.prepared('flowers/large:1.0.0', tmp_path) == large
  assert tfds_files.prepared('flowers', tmp_path) is None
  (tmp_path / 'flowers' / '.config').mkdir()
  metadata = tmp_path / 'flowers' / '.config' / 'metadata.json'
  metadata.write_text(json.dumps({'default_config_name': 'large'}))
  assert tfds_files.prepared('flowers', tmp_path) == large
  metadata.write_text('{')
  assert tfds_files.prepared('flowers', tmp_path) is None


def test_what_was_broken_off_does_not_count(tmp_path):
  (tmp_path / 'flowers' / '1.0.0').mkdir(parents=True)
  _prepare(tmp_path, 'flowers/incomplete.7XK_1.0.0')
  assert tfds_files.prepared('flowers', tmp_path) is None


def test_without_a_directory_tfds_uses_its_own(tmp_path, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path))
  assert downloads.tfds_directory(None) == tmp_path
  monkeypatch.delenv('TFDS_DATA_DIR')
  monkeypatch.setenv('HOME', str(tmp_path))
  assert downloads.tfds_directory(None) == tmp_path / 'tensorflow_datasets'


def test_a_directory_must_be_there(tmp_path):
  with pytest.raises(ValueError, match=r'--data_dir=.*nowhere is not a directory'):
    downloads.tfds(str(tmp_path / 'nowhere'), 'flowers')


def test_check_passes_with_the_data_or_a_network(tmp_path, monkeypatch):
  with pytest.raises(ValueError, match='flowers'):
    downloads.tfds(str(tmp_path), 'flowers')
  _prepare(tmp_path, 'flowers/1.0.0')
  downloads.tfds(str(tmp_path), 'flowers')
  monkeypatch.setattr('tasks.downloads.is_reachable', lambda url: True)
  downloads.tfds(str(tmp_path), 'trees')


def test_a_data_set_must_be_named():
  with pytest.raises(ValueError, match='--tfds_name'):
    downloads.tfds(None, None)


def test_what_is_missing_is_named_without_importing_tensorflow(tmp_path):
  message = offline.refusal(
    'tfds', data_dir=str(tmp_path), tfds_name='flowers/large:1.0.0'
  )
  for part in (
    'flowers/large/1.0.0/dataset_info.json',
    str(tmp_path),
    '--data_dir',
    'digits_logistic',
  ):
    assert part in message
