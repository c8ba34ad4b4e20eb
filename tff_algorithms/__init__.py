"""Federated optimization algorithms as TensorFlow Federated processes.

The builders are here by name; they are imported on first use, so that importing the
package costs nothing.
"""

import importlib
from typing import Any

_HOMES = {
  'Model': 'models',
  'build_fed_avg': 'fed_avg',
  'build_fed_prox': 'fed_prox',
  'build_loc_mime': 'loc_mime',
  'build_mime': 'mime',
  'build_mime_lite': 'mime_lite',
  'build_mime_mvr': 'mime_mvr',
  'build_server_only': 'server_only',
}


def __getattr__(name: str) -> Any:
  if name not in _HOMES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(f'{__name__}.{_HOMES[name]}'), name)


def __dir__() -> list[str]:
  return sorted([*globals(), *_HOMES])
