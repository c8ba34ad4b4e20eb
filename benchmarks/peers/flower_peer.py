"""Flower as a peer: its FedAvg, simulated by Ray, which has an actor for each core.

Flower's clients are functions of messages, and what an actor has in memory stays there:
the rows and the model are made once in each.
"""

from collections.abc import Iterable, Sequence
import contextlib
import functools
import os
import pathlib
import queue
import sys
import threading
import time

import numpy as np

# Each is read when the package is imported.
os.environ['FLWR_TELEMETRY_ENABLED'] = '0'
os.environ['RAY_USAGE_STATS_ENABLED'] = '0'

from flwr.app import (
  ArrayRecord,
  ConfigRecord,
  Context,
  Message,
  MessageType,
  MetricRecord,
  RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
import ray
import torch

from benchmarks.peers import torch_models
from benchmarks.peers.peer import Peer, Work, serve

_client_app = ClientApp()

# The weights to begin with, whether it is exact, the cohort; None is the end.
_Order = tuple[ArrayRecord, bool, Sequence[int]] | None


class FlowerPeer(Peer):
  """A simulation in a thread, whose server waits for the next cohort."""

  def __init__(self, work: Work):
    if work.algorithm != 'fed_avg':
      raise ValueError(f'There is no {work.algorithm} here.')
    self._model = torch_models.module(work, exact=True)
    self._initial = ArrayRecord(self._model.state_dict())
    self._strategy = _FedAvgOnOrder(len(work.clients))
    # Flower would do it in the thread, where Ray cannot handle signals.
    ray.init(include_dashboard=False, logging_level='WARNING')
    self._thread = threading.Thread(
      target=self._simulate, args=[len(work.clients)], daemon=True
    )
    self._thread.start()
    self._strategy.result()

  def start(self, exact: bool) -> None:
    self._arrays, self._exact = self._initial, exact

  def round(self, cohort: Sequence[int]) -> None:
    self._strategy.orders.put((self._arrays, self._exact, cohort))
    self._arrays = self._strategy.result()

  def weights(self) -> Sequence[np.ndarray]:
    self._model.load_state_dict(self._arrays.to_torch_state_dict())
    return torch_models.get_weights(self._model)

  def close(self) -> None:
    """Ends the simulation and with it Ray."""
    self._strategy.orders.put(None)
    self._thread.join()

  def _simulate(self, num_clients: int) -> None:
    server_app = ServerApp()

    @server_app.main()
    def _(grid: Grid, context: Context) -> None:
      with contextlib.suppress(_End):
        self._strategy.start(grid, self._initial, num_rounds=sys.maxsize)

    try:
      run_simulation(
        server_app,
        _client_app,
        num_supernodes=num_clients,
        backend_config={'client_resources': {'num_cpus': 1}},
      )
    except Exception as e:
      self._strategy.results.put(e)


class _FedAvgOnOrder(FedAvg):
  """Does not draw cohorts but waits for them.

  Attributes:
    orders: Where it takes them from.
    results: Where it puts the weights after each, and first of all the initial ones.
  """

  def __init__(self, num_clients: int) -> None:
    super().__init__(fraction_evaluate=0.0)
    self._num_clients = num_clients
    self.orders: queue.SimpleQueue[_Order] = queue.SimpleQueue()
    self.results: queue.SimpleQueue[ArrayRecord | Exception] = queue.SimpleQueue()

  def result(self) -> ArrayRecord:
    """Waits for the next of `results`, and raises it if it is an exception."""
    result = self.results.get()
    if isinstance(result, Exception):
      raise result
    return result

  def _nodes(self, grid: Grid) -> list[int]:
    """As many nodes as there are clients, once all have come."""
    while len(nodes := sorted(grid.get_node_ids())) < self._num_clients:
      time.sleep(0.1)
    return nodes

  def configure_train(
    self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
  ) -> Iterable[Message]:
    self.results.put(arrays)  # This is called when the round before has been done.
    order = self.orders.get()
    if order is None:
      raise _End
    arrays, exact, cohort = order
    nodes = self._nodes(grid)
    directory = str(pathlib.Path(sys.argv[1]).absolute())
    common = {'directory': directory, 'exact': exact, 'round': server_round}
    messages = []
    for client in cohort:
      # Nodes have random ids, and the server is not told which data are a node's.
      own = ConfigRecord({**common, 'client': client})
      content = RecordDict({'arrays': arrays, 'config': own})
      messages.append(Message(content, nodes[client], MessageType.TRAIN))
    return messages

  def aggregate_train(
    self, server_round: int, replies: Iterable[Message]
  ) -> tuple[ArrayRecord | None, MetricRecord | None]:
    replies = list(replies)
    for reply in replies:
      if reply.has_error():  # Flower would do without this client.
        raise RuntimeError(reply.error.reason)
    return super().aggregate_train(server_round, replies)


class _End(Exception):
  """Leaves the rounds, which Flower wants to do all at once."""


@_client_app.train()
def _train(message: Message, context: Context) -> Message:
  config = message.content['config']
  directory, client, exact = config['directory'], config['client'], config['exact']
  work, rows = _rows(directory)
  model = _model(directory, exact)
  model.load_state_dict(message.content['arrays'].to_torch_state_dict())
  x, y = rows[client]
  if not exact:
    # Not a stream for each actor: it is left to chance which one has which clients.
    seeds = np.random.SeedSequence([work.seed, config['round'], client])
    torch.manual_seed(int(seeds.generate_state(1)[0]))
    order = torch.randperm(len(y))
    x, y = x[order], y[order]
  optimizer = torch.optim.SGD(model.parameters(), work.learning_rate)
  size = work.batch_size
  for batch_x, batch_y in zip(x.split(size), y.split(size), strict=True):
    optimizer.zero_grad()
    torch_models.loss(model(batch_x), batch_y).backward()
    optimizer.step()
  content = RecordDict(
    {
      'arrays': ArrayRecord(model.state_dict()),
      'metrics': MetricRecord({'num-examples': len(y)}),
    }
  )
  return Message(content, reply_to=message)


@functools.cache
def _rows(directory: str) -> tuple[Work, list[tuple[torch.Tensor, torch.Tensor]]]:
  torch.set_num_threads(1)  # Ray says so to OpenMP, but not all of PyTorch asks it.
  work = Work.load(pathlib.Path(directory))
  return work, torch_models.rows(work)


@functools.cache
def _model(directory: str, exact: bool) -> torch.nn.Module:
  return torch_models.module(_rows(directory)[0], exact)


if __name__ == '__main__':
  # Actors import what is in a module, but get a copy of `__main__` with each message,
  # where nothing would stay cached.
  from benchmarks.peers import flower_peer

  with contextlib.ExitStack() as stack:
    serve(
      lambda work: stack.enter_context(contextlib.closing(flower_peer.FlowerPeer(work)))
    )
