"""Handwritten digits: 1,797 images of 8x8 pixels, small enough for any machine.

The images are those bundled with scikit-learn (the test set of Alpaydin and Kaynak
1998), so nothing is downloaded. They come without writers: clients are made by a
Dirichlet partition, with skewed labels and unequal sizes.
"""

import collections
from collections.abc import Mapping

import numpy as np
from sklearn import datasets
import tensorflow as tf

from tasks import partitioners
from tasks.classifiers import classifier, glorot_uniform
from tasks.federated_data import FederatedData
from tasks.task import Task

_NUM_PIXELS = 64
_NUM_CLASSES = 10
_NUM_HIDDEN = 64
_TEST_SHARE = 0.2


def logistic(name: str, seed: int, num_clients: int, dirichlet_alpha: float) -> Task:
  """Multinomial logistic regression: convex, started at zero."""

  def initialize(seed):
    del seed  # The start of a convex problem need not be random.
    return tf.zeros([_NUM_PIXELS, _NUM_CLASSES]), tf.zeros([_NUM_CLASSES])

  def logits(weights, x, seed):
    del seed
    kernel, bias = weights
    return tf.matmul(x, kernel) + bias

  model = classifier(_X_SPEC, initialize, logits)
  return Task(name, model, *_data(seed, num_clients, dirichlet_alpha))


def mlp(name: str, seed: int, num_clients: int, dirichlet_alpha: float) -> Task:
  """One hidden layer of 64 rectified units."""

  def initialize(seed):
    return (
      glorot_uniform((_NUM_PIXELS, _NUM_HIDDEN), seed, 0),
      tf.zeros([_NUM_HIDDEN]),
      glorot_uniform((_NUM_HIDDEN, _NUM_CLASSES), seed, 1),
      tf.zeros([_NUM_CLASSES]),
    )

  def logits(weights, x, seed):
    del seed
    kernel_1, bias_1, kernel_2, bias_2 = weights
    hidden = tf.nn.relu(tf.matmul(x, kernel_1) + bias_1)
    return tf.matmul(hidden, kernel_2) + bias_2

  model = classifier(_X_SPEC, initialize, logits)
  return Task(name, model, *_data(seed, num_clients, dirichlet_alpha))


_X_SPEC = tf.TensorSpec([None, _NUM_PIXELS], tf.float32)


def _data(
  seed: int, num_clients: int, alpha: float
) -> tuple[FederatedData, FederatedData]:
  """Train and test data of the same clients.

  A fifth of a client's examples, rounded, is for testing: a client with one or two
  examples trains on them all.
  """
  digits = datasets.load_digits()
  x = (digits.data / 16).astype(np.float32)  # Pixels are integers from 0 to 16.
  y = digits.target.astype(np.int32)
  partition_seed, split_seed = np.random.SeedSequence(seed).spawn(2)
  generator = np.random.Generator(np.random.PCG64(split_seed))
  train: dict[str, Mapping] = {}
  test: dict[str, Mapping] = {}
  parts = partitioners.dirichlet(y, num_clients, alpha, partition_seed)
  for i, indices in enumerate(parts):
    indices = generator.permutation(indices)
    num_test = round(_TEST_SHARE * len(indices))
    for data, chosen in ((test, indices[:num_test]), (train, indices[num_test:])):
      data[f'client_{i:03d}'] = collections.OrderedDict(x=x[chosen], y=y[chosen])
  return FederatedData(train), FederatedData(test)
