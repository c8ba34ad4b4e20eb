"""Stack Overflow: the next word, or a question's tags, by user, from TFF's own data.

Preprocessed as in Reddi et al. 2020, which the Mime paper takes over (appendix C.2).
"""

import collections
from collections.abc import Callable, Sequence
import json
import pathlib

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import downloads, sql_data, text_models, tff_files
from tasks.federated_data import FederatedData, Rows
from tasks.task import Task

SEQUENCE_LENGTH = 20  # Words of a sentence; what is longer is cut.
# Of sentence and title together, so long that next to none is cut (TFF cuts none).
MAX_WORDS = 256

_STRING = tf.io.FixedLenFeature([], tf.string)


def next_word(
  name: str,
  seed: int,
  data_dir: str | None,
  vocabulary_size: int,
  max_client_examples: int | None,
) -> Task:
  """Embedding of 96, LSTM of 670 (Mime, C.2, with a vocabulary of 1,000)."""
  del seed  # The users are the clients.
  vocabulary = _vocabulary(data_dir, 'word', vocabulary_size)
  ids = {word: i for i, word in enumerate(vocabulary, start=1)}
  unknown, begin, end = text_models.special_ids(len(vocabulary))

  def preprocess(examples):
    rows = np.zeros([len(examples['tokens']), SEQUENCE_LENGTH + 1], np.int32)
    for row, sentence in zip(rows, examples['tokens'], strict=True):
      words = sentence.split(b' ')[:SEQUENCE_LENGTH]
      tokens = [begin, *(ids.get(word, unknown) for word in words), end]
      row[: len(tokens)] = tokens[: SEQUENCE_LENGTH + 1]
    return collections.OrderedDict(x=rows[:, :-1], y=rows[:, 1:])

  def show(rows):
    words = [*_readable(vocabulary), '<unknown>', '<s>', '</s>']
    pieces = np.column_stack([rows['x'], rows['y'][:, -1]])
    return [' '.join(words[i - 1] for i in piece if i) for piece in pieces]

  data = _read(data_dir, ['tokens'], preprocess, max_client_examples)
  model = text_models.next_word(len(vocabulary), SEQUENCE_LENGTH)
  return Task(name, model, *data, show=show)


def tags(
  name: str,
  seed: int,
  data_dir: str | None,
  vocabulary_size: int,
  num_tags: int,
  max_client_examples: int | None,
) -> Task:
  """Logistic regression from the bag of words of sentence and title to each tag."""
  del seed  # The users are the clients.
  vocabulary = _vocabulary(data_dir, 'word', vocabulary_size)
  word_ids = {word: i for i, word in enumerate(vocabulary, start=1)}
  tag_vocabulary = _vocabulary(data_dir, 'tag', num_tags)
  columns = {tag: i for i, tag in enumerate(tag_vocabulary)}

  def preprocess(examples):
    num_rows = len(examples['tokens'])
    x = np.zeros([num_rows, MAX_WORDS], np.int32)
    y = np.zeros([num_rows, len(columns)], np.uint8)
    for i in range(num_rows):
      words = b' '.join([examples['tokens'][i], examples['title'][i]]).split()
      known = [word_ids[word] for word in words if word in word_ids][:MAX_WORDS]
      x[i, : len(known)] = known
      given = examples['tags'][i].split(b'|')
      y[i, [columns[tag] for tag in given if tag in columns]] = 1
    return collections.OrderedDict(x=x, y=y)

  def show(rows):
    words, names = _readable(vocabulary), _readable(tag_vocabulary)
    return [
      f'{" ".join(words[i - 1] for i in x if i)} -> '
      f'{" ".join(names[i] for i in np.flatnonzero(y)) or "none of these tags"}'
      for x, y in zip(rows['x'], rows['y'], strict=True)
    ]

  features = ['tokens', 'title', 'tags']
  data = _read(data_dir, features, preprocess, max_client_examples)
  model = text_models.tag_logistic(len(vocabulary), len(tag_vocabulary), MAX_WORDS)
  return Task(name, model, *data, show=show)


def _readable(entries: Sequence[bytes]) -> list[str]:
  return [entry.decode() for entry in entries]


def _read(
  data_dir: str | None,
  features: Sequence[str],
  preprocess: Callable[[sql_data.Examples], Rows],
  max_examples: int | None,
) -> tuple[FederatedData, FederatedData]:
  """Train and test data; the held-out users of TFF's file take part in neither."""
  load_data = tff.simulation.datasets.stackoverflow.load_data
  path = tff_files.fetch(data_dir, 'stackoverflow.sqlite', load_data)
  parsed = dict.fromkeys(features, _STRING)
  return (
    sql_data.read(path, 'train', parsed, preprocess, max_examples=max_examples),
    sql_data.read(path, 'test', parsed, preprocess),
  )


def _vocabulary(data_dir: str | None, kind: str, size: int) -> list[bytes]:
  """The most frequent words or tags.

  TFF's own functions check the hash of TFF's archive, so they cannot be given another
  table; one under `data_dir` comes first.
  """
  directory = downloads.directory(data_dir)
  path = downloads.count_table(directory, kind)
  if path.exists():
    entries = (_words if kind == 'word' else _tags)(path)
  else:
    datasets = tff.simulation.datasets.stackoverflow
    load = datasets.load_word_counts if kind == 'word' else datasets.load_tag_counts
    try:
      entries = list(load(cache_dir=str(directory)))
    except Exception as error:  # Keras raises a plain one where it cannot download.
      raise ValueError(downloads.failed(path.name, path.parent, error)) from error
  return [entry.encode() for entry in entries[:size]]


def _words(path: pathlib.Path) -> list[str]:
  with open(path, encoding='utf-8') as lines:
    return [line.split()[0] for line in lines if line.strip()]


def _tags(path: pathlib.Path) -> list[str]:
  counts = json.loads(path.read_text(encoding='utf-8'))
  return sorted(counts, key=lambda tag: -counts[tag])
