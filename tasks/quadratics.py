"""Generated quadratics: clients as unlike as one asks for, and a known optimum.

    f_i(w) = (w - w*)' A_i (w - w*) / 2 + g_i' (w - w*)

The mean of the A_i is A and that of the g_i is 0, so that the mean of the f_i is
f(w) = (w - w*)' A (w - w*) / 2, which is least, and 0, at w*. How unlike the clients
are is measured as in Karimireddy et al. 2021 (Mime): G^2 is the mean of the squared
norms of grad f_i - grad f, here at w*, and delta the largest norm of an A_i - A.
"""

import collections

import numpy as np
import tensorflow as tf

from tasks.federated_data import FederatedData
from tasks.task import Task
from tff_algorithms import models


def quadratics(
  name: str,
  seed: int,
  *,
  dimension: int,
  num_clients: int,
  gradient_dissimilarity: float,
  hessian_dissimilarity: float,
  smoothness: float,
  convexity: float,
) -> Task:
  """One row a client; weights start at zero, at distance 1 from the optimum.

  Test data are the training data, so that the loss there is f(w) - f(w*).

  Args:
    name: The name of the task.
    seed: What A_i, g_i and w* are drawn from.
    dimension: The number of weights.
    num_clients: The number of clients.
    gradient_dissimilarity: G; with a single client it is 0.
    hessian_dissimilarity: delta, the norm of every A_i - A but for one client left over
      from pairs, whose A_i is A. It is at most (L - mu) / 2; with a single client 0.
    smoothness: L, which no eigenvalue of an A_i exceeds.
    convexity: mu, below which there is none. The eigenvalues of A are evenly spaced
      from mu + delta to L - delta, as far apart as the clients leave room for.

  Raises:
    ValueError: If there are no such quadratics.
  """
  big_g, delta = gradient_dissimilarity, hessian_dissimilarity
  _check(dimension, num_clients, big_g, delta, smoothness, convexity)
  generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
  optimum = generator.normal(size=dimension)
  optimum = (optimum / np.linalg.norm(optimum)).astype(np.float32)
  eigenvalues = np.linspace(convexity + delta, smoothness - delta, dimension)
  hessians = _symmetric(eigenvalues, generator) + _deviations(
    dimension, num_clients, delta, generator
  )
  gradients = _centred(dimension, num_clients, big_g, generator)
  x = np.concatenate([hessians, gradients[:, :, np.newaxis]], axis=2)
  rows = collections.OrderedDict(
    x=x.astype(np.float32), y=np.zeros(num_clients, np.float32)
  )
  data = FederatedData.from_partition(
    rows, np.split(np.arange(num_clients), num_clients)
  )
  return Task(
    name, _model(optimum), data, data, optimum=models.ModelWeights((optimum,), ())
  )


def _check(
  dimension: int,
  num_clients: int,
  big_g: float,
  delta: float,
  smoothness: float,
  convexity: float,
) -> None:
  if dimension < 1 or num_clients < 1:
    raise ValueError(
      'dimension and num_clients must be at least 1, '
      f'found {dimension} and {num_clients}.'
    )
  if not 0 <= convexity <= smoothness < np.inf:
    raise ValueError(
      'convexity must be from 0 to smoothness, and that finite; '
      f'found {convexity} and {smoothness}.'
    )
  if not 0 <= big_g < np.inf:
    raise ValueError(f'gradient_dissimilarity must be at least 0, found {big_g}.')
  if not 0 <= delta <= (smoothness - convexity) / 2:
    raise ValueError(
      'hessian_dissimilarity must be from 0 to (smoothness - convexity) / 2 = '
      f'{(smoothness - convexity) / 2:g}, found {delta}.'
    )
  if num_clients == 1 and (big_g or delta):
    raise ValueError(
      'gradient_dissimilarity and hessian_dissimilarity must be 0 with a single '
      f'client, found {big_g} and {delta}.'
    )


def _symmetric(eigenvalues: np.ndarray, generator: np.random.Generator) -> np.ndarray:
  """A symmetric matrix with these eigenvalues, in a random basis."""
  basis, _ = np.linalg.qr(generator.normal(size=(len(eigenvalues),) * 2))
  matrix = basis * eigenvalues @ basis.T
  return (matrix + matrix.T) / 2


def _deviations(
  dimension: int, num_clients: int, delta: float, generator: np.random.Generator
) -> np.ndarray:
  """Matrices of norm delta in pairs of opposites, `[clients, dimension, dimension]`."""
  deviations = np.zeros([num_clients, dimension, dimension])
  for i in range(0, num_clients - 1, 2):
    eigenvalues = generator.uniform(-1, 1, dimension)
    eigenvalues *= delta / np.abs(eigenvalues).max()
    deviations[i] = _symmetric(eigenvalues, generator)
    deviations[i + 1] = -deviations[i]
  return deviations


def _centred(
  dimension: int, num_clients: int, big_g: float, generator: np.random.Generator
) -> np.ndarray:
  """Vectors of mean 0 and mean square G^2, `[clients, dimension]`."""
  vectors = generator.normal(size=(num_clients, dimension))
  if big_g == 0:
    return np.zeros_like(vectors)
  vectors -= vectors.mean(axis=0)
  return vectors * big_g / np.sqrt(np.square(vectors).sum() / num_clients)


def _model(optimum: np.ndarray) -> models.Model:
  """The values f_i(w) as outputs, their mean as loss."""
  dimension = len(optimum)

  def initialize(seed):
    del seed  # The start is as random as the optimum is.
    return models.ModelWeights((tf.zeros([dimension]),), ())

  def predict(weights, x, seed):
    del seed
    (w,) = weights.trainable
    away = w - optimum
    hessian, gradient = x[:, :, :dimension], x[:, :, dimension]
    return tf.linalg.matvec(tf.linalg.matvec(hessian, away) / 2 + gradient, away)

  return models.Model(
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None, dimension, dimension + 1], tf.float32),
      y=tf.TensorSpec([None], tf.float32),
    ),
    initialize=initialize,
    predict=predict,
    loss=lambda y, outputs: tf.reduce_mean(outputs),
    metrics=lambda y, outputs: collections.OrderedDict(),
    finalize_metrics=lambda sums: collections.OrderedDict(),
  )
