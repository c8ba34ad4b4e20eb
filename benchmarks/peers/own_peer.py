"""This package as a peer: clients by id, as the training binary has them.

With the argument `tf.data` the clients are ordinary data sets instead; with `local`
they are computed in TFF's worker.
"""

from collections.abc import Sequence
import pathlib
import sys
import tempfile
from typing import Any

import numpy as np

from benchmarks.peers.peer import Peer, Work, serve
from training_loops import runtimes

_ON_WORKER = 'local' in sys.argv[2:]

# A worker starts while TensorFlow is being imported.
_runtime = runtimes.create('local' if _ON_WORKER else 'in_process')
_runtime.launch()

# ruff: noqa: E402
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.peers import tff_models
from tasks import client_files
from tasks.federated_data import FederatedData
from tff_algorithms import client_inputs, oracles
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.mime import build_mime
from tff_algorithms.mime_lite import build_mime_lite
from tff_algorithms.scaffold import build_scaffold
from training_loops import client_state_exchange, client_state_store


class OwnPeer(Peer):
  """A builder's process on a runtime."""

  def __init__(self, work: Work):
    _runtime.start()
    self._work = work
    self._model = tff_models.model(work)
    self._directory = pathlib.Path(tempfile.mkdtemp(dir=sys.argv[1]))
    data = FederatedData(
      [str(i) for i in range(len(work.clients))],
      lambda client_id: tff_models.rows(work, int(client_id)),
    )
    self._input: Any = None
    self._arguments: Sequence[Any]
    if 'tf.data' in sys.argv[2:]:
      self._arguments = [
        tff_models.dataset(data.rows(client_id), None) for client_id in data.client_ids
      ]
    else:
      files = client_files.write(data, self._directory / 'clients')
      self._input = client_inputs.from_id(files.load)
      self._arguments = data.client_ids

  def _process(self, exact: bool) -> Any:
    work = self._work
    trained = oracles.without_dropout(self._model) if exact else self._model
    common: dict[str, Any] = {
      'batch_size': work.batch_size,
      'client_input': self._input,
      'seed': work.seed,
      'shuffle': not exact,
    }
    own_rate: dict[str, Any] = {'client_learning_rate': work.learning_rate}
    momentum = tff.learning.optimizers.build_sgdm(work.learning_rate, work.momentum)
    match work.algorithm:
      case 'fed_avg':
        return build_fed_avg(trained, **own_rate, **common)
      case 'mime':
        return build_mime(trained, base_optimizer=momentum, **common)
      case 'mime_lite':
        return build_mime_lite(trained, base_optimizer=momentum, **common)
      case 'scaffold':
        return build_scaffold(
          trained,
          num_clients=len(work.clients),
          client_states_by_file=_ON_WORKER,
          **own_rate,
          **common,
        )
    raise ValueError(f'There is no {work.algorithm} here.')

  def start(self, exact: bool) -> None:
    self._process_of_work = process = self._process(exact)
    weights = tff.learning.models.ModelWeights(tuple(self._work.weights), ())
    self._state = process.set_model_weights(process.initialize(), weights)
    self._client_states: Any = None
    if self._work.algorithm == 'scaffold':
      directory = pathlib.Path(tempfile.mkdtemp(dir=self._directory))
      (directory / 'states').mkdir()
      store = client_state_store.ClientStateStore(
        directory / 'states.sqlite', process.initialize_client(), {}
      )
      store.restore(0, None)
      self._client_states = store
      if process.client_states_by_file:
        self._client_states = client_state_exchange.ClientStateExchange(
          store, directory / 'states'
        )

  def round(self, cohort: Sequence[int]) -> None:
    clients = [self._arguments[i] for i in cohort]
    if self._client_states is None:
      self._state = self._process_of_work.next(self._state, clients).state
      return
    given = self._client_states.read([str(i) for i in cohort])
    output = self._process_of_work.next(self._state, clients, given)
    self._client_states.write(output.client_states)
    self._state = output.state

  def weights(self) -> Sequence[np.ndarray]:
    trained = self._process_of_work.get_model_weights(self._state).trainable
    return tf.nest.flatten(trained)


if __name__ == '__main__':
  serve(OwnPeer)
