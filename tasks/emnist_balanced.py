"""The balanced split of EMNIST (Cohen et al. 2017): handwritten characters, 47 classes.

SCAFFOLD's experiments (Karimireddy et al. 2020, section 7) are on it, with clients made
by sorting by label and shuffling a share. Pixels: ink 1, background 0.
"""

import collections
import string

import numpy as np

from tasks import image_models, image_sources, tfds_data
from tasks.federated_data import Rows
from tasks.labelled_data import LabelledData, Partition
from tasks.task import Task

_SHAPE = (28, 28)
# The other small letters are in one class with their capitals.
_CHARACTERS = string.digits + string.ascii_uppercase + 'abdefghnqrt'
_ONE = 1  # The label of the digit.


def logistic(name: str, seed: int, data_dir: str | None, partition: Partition) -> Task:
  """Multinomial logistic regression."""
  source = image_sources.EMNIST_BALANCED
  data = _upright(tfds_data.load_source(source, data_dir, seed))
  model = image_models.logistic(_SHAPE, data.num_classes)
  return Task(name, model, *data.federated(partition, seed), show=_show)


def _show(rows: Rows) -> list[str]:
  return [_CHARACTERS[label] for label in rows['y']]


def _upright(data: LabelledData) -> LabelledData:
  """The images as they are read, whichever way they are stored.

  NIST's own files, and TFDS, have rows and columns swapped; copies of these files are
  in circulation that have been put right, and nothing in a file says which it is. But
  ones tell: on the page they are taller than wide.
  """
  ones = data.train['x'][data.train['y'] == _ONE]
  ink = ones.sum(axis=0, dtype=np.float64)
  if _spread(ink.sum(axis=1)) >= _spread(ink.sum(axis=0)):
    return data
  return data._replace(train=_swapped(data.train), test=_swapped(data.test))


def _spread(ink: np.ndarray) -> float:
  """The variance of the place of ink along an axis."""
  if not ink.any():
    return 0.0
  places = np.arange(len(ink))
  mean = np.average(places, weights=ink)
  return float(np.average((places - mean) ** 2, weights=ink))


def _swapped(rows: Rows) -> Rows:
  x = np.ascontiguousarray(rows['x'].swapaxes(1, 2))
  return collections.OrderedDict(rows, x=x)
