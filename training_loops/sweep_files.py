"""Sweep files: which flags to try, and how, in a few lines of YAML.

    flags:                       # Of every run; more can be given on the command line.
      task: digits_logistic
      algorithm: fed_avg
      rounds: 100
    search:                      # What is tried: lists of values,
      client_epochs: [1, 5]
      client_learning_rate: {low: 1e-3, high: 1, log: true}    # or ranges.
    sampler: random              # grid (lists only), random or tpe.
    trials: 30                   # How many runs; a grid has as many as it has points.
    metric: eval/accuracy        # A column of metrics.csv,
    value: best                  # its best value or its final one.
    pruner: median               # none, median or halving: how losing runs end early,
    prune_after: 20              # after so many rounds at least.

Only `search` is needed. Importing this module does not import TensorFlow.
"""

from collections.abc import Mapping
import dataclasses
import difflib
import itertools
import math
import pathlib
from typing import Any

from training_loops import files, summaries, train_flags
from training_loops.options import UserError

SAMPLERS = ('grid', 'random', 'tpe')
PRUNERS = ('none', 'median', 'halving')
GOALS = ('maximize', 'minimize')
VALUES = ('best', 'final')

# The sweep's to set.
_NOT_FOR_RUNS = ('label', 'output_dir')

Point = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Range:
  """Numbers from low to high, evenly spread or, if `log`, their logarithms."""

  low: float
  high: float
  log: bool = False

  def __str__(self) -> str:
    return f'{self.low} to {self.high}{" (log)" if self.log else ""}'

  @property
  def is_integer(self) -> bool:
    """Whether only whole numbers are meant, as both ends are."""
    return isinstance(self.low, int) and isinstance(self.high, int)


@dataclasses.dataclass(frozen=True)
class Sweep:
  """A sweep file and the flags from the command line, as one.

  Attributes:
    flags: The flags of every run.
    search: For each flag that is tried, its values or their range.
    sampler: One of `SAMPLERS`.
    trials: How many runs to make.
    metric: The column of metrics.csv to judge by.
    goal: One of `GOALS`.
    value: Which value of the metric, one of `VALUES`.
    pruner: One of `PRUNERS`.
    prune_after: The least rounds of a run.
    seed: Of random samplers.
  """

  flags: dict[str, Any]
  search: dict[str, tuple | Range]
  sampler: str = 'grid'
  trials: int = 0
  metric: str = 'eval/accuracy'
  goal: str = ''
  value: str = 'best'
  pruner: str = 'none'
  prune_after: int = 0
  seed: int = 0

  def run_flags(self, point: Point, directory: pathlib.Path) -> dict[str, Any]:
    """The flags of the run at a point of the search.

    Args:
      point: The values of the flags that are searched for.
      directory: Where the sweep is written.

    Raises:
      UserError: If training would refuse them.
    """
    # Runs that differ in their seeds alone are shown as one.
    label = point_text({n: v for n, v in point.items() if n != 'seed'}) or None
    path = directory / 'runs' / files.as_name(point_text(point))
    try:
      return train_flags.configure(**self.flags, **point, label=label, output_dir=path)
    except UserError as error:
      raise UserError(f'with {point_text(point)}: {error}') from None

  def grid(self) -> list[Point]:
    """All points of a grid, the last flag changing fastest."""
    values = [space for space in self.search.values() if isinstance(space, tuple)]
    return [dict(zip(self.search, p, strict=True)) for p in itertools.product(*values)]

  def num_points(self) -> float:
    """How many points there are to try, infinity for a range of numbers."""
    sizes = [
      len(space)
      if isinstance(space, tuple)
      else (space.high - space.low + 1 if space.is_integer else math.inf)
      for space in self.search.values()
    ]
    return math.prod(sizes)

  def identity(self) -> dict[str, Any]:
    """What makes it this sweep, as JSON-like data."""
    search = {
      name: list(space) if isinstance(space, tuple) else dataclasses.asdict(space)
      for name, space in self.search.items()
    }
    names = ('sampler', 'metric', 'goal', 'value', 'seed')
    return {
      'flags': self.common_flags(),
      'search': search,
      **{name: getattr(self, name) for name in names},
    }

  def common_flags(self) -> dict[str, str]:
    """The flags of every run that change its numbers."""
    free = train_flags.free_names() - {'rounds'}
    return {n: str(v) for n, v in sorted(self.flags.items()) if n not in free}


def point_text(point: Mapping[str, Any]) -> str:
  """A point of the search in a line."""
  return ', '.join(f'{name}={value}' for name, value in point.items())


def read(path: str | pathlib.Path, more_flags: Mapping[str, Any]) -> Sweep:
  """Reads a sweep file.

  Args:
    path: The file.
    more_flags: Flags of every run that come before the file's.

  Raises:
    UserError: If there is no such file, or something in it would not do.
  """
  try:
    return _parse(_load(path), more_flags)
  except UserError as error:
    raise UserError(f'{path}: {error}') from None


