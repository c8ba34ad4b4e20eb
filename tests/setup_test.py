"""Installation: the pins, the make targets, and how an environment is mended."""

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent

PROJECT = '[project]\nname = "tff-algorithms"\nversion = "0.1.0"\n'
PINS = 'six==1.0 \\\n    --hash=sha256:aa\nwheel==2.0 \\\n    --hash=sha256:bb\n'
# Stands in for pip: notes its arguments and "installs" what the file asks for, and the
# project for --editable.
FAKE_PIP = """
import pathlib, re, sys
site = pathlib.Path(__file__).parent.parent
with open(site / 'calls', 'a') as calls:
  print(*sys.argv[1:], file=calls)
if (site / 'fail').exists():
  sys.exit('no route to the index')
wanted = 'tff_algorithms==0.1.0'
if '-r' in sys.argv:
  wanted = pathlib.Path(sys.argv[sys.argv.index('-r') + 1]).read_text()
for name, version in re.findall(r'^([a-z_]+)==([0-9.]+)', wanted, re.M):
  info = site / f'{name}-{version}.dist-info'
  if not info.exists():
    info.mkdir()
    (site / f'{name}.py').touch()
    (info / 'RECORD').write_text(f'{name}.py,,\\n{name}.pyc,,\\n')
"""


def make(
  *arguments: str, cwd: pathlib.Path = ROOT, **environment: str
) -> subprocess.CompletedProcess:
  # The tests may themselves be run by make, and with other options.
  of_make = {'MAKEFLAGS', 'MAKELEVEL', 'MAKEOVERRIDES', 'MFLAGS'}
  inherited = {k: v for k, v in os.environ.items() if k not in of_make}
  return subprocess.run(
    [shutil.which('make') or 'make', *arguments],
    cwd=cwd,
    env={**inherited, **environment},
    stdin=subprocess.DEVNULL,
    capture_output=True,
    text=True,
  )


def load(script: pathlib.Path | str) -> Any:
  """Imports a script, wherever it is."""
  spec = importlib.util.spec_from_file_location('setup_under_test', script)
  assert spec and spec.loader
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


class Installation:
  """A copy of the set-up with two pins, and a stand-in for pip: no network needed."""

  def __init__(self, root: pathlib.Path):
    self.root = root
    self.site = root / '.venv' / 'lib' / 'python3.11' / 'site-packages'
    (root / 'requirements.txt').write_text(PINS)
    (root / 'pyproject.toml').write_text(PROJECT)
    (root / 'tools').mkdir()
    self.module = load(
      shutil.copy(ROOT / 'tools' / 'setup_environment.py', root / 'tools')
    )
    self.module.IMPORTS = 'import six'
    command = [sys.executable, '-m', 'venv', '--without-pip', str(root / '.venv')]
    subprocess.run(command, check=True)
    (self.site / 'pip').mkdir()
    (self.site / 'pip' / '__init__.py').touch()
    (self.site / 'pip' / '__main__.py').write_text(FAKE_PIP)

  def run(self) -> list[str]:
    """Sets up; returns the calls of pip that it took."""
    calls = self.site / 'calls'
    calls.unlink(missing_ok=True)
    self.module.setup()
    return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture(name='installation')
def new_installation(tmp_path: pathlib.Path) -> Installation:
  return Installation(tmp_path)


def test_every_requirement_is_pinned_with_hashes():
  text = (ROOT / 'requirements.txt').read_text()
  entry = re.compile(r'[a-z0-9-]+==[^\s;]+(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n')
  without_comments = re.sub(r'^#.*\n', '', text, flags=re.M)
  assert entry.sub('', without_comments) == ''
  assert len(entry.findall(without_comments)) > 50


def test_requirements_name_no_index():
  for name in ('requirements.txt', 'requirements.in', 'overrides.txt'):
    assert not re.search(
      r'://|--(extra-)?index|--find-links', (ROOT / name).read_text()
    )


def test_requirements_hold_what_was_asked_for():
  pins = dict(
    re.findall(r'^([a-z0-9-]+)==(\S+)', (ROOT / 'requirements.txt').read_text(), re.M)
  )
  for file in ('requirements.in', 'overrides.txt'):
    for line in (ROOT / file).read_text().splitlines():
      name, _, version = line.partition('==')
      if version:
        assert pins[name] == version
      elif ';' in line:  # Overridden to be left out.
        assert line.split()[0] not in pins
      elif line and line[0] != '#':
        assert re.split('[<>=]', name)[0] in pins


def test_every_target_is_set_up_first():
  listed = re.findall(r'make ([a-z-]+)', make('help').stdout)
  assert {'setup', 'demo', 'test', 'test-long', 'check', 'benchmark'} <= set(listed)
  for target in set(listed) - {'help', 'requirements', 'clean'}:
    plan = make('--dry-run', target)
    assert plan.returncode == 0, plan.stderr
    first, _, rest = plan.stdout.partition('tools/setup_environment.py')
    assert '.venv/bin/python -m' not in first
    assert target == 'setup' or '.venv/bin/python' in rest


def test_make_alone_shows_help():
  assert make().stdout == make('help').stdout != ''


