"""The strength of concrete by its ingredients and age: linear regression, convex.

1,030 mixtures, 8 inputs, the compressive strength in MPa (Yeh 1998), from the UCI
Machine Learning Repository.
"""

import collections
import pathlib

import numpy as np
import tensorflow as tf

from tasks import csv_table, downloads, labelled_data, scaling
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
  train, test = labelled_data.split_rows(_read(downloads.concrete(data_dir)), seed)
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
