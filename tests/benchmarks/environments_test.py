"""Tests of the peers' environments. Nothing is downloaded."""

import subprocess
import sys

import pytest

from benchmarks import environments


@pytest.fixture(name='pins')
def a_list_of_pins(tmp_path, monkeypatch):
  monkeypatch.setattr(environments, 'PEERS', tmp_path)
  pins = tmp_path / 'fake.txt'
  pins.write_text('# No packages.\n')
  return pins


@pytest.fixture(name='commands')
def recorded_commands(tmp_path, monkeypatch):
  """The commands, instead of which only the environment's directory is made."""
  commands = []

  def run(name, command):
    commands.append(command)
    (tmp_path / 'made' / name).mkdir(parents=True, exist_ok=True)

  monkeypatch.setattr(environments, '_run', run)
  return commands


def test_an_environment_is_made_once(pins, commands, tmp_path):
  made = [environments.python('fake', tmp_path / 'made') for _ in range(3)]
  assert made == [tmp_path / 'made' / 'fake' / 'bin' / 'python'] * 3
  assert len(commands) == 2
  assert commands[0][1:3] == ['-m', 'venv']
  assert commands[1][-3:] == ['--no-deps', '-r', str(pins)]


def test_other_pins_make_it_anew_from_nothing(pins, commands, tmp_path):
  environments.python('fake', tmp_path / 'made')
  left = tmp_path / 'made' / 'fake' / 'of the former pins'
  left.touch()
  pins.write_text('# No packages, in other words.\n')
  environments.python('fake', tmp_path / 'made')
  assert len(commands) == 4
  assert not left.exists()


def test_one_that_was_not_finished_is_made_again(pins, commands, tmp_path, monkeypatch):
  run = environments._run

  def fail(name, command):
    run(name, command)
    if 'pip' in command:
      raise environments.SetupError('planned')

  with monkeypatch.context() as context:
    context.setattr(environments, '_run', fail)
    with pytest.raises(environments.SetupError, match='planned'):
      environments.python('fake', tmp_path / 'made')
  environments.python('fake', tmp_path / 'made')
  assert len(commands) == 4


def test_what_failed_is_told_with_its_words_and_the_way_around_it():
  command = [sys.executable, '-c', 'print("said"); raise SystemExit("and failed")']
  with pytest.raises(environments.SetupError) as failure:
    environments._run('fake', command)
  text = str(failure.value)
  assert 'no environment could be made for fake; without it: --peers' in text
  assert sys.executable in text
  assert text.endswith('said\nand failed\n')


@pytest.mark.slow
def test_the_interpreter_of_an_environment_sees_its_own_packages_only(pins, tmp_path):
  python = environments.python('fake', tmp_path / 'made')
  done = subprocess.run([python, '-c', 'import numpy'], capture_output=True, text=True)
  assert 'ModuleNotFoundError' in done.stderr
