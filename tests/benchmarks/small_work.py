"""Work that is done at once."""

import numpy as np

from benchmarks.peers.peer import Client, Work

_NUM_CLASSES = 4


def make(algorithm: str = 'fed_avg', sizes=(7, 3, 10, 1)) -> Work:
  """Logistic regression on images, from weights that are not zero."""
  generator = np.random.default_rng(0)
  clients = [
    Client(
      generator.integers(0, 256, [size, 28, 28], np.uint8),
      generator.integers(0, _NUM_CLASSES, size, np.int32),
    )
    for size in sizes
  ]
  weights = [
    generator.normal(scale=0.05, size=shape).astype(np.float32)
    for shape in ([28 * 28, _NUM_CLASSES], [_NUM_CLASSES])
  ]
  return Work(
    algorithm=algorithm,
    model='logistic',
    learning_rate=0.01,
    momentum=0.9,
    batch_size=4,
    seed=0,
    clients=clients,
    weights=weights,
  )
