"""Regression on the concrete data: generated files, and the real one."""

import numpy as np
import pytest
import tensorflow as tf

from tasks import partitioners
from tasks.concrete import linear, robust
from tests.tff_algorithms import problems
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.fed_avg_s import build_fed_avg_s
from tff_algorithms.models import ModelWeights
from tff_algorithms.saddle_point import SaddlePoint
from training_loops import evaluation

_HEADING = ','.join([f'input {i} (kg in a m^3)' for i in range(8)] + ['strength (MPa)'])


def _partition(labels, seed):
  return partitioners.similarity(labels, num_clients=10, similarity=0.0, seed=seed)


def _table():
  """Rows with two decimals, as in the real file; the target is nearly linear."""
  rng = np.random.default_rng(0)
  inputs = rng.normal(50 * np.arange(1, 9), 1 + np.arange(8), size=(1030, 8))
  strength = inputs @ rng.normal(size=8) + rng.normal(size=1030)
  return np.round(np.column_stack([inputs, strength]), 2)


def _lines(table):
  # Spaces and line ends as in the real file.
  return [_HEADING, *(' ,'.join(f'{v:.2f}' for v in row) + ' ' for row in table)]


def _write(directory, lines, folder='concrete'):
  path = directory / folder / 'Concrete_Data.csv'
  path.parent.mkdir(exist_ok=True)
  path.write_bytes(b''.join(line.encode() + b'\r\n' for line in lines))
  return path


@pytest.fixture(scope='module')
def directory(tmp_path_factory):
  directory = tmp_path_factory.mktemp('data')
  _write(directory, _lines(_table()))
  return directory


@pytest.fixture(scope='module')
def task(directory):
  return linear('concrete', 3, str(directory), _partition)


def _sorted_rows(table):
  return sorted(map(tuple, table))


def _as_table(rows):
  return np.column_stack([rows['x'], rows['y']]).astype(np.float64)


def _assert_holds(task, table):
  """The task's rows are those of the table, standardized by the training rows."""
  train, test = _as_table(task.train.all_rows()), _as_table(task.test.all_rows())
  np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-6)
  np.testing.assert_allclose(train.std(axis=0), 1, atol=1e-6)
  assert len(test) == 206
  both = np.concatenate([train, test])
  scale = table.std(axis=0) / both.std(axis=0)
  restored = table.mean(axis=0) + (both - both.mean(axis=0)) * scale
  np.testing.assert_allclose(
    _sorted_rows(np.round(restored, 2)), _sorted_rows(table), atol=1e-9
  )


def test_holds_the_rows_of_the_file_standardized(task):
  _assert_holds(task, _table())


def test_holds_the_rows_of_the_real_file_standardized(data_dir):
  for path in (data_dir / 'concrete', data_dir):
    task = linear('concrete', 0, str(path), _partition)
    table = np.loadtxt(
      data_dir / 'concrete' / 'Concrete_Data.csv', delimiter=',', skiprows=1
    )
    _assert_holds(task, table)


def test_clients_are_made_of_tenths_of_the_target(directory):
  seen = []

  def partition(labels, seed):
    seen.append((labels, seed))
    return np.split(np.arange(len(labels)), [300, 700])

  task = linear('concrete', 3, str(directory), partition)
  ((labels, seed),) = seen
  assert seed == 3
  np.testing.assert_array_equal(np.bincount(labels), [83, 82, 83, 82, 82] * 2)
  y = task.train.all_rows()['y']
  assert (np.diff(labels[np.argsort(y, kind='stable')]) >= 0).all()
  sizes = [task.train.num_examples(client_id) for client_id in task.train.client_ids]
  assert sizes == [300, 400, 124]


def test_clients_of_no_similarity_are_unlike(task):
  assert len(task.train.client_ids) == 10
  means = [
    task.train.rows(client_id)['y'].mean() for client_id in task.train.client_ids
  ]
  assert max(means) > 1
  assert min(means) < -1


def test_rows_match_what_the_model_expects(task):
  for data in (task.train, task.test):
    for name, spec in task.model.input_spec.items():
      assert spec.is_compatible_with(tf.convert_to_tensor(data.all_rows()[name]))


