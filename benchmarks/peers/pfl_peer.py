"""Apple's pfl (pfl-research) as a peer: its algorithms on its simulated backend."""

import collections
from collections.abc import Sequence
import sys
from typing import Any

import numpy as np
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel
import torch

from benchmarks.peers import torch_models
from benchmarks.peers.peer import Peer, Work, serve

# Measured on two cores with nothing else on them: a second thread makes rounds of cnn
# and lstm a third shorter, those of logistic by a twentieth.
_NUM_THREADS = 2


class _Trained(torch.nn.Module):
  """A module with what pfl asks for."""

  def __init__(self, module: torch.nn.Module):
    super().__init__()
    self.module = module

  def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch_models.loss(self.module(x), y)

  def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    return {}  # pfl always evaluates in the first round; so it costs nothing.


class _Model(PyTorchModel):
  """pfl's model, with which the steps of SCAFFOLD are those of the paper.

  pfl 0.6.0 makes c_i of y_i - x where the paper has x - y_i, so that all its control
  variates are the paper's negated; but like the paper's its steps add c - c_i. With the
  two interchanged here they add c_i - c, which is the paper's c - c_i.
  """

  def do_multiple_epochs_of(self, *args: Any, **kwargs: Any) -> Any:
    if 'local_c' in kwargs:
      kwargs = {'local_c': kwargs['server_c'], 'server_c': kwargs['local_c']}
    return super().do_multiple_epochs_of(*args, **kwargs)


class PflPeer(Peer):
  """`FederatedAveraging` or `SCAFFOLD`."""

  def __init__(self, work: Work):
    torch.set_num_threads(_NUM_THREADS)
    self._work = work
    self._rows = torch_models.rows(work)

  def start(self, exact: bool) -> None:
    work = self._work
    np.random.seed(work.seed)  # From which pfl draws its own seeds.
    torch.manual_seed(work.seed)
    self._module = torch_models.module(work, exact)
    trained = _Trained(self._module)
    self._model = _Model(
      trained,
      local_optimizer_create=torch.optim.SGD,
      central_optimizer=torch.optim.SGD(trained.parameters(), lr=1.0),
    )
    self._users: collections.deque[int] = collections.deque()
    data = FederatedDataset(
      lambda i: self._dataset(i, shuffle=not exact), self._users.popleft
    )
    match work.algorithm:
      case 'fed_avg':
        self._algorithm, weighting = FederatedAveraging(), [WeightByDatapoints()]
      case 'scaffold':
        # Without a weighting its means are over clients, as in the paper.
        self._algorithm, weighting = SCAFFOLD(), []
      case _:
        raise ValueError(f'There is no {work.algorithm} here.')
    self._backend = SimulatedBackend(data, data, weighting)
    self._states = InMemoryUserStateStorage()
    self._num_rounds = 0

  def round(self, cohort: Sequence[int]) -> None:
    self._users.extend(cohort)
    self._num_rounds += 1
    self._algorithm.run(  # It goes on from where it was.
      self._params(len(cohort)),
      self._backend,
      self._model,
      NNTrainHyperParams(
        local_batch_size=self._work.batch_size,
        local_num_epochs=1,
        local_learning_rate=self._work.learning_rate,
      ),
      send_metrics_to_platform=False,  # It would only print them.
    )

  def weights(self) -> Sequence[np.ndarray]:
    return torch_models.get_weights(self._module)

  def _dataset(self, i: int, shuffle: bool) -> PyTorchTensorDataset:
    x, y = self._rows[i]
    if shuffle:
      order = torch.randperm(len(y))
      x, y = x[order], y[order]
    return PyTorchTensorDataset((x, y), user_id=str(i))

  def _params(self, cohort_size: int) -> NNAlgorithmParams:
    common = {
      'central_num_iterations': self._num_rounds,
      'evaluation_frequency': sys.maxsize,
      'train_cohort_size': cohort_size,
      'val_cohort_size': None,
    }
    if self._work.algorithm == 'fed_avg':
      return NNAlgorithmParams(**common)
    return SCAFFOLDParams(
      population=len(self._work.clients),
      use_gradient_as_control_variate=False,  # Option II.
      user_state_storage=self._states,
      **common,
    )


if __name__ == '__main__':
  serve(PflPeer)
