"""Makes .venv, or mends it, so that it holds requirements.txt and this project.

Run by `make setup` with a Python 3.11; needs the standard library only. When the
environment is already as it should be nothing happens. Otherwise pip installs what
is missing: an interrupted run, a damaged package and a changed requirements.txt are
all mended by running it again.
"""

from collections.abc import Sequence
import csv
import hashlib
import os
from pathlib import Path
import platform
import re
import shutil
import subprocess
import sys
import time
import tomllib

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / '.venv'
PYTHON = VENV / 'bin' / 'python'
STAMP = VENV / 'setup.stamp'
LOG = VENV / 'setup.log'
BUILD_TOOLS = VENV / 'build-tools.txt'
# These fail, or come up empty, when a version does not fit the others.
IMPORTS = """
import matplotlib.pyplot, sklearn.datasets, tensorflow, tensorflow_federated
import tensorflow_datasets as tfds
assert hasattr(tfds, 'load'), 'tensorflow_datasets is an empty module'
"""


class SetupError(Exception):
  """What the user has to know, in one message."""


def fingerprint() -> str:
  """Returns a hash of all that decides what the environment contains."""
  digest = hashlib.sha256(str(ROOT).encode())
  for name in ('requirements.txt', 'pyproject.toml'):
    digest.update((ROOT / name).read_bytes())
  return digest.hexdigest()


def pins() -> dict[str, str]:
  """Returns the version of each package in requirements.txt, by normalized name."""
  text = (ROOT / 'requirements.txt').read_text()
  return dict(re.findall(r'^([a-z0-9-]+)==(\S+)', text, re.MULTILINE))


def is_usable() -> bool:
  """Tells whether .venv has a Python 3.11 that runs, has pip, and was made here."""
  config = VENV / 'pyvenv.cfg'
  if not config.exists() or str(VENV) not in config.read_text():
    return False
  code = 'import sys, pip; sys.exit(sys.version_info[:2] != (3, 11))'
  try:
    return subprocess.run([PYTHON, '-c', code], capture_output=True).returncode == 0
  except OSError:
    return False


def installed() -> dict[Path, bool]:
  """Returns, for each installed package's metadata, whether its files are all there."""
  site = VENV / 'lib' / 'python3.11' / 'site-packages'
  found = {}
  for info in site.glob('*.dist-info'):
    try:
      with open(info / 'RECORD', newline='') as record:
        files = [row[0] for row in csv.reader(record) if row]
    except OSError:
      files = []
    found[info] = bool(files) and all(
      os.path.exists(f'{site}/{file}') for file in files if file[-4:] != '.pyc'
    )
  return found


def is_complete() -> bool:
  """Tells whether there is nothing to do."""
  if not STAMP.exists() or STAMP.read_text() != fingerprint() or not is_usable():
    return False
  whole = set()
  for info, is_whole in installed().items():
    name, version = info.name.removesuffix('.dist-info').rsplit('-', 1)
    if is_whole:
      whole.add((re.sub('[-_.]+', '-', name).lower(), version))
  project = tomllib.loads((ROOT / 'pyproject.toml').read_text())['project']
  return whole.issuperset({**pins(), project['name']: project['version']}.items())


def say(text: str) -> None:
  """Prints a line at once, also into a pipe."""
  print(text, flush=True)


def run(what: str, command: Sequence[str | Path]) -> None:
  """Runs a command, its output going to the log, and shows how far it is."""
  total, count, start = len(pins()), 0, time.monotonic()
  with (
    open(LOG, 'a') as log,
    subprocess.Popen(
      command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT
    ) as process,
  ):
    lines = []
    for line in process.stdout or ():
      log.write(line)
      lines.append(line)
      if line.startswith(('Collecting', 'Processing')):
        count += 1
        if count % 10 == 0:
          say(f'  {time.monotonic() - start:4.0f} s  downloaded {count} of {total}')
      elif line.startswith('Installing collected packages') and count > 10:
        say(f'  {time.monotonic() - start:4.0f} s  unpacking (a minute or two)')
  if process.returncode:
    raise SetupError(
      f'{"".join(lines[-15:])}\n{what} failed; the whole log is {LOG}.\n'
      'Running `make setup` again goes on from here.'
    )


def setup() -> None:
  """Makes or mends the environment."""
  if is_complete():
    return
  if (platform.system(), platform.machine()) != ('Linux', 'x86_64'):
    raise SetupError(
      'TensorFlow Federated 0.87 is published for Linux on x86_64; this is '
      f'{platform.system()} on {platform.machine()}. Use a container or a '
      'virtual machine.'
    )
  if VENV.is_symlink():  # Perhaps to what another checkout uses.
    raise SetupError(
      f'{VENV} is a link to {VENV.resolve()}, which is not as it should be here, and '
      'nothing there is changed. Remove the link and run `make setup` again.'
    )
  start = time.monotonic()
  STAMP.unlink(missing_ok=True)
  if not is_usable():
    # The interpreter itself, should this one be of a virtual environment.
    base = getattr(sys, '_base_executable', sys.executable)
    say(f'Making {VENV} with {base} ({platform.python_version()})')
    command = [base, '-m', 'venv', '--clear', str(VENV)]
    if subprocess.run(command).returncode:
      raise SetupError('Could not make a virtual environment (see above).')
  for info, is_whole in installed().items():
    if not is_whole:  # pip takes a package for installed when its metadata is there.
      shutil.rmtree(info)
  say(f'Installing {len(pins())} packages (all new: 2-3 minutes, 2.5 GB on disk)')
  pip: list[str | Path] = [PYTHON, '-m', 'pip', 'install', '--progress-bar', 'off']
  pip += ['--disable-pip-version-check', '--no-deps', '--no-build-isolation']
  # What builds the others comes first: one of the pins is a source archive.
  tools = r'^(?:setuptools|wheel)==.*\n(?: +--hash=.*\n)+'
  requirements = (ROOT / 'requirements.txt').read_text()
  BUILD_TOOLS.write_text(''.join(re.findall(tools, requirements, re.MULTILINE)))
  for file in (BUILD_TOOLS, 'requirements.txt'):
    run(f'Installing {file}', [*pip, '--require-hashes', '-r', file])
  run('Installing the project', [*pip, '--editable', '.'])
  say('Trying the imports')
  run('Importing the packages', [PYTHON, '-c', IMPORTS])
  STAMP.write_text(fingerprint())
  say(f'Done in {time.monotonic() - start:.0f} s: {PYTHON.parent}')


def main() -> None:
  """Sets up, and says in a message, not a trace, what went wrong."""
  try:
    setup()
  except SetupError as error:
    sys.exit(str(error))
  except KeyboardInterrupt:
    sys.exit('\nInterrupted; `make setup` goes on from here.')


if __name__ == '__main__':
  main()
