"""Which clients take part in a round."""

from collections.abc import Sequence

import numpy as np


def cohort(
  client_ids: Sequence[str], size: int, *, seed: int, round_num: int
) -> list[str]:
  """Draws clients uniformly and without replacement.

  The draw is a function of the arguments alone, so that a continued run and another
  machine see the same cohorts. It uses the generator's raw bits, which numpy promises
  not to change, where it does not promise the same of its `choice`.

  Args:
    client_ids: All the clients.
    size: How many to draw, at most all.
    seed: The run's seed.
    round_num: The round's number.
  """
  if size > len(client_ids):
    raise ValueError(f'{size} of {len(client_ids)} clients cannot be drawn.')
  entropy = np.random.SeedSequence((seed, round_num))
  keys = np.random.PCG64(entropy).random_raw(len(client_ids))
  return [client_ids[i] for i in np.argsort(keys, kind='stable')[:size]]


def subset(num_rows: int, size: int, *, seed: int) -> np.ndarray:
  """The indices of a fixed random subset of rows, in ascending order."""
  keys = np.random.PCG64(np.random.SeedSequence(seed)).random_raw(num_rows)
  return np.sort(np.argsort(keys, kind='stable')[:size])
