"""Every task builds, trains two rounds and evaluates, as the binary would train it."""

import pathlib

import numpy as np
import pytest
import tensorflow as tf

import tasks
from tests.tasks import data_files
from training_loops import run, train_flags, training

# Small enough for a test: little data, few steps.
_SMALL = {'clients_per_round': 2, 'max_client_steps': 2, 'batch_size': 4}
_FLAGS: dict[str, dict] = {
  'cifar100': {'max_client_steps': 1, 'batch_size': 1},
  'stackoverflow_word': {'vocabulary_size': 50},
  'stackoverflow_tag': {'vocabulary_size': 50, 'num_tags': 5},
  'stackoverflow_wikipedia_char': {'embedding_size': 8, 'gru_units': 16},
  'cifar100_dirichlet': {'cifar_model': 'cnn', 'num_clients': 3},
  'mnist_cnn': {'partitioner': 'shards', 'num_clients': 10},
  'emnist_balanced_logistic': {'num_clients': 20},
  'quadratic_game': {'precision': 'float32'},
  'tfds': {'tfds_name': 'toy_letters', 'num_clients': 4},
}
# The shape of a row's input, and the classes that the model tells apart.
_ROWS = {
  'digits_logistic': ((8, 8), 10),
  'digits_mlp': ((8, 8), 10),
  'digits_mixed': ((8, 8), 10),
  'digits_gan': ((8, 8), 3),
  'emnist_logistic': ((28, 28), 62),
  'emnist_mlp': ((28, 28), 62),
  'emnist_cnn': ((28, 28), 62),
  'emnist_autoencoder': ((28, 28), 784),
  'mnist_mlp': ((28, 28), 10),
  'mnist_cnn': ((28, 28), 10),
  'emnist_balanced_logistic': ((28, 28), 47),
  'cifar100': ((24, 24, 3), 100),
  'cifar100_dirichlet': ((24, 24, 3), 100),
  'celeba_smile': ((84, 84, 3), 2),  # A number for each of two examples.
  'shakespeare': ((80,), 90),
  'stackoverflow_word': ((20,), 54),
  'stackoverflow_tag': ((256,), 5),
  'stackoverflow_wikipedia_char': ((100,), 100),
  'movielens': ((10,), 3954),
  'concrete_linear': ((8,), 2),  # A number for each of two examples.
  'concrete_robust': ((8,), 2),  # The same.
  'quadratics': ((20, 21), 1),
  'quadratic_game': ((2, 10), 1),
  'tfds': ((9, 9), 3),
}


@pytest.fixture(scope='module')
def cache(tff_cache, tmp_path_factory) -> pathlib.Path:
  """What the tasks look for: the real files, and small ones for those not there."""
  made = tmp_path_factory.mktemp('every_task')
  for path in tff_cache.iterdir():
    (made / path.name).symlink_to(path)
  generator = np.random.default_rng(0)
  for name, prefix, num_classes in (
    ('mnist', '', 10),
    ('emnist-balanced', 'emnist-balanced-', 47),
  ):
    if not (made / name).exists():
      for split, n in (('train', 200), ('t10k' if not prefix else 'test', 60)):
        images = generator.integers(0, 256, [n, 28, 28])
        labels = np.arange(n) % num_classes
        home = made / name
        data_files.write_idx(home / f'{prefix}{split}-images-idx3-ubyte', images)
        data_files.write_idx(home / f'{prefix}{split}-labels-idx1-ubyte', labels)
  if not (made / 'concrete').exists():
    rows = generator.normal(size=[1030, 9])
    lines = [','.join('abcdefghi'), *(','.join(map(str, row)) for row in rows)]
    (made / 'Concrete_Data.csv').write_text('\n'.join(lines))
  if not (made / 'ml-1m').exists():
    path = made / 'ml-1m' / 'ratings.dat'
    data_files.write_ratings(path, data_files.some_histories(20))
  if not (made / 'wikitext-2').exists():
    data_files.write_articles(made / 'wikipedia')
  letters = generator.integers(0, 256, [60, 9, 9, 1]).astype(np.uint8)
  splits = {'train': (letters[:40], np.arange(40) % 3)}
  data_files.write_tfds_images(made, 'toy_letters', splits, num_classes=3)
  return made


def _num_outputs(task, rows):
  """How many numbers the model gives for an example, or for a word of it."""
  weights = task.model.initialize(np.array([0, 0]))
  outputs = task.model.predict(weights, rows['x'][:2], None)
  return tf.nest.flatten(outputs)[0].shape.as_list()[-1]


@pytest.mark.slow
@pytest.mark.parametrize('name', tasks.names())
def test_task_trains_two_rounds_and_evaluates(name, cache, runtime, tmp_path):
  flags = train_flags.configure(
    task=name,
    algorithm='fed_avg',
    rounds=2,
    rounds_per_eval=1,
    max_eval_examples=20,
    output_dir=tmp_path / 'run',
    client_learning_rate=0.01,
    data_dir=cache if 'data_dir' in tasks.options(name) else None,
    **{**_SMALL, **_FLAGS.get(name, {})},
  )
  result = run.train(flags, runtime=runtime)
  assert [row['round'] for row in result.rows] == [1, 2]
  for row in result.rows:
    assert row['train/num_clients'] == 2
    assert np.isfinite(row['eval/loss'])
  assert result.rows[1]['train/update_norm'] > 0

  task = training.load_task(flags)
  shape, num_outputs = _ROWS[name]
  rows = task.train.rows(task.train.client_ids[0])
  assert rows['x'].shape[1:] == shape
  assert _num_outputs(task, rows) == num_outputs
