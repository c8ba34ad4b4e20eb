"""Made-up work for peers, shaped as EMNIST and as Shakespeare.

Speed does not ask what the data show.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.peers.peer import Client, Work
from tasks import image_models, text_models

NUM_CLASSES = 62
_NUM_CHARACTERS, _SEQUENCE_LENGTH = 86, 80

# By model: the median of the clients' numbers of rows (EMNIST's writers have 100 to
# 350), a step's rows (of Reddi et al. 2021), the clients' learning rate.
_SHAPES = {
  'logistic': (130, 20, 0.01),
  'cnn': (130, 20, 0.01),
  'lstm': (16, 4, 0.1),
}
_MOMENTUM = 0.9


def make(algorithm: str, model: str, num_clients: int, seed: int) -> Work:
  """The work of an algorithm on a model.

  Args:
    algorithm: See `Work`.
    model: See `Work`.
    num_clients: How many clients there are in all.
    seed: Determines data and weights.
  """
  _, batch_size, learning_rate = _SHAPES[model]
  return Work(
    algorithm=algorithm,
    model=model,
    learning_rate=learning_rate,
    momentum=_MOMENTUM,
    batch_size=batch_size,
    seed=seed,
    clients=list(clients(model, num_clients, seed)),
    weights=_initial_weights(model, seed),
  )


def clients(model: str, num_clients: int, seed: int) -> Iterator[Client]:
  """The clients of `make`, one after the other."""
  generator = np.random.default_rng(seed)
  # Log-normal: unequal, and nearly all with a partial last batch.
  factors = np.exp(0.4 * generator.standard_normal(num_clients))
  sizes = np.maximum(1, np.round(_SHAPES[model][0] * factors)).astype(int)
  return _texts(generator, sizes) if model == 'lstm' else _images(generator, sizes)


def cohorts(
  num_clients: int, cohort_size: int, num_rounds: int, seed: int
) -> list[list[int]]:
  """The clients of each round; everyone is there in the first few."""
  generator = np.random.default_rng([seed, 1])
  first = generator.permutation(num_clients).reshape(-1, cohort_size)
  later = [
    generator.choice(num_clients, cohort_size, replace=False)
    for _ in range(num_rounds - len(first))
  ]
  return [cohort.tolist() for cohort in [*first, *later]][:num_rounds]


def _images(generator: np.random.Generator, sizes: Sequence[int]) -> Iterator[Client]:
  """A prototype a class, and noise."""
  prototypes = generator.integers(0, 200, [NUM_CLASSES, 28, 28], np.uint8)
  for size in sizes:
    y = generator.integers(0, NUM_CLASSES, size, np.int32)
    noise = generator.integers(0, 56, [size, 28, 28], np.uint8)
    yield Client(prototypes[y] + noise, y)


def _texts(generator: np.random.Generator, sizes: Sequence[int]) -> Iterator[Client]:
  """Characters that follow each other at random, without padding."""
  for size in sizes:
    shape = [size, _SEQUENCE_LENGTH + 1]
    ids = generator.integers(1, _NUM_CHARACTERS + 1, shape, np.int32)
    yield Client(ids[:, :-1], ids[:, 1:])


def _initial_weights(name: str, seed: int) -> list[np.ndarray]:
  models: dict[str, Any] = {
    'logistic': lambda: image_models.logistic((28, 28), NUM_CLASSES),
    'cnn': lambda: image_models.cnn_dropout(NUM_CLASSES),
    'lstm': lambda: text_models.next_character(_NUM_CHARACTERS, _SEQUENCE_LENGTH, 2),
  }
  weights = models[name]().initialize(tf.constant([seed, 1], tf.int64))
  return [t.numpy() for t in tf.nest.flatten(weights.trainable)]
