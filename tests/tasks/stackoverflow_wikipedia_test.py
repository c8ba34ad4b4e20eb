"""Tests of the mixed language model's data."""

import itertools

import numpy as np
import pytest
import tensorflow_datasets as tfds
import tensorflow_federated as tff

import tasks
from tasks import downloads, stackoverflow_wikipedia
from tests.tasks import data_files, tff_data

_NAME = 'stackoverflow_wikipedia_char'
_SMALL = {'embedding_size': 4, 'gru_units': 3}


def _sentences(*texts):
  return {'tokens': np.array([text.encode() for text in texts], object)}


@pytest.fixture(autouse=True)
def no_other_tfds(tmp_path, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path / 'tfds'))


@pytest.fixture
def directory(tmp_path):
  """Clients with 0, 1, 2 and 5 pieces for training, 60 in all for testing."""
  text = 'abcdefghi ' * 301
  train = {
    'none': _sentences('a' * 50, 'b' * 49),
    'one': _sentences('a' * 50, 'b' * 50),
    'two': _sentences(*'x' * 150),
    'five': _sentences(text[:501]),
  }
  test = {f'user_{i}': _sentences(text[: 100 * i + 1]) for i in (10, 20, 30, 0)}
  splits = {
    split: tff.simulation.datasets.TestClientData(clients)
    for split, clients in (('train', train), ('test', test))
  }
  tff_data.write(tmp_path / 'stackoverflow.sqlite', splits)
  return tmp_path


def _write_wikipedia(directory, **texts):
  (directory / 'wikipedia').mkdir()
  for name, text in texts.items():
    (directory / 'wikipedia' / f'{name}.txt').write_text(text, encoding='utf-8')


def _load(directory, seed=0, **options):
  return tasks.load(_NAME, seed, data_dir=str(directory), **_SMALL, **options)


def _counts(data):
  return {client_id: data.num_examples(client_id) for client_id in data.client_ids}


def _text(task, data):
  """The whole text of the pieces one after the other."""
  lines = task.show(data.all_rows())
  return ''.join([lines[0][:1], *(line[1:] for line in lines)])


def test_characters_have_ids_from_1_on_and_the_others_share_one():
  ids = stackoverflow_wikipedia._ids(['a~ é'.encode(), '\t€😀'.encode(), b''])
  characters = stackoverflow_wikipedia.CHARACTERS
  assert len(set(characters)) == 96
  known = [characters.index(c) + 1 for c in 'a~ ']
  newline = characters.index('\n') + 1
  assert ids.tolist() == [*known, 97, newline, 97, 97, 97, newline]
  assert ids.dtype == np.uint8
  assert len(stackoverflow_wikipedia._ids([])) == 0


@pytest.mark.parametrize('length', [0, 1, 100, 101, 200, 201, 350])
def test_a_text_is_cut_with_one_character_in_common_and_the_rest_dropped(length):
  ids = np.arange(length, dtype=np.uint8) % 97
  pieces = stackoverflow_wikipedia._cut(ids)
  starts = range(0, length - 100, 100)
  expected = [ids[start : start + 101].tolist() for start in starts]
  assert pieces.tolist() == expected
  assert pieces.shape == (len(expected), 101)


def test_no_more_text_is_read_than_needed():
  endless = itertools.repeat(b'abc')
  ids = stackoverflow_wikipedia._ids(endless, max_length=10)
  expected = stackoverflow_wikipedia._ids([b'abc\nabc\nab'])
  np.testing.assert_array_equal(ids, expected)


def test_sentences_of_a_client_are_one_text_and_a_client_needs_a_piece(directory):
  _write_wikipedia(directory, train='w' * 101, test='w' * 101)
  task = _load(directory)
  assert _counts(task.train) == {'five': 5, 'one': 1, 'two': 2}
  rows = task.train.rows('one')
  assert rows['x'].dtype == rows['y'].dtype == np.int32
  assert rows['x'].shape == rows['y'].shape == (1, 100)
  np.testing.assert_array_equal(rows['x'][:, 1:], rows['y'][:, :-1])
  assert task.show(rows) == ['a' * 50 + '⏎' + 'b' * 50]
  assert task.show(task.train.rows('two')) == ['x⏎' * 50 + 'x'] * 2


def test_a_limit_of_a_client_is_for_training_only(directory):
  _write_wikipedia(directory, train='w' * 101, test='w' * 9901)
  task = _load(directory, max_client_examples=2)
  assert _counts(task.train) == {'five': 2, 'one': 1, 'two': 2}
  assert sum(_counts(task.test).values()) == 80


def test_lines_are_stripped_joined_and_those_of_test_files_held_out(directory):
  _write_wikipedia(
    directory, b=f'{"b" * 80}\n', a=f'\n  {"a" * 60} \r\n  \n', my_Test='t' * 101
  )
  task = _load(directory)
  assert _text(task, task.central.data) == 'a' * 60 + '⏎' + 'b' * 40
  assert _text(task, task.test_parts['wikipedia']) == 't' * 101


