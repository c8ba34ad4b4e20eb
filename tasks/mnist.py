"""Handwritten digits, 28x28: MNIST dealt out, or the digits of EMNIST by writer.

Both are made of the same forms of NIST's, but MNIST comes without its writers. Pixels:
ink 1, background 0.
"""

from tasks import emnist, image_models, image_sources, tfds_data
from tasks.federated_data import FederatedData
from tasks.labelled_data import Partition
from tasks.task import Task

_SHAPE = (28, 28)
_NUM_CLASSES = 10
_HIDDEN = (300, 100)


def mlp(
  name: str, seed: int, data_dir: str | None, partition: Partition | None
) -> Task:
  """Two hidden layers of 300 and 100 units.

  Args:
    name: The name of the task.
    seed: What the partition is drawn from.
    data_dir: The directory of data.
    partition: How to deal out MNIST, or None for the writers of EMNIST's digits.
  """
  model = image_models.mlp(_SHAPE, _NUM_CLASSES, _HIDDEN)
  return Task(name, model, *_data(seed, data_dir, partition))


def cnn(
  name: str, seed: int, data_dir: str | None, partition: Partition | None
) -> Task:
  """A small convolutional network; the arguments are those of `mlp`."""
  model = image_models.small_cnn(_SHAPE, _NUM_CLASSES)
  return Task(name, model, *_data(seed, data_dir, partition))


def _data(
  seed: int, data_dir: str | None, partition: Partition | None
) -> tuple[FederatedData, FederatedData]:
  if partition is None:
    return emnist.by_writer(data_dir, only_digits=True)
  data = tfds_data.load_source(image_sources.MNIST, data_dir, seed)
  return data.federated(partition, seed)
