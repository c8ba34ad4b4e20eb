"""Reading a run's directory: for reports, sweeps and notebooks.

Importing this module does not import TensorFlow.
"""

from collections.abc import Iterable
import csv
import dataclasses
import json
import os
import pathlib
from typing import Any

from training_loops import run_directory
from training_loops.options import UserError


@dataclasses.dataclass(frozen=True)
class Result:
  """A run, as far as it got.

  Attributes:
    path: Its directory.
    flags: The flags it was made with.
    rows: Its metrics.csv.
    seconds: The training time of those rows.
    is_finished: Whether all its rounds are done and the model was written.
    best_round: The evaluated round with the best model, None until it is finished.
    versions: Of what it was made with.
  """

  path: pathlib.Path
  flags: dict[str, Any]
  rows: list[dict[str, Any]]
  seconds: float
  is_finished: bool
  best_round: int | None
  versions: dict[str, str] = dataclasses.field(default_factory=dict)


def find(paths: Iterable[str | os.PathLike]) -> list[pathlib.Path]:
  """The directories of all runs at or below these paths, each once, in order of name.

  Raises:
    UserError: If a path is no run and holds none.
  """
  found: dict[pathlib.Path, pathlib.Path] = {}
  for path in map(pathlib.Path, paths):
    if not path.is_dir():
      what = 'it is a file' if path.exists() else 'there is no such directory'
      raise UserError(f'{path} is no run: {what}.')
    # What is named is a run or a mistake; below it there may be other things too.
    is_named = run_directory.RunDirectory(path).config_file.exists()
    below = (file.parent for file in path.rglob('config.json'))
    runs = [path] if is_named else sorted(filter(_is_run, below))
    if not runs:
      raise UserError(f'{path} is no run and holds none: there is no config.json.')
    found |= {run.resolve(): run for run in runs if run.resolve() not in found}
  return list(found.values())


def load_all(paths: Iterable[str | os.PathLike]) -> list[Result]:
  """Reads all runs at or below these paths.

  Raises:
    UserError: If a path is no run and holds none.
  """
  return [load(path) for path in find(paths)]


def _is_run(path: pathlib.Path) -> bool:
  try:
    run_directory.RunDirectory(path).flags()
  except UserError:
    return False
  return True


def load(path: str | os.PathLike) -> Result:
  """Reads a run.

  Raises:
    UserError: If the directory is no run.
  """
  directory = run_directory.RunDirectory(path)
  config = directory.config()
  timing = _read_rows(directory.path / 'timing.csv')
  is_finished = directory.finished_rounds() > 0
  result = json.loads(directory.result_file.read_text()) if is_finished else {}
  return Result(
    path=directory.path,
    flags=config['flags'],
    rows=_read_rows(directory.path / 'metrics.csv'),
    seconds=timing[-1]['seconds'] if timing else 0.0,
    is_finished=is_finished,
    best_round=result.get('best_round'),
    versions=config.get('versions', {}),
  )


def _read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
  if not path.exists():
    return []
  with open(path, newline='') as file:
    try:
      # A round may lack what others have: transfer learning changes what it measures.
      return [
        {
          name: int(text) if name == 'round' else float(text)
          for name, text in row.items()
          if text != ''
        }
        for row in csv.DictReader(file)
      ]
    except (ValueError, TypeError, csv.Error) as error:
      raise UserError(f'{path} cannot be read: {error}.') from None
