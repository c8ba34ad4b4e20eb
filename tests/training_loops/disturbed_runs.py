"""Running the training in this process, and disturbing it, for tests of runs."""

from collections.abc import Iterator
import contextlib
import csv
import json
import os
import pathlib
import shutil
from typing import Any

import pytest

from tasks import scratch
from training_loops import train_flags, training


@contextlib.contextmanager
def built_once(scratch_directory: pathlib.Path) -> Iterator[None]:
  """Spares building the same process for every run in the block.

  Args:
    scratch_directory: Where the runs have their temporary files, empty.
  """
  original = training.build_process
  built: dict[str, Any] = {}
  # A process knows where its clients' files are: always in the same place, then.
  unlink = os.unlink  # Nobody is killed while it is emptied.

  def emptied():
    for path in sorted(scratch_directory.rglob('*'), reverse=True):
      (os.rmdir if path.is_dir() else unlink)(path)
    return contextlib.nullcontext(scratch_directory)

  def build(flags, task, *inputs):
    free = train_flags.free_names()
    key = json.dumps({name: flags[name] for name in flags if name not in free})
    if key not in built:
      built[key] = original(flags, task, *inputs)
    return built[key]

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(training, 'build_process', build)
    patch.setattr(scratch, 'directory', emptied)
    yield


def rounds_of(path: pathlib.Path) -> list[int]:
  """The rounds that a run has rows of."""
  with open(path / 'metrics.csv') as file:
    return [int(row['round']) for row in csv.DictReader(file)]


class Killed(BaseException):
  """Stands for SIGKILL: nothing may be done after it."""


def killed_at(monkeypatch, operation: int) -> list[str]:
  """Lets the operations on files fail from a certain one on; lists those done."""
  done: list[str] = []

  def mortal(module, name):
    original = getattr(module, name)

    def call(*arguments, **options):
      if len(done) >= operation:
        raise Killed
      done.append(name)
      return original(*arguments, **options)

    monkeypatch.setattr(module, name, call)

  for name in ('replace', 'rename', 'unlink', 'mkdir', 'pwritev', 'fdatasync'):
    mortal(os, name)
  mortal(shutil, 'rmtree')
  return done
