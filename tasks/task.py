"""What a task is."""

from collections.abc import Callable, Sequence
import dataclasses

from tasks.federated_data import FederatedData, Rows
from tff_algorithms.models import Model, ModelWeights


@dataclasses.dataclass(frozen=True)
class Task:
  """Something to train: federated data and a model.

  Attributes:
    name: The name in the registry.
    model: The model, its `input_spec` matching the rows of the data.
    train: What the clients train on.
    test: What is held out.
    optimum: The weights with the least loss on the training data, where they are known.
    show: Rows -> a line for each that people can read: a text, the label of a picture.
  """

  name: str
  model: Model
  train: FederatedData
  test: FederatedData
  optimum: ModelWeights | None = None
  show: Callable[[Rows], Sequence[str]] | None = None
