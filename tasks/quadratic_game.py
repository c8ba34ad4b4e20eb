"""A generated quadratic game: clients as unlike as one asks for, and a known optimum.

Hou et al. 2021, "Efficient Algorithms for Federated Saddle Point Optimization",
section 6: min over x of max over y of the mean of

    f_i(x, y) = -1/2 ||y||^2 + h (b_i'y - y'A_i x) + lambda/2 ||x||^2

with A_i = diag(a_i). Equation 18 to the letter is h = 1/2. With h = 1 the maximum over
y is 1/2 ||A x - b||^2 + lambda/2 ||x||^2, A and b being means: the linear regression
of equation 19. With -h it is the same game in x and -y.
"""

import collections
from collections.abc import Callable

import numpy as np
import tensorflow as tf

from tasks.federated_data import FederatedData
from tasks.task import Task
from tff_algorithms import models, oracles
from tff_algorithms.saddle_point import GradientMapping, SaddlePoint

_LAMBDA = 1e-5
_PRECISIONS = ('float64', 'float32')
_THRESHOLDS = ('raise', 'redraw')


def quadratic_game(
  name: str,
  seed: int,
  *,
  num_clients: int,
  dimension: int,
  heterogeneity: float,
  threshold: str,
  coupling: float,
  initial_value: float,
  precision: str,
) -> Task:
  """One row a client, so that every batch is the full one; test data are the same.

  Args:
    name: The name of the task.
    seed: What first all b_i and then all a_i are drawn from.
    num_clients: The number of clients.
    dimension: The number of weights in x, and in y.
    heterogeneity: s. The b_i ~ N(0, s^2), less their mean over the clients; the entries
      of the a_i ~ N(1, s^2), and at least 1. The condition number grows with s too.
    threshold: What becomes of entries of a_i below 1: 'raise', to 1, or 'redraw', until
      they are not.
    coupling: h, not 0.
    initial_value: What each weight starts at. The optimum is 0.
    precision: The dtype of rows and weights, 'float64' or 'float32'.

  Raises:
    ValueError: If there is no such game.
  """
  _check(num_clients, dimension, heterogeneity, coupling, initial_value)
  _check_one_of(threshold, _THRESHOLDS, 'threshold')
  _check_one_of(precision, _PRECISIONS, 'precision')
  generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
  b = heterogeneity * generator.standard_normal((num_clients, dimension))
  b -= b.mean(axis=0)
  a = 1 + heterogeneity * generator.standard_normal((num_clients, dimension))
  if threshold == 'redraw':
    while (is_below := a < 1).any():
      a[is_below] = 1 + heterogeneity * generator.standard_normal(is_below.sum())
  a = np.maximum(a, 1)
  rows = collections.OrderedDict(
    x=np.stack([a, b], axis=1).astype(precision), y=np.zeros(num_clients, precision)
  )
  data = FederatedData.from_partition(
    rows, np.split(np.arange(num_clients), num_clients)
  )
  model = _model(dimension, coupling, initial_value, tf.as_dtype(precision))
  mean_a, mean_b = rows['x'].mean(axis=0, dtype=np.float64)
  prox = _prox(coupling * mean_a, coupling * mean_b)
  zeros = np.zeros(dimension)
  optimum = prox(SaddlePoint(zeros, zeros), 0.0)
  return Task(
    name,
    model,
    data,
    data,
    optimum=models.ModelWeights(
      tf.nest.map_structure(lambda t: t.numpy().astype(precision), optimum), ()
    ),
    objective=GradientMapping(
      oracles.ModelLoss(model), prox=prox, convexity=min(_LAMBDA, 1)
    ),
  )


def _check(
  num_clients: int,
  dimension: int,
  heterogeneity: float,
  coupling: float,
  initial_value: float,
) -> None:
  if num_clients < 1 or dimension < 1:
    raise ValueError(
      'num_clients and dimension must be at least 1, '
      f'found {num_clients} and {dimension}.'
    )
  if not 0 <= heterogeneity < np.inf:
    raise ValueError(f'heterogeneity must be at least 0, found {heterogeneity}.')
  if not np.isfinite(coupling) or coupling == 0:
    raise ValueError(f'coupling must be finite and not 0, found {coupling}.')
  if not np.isfinite(initial_value):
    raise ValueError(f'initial_value must be finite, found {initial_value}.')


def _check_one_of(value: str, known: tuple[str, ...], name: str) -> None:
  if value not in known:
    raise ValueError(f'{name} must be one of {", ".join(known)}; found {value!r}.')


def _prox(
  ha: np.ndarray, hb: np.ndarray
) -> Callable[[SaddlePoint, float], SaddlePoint]:
  """The prox of the mean game; without regularization, its saddle point.

  Each coordinate is a game of its own, where the gradient mapping is 0:

      lambda x - h a y + theta (x - x') = 0
      y - h b + h a x + theta (y - y') = 0
  """

  def prox(z: SaddlePoint, theta: float) -> SaddlePoint:
    dtype = tf.convert_to_tensor(z.min).dtype
    p, q = tf.constant(_LAMBDA + theta, dtype), tf.constant(1 + theta, dtype)
    theta, a, b = (tf.constant(c, dtype) for c in (theta, ha, hb))
    u, v = theta * z.min, theta * z.max + b
    determinant = p * q + a * a
    return SaddlePoint((q * u + a * v) / determinant, (p * v - a * u) / determinant)

  return prox


def _model(
  dimension: int, coupling: float, initial_value: float, dtype: tf.DType
) -> models.Model:
  """The values f_i(z) as outputs, their mean as loss."""

  def initialize(seed):
    del seed  # Whatever is drawn is in the f_i.
    start = tf.constant(initial_value, dtype, [dimension])
    return models.ModelWeights(SaddlePoint(start, tf.identity(start)), ())

  def predict(weights, x, seed):
    del seed
    z, (a, b) = weights.trainable, tf.unstack(x, axis=1)
    coupled = tf.linalg.matvec(b - a * z.min, z.max)
    of_x, of_y = tf.reduce_sum(z.min**2), tf.reduce_sum(z.max**2)
    return coupling * coupled + _LAMBDA / 2 * of_x - of_y / 2

  return models.Model(
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None, 2, dimension], dtype), y=tf.TensorSpec([None], dtype)
    ),
    initialize=initialize,
    predict=predict,
    loss=lambda y, outputs: tf.reduce_mean(outputs),
    metrics=lambda y, outputs: collections.OrderedDict(),
    finalize_metrics=lambda sums: collections.OrderedDict(),
  )
