"""Made-up federated images shaped as EMNIST: speed does not ask what they show."""

import collections
from typing import Any

import numpy as np
import tensorflow as tf

from tasks.federated_data import FederatedData

NUM_CLASSES = 62
IMAGE_SHAPE = (28, 28)


def make(num_clients: int, seed: int) -> FederatedData:
  """Clients of unequal sizes with images of uint8 pixels: a prototype a class, noisy.

  The number of a client's images is log-normal with median 130 (EMNIST's writers have
  about 100 to 350 in the split by writer), so that last batches are partial.

  Args:
    num_clients: How many clients to make.
    seed: Determines the data.
  """
  generator = np.random.default_rng(seed)
  prototypes = generator.integers(0, 200, [NUM_CLASSES, *IMAGE_SHAPE], np.uint8)
  sizes = np.round(130 * np.exp(0.4 * generator.standard_normal(num_clients)))
  clients = {}
  for i, size in enumerate(sizes.astype(int)):
    y = generator.integers(0, NUM_CLASSES, [size], np.int32)
    noise = generator.integers(0, 56, [size, *IMAGE_SHAPE], np.uint8)
    clients[f'client_{i:03d}'] = {'x': prototypes[y] + noise, 'y': y}
  return FederatedData.from_clients(clients)


def decode(rows: Any) -> collections.OrderedDict:
  """A client's rows as a model takes them."""
  return collections.OrderedDict(x=tf.cast(rows['x'], tf.float32) / 255, y=rows['y'])


def cohorts(
  data: FederatedData, num_clients: int, num_rounds: int, seed: int
) -> list[list[str]]:
  """The ids of each round's clients."""
  generator = np.random.default_rng(seed)
  return [
    generator.choice(data.client_ids, num_clients, replace=False).tolist()
    for _ in range(num_rounds)
  ]
