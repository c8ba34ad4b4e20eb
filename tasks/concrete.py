"""The strength of concrete by its ingredients and age: linear regression, convex.

1,030 mixtures, 8 inputs, the compressive strength in MPa (Yeh 1998), from the UCI
Machine Learning Repository. In the robust regression an adversary weights the tenths of
the strength: a saddle-point problem.
"""

import collections
import pathlib

import numpy as np
import tensorflow as tf

from tasks import csv_table, downloads, labelled_data, scaling
from tasks.federated_data import FederatedData, Rows
from tasks.labelled_data import Partition
from tasks.task import Task
from tff_algorithms import models, oracles
from tff_algorithms.saddle_point import GradientMapping, SaddlePoint

_NUM_ROWS = 1030
_NUM_INPUTS = 8
_NUM_LABELS = 10
# Of the robust regression. The smaller rho is, the more the adversary may do: here the
# largest v is about 3.5, and the worst tenth's error falls by a sixth.
_LAMBDA = 0.01
_RHO = 0.01
_NEWTON_STEPS = 30  # A dozen are enough to reach the last digit.


def linear(name: str, seed: int, data_dir: str | None, partition: Partition) -> Task:
  """Linear regression with a bias, started at zero.

  A fifth of the rows is held out for testing. Inputs and target are standardized with
  the means and deviations of the other four, so that a loss of 1/2 is that of always
  predicting the mean.

  Args:
    name: The name of the task.
    seed: What the rows held out and the clients are drawn from.
    data_dir: The directory that has the file, itself or in `concrete`; TFF's cache
      directory if None.
    partition: Makes the clients, taking for labels the tenths, from weak to strong, in
      which the training rows are: 0 to 9.

  Raises:
    ValueError: If the file is not there, or not what it should be.
  """
  train, test = _data(seed, data_dir, partition)
  return Task(
    name,
    _model(),
    train,
    test,
    optimum=_least_squares(train.all_rows()),
  )


def robust(name: str, seed: int, data_dir: str | None, partition: Partition) -> Task:
  """Linear regression against an adversary that weights the tenths of the strength.

  With g the tenth that a row is in, the mean over the rows of

      (1 + v_g) (w'x + b - y)^2 / 2  +  lambda/2 ||(w, b)||^2  -  rho/2 ||v||^2

  is minimised over (w, b) and maximised over v, both started at 0. Ascent from there
  keeps v at 0 or above, where f is convex in (w, b); the tenths with large errors come
  to count for more. Rows and clients are those of `linear`.

  Args:
    name: As in `linear`, and so all the others.
    seed: See there.
    data_dir: See there.
    partition: See there.

  Raises:
    ValueError: If the file is not there, or not what it should be.
  """
  train, test = _data(seed, data_dir, partition)
  rows = train.all_rows()
  bounds = _tenths(rows['y'])
  model = _robust_model(bounds)
  return Task(
    name,
    model,
    train,
    test,
    optimum=_robust_optimum(rows, bounds),
    objective=GradientMapping(oracles.ModelLoss(model)),
  )


def _data(
  seed: int, data_dir: str | None, partition: Partition
) -> tuple[FederatedData, FederatedData]:
  """The training rows over clients, and the rows held out."""
  train, test = labelled_data.split_rows(_read(downloads.concrete(data_dir)), seed)
  train, test = _standardized(train, train), _standardized(test, train)
  ranks = np.argsort(np.argsort(train['y'], kind='stable'))
  parts = partition(ranks * _NUM_LABELS // len(ranks), seed)
  return (
    FederatedData.from_partition(train, parts),
    FederatedData.from_clients({'test': test}),
  )


def _read(path: pathlib.Path) -> Rows:
  """The rows below the heading, as they are in the file."""
  table = csv_table.Table(path)
  num_columns = len(table.header)
  if num_columns != _NUM_INPUTS + 1:
    raise ValueError(
      f'{path}, line 1: {num_columns} columns, where {_NUM_INPUTS} inputs and the '
      'strength are expected, separated by commas.'
    )
  *inputs, strength = [table.numbers(column) for column in range(num_columns)]
  if len(strength) != _NUM_ROWS:
    raise ValueError(
      f'{path} has {len(strength)} rows below its heading, where {_NUM_ROWS} are '
      'expected.'
    )
  return collections.OrderedDict(x=np.column_stack(inputs), y=strength)


def _standardized(rows: Rows, like: Rows) -> Rows:
  """Rows moved and scaled as it takes to give `like` mean 0 and deviation 1."""
  result: Rows = collections.OrderedDict()
  for name, array in like.items():
    mean, deviation = scaling.moments(array)
    result[name] = ((rows[name] - mean) / deviation).astype(np.float32)
  return result


def _least_squares(rows: Rows) -> models.ModelWeights:
  inputs = np.column_stack([rows['x'], np.ones(len(rows['x']))]).astype(np.float64)
  solution, *_ = np.linalg.lstsq(inputs, rows['y'].astype(np.float64), rcond=None)
  *kernel, bias = solution.astype(np.float32)
  return models.ModelWeights((np.array(kernel), np.array(bias)), ())


def _model() -> models.Model:
  """The loss is half the mean squared error: its gradient is free of the factor 2."""

  def initialize(seed):
    del seed  # The start of a convex problem need not be random.
    return models.ModelWeights((tf.zeros([_NUM_INPUTS]), tf.zeros([])), ())

  def predict(weights, x, seed):
    del seed
    kernel, bias = weights.trainable
    return tf.linalg.matvec(x, kernel) + bias

  def metrics(y, outputs):
    return collections.OrderedDict(
      square_sum=tf.reduce_sum(tf.square(outputs - y)),
      num_answers=tf.cast(tf.size(y), tf.float32),
    )

  def finalize_metrics(sums):
    return collections.OrderedDict(
      mean_squared_error=sums['square_sum'] / sums['num_answers']
    )

  return models.Model(
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None, _NUM_INPUTS], tf.float32),
      y=tf.TensorSpec([None], tf.float32),
    ),
    initialize=initialize,
    predict=predict,
    loss=lambda y, outputs: tf.reduce_mean(tf.square(outputs - y)) / 2,
    metrics=metrics,
    finalize_metrics=finalize_metrics,
  )


