"""The next movie on MovieLens 1M: generated ratings, and the real ones."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

import tasks
from tasks import movie_models
from tasks.movielens import next_movie
from tests.tasks import data_files, offline
from tff_algorithms import oracles

_SEED = tf.constant([1, 2])


def _made(directory, histories, seed=0, spreadout='server'):
  data_files.write_ratings(directory / 'ml-1m' / 'ratings.dat', histories)
  return next_movie('movielens', seed, str(directory), spreadout)


def _parts(task):
  return task.train, task.test_parts['validation'], task.test


def _rows_by_user(task):
  return {
    client_id: data.rows(client_id)
    for data in _parts(task)
    for client_id in data.client_ids
  }


@pytest.fixture(scope='module')
def directory(tmp_path_factory):
  directory = tmp_path_factory.mktemp('data')
  histories = data_files.some_histories(50)
  data_files.write_ratings(directory / 'ml-1m' / 'ratings.dat', histories)
  return directory


@pytest.fixture(scope='module')
def task(directory):
  return next_movie('movielens', 0, str(directory), 'server')


def test_examples_are_the_movies_before_each_in_the_order_of_time(tmp_path):
  times = [50, 20, 40, 20, 30, 10, 60, 70, 80, 90, 95, 96]
  pairs = [(100 + i, time) for i, time in enumerate(times)]
  # Of the same second, those of the file's order.
  expected = [105, 101, 103, 104, 102, 100, 106, 107, 108, 109, 110, 111]
  task = _made(tmp_path, dict.fromkeys(range(1, 14), pairs))
  assert len(_rows_by_user(task)) == 10
  for rows in _rows_by_user(task).values():
    assert rows['x'].dtype == rows['y'].dtype == np.int32
    np.testing.assert_array_equal(rows['y'] + 1, expected[1:])
    assert rows['x'].shape == (11, 10)
    np.testing.assert_array_equal(rows['x'][0], [-1] * 9 + [104])
    np.testing.assert_array_equal(rows['x'][2], [-1] * 7 + [104, 100, 102])
    np.testing.assert_array_equal(rows['x'][10] + 1, expected[1:11])


def test_users_may_come_in_any_order_and_between_each_other(tmp_path):
  lines = [
    f'{user}::{user + 20 * i}::3::{i}' for i in range(3) for user in range(1, 14)
  ]
  path = tmp_path / 'ratings.dat'
  path.write_text('\n'.join([*lines[::-1], '', '']))
  task = next_movie('movielens', 0, str(tmp_path), 'server')
  for user, rows in _rows_by_user(task).items():
    np.testing.assert_array_equal(rows['y'] + 1, [int(user) + 20, int(user) + 40])


def test_a_client_has_the_first_160_movies(tmp_path):
  pairs = [(1 + i, i) for i in range(200)]
  task = _made(tmp_path, dict.fromkeys(range(1, 14), pairs))
  for rows in _rows_by_user(task).values():
    np.testing.assert_array_equal(rows['y'], np.arange(1, 160))
    keys = task.selection.keys(rows)
    np.testing.assert_array_equal(keys, np.arange(160))


def test_a_user_of_one_movie_is_a_client_without_examples(tmp_path):
  task = _made(tmp_path, dict.fromkeys(range(1, 14), ((5, 1),)))
  for data in _parts(task):
    for client_id in data.client_ids:
      assert data.num_examples(client_id) == 0
      assert data.rows(client_id)['x'].shape == (0, 10)


def test_counts_are_those_of_the_rows(task):
  for data in _parts(task):
    for client_id in data.client_ids:
      assert data.num_examples(client_id) == len(data.rows(client_id)['y'])


def test_users_are_in_one_part_only_and_a_fifth_in_none(task):
  assert [len(data.client_ids) for data in _parts(task)] == [32, 4, 4]
  every = [client_id for data in _parts(task) for client_id in data.client_ids]
  assert len(set(every)) == 40
  assert set(every) < set(map(str, range(1, 51)))


def test_as_many_users_as_in_the_paper_are_in_each_part(tmp_path):
  task = _made(tmp_path, dict.fromkeys(range(1, 6041), ((1, 1), (2, 2))))
  assert [len(data.client_ids) for data in _parts(task)] == [3865, 483, 483]


def test_the_seed_determines_who_is_in_which_part(directory):
  def made(seed):
    task = next_movie('movielens', seed, str(directory), 'server')
    return [data.client_ids for data in _parts(task)]

  assert made(0) == made(0)
  for one, other in zip(made(0), made(1), strict=True):
    assert one != other


def test_rows_match_what_the_model_expects(task):
  for data in _parts(task):
    for name, spec in task.model.input_spec.items():
      rows = tf.convert_to_tensor(data.all_rows()[name])
      assert spec.is_compatible_with(rows)
      assert spec.dtype == rows.dtype


def test_examples_are_shown_with_the_ids_of_movielens(task):
  first = task.train.rows('1')  # It has the movies 1 + 17 and 1 + 17 + 5.
  assert task.show(first) == ['18 -> 23']
  assert task.show(task.train.rows('2'))[1] == '35 40 -> 45'


def _gradient(oracle, weights, rows):
  return oracle.evaluate(weights, rows, _SEED).gradient


def test_the_server_regularizes_half_of_the_loss(task):
  assert task.objective is None
  central = task.central
  assert (central.federated_weight, central.central_weight) == (0.5, 0.5)
  assert central.data is None
  weights = task.model.initialize(_SEED)
  loss = central.objective.evaluate(weights, (), _SEED).loss
  np.testing.assert_allclose(
    loss, movie_models.spreadout().evaluate(weights, (), _SEED).loss
  )
  # Random vectors of 16 dimensions have cosines of 1/4.
  np.testing.assert_allclose(loss, 0.01 * 3954 / 4, rtol=0.01)
  assert task.selection.table_shape == weights.trainable[0].shape == (3954, 16)
  assert task.selection.max_keys == 160


def test_the_clients_may_compute_all_of_the_loss(task, directory):
  alone = next_movie('movielens', 0, str(directory), 'clients')
  assert alone.central is None
  assert alone.selection is None
  assert alone.train.client_ids == task.train.client_ids
  weights = task.model.initialize(_SEED)
  rows = task.train.all_rows()
  hinge = _gradient(oracles.ModelLoss(task.model), weights, rows)
  spread = _gradient(task.central.objective, weights, ())
  both = _gradient(alone.objective, weights, rows)
  for g, h, b in zip(hinge, spread, both, strict=True):
    np.testing.assert_allclose(b, 0.5 * g + 0.5 * h, rtol=1e-6, atol=1e-9)


def test_a_client_with_a_selection_has_the_gradient_of_one_with_all(task):
  table, *others = task.model.initialize(_SEED).trainable
  oracle, selection = oracles.ModelLoss(task.model), task.selection
  rows = task.train.rows(task.train.client_ids[-1])
  keys = selection.keys(rows)
  local = selection.localize(rows, keys)
  sent = type(task.model.initialize(_SEED))(
    (tf.gather(table, tf.maximum(keys, 0)), *others), ()
  )
  of_sent, *of_others = _gradient(oracle, sent, local)
  scattered = tf.math.unsorted_segment_sum(of_sent, keys, 3954)
  expected = _gradient(oracle, task.model.initialize(_SEED), rows)
  for g, e in zip((scattered, *of_others), expected, strict=True):
    np.testing.assert_allclose(g, e, rtol=1e-5, atol=1e-8)


def test_ratings_may_come_from_tfds(tmp_path, task, directory):
  lines = (directory / 'ml-1m' / 'ratings.dat').read_text().split()
  ratings = [line.split('::') for line in lines]
  data_files.write_tfds(
    tmp_path,
    'movielens',
    {
      'user_id': tfds.features.Text(),
      'movie_id': tfds.features.Text(),
      'timestamp': np.int64,
      'user_rating': np.float32,
    },
    None,
    {
      'train': [
        {'user_id': u, 'movie_id': m, 'user_rating': float(r), 'timestamp': int(t)}
        for u, m, r, t in ratings
      ]
    },
    config='1m-ratings',
  )
  found = next_movie('movielens', 0, str(tmp_path), 'server')
  for data, expected in zip(_parts(found), _parts(task), strict=True):
    assert data.client_ids == expected.client_ids
    for name, array in expected.all_rows().items():
      np.testing.assert_array_equal(data.all_rows()[name], array)


def test_a_broken_directory_of_tfds_is_named(tmp_path):
  home = tmp_path / 'movielens' / '1m-ratings' / '1.0.0'
  home.mkdir(parents=True)
  (home / 'dataset_info.json').write_text('nothing')
  with pytest.raises(ValueError, match=f'{home} cannot be read as MovieLens'):
    next_movie('movielens', 0, str(tmp_path), 'server')


@pytest.mark.parametrize(
  ('line', 'message'),
  [
    ('1::2::3', 'not enough values'),
    ('1::2::3::4::5', 'too many values'),
    ('1,2,3,4', 'not enough values'),
    ('1::two::3::4', "'two'"),
    ('1::2::3::', "''"),
    ('1::0::3::4', 'no such movie'),
    ('1::3953::3::4', 'no such movie'),
  ],
)
def test_a_bad_line_is_named(tmp_path, line, message):
  path = tmp_path / 'ratings.dat'
  path.write_text(f'1::2::3::4\n1::3::3::5\n\n{line}\n1::4::3::5\n')
  expected = rf'{path}, line 4: not UserID::MovieID::Rating::Timestamp.*{message}'
  with pytest.raises(ValueError, match=expected):
    next_movie('movielens', 0, str(tmp_path), 'server')


@pytest.mark.parametrize('num_users', [0, 12])
def test_too_few_users_are_refused(tmp_path, num_users):
  histories = data_files.some_histories(num_users)
  with pytest.raises(ValueError, match=f'has ratings of {num_users} users, .*at least'):
    _made(tmp_path, histories)


def test_missing_data_are_named_without_importing_anything_slow(tmp_path, monkeypatch):
  monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path / 'nothing'))
  message = offline.refusal('movielens', data_dir=str(tmp_path))
  assert f'ml-1m/ratings.dat cannot be found in {tmp_path}' in message


def test_the_registry_has_it_both_ways(directory):
  tasks.check('movielens', data_dir=str(directory))
  assert tasks.load('movielens', 0, data_dir=str(directory)).central
  on_clients = tasks.load('movielens', 0, data_dir=str(directory), spreadout='clients')
  assert on_clients.central is None
  with pytest.raises(ValueError, match='spreadout must be one of server, clients'):
    tasks.load('movielens', 0, data_dir=str(directory), spreadout='nobody')


def test_holds_the_real_ratings_of_each_user_in_order(data_dir):
  task = next_movie('movielens', 0, str(data_dir), 'server')
  table = np.array(
    [
      [int(field) for field in line.split('::')]
      for line in (data_dir / 'ml-1m' / 'ratings.dat').open(encoding='latin-1')
    ]
  )
  num_users = len(np.unique(table[:, 0]))
  num_clients = 8 * num_users // 10
  sizes = [len(data.client_ids) for data in _parts(task)]
  assert sizes == [8 * num_clients // 10, num_clients // 10, num_clients // 10]
  for client_id in task.test.client_ids[::20]:
    own = table[table[:, 0] == int(client_id)]
    movies = own[np.argsort(own[:, 3], kind='stable'), 1][:160] - 1
    rows = task.test.rows(client_id)
    np.testing.assert_array_equal(rows['y'], movies[1:])
    np.testing.assert_array_equal(rows['x'][:, -1], movies[:-1])
    keys = task.selection.keys(rows).numpy()
    assert set(keys[keys >= 0]) == set(movies)
