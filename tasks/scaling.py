"""What it takes to give numbers mean 0 and deviation 1."""

import numpy as np


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """Mean and deviation over the leading axis, computed in double precision.

  Where the deviation is 0 it is given as 1, so that `(x - mean) / deviation` is 0 for
  what is the same in all examples.
  """
  mean = x.mean(axis=0, dtype=np.float64)
  deviation = x.std(axis=0, dtype=np.float64)
  return mean, np.where(deviation == 0, 1, deviation)
