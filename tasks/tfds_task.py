"""Any classification data set of TFDS (TensorFlow Datasets), by its name."""

from tasks import image_models, tfds_data
from tasks.labelled_data import Partition
from tasks.task import Task
from tff_algorithms.models import Model

_HIDDEN = (300, 100)


def classification(
  name: str,
  seed: int,
  data_dir: str | None,
  partition: Partition,
  tfds_name: str,
  tfds_model: str,
  image_size: int | None,
) -> Task:
  """Learning to classify the examples of a data set.

  Args:
    name: The name of the task.
    seed: What the partition is drawn from, and what is held out if need be.
    data_dir: Where TFDS keeps its data; its own default directory if None.
    partition: How to deal out the examples.
    tfds_name: As for `tfds.load`: `name`, `name/config`, `name/config:version`.
    tfds_model: `logistic`, `mlp` or, for images, `cnn`.
    image_size: The side of the squares that images are resized to, if not None.

  Raises:
    ValueError: If the model does not suit the data, or these are not there or not
      supported.
  """
  data = tfds_data.load(tfds_name, data_dir, seed, image_size)
  model = _model(tfds_model, data.train['x'].shape[1:], data.num_classes)
  return Task(name, model, *data.federated(partition, seed))


def _model(kind: str, shape: tuple[int, ...], num_classes: int) -> Model:
  if kind == 'logistic':
    return image_models.logistic(shape, num_classes)
  if kind == 'mlp':
    return image_models.mlp(shape, num_classes, _HIDDEN)
  if len(shape) == 1:
    raise ValueError('--tfds_model=cnn is for images; take logistic or mlp.')
  return image_models.small_cnn(shape, num_classes)
