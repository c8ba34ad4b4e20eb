"""The strength of concrete by its ingredients and age: linear regression, convex.

1,030 mixtures, 8 inputs, the compressive strength in MPa (Yeh 1998), from the UCI
Machine Learning Repository.
"""

import collections
import csv
import math
import pathlib

import numpy as np
import tensorflow as tf

from tasks import downloads, labelled_data
from tasks.federated_data import FederatedData, Rows
from tasks.labelled_data import Partition
from tasks.task import Task
from tff_algorithms import models

_NUM_ROWS = 1030
_NUM_INPUTS = 8
_NUM_LABELS = 10


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
  train, test = labelled_data.hold_out(_read(downloads.concrete(data_dir)), seed)
  train, test = _standardized(train, train), _standardized(test, train)
  ranks = np.argsort(np.argsort(train['y'], kind='stable'))
  parts = partition(ranks * _NUM_LABELS // len(ranks), seed)
  return Task(
    name,
    _model(),
    FederatedData.from_partition(train, parts),
    FederatedData.from_clients({'test': test}),
    optimum=_least_squares(train),
  )


def _read(path: pathlib.Path) -> Rows:
  """The rows below the heading, as they are in the file."""
  table = []
  try:
    # What is no text makes the wrong number of columns.
    with path.open(newline='', encoding='utf-8', errors='replace') as file:
      reader = csv.reader(file)
      _check_width(next(reader, []), path, 1)
      for fields in reader:
        if any(field.strip() for field in fields):
          table.append(_numbers(fields, path, reader.line_num))
  except (OSError, csv.Error) as error:
    raise ValueError(f'{path} cannot be read ({error}).') from error
  if len(table) != _NUM_ROWS:
    raise ValueError(
      f'{path} has {len(table)} rows below its heading, where {_NUM_ROWS} are expected.'
    )
  numbers = np.array(table)
  return collections.OrderedDict(x=numbers[:, :_NUM_INPUTS], y=numbers[:, _NUM_INPUTS])


def _numbers(fields: list[str], path: pathlib.Path, line: int) -> list[float]:
  _check_width(fields, path, line)
  try:
    numbers = [float(field) for field in fields]
  except ValueError as error:
    raise ValueError(f'{path}, line {line}: {error}.') from error
  if not all(map(math.isfinite, numbers)):
    raise ValueError(f'{path}, line {line}: {numbers} are not all finite.')
  return numbers


def _check_width(fields: list[str], path: pathlib.Path, line: int) -> None:
  if len(fields) != _NUM_INPUTS + 1:
    raise ValueError(
      f'{path}, line {line}: {len(fields)} columns, where {_NUM_INPUTS} inputs and the '
      'strength are expected, separated by commas.'
    )


def _standardized(rows: Rows, like: Rows) -> Rows:
  """Rows moved and scaled as it takes to give `like` mean 0 and deviation 1."""
  return collections.OrderedDict(
    (name, ((rows[name] - array.mean(axis=0)) / array.std(axis=0)).astype(np.float32))
    for name, array in like.items()
  )


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
