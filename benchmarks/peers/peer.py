"""What a peer is: a program that does rounds of given work in one framework.

It is started in its framework's own environment with a directory of work, and told what
to do by lines of JSON on its standard input; for each it answers one on what was its
standard output. This module needs NumPy alone.
"""

import abc
from collections.abc import Callable, Sequence
import dataclasses
import json
import os
import pathlib
import sys
from typing import Any

import numpy as np

_NUMBERS = 'work.json'
_CLIENTS = 'clients.npz'
_WEIGHTS = 'weights.npz'


@dataclasses.dataclass(frozen=True)
class Client:
  """The rows of a client: `x` uint8 pixels or int32 ids, `y` int32."""

  x: np.ndarray
  y: np.ndarray

  def __len__(self) -> int:
    return len(self.y)


@dataclasses.dataclass(frozen=True)
class Work:
  """What all peers are to do.

  A client passes once over its rows in batches, the last of which may be partial, and
  takes a step of SGD with each; the server takes the mean over clients by examples.

  Attributes:
    algorithm: 'fed_avg', 'mime', 'mime_lite' or 'scaffold'.
    model: 'logistic', 'cnn' or 'lstm'.
    learning_rate: Of the clients' steps; the server's is 1.
    momentum: Of the base optimizer of Mime and MimeLite (m <- momentum m + g).
    batch_size: The rows of a step.
    seed: Of all that is drawn at random.
    clients: All clients there are; a cohort are numbers of them.
    weights: The initial weights, kernels as `[height, width,] in, out`.
      logistic: kernel, bias.
      cnn: kernel and bias of two convolutions and two dense layers.
      lstm: the embedding; kernel, recurrent kernel and bias of two LSTM layers, the
      gates in the order input, forget, candidate, output; kernel and bias of a dense
      layer.
  """

  algorithm: str
  model: str
  learning_rate: float
  momentum: float
  batch_size: int
  seed: int
  clients: Sequence[Client]
  weights: Sequence[np.ndarray]

  def save(self, directory: pathlib.Path) -> None:
    """Writes the work to a directory."""
    numbers = {
      field.name: getattr(self, field.name)
      for field in dataclasses.fields(self)
      if field.name not in ('clients', 'weights')
    }
    (directory / _NUMBERS).write_text(json.dumps(numbers))
    arrays = {}
    for i, client in enumerate(self.clients):
      arrays[f'x{i}'], arrays[f'y{i}'] = client.x, client.y
    np.savez(directory / _CLIENTS, **arrays)
    save_weights(directory / _WEIGHTS, self.weights)

  @classmethod
  def load(cls, directory: pathlib.Path) -> 'Work':
    """Reads the work that was written to a directory."""
    numbers = json.loads((directory / _NUMBERS).read_text())
    with np.load(directory / _CLIENTS) as arrays:
      clients = [
        Client(arrays[f'x{i}'], arrays[f'y{i}']) for i in range(len(arrays) // 2)
      ]
    weights = load_weights(directory / _WEIGHTS)
    return cls(clients=clients, weights=weights, **numbers)


def save_weights(path: pathlib.Path, weights: Sequence[np.ndarray]) -> None:
  """Writes arrays in their order."""
  np.savez(path, *weights)


def load_weights(path: pathlib.Path) -> list[np.ndarray]:
  """Reads what `save_weights` wrote."""
  with np.load(path) as arrays:
    return [arrays[f'arr_{i}'] for i in range(len(arrays))]


class Peer(abc.ABC):
  """The work in one framework. All it can prepare once is prepared when it is made."""

  @abc.abstractmethod
  def start(self, exact: bool) -> None:
    """Begins again from the initial weights.

    Args:
      exact: Whether nothing is shuffled and nothing dropped out, so that all peers get
        the same weights; otherwise each client shuffles its rows in every round.
    """

  @abc.abstractmethod
  def round(self, cohort: Sequence[int]) -> None:
    """Does a round with these clients, and returns when it is done."""

  @abc.abstractmethod
  def weights(self) -> Sequence[np.ndarray]:
    """The server's weights as they are now, as `Work.weights` has them."""


def serve(make: Callable[[Work], Peer]) -> None:
  """Runs a peer as a program; its one argument is the directory of the work."""
  answers = os.fdopen(os.dup(sys.stdout.fileno()), 'w', buffering=1)
  os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # Frameworks like to print.
  peer = make(Work.load(pathlib.Path(sys.argv[1])))

  def answer(command: dict[str, Any]) -> None:
    match command:
      case {'start': exact}:
        peer.start(exact)
      case {'round': cohort}:
        peer.round(cohort)
      case {'weights': path}:
        save_weights(pathlib.Path(path), peer.weights())
    print('{}', file=answers)

  for line in sys.stdin:
    answer(json.loads(line))