def test_the_seed_determines_what_is_held_out_and_the_clients(directory):
  def made(seed):
    task = linear('concrete', seed, str(directory), _partition)
    return [
      task.test.all_rows()['y'].tobytes(),
      task.train.rows('client_000')['y'].tobytes(),
    ]

  assert made(0) == made(0)
  assert made(0)[0] != made(1)[0]
  assert made(0)[1] != made(1)[1]


def _loss_and_gradient(task, weights):
  rows = task.train.all_rows()
  with tf.GradientTape() as tape:
    tape.watch(weights.trainable)
    outputs = task.model.predict(weights, rows['x'], None)
    loss = task.model.loss(rows['y'], outputs)
  return float(loss), np.hstack(tape.gradient(loss, weights.trainable))


def test_loss_and_gradient_are_those_of_half_the_mean_squared_error(task):
  rng = np.random.default_rng(1)
  kernel, bias = rng.normal(size=8).astype(np.float32), np.float32(0.5)
  weights = ModelWeights((tf.constant(kernel), tf.constant(bias)), ())
  loss, gradient = _loss_and_gradient(task, weights)
  table = _as_table(task.train.all_rows())
  inputs = np.column_stack([table[:, :8], np.ones(len(table))])
  error = inputs @ np.append(kernel, bias).astype(np.float64) - table[:, 8]
  np.testing.assert_allclose(loss, np.square(error).mean() / 2, rtol=1e-5)
  np.testing.assert_allclose(gradient, inputs.T @ error / len(error), atol=1e-5)


def test_the_optimum_is_the_least_squares_solution(task):
  table = _as_table(task.train.all_rows())
  inputs = np.column_stack([table[:, :8], np.ones(len(table))])
  solution, *_ = np.linalg.lstsq(inputs, table[:, 8], rcond=None)
  np.testing.assert_allclose(np.hstack(task.optimum.trainable), solution, atol=1e-6)
  weights = tf.nest.map_structure(tf.constant, task.optimum)
  _, gradient = _loss_and_gradient(task, weights)
  np.testing.assert_allclose(gradient, 0, atol=1e-6)
  start = task.model.initialize(tf.constant([0, 0]))
  tf.nest.assert_same_structure(start, weights)
  assert [w.shape for w in start.trainable] == [w.shape for w in weights.trainable]


def test_the_mean_squared_error_is_twice_the_loss(task):
  measured = evaluation.Evaluator(task.model)(task.optimum, task.test.all_rows())
  assert list(measured) == ['loss', 'mean_squared_error']
  np.testing.assert_allclose(
    measured['mean_squared_error'], 2 * measured['loss'], rtol=1e-6
  )
  # All but the noise of variance 1 is linear; strength itself varies hundredfold.
  assert measured['mean_squared_error'] < 0.05


@pytest.mark.usefixtures('runtime')
def test_fed_avg_lowers_the_loss(task):
  process = build_fed_avg(task.model, client_learning_rate=0.01, batch_size=20)
  cohort = [task.train.rows(client_id) for client_id in task.train.client_ids]
  weights, metrics = problems.run(process, [cohort] * 2)
  assert metrics[0]['num_clients'] == 10
  evaluate, rows = evaluation.Evaluator(task.model), task.train.all_rows()
  start = evaluate(task.model.initialize(tf.constant([0, 0])), rows)
  assert evaluate(ModelWeights(weights[-1], ()), rows)['loss'] < start['loss']


# The robust regression.

_LAMBDA = _RHO = 0.01


@pytest.fixture(scope='module')
def robust_task(directory):
  return robust('concrete', 3, str(directory), _partition)


def _tenths(task, y):
  """The tenth of each, counted from the training rows one by one."""
  strengths = np.sort(task.train.all_rows()['y'])
  bounds = [strengths[int(np.ceil(k * len(strengths) / 10))] for k in range(1, 10)]
  return np.array([sum(bound <= value for bound in bounds) for value in y])


def _f(task, rows, z):
  """f, its gradient by (w, b) and by v, from the definition."""
  (kernel, bias), v = z
  table = _as_table(rows)
  inputs = np.column_stack([table[:, :8], np.ones(len(table))])
  w = np.append(kernel, bias).astype(np.float64)
  error, g = inputs @ w - table[:, 8], _tenths(task, rows['y'])
  value = np.mean((1 + v[g]) * error**2 / 2) + _LAMBDA / 2 * w @ w - _RHO / 2 * v @ v
  of_w = inputs.T @ ((1 + v[g]) * error) / len(error) + _LAMBDA * w
  of_v = np.bincount(g, error**2 / 2, minlength=10) / len(error) - _RHO * v
  return value, of_w, of_v


