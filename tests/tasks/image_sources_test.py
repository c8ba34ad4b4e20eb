"""Tests of finding the files of data sets of images."""

import pytest

from tasks import downloads, image_sources
from tests.tasks import offline

_SOURCES = [image_sources.MNIST, image_sources.EMNIST_BALANCED]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
  monkeypatch.setattr('tasks.downloads.is_reachable', lambda url: False)


def _write_all(source, folder, spell=lambda name: name):
  for name in source.file_names:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / spell(name)).touch()


def _check(source, data_dir):
  if source is image_sources.MNIST:
    downloads.mnist(data_dir, 'iid')
  else:
    downloads.emnist_balanced(data_dir)


@pytest.mark.parametrize('source', _SOURCES)
@pytest.mark.parametrize(
  'spell',
  [
    lambda name: name,
    lambda name: f'{name}.gz',
    lambda name: name.replace('-idx', '.idx'),
    lambda name: name.replace('-idx', '.idx') + '.gz',
  ],
)
def test_files_are_found_in_every_folder_and_spelling(tmp_path, source, spell):
  for i, folder in enumerate(source.folders):
    data_dir = tmp_path / str(i)
    _write_all(source, data_dir / folder, spell)
    expected = [data_dir / folder / spell(name) for name in source.file_names]
    assert image_sources.find(source, data_dir) == expected
    _check(source, str(data_dir))


@pytest.mark.parametrize('source', _SOURCES)
def test_all_four_files_are_needed(tmp_path, source):
  _write_all(source, tmp_path)
  for name in source.file_names:
    path = tmp_path / name
    path.rename(tmp_path / 'elsewhere')
    assert image_sources.find(source, tmp_path) is None
    (tmp_path / 'elsewhere').rename(path)
  assert image_sources.find(source, tmp_path) is not None


@pytest.mark.parametrize('source', _SOURCES)
def test_what_tfds_has_prepared_is_as_good(tmp_path, source):
  with pytest.raises(ValueError):
    _check(source, str(tmp_path))
  version = tmp_path / source.tfds_name / '3.0.1'
  version.mkdir(parents=True)
  (version / 'dataset_info.json').touch()
  _check(source, str(tmp_path))


@pytest.mark.parametrize('source', _SOURCES)
def test_with_a_network_the_files_need_not_be_there(tmp_path, source, monkeypatch):
  monkeypatch.setattr('tasks.downloads.is_reachable', lambda url: True)
  _check(source, str(tmp_path))


def test_with_writers_as_clients_another_file_is_needed(tmp_path):
  _write_all(image_sources.MNIST, tmp_path)
  with pytest.raises(ValueError, match='emnist_all'):
    downloads.mnist(str(tmp_path), 'writer')


@pytest.mark.parametrize(
  ('source', 'task'),
  [
    (image_sources.MNIST, 'mnist_cnn'),
    (image_sources.EMNIST_BALANCED, 'emnist_balanced_logistic'),
  ],
)
def test_files_found_missing_are_named_without_importing_tensorflow(
  tmp_path, source, task
):
  message = offline.refusal(task, data_dir=str(tmp_path), partitioner='iid')
  for part in (*source.file_names, str(tmp_path), '--data_dir', 'digits_logistic'):
    assert part in message
