"""The work's models and rows for PyTorch."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import nn

from benchmarks.peers.peer import Work

_IMAGE_SHAPE = (28, 28)
_NUM_UNITS = 256

# By number of axes: the order in which the other side's axes are taken.
_TO_TORCH = {1: (0,), 2: (1, 0), 4: (3, 2, 0, 1)}
_FROM_TORCH = {1: (0,), 2: (1, 0), 4: (2, 3, 1, 0)}


class _ChannelsLast(nn.Module):
  """Gives images the axes of `Work.weights`, in which they are then flattened."""

  def forward(self, images: torch.Tensor) -> torch.Tensor:
    return images.permute(0, 2, 3, 1)


class _NextToken(nn.Module):
  """Logits of what follows at each place of a text."""

  def __init__(self, num_ids: int, embedding_size: int):
    super().__init__()
    self.embedding = nn.Embedding(num_ids, embedding_size)
    self.lstm = nn.LSTM(embedding_size, _NUM_UNITS, num_layers=2, batch_first=True)
    self.dense = nn.Linear(_NUM_UNITS, num_ids)
    # Of torch's two biases only one takes steps: both would double every step.
    for name, parameter in self.lstm.named_parameters():
      if name.startswith('bias_hh'):
        nn.init.zeros_(parameter).requires_grad_(False)

  def forward(self, ids: torch.Tensor) -> torch.Tensor:
    return self.dense(self.lstm(self.embedding(ids))[0])


def module(work: Work, exact: bool) -> nn.Module:
  """The model, with the work's initial weights; its outputs are logits.

  Args:
    work: The work.
    exact: Whether nothing is dropped out, also in training.
  """
  num_classes = len(work.weights[-1])
  made: nn.Module
  match work.model:
    case 'logistic':
      height, width = _IMAGE_SHAPE
      made = nn.Sequential(nn.Flatten(), nn.Linear(height * width, num_classes))
    case 'cnn':
      made = nn.Sequential(
        nn.Unflatten(1, (1, _IMAGE_SHAPE[0])),
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.0 if exact else 0.25),
        _ChannelsLast(),
        nn.Flatten(),
        nn.Linear(len(work.weights[4]), 128),
        nn.ReLU(),
        nn.Dropout(0.0 if exact else 0.5),
        nn.Linear(128, num_classes),
      )
      # In memory too: on a CPU steps are shorter by a tenth or more.
      made = made.to(memory_format=torch.channels_last)
    case 'lstm':
      made = _NextToken(*work.weights[0].shape)
    case _:
      raise ValueError(f'There is no {work.model} here.')
  set_weights(made, work.weights)
  return made


def loss(logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
  """The mean cross-entropy of a batch, of texts over all their tokens."""
  return nn.functional.cross_entropy(logits.flatten(0, -2), y.flatten())


def rows(work: Work) -> list[tuple[torch.Tensor, torch.Tensor]]:
  """The clients' x and y as model and loss take them."""
  return [
    (
      torch.from_numpy(
        c.x if work.model == 'lstm' else c.x.astype(np.float32) / np.float32(255)
      ),
      torch.from_numpy(c.y.astype(np.int64)),  # The loss takes no int32.
    )
    for c in work.clients
  ]


def set_weights(model: nn.Module, weights: Sequence[np.ndarray]) -> None:
  """Gives the model weights that are as `Work.weights` has them."""
  with torch.no_grad():
    for (name, parameter), array in zip(_trained(model), weights, strict=True):
      own = array if _is_embedding(name) else array.transpose(_TO_TORCH[array.ndim])
      parameter.copy_(torch.from_numpy(np.array(own, order='C')))


def get_weights(model: nn.Module) -> list[np.ndarray]:
  """Copies of the model's weights, as `Work.weights` has them."""
  weights = []
  for name, parameter in _trained(model):
    own = parameter.detach().numpy()
    array = own if _is_embedding(name) else own.transpose(_FROM_TORCH[own.ndim])
    weights.append(np.array(array, order='C'))
  return weights


def _trained(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
  """The parameters that take steps: these are the work's weights, in their order."""
  return ((n, p) for n, p in model.named_parameters() if p.requires_grad)


def _is_embedding(name: str) -> bool:
  return name.endswith('embedding.weight')