def _load(path: str | pathlib.Path) -> dict[str, Any]:
  import yaml

  try:
    content = yaml.safe_load(pathlib.Path(path).read_text())
  except OSError as error:
    raise UserError(f'it cannot be read: {error.strerror}.') from None
  except (UnicodeDecodeError, yaml.YAMLError) as error:
    raise UserError(f'it is no YAML: {" ".join(str(error).split())}.') from None
  if not isinstance(content, dict):
    raise UserError('expected entries such as `search:`, as in experiments/sweeps.')
  return content


def _parse(content: dict[str, Any], more_flags: Mapping[str, Any]) -> Sweep:
  known = [field.name for field in dataclasses.fields(Sweep)]
  for name in content:
    if name not in known:
      near = difflib.get_close_matches(str(name), known, n=1)
      hint = f'did you mean {near[0]}?' if near else f'known are {", ".join(known)}.'
      raise UserError(f'unknown entry {name}; {hint}')
  flags = {**_mapping(content, 'flags'), **more_flags}
  search = {
    name: _space(name, space) for name, space in _mapping(content, 'search').items()
  }
  if not search:
    raise UserError('the search is empty: it needs a flag with values to try.')
  for name, value in flags.items():
    if value is None:
      raise UserError(f'{name} has no value.')
  for name in (*flags, *search):
    if name in _NOT_FOR_RUNS:
      raise UserError(f'--{name} is for the sweep as a whole.')
    if name in flags and name in search:
      raise UserError(f'--{name} is both given and searched for.')
  metric = str(content.get('metric', Sweep.metric))
  summaries.check_metric_name(metric)
  default_goal = GOALS[summaries.is_lower_better(metric)]
  sweep = Sweep(
    flags=flags,
    search=search,
    sampler=_one_of(content, 'sampler', SAMPLERS, SAMPLERS[0]),
    trials=_count(content, 'trials', 0),
    metric=metric,
    goal=_one_of(content, 'goal', GOALS, default_goal),
    value=_one_of(content, 'value', VALUES, VALUES[0]),
    pruner=_one_of(content, 'pruner', PRUNERS, PRUNERS[0]),
    prune_after=_count(content, 'prune_after', 0),
    seed=_count(content, 'seed', 0),
  )
  return _with_trials(sweep, 'trials' in content)


def _with_trials(sweep: Sweep, is_given: bool) -> Sweep:
  if sweep.sampler != 'grid':
    if not sweep.trials:
      raise UserError(f'sampler {sweep.sampler} needs trials: how many runs to make.')
    if sweep.trials > sweep.num_points():
      raise UserError(f'there are only {sweep.num_points()} points: make trials fewer.')
    return sweep
  for name, space in sweep.search.items():
    if isinstance(space, Range):
      raise UserError(
        f'{name} is a range, and a grid needs lists: or use random or tpe.'
      )
  if is_given:
    raise UserError('a grid has as many trials as it has points: leave trials out.')
  return dataclasses.replace(sweep, trials=len(sweep.grid()))


def _mapping(content: dict[str, Any], name: str) -> dict[str, Any]:
  entries = content.get(name) or {}
  if not isinstance(entries, dict):
    raise UserError(f'{name} must be lines of the form `flag: ...`.')
  return {str(flag).lstrip('-'): value for flag, value in entries.items()}


def _space(name: str, space: Any) -> tuple | Range:
  if isinstance(space, dict):
    return _range(name, space)
  values = space if isinstance(space, list) else [space]
  for value in values:
    if not isinstance(value, (str, int, float)):
      raise UserError(f'{name} has a value {value}, which is no number or name.')
  texts = [str(value) for value in values]
  if not values:
    raise UserError(f'{name} has no values to try.')
  if len(set(texts)) < len(texts):
    raise UserError(f'{name} has a value twice.')
  return tuple(values)


def _range(name: str, space: dict[str, Any]) -> Range:
  message = f'{name} needs a range such as {{low: 1e-3, high: 1, log: true}}'
  if not {'low', 'high'} <= set(space) <= {'low', 'high', 'log'}:
    raise UserError(f'{message}.')
  low, high = (_number(space[end], message) for end in ('low', 'high'))
  is_log = space.get('log', False)
  if not isinstance(is_log, bool) or low >= high or (is_log and low <= 0):
    raise UserError(f'{message}: with low below high, and above 0 if log.')
  return Range(low, high, is_log)


def _number(value: Any, message: str) -> float:
  try:
    return value if isinstance(value, int) else float(value)  # To YAML 1e-3 is a text.
  except (TypeError, ValueError):
    raise UserError(f'{message}, not {value}.') from None


def _one_of(
  content: dict[str, Any], name: str, values: tuple[str, ...], default: str
) -> str:
  value = str(content.get(name, default)).lower()
  if value not in values:
    raise UserError(f'{name} must be one of {", ".join(values)}, not {value}.')
  return value


def _count(content: dict[str, Any], name: str, default: int) -> int:
  value = content.get(name, default)
  if not isinstance(value, int) or isinstance(value, bool) or value < 0:
    raise UserError(f'{name} must be a whole number, not {value}.')
  return value
