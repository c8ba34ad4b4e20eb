"""What a task is."""

from collections.abc import Callable, Mapping, Sequence
import dataclasses

from tasks.federated_data import FederatedData, Rows
from tff_algorithms.models import Model, ModelWeights
from tff_algorithms.oracles import Oracle
from tff_algorithms.selection import Selection


@dataclasses.dataclass(frozen=True)
class Central:
  """What the server has of its own, for mixed federated learning.

  The loss to be minimised is f = w_f f_f + w_c f_c.

  Attributes:
    federated_weight: w_f, of the clients' loss.
    central_weight: w_c, of the server's.
    data: The server's rows, dealt out in whatever way is convenient; None where its
      loss needs none.
    objective: The server's loss, that of the task's model if None.
  """

  federated_weight: float
  central_weight: float
  data: FederatedData | None = None
  objective: Oracle | None = None


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
    central: What the server has of its own, if anything.
    objective: What the clients differentiate, the model's loss if None.
    test_parts: Parts of `test`, or other data, to be evaluated apart too, by name.
    selection: Which rows of the model's tables a client needs; None for all weights.
  """

  name: str
  model: Model
  train: FederatedData
  test: FederatedData
  optimum: ModelWeights | None = None
  show: Callable[[Rows], Sequence[str]] | None = None
  central: Central | None = None
  objective: Oracle | None = None
  test_parts: Mapping[str, FederatedData] = dataclasses.field(default_factory=dict)
  selection: Selection | None = None
