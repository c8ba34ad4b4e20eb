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
    (downloads.celeba, 'celeba.sqlite'),
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


def test_wikipedia_is_found_as_text_or_from_tfds_and_never_downloaded(
  tmp_path, monkeypatch
):
  tfds_home = tmp_path / 'of_tfds'
  monkeypatch.setenv('TFDS_DATA_DIR', str(tfds_home))
  (tmp_path / 'stackoverflow.sqlite').touch()
  with pytest.raises(ValueError) as error:
    downloads.stackoverflow_wikipedia(str(tmp_path))
  for part in (
    str(tmp_path / 'wikipedia'),
    str(tmp_path / 'wikitext-2'),
    '*.txt or *.tokens',
    'wikipedia/20201201.en',
    str(tfds_home),
    '--data_dir',
    '--task=digits_logistic',
  ):
    assert part in str(error.value)
  texts = [tmp_path / 'wikitext-2' / name for name in ('b.test.tokens', 'a.txt')]
  texts[0].parent.mkdir()
  texts[0].touch()
  with pytest.raises(ValueError, match='The text of Wikipedia cannot be found'):
    downloads.stackoverflow_wikipedia(str(tmp_path))  # None is for training.
  texts[1].touch()
  downloads.stackoverflow_wikipedia(str(tmp_path))
  assert downloads.wikipedia_texts(str(tmp_path)) == texts[::-1]
  assert list(map(downloads.is_for_testing, texts)) == [True, False]

  assert downloads.prepared_wikipedia(str(tmp_path)) is None
  for home in (tfds_home, tmp_path):
    prepared = home / 'wikipedia' / '20201201.en' / '1.0.0'
    prepared.mkdir(parents=True)
    (prepared / 'dataset_info.json').touch()
    assert downloads.prepared_wikipedia(str(tmp_path)) == prepared
  for path in texts:
    path.unlink()
  downloads.stackoverflow_wikipedia(str(tmp_path))


def test_the_mixed_language_model_needs_stack_overflow_too(tmp_path, is_offline):
  with pytest.raises(ValueError, match=r'stackoverflow\.sqlite'):
    downloads.stackoverflow_wikipedia(str(tmp_path))


def test_movielens_is_found_as_a_file_or_from_tfds_and_never_downloaded(
  tmp_path, monkeypatch
):
  tfds_home = tmp_path / 'of_tfds'
  monkeypatch.setenv('TFDS_DATA_DIR', str(tfds_home))
  with pytest.raises(ValueError) as error:
    downloads.movielens(str(tmp_path))
  for part in (
    f'ml-1m/ratings.dat cannot be found in {tmp_path}',
    'grouplens.org',
    'movielens/1m-ratings',
    str(tfds_home),
    '--data_dir',
    '--task=digits_logistic',
  ):
    assert part in str(error.value)
  for home in (tfds_home, tmp_path):
    prepared = home / 'movielens' / '1m-ratings' / '0.1.1'
    prepared.mkdir(parents=True)
    (prepared / 'dataset_info.json').touch()
    assert downloads.movielens(str(tmp_path)) == prepared
  for path in (tmp_path / 'ratings.dat', tmp_path / 'ml-1m' / 'ratings.dat'):
    path.parent.mkdir(exist_ok=True)
    path.touch()
    assert downloads.movielens(str(tmp_path)) == path


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
