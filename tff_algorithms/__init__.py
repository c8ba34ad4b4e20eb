"""Federated optimization algorithms as TensorFlow Federated processes.

The builders are here by name; they are imported on first use, so that importing the
package costs nothing.
"""

import importlib
from typing import Any

_HOMES = {
  'InMemoryClientStates': 'client_states',
  'Model': 'models',
  'SaddlePoint': 'saddle_point',
  'TransferLearning': 'transfer_learning',
  'build_elastic': 'elastic',
  'build_example_transfer': 'example_transfer',
  'build_extra_step_local_sgd': 'extra_step_local_sgd',
  'build_fed_avg': 'fed_avg',
  'build_fed_avg_s': 'fed_avg_s',
  'build_fed_dyn': 'fed_dyn',
  'build_fed_prox': 'fed_prox',
  'build_loc_mime': 'loc_mime',
  'build_mime': 'mime',
  'build_mime_lite': 'mime_lite',
  'build_mime_mvr': 'mime_mvr',
  'build_minibatch_mirror_descent': 'minibatch_mirror',
  'build_minibatch_mirror_prox': 'minibatch_mirror',
  'build_one_way_gradient_transfer': 'one_way_gradient_transfer',
  'build_only_central': 'only_central',
  'build_parallel_training': 'parallel_training',
  'build_parallel_training_of_populations': 'populations',
  'build_scaffold': 'scaffold',
  'build_scaffold_catalyst_s': 'scaffold_catalyst_s',
  'build_scaffold_s': 'scaffold_s',
  'build_server_only': 'server_only',
  'build_two_way_gradient_transfer': 'two_way_gradient_transfer',
  'saddle_objective': 'saddle_point',
}


def __getattr__(name: str) -> Any:
  if name not in _HOMES:
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
  return getattr(importlib.import_module(f'{__name__}.{_HOMES[name]}'), name)


def __dir__() -> list[str]:
  return sorted([*globals(), *_HOMES])
