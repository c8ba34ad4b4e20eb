"""Tests of looking for files before anything slow happens."""

import http.server
import threading

import pytest

from tasks import downloads
from tests.tasks import offline


@pytest.fixture
def is_offline(monkeypatch):
  monkeypatch.setattr(downloads, 'is_reachable', lambda url: False)


@pytest.mark.parametrize(
  ('check', 'name'),
  [
    (downloads.emnist, 'emnist_all.sqlite'),
    (downloads.cifar100, 'cifar100.sqlite'),
    (downloads.shakespeare, 'shakespeare.sqlite'),
  ],
)
def test_a_missing_file_is_named_with_directory_flag_and_a_way_out(
  tmp_path, is_offline, check, name
):
  with pytest.raises(ValueError) as error:
    check(str(tmp_path))
  for part in (name, str(tmp_path), '--data_dir', '--task=digits_logistic'):
    assert part in str(error.value)
  (tmp_path / name).touch()
  check(str(tmp_path))


def test_all_that_a_task_needs_is_looked_for(tmp_path, is_offline):
  names = ['stackoverflow.sqlite', 'datasets/stackoverflow.word_count']
  (tmp_path / 'datasets').mkdir()
  for name in names:
    with pytest.raises(ValueError, match=name.rpartition('/')[2]):
      downloads.stackoverflow_word(str(tmp_path))
    (tmp_path / name).touch()
  downloads.stackoverflow_word(str(tmp_path))
  with pytest.raises(ValueError, match=r'stackoverflow\.tag_count'):
    downloads.stackoverflow_tag(str(tmp_path))
  (tmp_path / 'datasets' / 'stackoverflow.tag_count').touch()
  downloads.stackoverflow_tag(str(tmp_path))


def test_concrete_is_found_and_never_downloaded(tmp_path):
  with pytest.raises(ValueError, match=r'Concrete_Data\.csv.*UCI.*--data_dir'):
    downloads.concrete(str(tmp_path))
  (tmp_path / 'Concrete_Data.csv').touch()
  assert downloads.concrete(str(tmp_path)) == tmp_path / 'Concrete_Data.csv'


def test_the_network_is_not_asked_where_the_file_is_there(tmp_path, monkeypatch):
  def no_question(url):
    raise AssertionError(url)

  monkeypatch.setattr(downloads, 'is_reachable', no_question)
  (tmp_path / 'emnist_all.sqlite').touch()
  downloads.emnist(str(tmp_path))


def test_a_directory_that_is_not_there_is_the_users_mistake(tmp_path):
  with pytest.raises(ValueError, match=r'--data_dir=.*nothing is not a directory'):
    downloads.directory(str(tmp_path / 'nothing'))


def test_the_default_is_the_cache_of_tff(monkeypatch, tmp_path):
  monkeypatch.setenv('HOME', str(tmp_path))
  assert downloads.directory(None) == tmp_path / '.tff'


class _Handler(http.server.BaseHTTPRequestHandler):
  def do_HEAD(self):
    self.send_response(200 if self.path == '/there' else 404)
    self.end_headers()

  def log_message(self, *args):
    del args


def test_a_server_that_answers_is_reachable_and_a_closed_port_is_not(monkeypatch):
  monkeypatch.setenv('no_proxy', '*')
  server = http.server.HTTPServer(('localhost', 0), _Handler)
  threading.Thread(target=server.serve_forever, daemon=True).start()
  address = f'http://localhost:{server.server_port}'
  assert downloads.is_reachable(f'{address}/there')
  assert downloads.is_reachable(f'{address}/elsewhere')
  server.shutdown()
  server.server_close()
  assert not downloads.is_reachable(f'{address}/there')


def test_a_missing_file_is_found_without_importing_anything_slow(tmp_path):
  message = offline.refusal('emnist_cnn', data_dir=str(tmp_path))
  assert 'emnist_all.sqlite' in message
