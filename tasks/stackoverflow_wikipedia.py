"""The next character: Stack Overflow by user, and Wikipedia at the server.

The language model of "Mixed Federated Learning" (sections 4.2 and B.2.2). Texts are
joined with newlines and cut into pieces of 101 characters, each of which begins with
the last of the piece before; the first 100 of a piece are to predict its last 100, and
what is left over at the end is dropped. The characters are those that can be printed in
ASCII, and the newline; any other, whatever its bytes, is one out of vocabulary.
"""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
import itertools
import pathlib

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds
import tensorflow_federated as tff
import tqdm

from tasks import downloads, sql_data, text_models, tff_files
from tasks.federated_data import FederatedData, Rows
from tasks.task import Central, Task

SEQUENCE_LENGTH = 100
CHARACTERS = ''.join(map(chr, range(ord(' '), ord('~') + 1))) + '\n'
FEDERATED_WEIGHT, CENTRAL_WEIGHT = 0.75, 0.25

_UNKNOWN, _, _ = text_models.special_ids(len(CHARACTERS))
_ID_OF_BYTE = np.full(256, _UNKNOWN, np.uint8)
_ID_OF_BYTE[np.frombuffer(CHARACTERS.encode(), np.uint8)] = np.arange(
  1, len(CHARACTERS) + 1
)
# For reading, on one line.
_SYMBOLS = ['', *CHARACTERS.replace('\n', '⏎'), '�']

_FEATURES = {'tokens': tf.io.FixedLenFeature([], tf.string)}
_TRAINING_ARTICLES = 5_000_000  # Of TFDS's Wikipedia; the rest is for evaluation.
_SHARD_SIZE = 1_000  # Pieces of Wikipedia that are loaded together.
# Evaluation is costly: so much is read for it, and each part is of so many pieces.
_MAX_TEST_USERS = 2_000
_MAX_TEST_PIECES = 50_000
_MAX_PART_PIECES = 2_000
_RATIO = FEDERATED_WEIGHT / CENTRAL_WEIGHT  # Of the two in the mixture.
_SEED = 0  # Of what is drawn for evaluation, which is the same in all runs.

# Pieces `[n, 101]` of ids, as bytes, by client. They are views of the text.
_Pieces = Mapping[str, np.ndarray]


def next_character(
  name: str,
  seed: int,
  data_dir: str | None,
  embedding_size: int,
  gru_units: int,
  max_client_examples: int | None,
  max_central_examples: int | None,
) -> Task:
  """An embedding and a GRU, of 256 and 1,024 in the paper.

  Evaluation is on a mixture of three quarters Stack Overflow, of 2,000 of the test
  users, and a quarter Wikipedia: as much as there is of both, drawn in the same way for
  every seed. It is costly, so `test_parts`, each of the two alone, have 2,000 pieces.

  Args:
    name: The name of the task.
    seed: Not used: the users are the clients.
    data_dir: Where the data are; TFF's and TFDS's own directories by default.
    embedding_size: The length of a character's vector.
    gru_units: How many units the GRU has.
    max_client_examples: How many pieces of a client to take, the first of its text.
    max_central_examples: How many of Wikipedia for training, the first of its text;
      no more of it is read. None for all, which has to fit in memory, 100 bytes each.

  Raises:
    ValueError: If the data cannot be had, or are broken.
  """
  del seed
  load_data = tff.simulation.datasets.stackoverflow.load_data
  path = tff_files.fetch(data_dir, 'stackoverflow.sqlite', load_data)
  train = _clients(_users(path, 'train'), max_client_examples)
  users = _drawn_users(_users(path, 'test'))
  central, articles = _wikipedia(data_dir, max_central_examples)
  from_users = min(_count(users), round(_count(articles) * _RATIO))
  from_articles = round(from_users / _RATIO)
  return Task(
    name,
    text_models.next_character_gru(
      len(CHARACTERS), SEQUENCE_LENGTH, embedding_size, gru_units
    ),
    train,
    _federated({**_drawn(users, from_users), **_drawn(articles, from_articles)}),
    show=_show,
    central=Central(FEDERATED_WEIGHT, CENTRAL_WEIGHT, _federated(central)),
    test_parts={
      'stackoverflow': _federated(_drawn(users, _MAX_PART_PIECES)),
      'wikipedia': _federated(_drawn(articles, _MAX_PART_PIECES)),
    },
  )


def _show(rows: Rows) -> list[str]:
  pieces = np.column_stack([rows['x'], rows['y'][:, -1]])
  return [''.join(_SYMBOLS[i] for i in piece) for piece in pieces]


def _users(path: pathlib.Path, split: str) -> FederatedData:
  """The pieces of each user, as `pieces`; what is counted is sentences."""

  def preprocess(examples):
    pieces = _cut(_ids(examples['tokens']))
    return collections.OrderedDict(pieces=pieces)

  return sql_data.read(path, split, _FEATURES, preprocess)


def _clients(users: FederatedData, max_pieces: int | None) -> FederatedData:
  """The users with at least one piece."""

  def has_piece(client_id):
    # A sentence has at least one character, and a newline joins it to the next: so
    # many need not be read.
    if users.num_examples(client_id) > SEQUENCE_LENGTH // 2:
      return True
    return len(users.rows(client_id)['pieces']) > 0

  return FederatedData(
    list(filter(has_piece, _progress(users.client_ids))),
    lambda client_id: _rows(users.rows(client_id)['pieces'][:max_pieces]),
    origin=users.origin and users.origin.then('rows of pieces', max_pieces),
  )


