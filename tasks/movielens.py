"""MovieLens 1M: the movie that a user rates next, from those before it.

As in Mixed Federated Learning, section 4.3 and appendix B.2.3: the users are the
clients. Ratings count for nothing, only which movies they are of, and when.
"""

import collections
import pathlib
from typing import NamedTuple

import numpy as np
import tensorflow_datasets as tfds

from tasks import downloads, movie_models
from tasks.federated_data import FederatedData, Rows
from tasks.task import Central, Task
from tff_algorithms import oracles

NUM_MOVIES = 3952  # Ids that GroupLens has given; some are of no movie.
# N, with which the paper's tables of costs come out. The rows more are of no movie.
NUM_ROWS = 3954
_NUM_SEEN = 10
_MAX_MOVIES = 160
_FEDERATED_WEIGHT = _CENTRAL_WEIGHT = 0.5
_LEAST_USERS = 13  # So that there is one of each kind.


def next_movie(
  name: str,
  seed: int,
  data_dir: str | None,
  spreadout: str,
  selection: str = 'simulated',
) -> Task:
  """A dual encoder, spread out by a regularizer on the server or on the clients.

  A client has the first 160 movies that a user rated, in the order of time, those of
  the same second in the order of the file. All but the first are labels; the inputs are
  the ten, or as many as there are, before each.

  Four fifths of the users are clients, and of these eight tenths are for training, one
  for testing and one for validation, which is the part `validation` of the tests. The
  others, a fifth, the paper keeps as the server's; its loss needs no rows, and they
  take no part.

  Args:
    name: The name of the task.
    seed: What the users are dealt out by.
    data_dir: The directory that has `ratings.dat`, itself or in `ml-1m`, or where TFDS
      keeps its data; by default TFF's cache directory and TFDS's.
    spreadout: Who computes the regularizer. With `server` it is the server's own loss,
      and a client needs only the vectors of its movies. With `clients` all of the loss,
      0.5 of the hinge loss and 0.5 of the regularizer, is theirs, and there is nothing
      to be mixed.
    selection: Whether a client is sent those vectors alone: `simulated` counts their
      bytes but sends all, which is fast; `federated_select` really sends them.

  Raises:
    ValueError: If the data are not there, or not what they should be.
  """
  path = downloads.movielens(data_dir)
  train, validation, test = _split(path, seed)
  model = movie_models.dual_encoder(NUM_ROWS, _NUM_SEEN)
  regularizer = movie_models.spreadout()
  central = objective = selected = None
  if spreadout == 'server':
    central = Central(_FEDERATED_WEIGHT, _CENTRAL_WEIGHT, objective=regularizer)
    if selection != 'none':
      selected = movie_models.selection(
        NUM_ROWS, _MAX_MOVIES, is_simulated=selection == 'simulated'
      )
  else:
    objective = oracles.Sum(
      oracles.Weighted(_FEDERATED_WEIGHT, oracles.ModelLoss(model)),
      oracles.Weighted(_CENTRAL_WEIGHT, regularizer),
    )
  return Task(
    name,
    model,
    train,
    test,
    show=_show,
    central=central,
    objective=objective,
    test_parts={'validation': validation},
    selection=selected,
  )


def _split(path: pathlib.Path, seed: int) -> list[FederatedData]:
  """The users for training, for validation and for testing."""
  histories = _histories(_from_file(path) if path.is_file() else _from_tfds(path))
  if len(histories) < _LEAST_USERS:
    raise ValueError(
      f'{path} has ratings of {len(histories)} users, where at least {_LEAST_USERS} '
      'are expected.'
    )
  users = np.random.default_rng(seed).permutation(list(histories))
  num_clients = 8 * len(users) // 10
  num_train, num_held_out = 8 * num_clients // 10, num_clients // 10
  cuts = np.cumsum([num_train, num_held_out, num_held_out])
  return [_by_user(histories, part) for part in np.split(users, cuts)[:3]]


class _Ratings(NamedTuple):
  """Who rated which movie, by its id from 0 on, and when, in seconds."""

  users: np.ndarray
  movies: np.ndarray
  times: np.ndarray


def _from_file(path: pathlib.Path) -> _Ratings:
  ratings = []
  try:
    with path.open(encoding='latin-1') as file:
      for number, line in enumerate(file, start=1):
        if text := line.strip():
          ratings.append(_parsed(text, f'{path}, line {number}'))
  except OSError as error:
    raise ValueError(f'{path} cannot be read ({error}).') from error
  users, movies, times = np.array(ratings, np.int64).reshape([-1, 3]).T
  return _Ratings(users, movies - 1, times)


def _parsed(text: str, where: str) -> tuple[int, int, int]:
  """User, movie and time of a line."""
  try:
    user, movie, _, time = text.split('::')
    parsed = int(user), int(movie), int(time)
    if not 1 <= parsed[1] <= NUM_MOVIES:
      raise ValueError('no such movie')
  except ValueError as error:
    raise ValueError(
      f'{where}: not UserID::MovieID::Rating::Timestamp, where movies have the ids '
      f'from 1 to {NUM_MOVIES} ({error}).'
    ) from error
  return parsed


def _from_tfds(path: pathlib.Path) -> _Ratings:
  keys = ('user_id', 'movie_id', 'timestamp')
  columns: dict[str, list[int]] = {key: [] for key in keys}
  # Whatever is wrong with a directory, TFDS may raise anything.
  try:
    dataset = tfds.builder_from_directory(path).as_dataset(
      split='train',
      shuffle_files=False,
      decoders=tfds.decode.PartialDecoding(dict.fromkeys(keys, True)),
      read_config=tfds.ReadConfig(try_autocache=False),
    )
    for some in dataset.batch(4096).as_numpy_iterator():
      for key in keys:
        columns[key] += map(int, some[key])  # Ids are text there.
  except Exception as error:
    raise ValueError(f'{path} cannot be read as MovieLens ({error}).') from error
  users, movies, times = (np.array(columns[key], np.int64) for key in keys)
  if not ((movies >= 1) & (movies <= NUM_MOVIES)).all():
    raise ValueError(f'{path} has movies with other ids than 1 to {NUM_MOVIES}.')
  return _Ratings(users, movies - 1, times)


def _histories(ratings: _Ratings) -> dict[int, np.ndarray]:
  """The first movies of each user, by the user's id."""
  order = np.lexsort([ratings.times, ratings.users])  # It keeps the order of equals.
  users, starts = np.unique(ratings.users[order], return_index=True)
  _, *parts = np.split(ratings.movies[order].astype(np.int32), starts)
  return {
    int(user): movies[:_MAX_MOVIES] for user, movies in zip(users, parts, strict=True)
  }


def _by_user(histories: dict[int, np.ndarray], users: np.ndarray) -> FederatedData:
  own = {str(user): histories[user] for user in sorted(map(int, users))}
  return FederatedData(
    tuple(own), lambda user: _rows(own[user]), lambda user: len(own[user]) - 1
  )


def _rows(movies: np.ndarray) -> Rows:
  before = np.full(_NUM_SEEN, movie_models.PADDING, np.int32)
  windows = np.lib.stride_tricks.sliding_window_view(
    np.concatenate([before, movies]), _NUM_SEEN
  )
  return collections.OrderedDict(x=windows[1:-1].copy(), y=movies[1:])


def _show(rows: Rows) -> list[str]:
  """The movies by their ids in MovieLens."""
  return [
    f'{" ".join(str(movie + 1) for movie in seen if movie >= 0)} -> {next_one + 1}'
    for seen, next_one in zip(rows['x'], rows['y'], strict=True)
  ]
