"""Checks of arguments: each returns its value or names the argument in a ValueError."""

import math
import numbers
from typing import Any


def positive(value: float, name: str) -> float:
  """A finite number above 0."""
  if not (value > 0 and math.isfinite(value)):
    raise ValueError(f'{name} must be a positive number, found {value}.')
  return value


def not_negative(value: float, name: str) -> float:
  """A finite number, 0 or above."""
  if not (value >= 0 and math.isfinite(value)):
    raise ValueError(f'{name} must be 0 or a positive number, found {value}.')
  return value


def fraction(value: float, name: str) -> float:
  """A number in [0, 1)."""
  if not 0 <= value < 1:
    raise ValueError(f'{name} must be in [0, 1), found {value}.')
  return value


def share(value: float, name: str) -> float:
  """A number in (0, 1]."""
  if not 0 < value <= 1:
    raise ValueError(f'{name} must be in (0, 1], found {value}.')
  return value


def count(value: int, name: str) -> int:
  """A whole number, 1 or above."""
  if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
    raise ValueError(f'{name} must be a whole number of at least 1, found {value}.')
  return int(value)


def one_of(value: Any, choices: tuple, name: str) -> Any:
  """One of the choices."""
  if value not in choices:
    names = ', '.join(map(str, choices))
    raise ValueError(f'{name} must be one of {names}, found {value!r}.')
  return value
