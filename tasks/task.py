"""What a task is."""

import dataclasses

from tasks.federated_data import FederatedData
from tff_algorithms.models import Model


@dataclasses.dataclass(frozen=True)
class Task:
  """Something to train: federated data and a model.

  Attributes:
    name: The name in the registry.
    model: The model, its `input_spec` matching the rows of the data.
    train: What the clients train on.
    test: What is held out.
  """

  name: str
  model: Model
  train: FederatedData
  test: FederatedData