def _tenths(y: np.ndarray) -> np.ndarray:
  """The least strength in each tenth of these but the weakest."""
  starts = -(-np.arange(1, _NUM_LABELS) * len(y) // _NUM_LABELS)
  return np.sort(y)[starts]


def _robust_optimum(rows: Rows, bounds: np.ndarray) -> models.ModelWeights:
  """The saddle point, by Newton's method on the maximum over v.

  That is at v_g = q_g / rho, with q_g a tenth's share of the mean loss; so what is left
  to minimise is the sum of q_g + q_g^2 / (2 rho), and the regularizer.
  """
  y = rows['y'].astype(np.float64)
  inputs = np.column_stack([rows['x'], np.ones(len(y))]).astype(np.float64)
  tenths = np.searchsorted(bounds, rows['y'], side='right')

  def parts(w):
    """q, its gradient and its Hessian for each tenth."""
    for g in range(_NUM_LABELS):
      own, error = inputs[tenths == g], (inputs @ w - y)[tenths == g]
      q, first, second = error @ error / 2, own.T @ error, own.T @ own
      yield q / len(y), first / len(y), second / len(y)

  w = np.zeros(_NUM_INPUTS + 1)
  for _ in range(_NEWTON_STEPS):
    gradient, hessian = _LAMBDA * w, _LAMBDA * np.eye(len(w))
    for q, first, second in parts(w):
      gradient += (1 + q / _RHO) * first
      hessian += (1 + q / _RHO) * second + np.outer(first, first) / _RHO
    w -= np.linalg.solve(hessian, gradient)
  v = np.array([q / _RHO for q, *_ in parts(w)], np.float32)
  *kernel, bias = w.astype(np.float32)
  return models.ModelWeights(SaddlePoint((np.array(kernel), np.array(bias)), v), ())


def _robust_model(bounds: np.ndarray) -> models.Model:
  """Its outputs are predictions, the regularizers, and v for the loss."""
  regression = _model()

  def initialize(seed):
    weights = regression.initialize(seed)
    start = SaddlePoint(weights.trainable, tf.zeros([_NUM_LABELS]))
    return weights._replace(trainable=start)

  def predict(weights, x, seed):
    (kernel, bias), v = z = weights.trainable
    predictions = regression.predict(weights._replace(trainable=z.min), x, seed)
    of_weights = _LAMBDA * (tf.reduce_sum(kernel**2) + bias**2)
    return predictions, (of_weights - _RHO * tf.reduce_sum(v**2)) / 2, tf.identity(v)

  def tenths(y):
    return tf.searchsorted(tf.constant(bounds), y, side='right')

  def loss(y, outputs):
    predictions, regularizers, v = outputs
    factors = 1 + tf.gather(v, tenths(y))
    return tf.reduce_mean(factors * tf.square(predictions - y)) / 2 + regularizers

  def metrics(y, outputs):
    in_tenth = tf.one_hot(tenths(y), _NUM_LABELS)
    squares = tf.square(outputs[0] - y)
    return collections.OrderedDict(
      square_sums=tf.linalg.matvec(in_tenth, squares, transpose_a=True),
      num_answers=tf.reduce_sum(in_tenth, axis=0),
    )

  def finalize_metrics(sums):
    squares, counts = sums['square_sums'], sums['num_answers']
    return collections.OrderedDict(
      mean_squared_error=tf.reduce_sum(squares) / tf.reduce_sum(counts),
      worst_tenth_squared_error=tf.reduce_max(tf.math.divide_no_nan(squares, counts)),
    )

  return models.Model(
    input_spec=regression.input_spec,
    initialize=initialize,
    predict=predict,
    loss=loss,
    metrics=metrics,
    finalize_metrics=finalize_metrics,
  )
