"""Labelled data that are not federated by nature, and the clients made of them."""

import collections
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from tasks.federated_data import FederatedData, Rows, chosen

# (labels, seed) -> for each client the indices of its examples.
Partition = Callable[[np.ndarray, int], Sequence[np.ndarray]]

_TEST_SHARE = 0.2


class LabelledData(NamedTuple):
  """What to train on and what is held out, both with inputs `x` and int32 labels `y`.

  Attributes:
    train: The rows for training.
    test: The rows for testing.
    num_classes: The labels are the integers below.
  """

  train: Rows
  test: Rows
  num_classes: int

  def federated(
    self, partition: Partition, seed: int
  ) -> tuple[FederatedData, FederatedData]:
    """The training rows dealt out over clients, and all test rows as one client."""
    parts = partition(self.train['y'], seed)
    return (
      FederatedData.from_partition(self.train, parts),
      FederatedData.from_clients({'test': self.test}),
    )


def rows(x: np.ndarray, y: np.ndarray) -> Rows:
  """Inputs with their labels, in the order and dtypes that a model takes."""
  return collections.OrderedDict(x=np.asarray(x, np.float32), y=np.asarray(y, np.int32))


def split_rows(all_rows: Rows, seed: int) -> tuple[Rows, Rows]:
  """Rows for training and a fifth for testing, both in their old order.

  Args:
    all_rows: At least two rows.
    seed: What the choice is drawn from, apart from all that is drawn from it directly.

  Raises:
    ValueError: If there are too few rows.
  """
  num_rows = len(all_rows['y'])
  if num_rows < 2:
    raise ValueError(f'{num_rows} rows are too few to hold some out for testing.')
  (own_seed,) = np.random.SeedSequence(seed).spawn(1)
  order = np.random.Generator(np.random.PCG64(own_seed)).permutation(num_rows)
  num_test = max(1, round(_TEST_SHARE * num_rows))
  return (
    chosen(all_rows, np.sort(order[num_test:])),
    chosen(all_rows, np.sort(order[:num_test])),
  )