def test_the_last_tenth_of_the_lines_is_held_out_if_no_file_is_for_testing(directory):
  lines = [f'{i:02d}' * 60 for i in range(25)]
  _write_wikipedia(directory, a='\n\n'.join(lines[:7]), b='\n'.join(lines[7:]))
  task = _load(directory)
  whole = '⏎'.join(lines[:23])
  assert _text(task, task.central.data) == whole[: len(whole) // 100 * 100 + 1]
  held_out = '⏎'.join(lines[23:])
  assert _text(task, task.test_parts['wikipedia']) == held_out[:201]


def test_the_server_has_its_share_and_pieces_up_to_a_limit(directory, monkeypatch):
  monkeypatch.setattr(stackoverflow_wikipedia, '_SHARD_SIZE', 4)
  _write_wikipedia(directory, train='w' * 1101, test='w' * 101)
  central = _load(directory).central
  assert (central.federated_weight, central.central_weight) == (0.75, 0.25)
  assert list(_counts(central.data).values()) == [4, 4, 3]
  limited = _load(directory, max_central_examples=5).central.data
  assert list(_counts(limited).values()) == [4, 1]
  assert limited.rows(limited.client_ids[1])['x'].shape == (1, 100)


@pytest.mark.parametrize(('num_wikipedia', 'expected'), [(30, [60, 20]), (7, [21, 7])])
def test_the_mixture_is_three_quarters_stack_overflow(
  directory, num_wikipedia, expected
):
  _write_wikipedia(directory, train='w' * 101, test='w' * (100 * num_wikipedia + 1))
  task = _load(directory)
  counts = _counts(task.test)
  of_wikipedia = sum(n for i, n in counts.items() if i.startswith('wikipedia'))
  assert [sum(counts.values()) - of_wikipedia, of_wikipedia] == expected
  parts = {name: sum(_counts(d).values()) for name, d in task.test_parts.items()}
  assert parts == {'stackoverflow': 60, 'wikipedia': num_wikipedia}


def test_what_is_evaluated_is_limited_and_the_same_in_all_runs(directory, monkeypatch):
  monkeypatch.setattr(stackoverflow_wikipedia, '_MAX_TEST_USERS', 3)
  monkeypatch.setattr(stackoverflow_wikipedia, '_MAX_TEST_PIECES', 12)
  monkeypatch.setattr(stackoverflow_wikipedia, '_MAX_PART_PIECES', 10)
  words = ' '.join(str(i) for i in range(1000))
  _write_wikipedia(directory, train='w' * 101, test=words)
  one, other = (_load(directory, seed) for seed in (0, 1))
  pairs = zip(
    [one.test, *one.test_parts.values()],
    [other.test, *other.test_parts.values()],
    strict=True,
  )
  for a, b in pairs:
    np.testing.assert_equal(a.all_rows(), b.all_rows())
  part = one.test_parts['wikipedia']
  pieces = {words[i : i + 101] for i in range(0, 1200, 100)}
  shown = one.show(part.all_rows())
  assert len(set(shown)) == 10
  assert set(shown) < pieces
  assert len([i for i in one.test.client_ids if i.startswith('user')]) <= 3
  assert sum(_counts(one.test_parts['stackoverflow']).values()) == 10


def test_wikipedia_of_tfds_comes_first_and_its_last_articles_are_held_out(
  directory, monkeypatch
):
  monkeypatch.setattr(stackoverflow_wikipedia, '_TRAINING_ARTICLES', 3)
  _write_wikipedia(directory, train='w' * 101)
  articles = [{'title': 't', 'text': f'{letter}é' * 60} for letter in 'abcde']
  data_files.write_tfds(
    directory,
    'wikipedia',
    {'title': tfds.features.Text(), 'text': tfds.features.Text()},
    None,
    {'train': articles},
    config='20201201.en',
  )
  task = _load(directory)
  texts = [f'{letter}�' * 60 for letter in 'abcde']
  assert _text(task, task.central.data) == '⏎'.join(texts[:3])[:301]
  assert _text(task, task.test_parts['wikipedia']) == '⏎'.join(texts[3:])[:201]


def test_broken_or_short_texts_are_the_users_mistake(directory):
  _write_wikipedia(directory, train='w' * 101, test='short')
  with pytest.raises(ValueError, match='not 101 characters for training and as many'):
    _load(directory)
  prepared = directory / 'tfds' / 'wikipedia' / '20201201.en' / '1.0.0'
  prepared.mkdir(parents=True)
  (prepared / 'dataset_info.json').write_text('{}')
  with pytest.raises(ValueError, match=r'1\.0\.0 is not Wikipedia of TFDS'):
    _load(directory)


def test_the_model_has_the_papers_size_by_default(directory):
  _write_wikipedia(directory, train='w' * 101, test='w' * 101)
  task = tasks.load(_NAME, 0, data_dir=str(directory))
  weights = task.model.initialize(np.array([0, 0])).trainable
  assert [w.shape.as_list() for w in weights] == [
    [100, 256],
    [256, 3 * 1024],
    [1024, 3 * 1024],
    [2, 3 * 1024],
    [1024, 100],
    [100],
  ]


def test_real_texts_are_mostly_of_known_characters_in_the_right_shares(data_dir):
  if not downloads.prepared_wikipedia(str(data_dir)):
    try:
      downloads.wikipedia_texts(str(data_dir))
    except ValueError as error:  # A directory may have the posts alone.
      pytest.skip(str(error))
  task = _load(data_dir)
  for data in (*task.test_parts.values(), task.central.data):
    y = data.all_rows()['y']
    assert 1 <= y.min() <= y.max() <= 97
    assert np.mean(y == 97) < 0.01
  counts = _counts(task.test)
  of_wikipedia = sum(n for i, n in counts.items() if i.startswith('wikipedia'))
  assert abs(of_wikipedia / sum(counts.values()) - 0.25) < 0.001
  for data in task.test_parts.values():
    assert sum(_counts(data).values()) == 2000
