"""What a task's check says where there are neither files nor a network."""

import pathlib
import subprocess
import sys

_SLOW = {'numpy', 'tensorflow', 'tensorflow_datasets', 'tensorflow_federated'}


def refusal(name: str, **options: str) -> str:
  """The error of `tasks.check` in a process of its own, which imports nothing slow."""
  program = f"""
import sys
import tasks
from tasks import downloads
downloads.is_reachable = lambda url: False
try:
  tasks.check({name!r}, **{options!r})
except ValueError as error:
  print(error)
assert not {_SLOW!r} & set(sys.modules)
"""
  root = pathlib.Path(__file__).parents[2]
  done = subprocess.run(
    [sys.executable, '-c', program],
    cwd=root,
    check=True,
    capture_output=True,
    text=True,
  )
  return done.stdout