def _drawn_users(users: FederatedData) -> _Pieces:
  """The pieces of users drawn at random, always the same, or of all if they are few."""
  client_ids = users.client_ids
  if len(client_ids) > _MAX_TEST_USERS:
    generator = np.random.default_rng(_SEED)
    chosen = generator.choice(len(client_ids), _MAX_TEST_USERS, replace=False)
    client_ids = tuple(client_ids[i] for i in np.sort(chosen))
  pieces = {i: users.rows(i)['pieces'] for i in _progress(client_ids)}
  return {client_id: own for client_id, own in pieces.items() if len(own)}


def _wikipedia(
  data_dir: str | None, max_train_pieces: int | None
) -> tuple[_Pieces, _Pieces]:
  """Wikipedia for training and for evaluation, in pieces of which 1,000 go together."""
  prepared = downloads.prepared_wikipedia(data_dir)
  if prepared:
    train, test = _articles(prepared)
  else:
    train, test = _lines(downloads.wikipedia_texts(data_dir))
  try:
    return _shards(train, max_train_pieces), _shards(test, _MAX_TEST_PIECES)
  except (OSError, tf.errors.OpError) as error:
    raise ValueError(f'Wikipedia cannot be read ({error}).') from error


def _articles(prepared: pathlib.Path) -> tuple[Iterable[bytes], Iterable[bytes]]:
  """The articles that TFDS has prepared, read as they are asked for."""
  try:
    builder = tfds.builder_from_directory(prepared)
    num_articles = builder.info.splits['train'].num_examples
  except Exception as error:  # Whatever TFDS comes up with.
    raise ValueError(f'{prepared} is not Wikipedia of TFDS ({error}).') from error
  cut = min(_TRAINING_ARTICLES, _all_but_a_tenth(num_articles))

  def texts(split):
    dataset = builder.as_dataset(
      split=split,
      shuffle_files=False,
      read_config=tfds.ReadConfig(try_autocache=False),
    )
    return (article['text'] for article in dataset.as_numpy_iterator())

  return texts(f'train[:{cut}]'), texts(f'train[{cut}:]')


def _lines(paths: Sequence[pathlib.Path]) -> tuple[Iterable[bytes], Iterable[bytes]]:
  """The lines of text files that are not empty, read as they are asked for."""
  test = [path for path in paths if downloads.is_for_testing(path)]
  train = [path for path in paths if path not in test]
  if test:
    return _lines_of(train), _lines_of(test)
  cut = _all_but_a_tenth(sum(1 for _ in _lines_of(train)))
  return (
    itertools.islice(_lines_of(train), cut),
    itertools.islice(_lines_of(train), cut, None),
  )


def _lines_of(paths: Sequence[pathlib.Path]) -> Iterator[bytes]:
  for path in paths:
    with open(path, 'rb') as lines:
      yield from filter(None, map(bytes.strip, lines))


def _all_but_a_tenth(count: int) -> int:
  return count - count // 10


def _shards(texts: Iterable[bytes], max_pieces: int | None) -> _Pieces:
  pieces = _cut(_ids(texts, max_pieces and max_pieces * SEQUENCE_LENGTH + 1))
  if not len(pieces):
    raise ValueError(
      f'Of Wikipedia there are not {SEQUENCE_LENGTH + 1} characters for training and '
      'as many for evaluation.'
    )
  starts = range(0, len(pieces), _SHARD_SIZE)
  return {
    f'wikipedia_{i:04d}': pieces[start : start + _SHARD_SIZE]
    for i, start in enumerate(starts)
  }


def _ids(texts: Iterable[bytes], max_length: int | None = None) -> np.ndarray:
  """The ids of the characters of the texts, joined; no more are read than needed."""
  parts, length = [np.zeros([0], np.uint8)], 0
  for text in texts:
    codes = np.frombuffer(text + b'\n', np.uint8)
    is_first = (codes & 0b11000000) != 0b10000000  # Of the bytes of a character.
    parts.append(_ID_OF_BYTE[codes[is_first]])
    length += len(parts[-1])
    if max_length and length > max_length:
      break
  return np.concatenate(parts)[:-1][:max_length]


def _cut(ids: np.ndarray) -> np.ndarray:
  """Pieces of a text, `[n, 101]`, of which each begins with the last id of another."""
  if len(ids) <= SEQUENCE_LENGTH:
    return np.zeros([0, SEQUENCE_LENGTH + 1], np.uint8)
  windows = np.lib.stride_tricks.sliding_window_view(ids, SEQUENCE_LENGTH + 1)
  return windows[::SEQUENCE_LENGTH]


def _count(pieces: _Pieces) -> int:
  return sum(map(len, pieces.values()))


def _drawn(pieces: _Pieces, count: int) -> _Pieces:
  """So many pieces, or all if there are no more, drawn at random, always the same."""
  generator = np.random.default_rng(_SEED)
  chosen = np.sort(generator.permutation(_count(pieces))[:count])
  drawn, start = {}, 0
  for client_id, own in pieces.items():
    numbers = chosen[(chosen >= start) & (chosen < start + len(own))] - start
    if len(numbers):
      drawn[client_id] = own[numbers]
    start += len(own)
  return drawn


def _federated(pieces: _Pieces) -> FederatedData:
  return FederatedData(
    tuple(pieces),
    lambda client_id: _rows(pieces[client_id]),
    lambda client_id: len(pieces[client_id]),
  )


def _rows(pieces: np.ndarray) -> Rows:
  ids = pieces.astype(np.int32)
  return collections.OrderedDict(x=ids[:, :-1], y=ids[:, 1:])


def _progress(client_ids: Sequence[str]) -> Iterable[str]:
  return tqdm.tqdm(client_ids, 'Reading', delay=2, leave=False, disable=None)