def _some_z(dtype=np.float32):
  rng = np.random.default_rng(1)
  kernel, bias, v = rng.normal(size=8), rng.normal(), rng.uniform(0, 3, 10)
  return SaddlePoint((kernel.astype(dtype), dtype(bias)), v.astype(dtype))


def test_the_robust_task_has_the_rows_and_the_clients_of_the_linear_one(
  task, robust_task
):
  assert robust_task.train.client_ids == task.train.client_ids
  pairs = [
    (getattr(t, part) for t in (task, robust_task)) for part in ('train', 'test')
  ]
  for data, other in pairs:
    for client_id in data.client_ids:
      for name, array in data.rows(client_id).items():
        np.testing.assert_array_equal(array, other.rows(client_id)[name])


def test_tenths_are_of_the_training_rows_and_are_the_labels_of_the_clients(directory):
  seen = []

  def partition(labels, seed):
    seen.append(labels)
    return np.split(np.arange(len(labels)), 10 * np.arange(1, 10))

  task = robust('concrete', 3, str(directory), partition)
  np.testing.assert_array_equal(_tenths(task, task.train.all_rows()['y']), seen[0])


def test_the_robust_loss_and_its_gradient_mapping_are_those_of_the_formula(robust_task):
  z = _some_z()
  weights = ModelWeights(tf.nest.map_structure(tf.constant, z), ())
  every_rows = [robust_task.train.rows(c) for c in robust_task.train.client_ids]
  for rows in [*every_rows, robust_task.test.all_rows()]:
    found = robust_task.objective.evaluate(weights, rows, None)
    value, of_w, of_v = _f(robust_task, rows, z)
    np.testing.assert_allclose(found.loss, value, rtol=1e-5)
    np.testing.assert_allclose(np.hstack(found.gradient.min), of_w, atol=1e-4)
    np.testing.assert_allclose(found.gradient.max, -of_v, atol=1e-4)


def _assert_is_saddle_point(task):
  z_star = tf.nest.map_structure(np.float64, task.optimum.trainable)
  rows = task.train.all_rows()
  _, of_w, of_v = _f(task, rows, z_star)
  np.testing.assert_allclose(of_w, 0, atol=1e-6)
  np.testing.assert_allclose(of_v, 0, atol=1e-6)
  assert (z_star.max > 0).all()
  start = task.model.initialize(tf.constant([0, 0]))
  assert not any(np.any(part) for part in tf.nest.flatten(start))
  tf.nest.assert_same_structure(start, task.optimum)
  other = _some_z(np.float64)
  value, *_ = _f(task, rows, z_star)
  assert _f(task, rows, z_star._replace(min=other.min))[0] > value
  assert _f(task, rows, z_star._replace(max=other.max))[0] < value


def test_the_robust_optimum_is_a_saddle_point(robust_task):
  _assert_is_saddle_point(robust_task)


def test_the_robust_optimum_of_the_real_file_has_a_smaller_worst_error(data_dir):
  task = robust('concrete', 0, str(data_dir), _partition)
  _assert_is_saddle_point(task)
  least_squares = linear('concrete', 0, str(data_dir), _partition).optimum.trainable
  plain = task.optimum._replace(trainable=SaddlePoint(least_squares, np.zeros(10)))
  evaluate, rows = evaluation.Evaluator(task.model), task.train.all_rows()
  of_plain, of_robust = (
    evaluate(tf.nest.map_structure(np.float32, weights), rows)
    for weights in (plain, task.optimum)
  )
  worst, mean = 'worst_tenth_squared_error', 'mean_squared_error'
  assert of_robust[worst] < 0.9 * of_plain[worst]
  assert of_plain[mean] < of_robust[mean] < 1.02 * of_plain[mean]


