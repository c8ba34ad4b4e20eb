"""The partitioners as options of a task: their names, parameters and defaults.

Importing this module imports nothing else; `partitioners` has the functions.
"""

from collections.abc import Callable, Mapping
import dataclasses
import importlib
from typing import Any

_NUM_CLIENTS = 'num_clients'
_ALPHA = 'dirichlet_alpha'
_VARIANCE = 'size_variance'
_PACHINKO = 'pachinko'  # The one that needs coarse labels.

# Name -> what the function calls each of its options, by the option's name.
_PARAMETERS = {
  'iid': {},
  'dirichlet': {_ALPHA: 'alpha'},
  'log_normal': {_VARIANCE: 'variance'},
  'dirichlet_log_normal': {_ALPHA: 'alpha', _VARIANCE: 'variance'},
  'similarity': {'similarity': 'similarity'},
  'shards': {'shards_per_client': 'shards_per_client'},
  _PACHINKO: {'examples_per_client': 'examples_per_client'},
}
_DEFAULTS = {
  _ALPHA: 0.3,
  _VARIANCE: 1.0,
  'similarity': 0.0,
  'shards_per_client': 2,
  'examples_per_client': 100,
}


@dataclasses.dataclass(frozen=True)
class Choice:
  """An option that is one of several names, each with options of its own.

  Attributes:
    default: The name taken if none is given.
    branches: The names, each with the options that it brings along.
  """

  default: str
  branches: Mapping[str, Mapping[str, Any]]


def choice(
  default: str,
  num_clients: int,
  *,
  has_coarse_labels: bool = False,
  by_nature: str | None = None,
) -> Choice:
  """The choice of a partitioner, for the option `partitioner` of a task.

  Args:
    default: The one taken if none is given.
    num_clients: How many clients are made if no number is given.
    has_coarse_labels: Whether the task has them, as Pachinko allocation needs.
    by_nature: A further name that stands for the clients that the data come with.
  """
  branches: dict[str, Mapping[str, Any]] = {by_nature: {}} if by_nature else {}
  for name, parameters in _PARAMETERS.items():
    if name != _PACHINKO or has_coarse_labels:
      own = {option: _DEFAULTS[option] for option in parameters}
      branches[name] = {_NUM_CLIENTS: num_clients, **own}
  return Choice(default, branches)


def bound(name: str, **options: Any) -> Callable | None:
  """The partitioner of that name with its options given.

  Args:
    name: The choice made.
    **options: The options that it brings along.

  Returns:
    (labels, seed, coarse_labels=None) -> the indices of each client's examples, where
    Pachinko allocation needs the coarse labels and the others make no use of them; None
    for clients that come with the data.
  """
  if name not in _PARAMETERS:
    return None
  function = getattr(importlib.import_module('tasks.partitioners'), name)
  own = {ours: options[option] for option, ours in _PARAMETERS[name].items()}
  own['num_clients'] = options[_NUM_CLIENTS]

  def partition(labels, seed, coarse_labels=None):
    if name != _PACHINKO:
      return function(labels, seed=seed, **own)
    if coarse_labels is None:
      raise ValueError(f'{name} needs coarse labels, and none are given.')
    return function(labels, coarse_labels, seed=seed, **own)

  return partition
