"""A task with so many clients that nearly all of a cohort are new in every round."""

import collections

import numpy as np

from tasks import FederatedData, Task, image_models

_NUM_CLIENTS = 50_000


def task(name: str, seed: int) -> Task:
  """Noise to tell apart, of 20 to 200 rows a client."""

  def load(client_id):
    generator = np.random.default_rng([seed, int(client_id)])
    n = generator.integers(20, 200)
    return collections.OrderedDict(
      x=generator.random([n, 28, 28], np.float32),
      y=generator.integers(0, 10, n, np.int32),
    )

  ids = [str(i) for i in range(_NUM_CLIENTS)]
  test = FederatedData(ids[:1], load)
  return Task(name, image_models.logistic((28, 28), 10), FederatedData(ids, load), test)