def test_the_errors_are_those_of_all_rows_and_of_the_worst_tenth(robust_task):
  rows, z = robust_task.test.all_rows(), _some_z()
  (kernel, bias), _ = z
  measured = evaluation.Evaluator(robust_task.model)(ModelWeights(z, ()), rows)
  squares = np.square(rows['x'] @ kernel + bias - rows['y'])
  g = _tenths(robust_task, rows['y'])
  worst = max(squares[g == k].mean() for k in set(g))
  assert list(measured) == ['loss', 'mean_squared_error', 'worst_tenth_squared_error']
  np.testing.assert_allclose(measured['loss'], _f(robust_task, rows, z)[0], rtol=1e-5)
  np.testing.assert_allclose(measured['mean_squared_error'], squares.mean(), rtol=1e-5)
  np.testing.assert_allclose(measured['worst_tenth_squared_error'], worst, rtol=1e-5)


@pytest.mark.usefixtures('runtime')
def test_fed_avg_s_comes_nearer_to_the_saddle_point(robust_task):
  process = build_fed_avg_s(
    robust_task.objective, client_learning_rate=0.05, batch_size=20, local_steps=5
  )
  cohort = [robust_task.train.rows(c) for c in robust_task.train.client_ids]
  weights, metrics = problems.run(process, [cohort] * 2)
  assert metrics[0]['num_clients'] == 10
  evaluate = evaluation.SaddleEvaluator(
    robust_task.objective, robust_task.train.all_rows(), robust_task.optimum
  )
  start = evaluate(robust_task.model.initialize(tf.constant([0, 0])))
  end = evaluate(ModelWeights(weights[-1], ()))
  for name in ('duality_gap', 'distance_of_x', 'gradient_mapping_norm'):
    assert end[name] < start[name]
  assert min(weights[-1].max) >= 0


def test_a_missing_file_is_named_with_what_to_do(tmp_path):
  with pytest.raises(ValueError) as raised:
    linear('concrete', 0, str(tmp_path), _partition)
  for words in (
    'Concrete_Data.csv',
    str(tmp_path),
    'UCI Machine Learning Repository',
    'Concrete Compressive Strength',
    '--data_dir',
    '--task=digits_logistic',
  ):
    assert words in str(raised.value)


def test_a_directory_that_is_not_there_is_named(tmp_path):
  with pytest.raises(ValueError, match=r'--data_dir=.*/nowhere is not a directory'):
    linear('concrete', 0, str(tmp_path / 'nowhere'), _partition)


def test_empty_lines_at_the_end_are_not_rows(tmp_path):
  _write(tmp_path, [*_lines(_table()), '', ',,,,,,,,'], folder='.')
  _assert_holds(linear('concrete', 0, str(tmp_path), _partition), _table())


@pytest.mark.parametrize(
  ('place', 'line', 'message'),
  [
    (0, 'a;b;c', 'line 2: 9 fields, where the header has 1'),
    (17, '1,2,3,4,5,6,7,8', 'line 18: 8 fields, where the header has 9'),
    (17, '1,2,3,4,five,6,7,8,9', "line 18, .*input 4 .*: 'five' is not a number"),
    (1030, '1,2,3,4,nan,6,7,8,9', "line 1031, .*input 4 .*: 'nan' is not a number"),
  ],
)
def test_a_bad_line_is_named(tmp_path, place, line, message):
  lines = _lines(_table())
  lines[place] = line
  path = _write(tmp_path, lines)
  with pytest.raises(ValueError, match=f'{path}, {message}'):
    linear('concrete', 0, str(tmp_path), _partition)


def test_a_file_that_was_cut_off_is_refused(tmp_path):
  path = _write(tmp_path, _lines(_table())[:-1])
  with pytest.raises(ValueError, match=f'{path} has 1029 rows .*1030 are expected'):
    linear('concrete', 0, str(tmp_path), _partition)


@pytest.mark.parametrize(('separator', 'num_columns'), [(';', 1), (',0,', 17)])
def test_a_table_of_other_columns_is_refused(tmp_path, separator, num_columns):
  lines = [line.replace(',', separator) for line in _lines(_table())]
  path = _write(tmp_path, lines)
  message = f'{path}, line 1: {num_columns} columns, where 8 inputs and the strength'
  with pytest.raises(ValueError, match=message):
    linear('concrete', 0, str(tmp_path), _partition)


def test_the_columns_may_have_any_names(tmp_path):
  _write(tmp_path, [','.join('a' * 9), *_lines(_table())[1:]])
  _assert_holds(linear('concrete', 0, str(tmp_path), _partition), _table())
