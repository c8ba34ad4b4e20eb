"""Tasks: federated data with a model to train on it, by name.

Importing this package does not import TensorFlow; `load` does.
"""

import importlib
from typing import Any

from tasks.partitions import Choice
from tasks.registry import check, check_own, describe, load, names, options

__all__ = [
  'Central',
  'Choice',
  'FederatedData',
  'Task',
  'check',
  'check_own',
  'describe',
  'load',
  'names',
  'options',
]

_HOMES = {'Central': 'task', 'FederatedData': 'federated_data', 'Task': 'task'}


def __getattr__(name: str) -> Any:
  if name not in _HOMES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(f'{__name__}.{_HOMES[name]}'), name)
