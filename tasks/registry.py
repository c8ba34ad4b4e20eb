"""The tasks by name: what each is, which options it takes, where it is made.

To add one: write its entry in `_TASKS`. A task's module is imported when the task is
loaded, not before.
"""

from collections.abc import Mapping
import dataclasses
import difflib
import importlib
import types
import typing
from typing import Any

if typing.TYPE_CHECKING:
  from tasks.task import Task


@dataclasses.dataclass(frozen=True)
class _Entry:
  """How to describe and make a task.

  Attributes:
    description: What it is, in one line.
    home: `module.function`; the function takes (name, seed) and the options.
    options: The options that it takes, by name, with their defaults.
  """

  description: str
  home: str
  options: Mapping[str, Any]


_DIGITS_OPTIONS = {'num_clients': 50, 'dirichlet_alpha': 0.3}

_TASKS = {
  'digits_logistic': _Entry(
    'Handwritten digits (8x8, bundled with scikit-learn), logistic regression.',
    'tasks.digits.logistic',
    _DIGITS_OPTIONS,
  ),
  'digits_mlp': _Entry(
    'Handwritten digits (8x8, bundled with scikit-learn), one hidden layer of 64.',
    'tasks.digits.mlp',
    _DIGITS_OPTIONS,
  ),
  'emnist_logistic': _Entry(
    'Handwritten characters by writer (28x28, 62 classes), logistic regression.',
    'tasks.emnist.logistic',
    {'data_dir': None},
  ),
}


def names() -> tuple[str, ...]:
  """The names of all tasks."""
  return tuple(_TASKS)


def describe() -> dict[str, str]:
  """The names of all tasks, with a line on each."""
  return {name: entry.description for name, entry in _TASKS.items()}


def options(name: str) -> Mapping[str, Any]:
  """The options of a task, by name, with their defaults.

  Raises:
    ValueError: If there is no task of that name.
  """
  return types.MappingProxyType(dict(_entry(name).options))


def load(name: str, seed: int, **options: Any) -> 'Task':
  """Makes a task.

  Args:
    name: One of `names()`.
    seed: What the partition of the data over clients is drawn from; the same seed
      gives the same task.
    **options: Values for some of `options(name)`.

  Raises:
    ValueError: If there is no task of that name, it does not take one of the options,
      or not that value.
  """
  entry = _entry(name)
  foreign = sorted(set(options) - set(entry.options))
  if foreign:
    raise ValueError(
      f'Task {name!r} does not take {", ".join(foreign)}; '
      f'it takes {", ".join(entry.options) or "no options"}.'
    )
  module, _, function = entry.home.rpartition('.')
  make = getattr(importlib.import_module(module), function)
  return make(name, seed, **{**entry.options, **options})


def _entry(name: str) -> _Entry:
  if name not in _TASKS:
    near = difflib.get_close_matches(name, _TASKS, n=3)
    hint = f' Did you mean {" or ".join(near)}?' if near else ''
    raise ValueError(f'Unknown task {name!r}; known are {", ".join(_TASKS)}.{hint}')
  return _TASKS[name]
