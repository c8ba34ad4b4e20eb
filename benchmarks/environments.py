"""Environments for the peers, each made of a list of pins."""

import hashlib
import pathlib
import shutil
import subprocess
import sys

import tqdm

PEERS = pathlib.Path(__file__).parent / 'peers'


class SetupError(OSError):
  """An environment could not be made."""


def python(name: str, directory: pathlib.Path) -> pathlib.Path:
  """The interpreter of a peer's environment, which is made if it is not there.

  Args:
    name: `peers/NAME.txt` has the pins.
    directory: Where the environments are.

  Raises:
    SetupError: If it cannot be made.
  """
  pins = PEERS / f'{name}.txt'
  own = directory.absolute() / name
  executable = own / 'bin' / 'python'
  stamp = own / 'pins.sha256'
  content = hashlib.sha256(pins.read_bytes()).hexdigest()
  if stamp.exists() and stamp.read_text() == content:
    return executable
  tqdm.tqdm.write(f'Making an environment for {name} in {own} (minutes, once).')
  shutil.rmtree(own, ignore_errors=True)
  _run(name, [sys.executable, '-m', 'venv', str(own)])
  pip = [str(executable), '-m', 'pip', 'install', '--disable-pip-version-check']
  # A list of everything: what the packages ask for besides is at odds, or too much.
  _run(name, [*pip, '--quiet', '--no-deps', '-r', str(pins)])
  stamp.write_text(content)
  return executable


def _run(name: str, command: list[str]) -> None:
  done = subprocess.run(command, capture_output=True, text=True)
  if done.returncode:
    raise SetupError(
      f'no environment could be made for {name}; without it: --peers. What failed was '
      f'{" ".join(command)}:\n{done.stdout[-1000:]}{done.stderr[-2000:]}'
    )
