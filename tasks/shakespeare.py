"""Shakespeare: the next character of a speech, by role, from TFF's own data.

Reddi et al. 2020, whose preprocessing the Mime paper takes over (appendix C.2): each
speech gets a beginning and an end, and is padded and cut into pieces of 81 characters;
the first 80 of a piece are to predict its last 80.
"""

import collections

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tasks import sql_data, text_models, tff_files
from tasks.federated_data import Rows
from tasks.task import Task

SEQUENCE_LENGTH = 80
# In the order of TFF's tutorial on text generation, so that ids mean the same there.
CHARACTERS = (
  'dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#\'/37;?bfjnrvzBFJNRVZ"&*.26:\naeimquyAEIMQUY]!%)'
  '-159\r'
)
# 0 is padding, the characters follow, then these.
UNKNOWN, BEGIN, END = text_models.special_ids(len(CHARACTERS))

# For reading, on one line.
_SYMBOLS = ['', *CHARACTERS.replace('\n', '⏎').replace('\r', '␍'), '�', '<s>', '</s>']

_FEATURES = {'snippets': tf.io.FixedLenFeature([], tf.string)}
_ID_OF_BYTE = np.full(256, UNKNOWN, np.int32)
_ID_OF_BYTE[np.frombuffer(CHARACTERS.encode(), np.uint8)] = np.arange(
  1, len(CHARACTERS) + 1
)


def next_character(
  name: str, seed: int, data_dir: str | None, lstm_layers: int
) -> Task:
  """Embedding of 8 and LSTM of 256, one layer (Mime, C.2) or two (TFF's baseline)."""
  del seed  # The roles are the clients.
  if lstm_layers not in (1, 2):
    raise ValueError(f'--lstm_layers must be 1 or 2, found {lstm_layers}.')
  load_data = tff.simulation.datasets.shakespeare.load_data
  path = tff_files.fetch(data_dir, 'shakespeare.sqlite', load_data)
  train, test = (
    sql_data.read(path, split, _FEATURES, _preprocess, keeps_count=False)
    for split in ('train', 'test')
  )
  model = text_models.next_character(len(CHARACTERS), SEQUENCE_LENGTH, lstm_layers)
  return Task(name, model, train, test, show=_show)


def _show(rows: Rows) -> list[str]:
  pieces = np.column_stack([rows['x'], rows['y'][:, -1]])
  return [''.join(_SYMBOLS[i] for i in piece) for piece in pieces]


def _preprocess(examples: sql_data.Examples) -> Rows:
  pieces = [_pieces(snippet) for snippet in examples['snippets']]
  rows = np.concatenate([np.zeros([0, SEQUENCE_LENGTH + 1], np.int32), *pieces])
  return collections.OrderedDict(x=rows[:, :-1], y=rows[:, 1:])


def _pieces(snippet: bytes) -> np.ndarray:
  ids = _ID_OF_BYTE[np.frombuffer(snippet, np.uint8)]
  ids = np.concatenate([[BEGIN], ids, [END]])
  padding = -len(ids) % (SEQUENCE_LENGTH + 1)
  return np.pad(ids, [0, padding]).reshape(-1, SEQUENCE_LENGTH + 1).astype(np.int32)