@pytest.mark.parametrize('arguments', [(), ('PYTHON=/opt/no/python',)])
def test_without_python_311_one_message_says_how_to_get_it(
  tmp_path: pathlib.Path, arguments: tuple[str, ...]
):
  shutil.copy(ROOT / 'Makefile', tmp_path)
  old = tmp_path / 'python3'
  old.write_text('#!/bin/sh\nexit 1\n')  # Any other Python fails the check so.
  old.chmod(0o755)
  done = make('setup', *arguments, cwd=tmp_path, PATH=str(tmp_path), PYTHON='')
  assert done.returncode != 0
  message = done.stderr
  assert message.startswith('Python 3.11 is needed')
  assert (arguments[0][7:] if arguments else 'python3.11 or python3') in message
  for way in ('apt install', 'pyenv', 'uv', 'conda', 'python.org', 'PYTHON='):
    assert way in message
  assert 'Traceback' not in message


def test_first_setup_installs_pins_with_hashes_then_the_project(installation):
  calls = installation.run()
  assert len(calls) == 3
  assert all('--no-deps --no-build-isolation' in call for call in calls)
  assert ['--require-hashes' in call for call in calls] == [True, True, False]
  assert 'build-tools.txt' in calls[0]
  assert 'requirements.txt' in calls[1]
  assert '--editable .' in calls[2]
  build_tools = (installation.root / '.venv' / 'build-tools.txt').read_text()
  assert build_tools == PINS[PINS.index('wheel') :]


def test_second_setup_does_nothing(installation):
  installation.run()
  assert installation.run() == []


@pytest.mark.parametrize(
  'damage',
  [
    lambda i: (i.root / '.venv' / 'setup.stamp').unlink(),
    lambda i: (i.site / 'six.py').unlink(),
    lambda i: (i.site / 'six-1.0.dist-info' / 'RECORD').unlink(),
    lambda i: shutil.rmtree(i.site / 'six-1.0.dist-info'),
    lambda i: shutil.rmtree(i.site / 'tff_algorithms-0.1.0.dist-info'),
    lambda i: (i.root / 'requirements.txt').write_text(PINS.replace('1.0', '1.1')),
    lambda i: (i.root / 'pyproject.toml').write_text(PROJECT + 'x = 1\n'),
  ],
  ids=['stamp', 'file', 'record', 'package', 'project', 'requirements', 'pyproject'],
)
def test_damage_is_mended_by_running_again(installation, damage):
  installation.run()
  damage(installation)
  assert len(installation.run()) == 3
  assert (installation.site / 'six.py').exists()
  assert installation.run() == []


def test_failed_install_is_reported_and_tried_again(installation):
  (installation.site / 'fail').touch()
  with pytest.raises(installation.module.SetupError, match='no route to the index'):
    installation.run()
  assert not (installation.root / '.venv' / 'setup.stamp').exists()
  (installation.site / 'fail').unlink()
  assert len(installation.run()) == 3


def test_failed_import_is_reported(installation):
  installation.run()
  (installation.site / 'wheel.py').unlink()
  installation.module.IMPORTS = 'import no_such_module'
  with pytest.raises(installation.module.SetupError, match='no_such_module'):
    installation.run()
  assert not installation.module.is_complete()


@pytest.mark.parametrize(
  'damage',
  [
    lambda i: (i.root / '.venv' / 'bin' / 'python').unlink(),
    lambda i: shutil.rmtree(i.site / 'pip'),
    lambda i: (i.root / '.venv' / 'pyvenv.cfg').write_text('home = /elsewhere\n'),
    lambda i: shutil.rmtree(i.root / '.venv'),
  ],
  ids=['no python', 'no pip', 'made elsewhere', 'nothing'],
)
def test_unusable_environment_is_made_anew(installation, damage, monkeypatch):
  installation.run()
  damage(installation)
  assert not installation.module.is_usable()
  commands = []

  def fail(command, **_):
    commands.append([str(part) for part in command])
    return subprocess.CompletedProcess(command, 1)

  monkeypatch.setattr(installation.module.subprocess, 'run', fail)
  with pytest.raises(installation.module.SetupError, match='virtual environment'):
    installation.run()
  assert commands[-1][1:4] == ['-m', 'venv', '--clear']


def test_setup_of_this_environment_is_quick_and_silent():
  script = ROOT / 'tools' / 'setup_environment.py'
  code = f"import runpy; print(runpy.run_path({str(script)!r})['is_complete']())"
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True)
  if done.stdout != 'True\n':
    pytest.skip('not an environment of `make setup`')
  done = make('setup')
  assert (done.returncode, done.stdout, done.stderr) == (0, '', '')


def test_an_environment_of_another_checkout_is_left_as_it_is(installation):
  installation.run()
  venv, elsewhere = installation.root / '.venv', installation.root / 'elsewhere'
  venv.rename(elsewhere)
  venv.symlink_to(elsewhere)
  (installation.root / 'pyproject.toml').write_text(PROJECT + 'x = 1\n')
  before = sorted(elsewhere.rglob('*'))
  with pytest.raises(installation.module.SetupError, match=f'a link to {elsewhere}'):
    installation.module.setup()
  assert sorted(elsewhere.rglob('*')) == before
