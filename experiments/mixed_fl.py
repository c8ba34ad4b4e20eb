"""What the experiments of the mixed FL paper (Augenstein et al. 2022) share."""

from collections.abc import Collection, Mapping
from typing import Any

from experiments.experiment import Entry, flagfile

# The paper's algorithms, as its figures call them.
_NAMES = {
  'parallel_training': 'PT',
  'one_way_gradient_transfer': '1-w GT',
  'two_way_gradient_transfer': '2-w GT',
}


def small_flags(task: str) -> dict[str, dict[str, Any]]:
  """The flags of a task's `_small` files, by the algorithm's name."""
  return {
    name: flagfile(f'{task}_{algorithm}_small') for algorithm, name in _NAMES.items()
  }


def own(flags: Mapping[str, Any], common: Collection[str], **more: Any) -> Entry:
  """An algorithm with its flags, or other values, without those that all have."""
  every = {**flags, **more}
  return Entry({flag: every[flag] for flag in every if flag not in common})
