"""Reading a run's directory: for reports, sweeps and notebooks.

Importing this module does not import TensorFlow.
"""

import csv
import dataclasses
import json
import os
import pathlib
from typing import Any

from training_loops import run_directory


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
  """

  path: pathlib.Path
  flags: dict[str, Any]
  rows: list[dict[str, Any]]
  seconds: float
  is_finished: bool
  best_round: int | None


def load(path: str | os.PathLike) -> Result:
  """Reads a run.

  Raises:
    UserError: If the directory is no run.
  """
  directory = run_directory.RunDirectory(path)
  flags = directory.flags()
  timing = _read_rows(directory.path / 'timing.csv')
  is_finished = directory.finished_rounds() > 0
  result = json.loads(directory.result_file.read_text()) if is_finished else {}
  return Result(
    path=directory.path,
    flags=flags,
    rows=_read_rows(directory.path / 'metrics.csv'),
    seconds=timing[-1]['seconds'] if timing else 0.0,
    is_finished=is_finished,
    best_round=result.get('best_round'),
  )


def _read_rows(path: pathlib.Path) -> list[dict[str, Any]]:
  if not path.exists():
    return []
  with open(path, newline='') as file:
    return [
      {
        name: int(text) if name == 'round' else float(text)
        for name, text in row.items()
      }
      for row in csv.DictReader(file)
    ]
