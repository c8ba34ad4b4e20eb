"""Handwritten digits: 1,797 images of 8x8 pixels, small enough for any machine.

The images are those bundled with scikit-learn (the test set of Alpaydin and Kaynak
1998), so nothing is downloaded. They come without writers: clients are made by a
partitioner.
"""

import collections
from collections.abc import Callable

import numpy as np
from sklearn import datasets

from tasks import image_models
from tasks.federated_data import FederatedData, chosen
from tasks.own_data import hold_out
from tasks.task import Central, Task

_SHAPE = (8, 8)
_NUM_CLASSES = 10
_TEST_SHARE = 0.2
_FIRST_OF_SERVER = 5


def logistic(name: str, seed: int, partition: Callable) -> Task:
  """Multinomial logistic regression: convex, started at zero."""
  model = image_models.logistic(_SHAPE, _NUM_CLASSES)
  return Task(name, model, *load(seed, partition))


def mlp(name: str, seed: int, partition: Callable) -> Task:
  """One hidden layer of 64 rectified units."""
  model = image_models.mlp(_SHAPE, _NUM_CLASSES, (64,))
  return Task(name, model, *load(seed, partition))


def mixed(name: str, seed: int, partition: Callable) -> Task:
  """Logistic regression; clients hold the digits 0 to 4, the server 5 to 9.

  As with smiles in Augenstein et al. 2022 (mixed FL), whoever trains on one part alone
  never learns the other.
  """
  train, test = load(seed, partition)

  def part(data, is_clients):
    def load(client_id):
      rows = data.rows(client_id)
      return chosen(rows, (rows['y'] < _FIRST_OF_SERVER) == is_clients)

    return FederatedData(data.client_ids, load)

  model = image_models.logistic(_SHAPE, _NUM_CLASSES)
  return Task(
    name,
    model,
    part(train, True),
    test,
    central=Central(0.5, 0.5, data=part(train, False)),
    test_parts={'clients': part(test, True), 'server': part(test, False)},
  )


def load(seed: int, partition: Callable) -> tuple[FederatedData, FederatedData]:
  """Training and test data of the same clients."""
  digits = datasets.load_digits()
  rows = collections.OrderedDict(
    x=(digits.images / 16).astype(np.float32),  # Pixels are integers from 0 to 16.
    y=digits.target.astype(np.int32),
  )
  partition_seed, split_seed = np.random.SeedSequence(seed).spawn(2)
  data = FederatedData.from_partition(rows, partition(rows['y'], partition_seed))
  return hold_out(data, _TEST_SHARE, split_seed)
