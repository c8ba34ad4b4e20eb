"""Tests of child processes that cannot outlive their parent."""

import pathlib
import signal
import subprocess
import sys
import tempfile

import pytest

from tests.training_loops.child_processes import is_alive, wait_for
from training_loops import processes

# Starts a child that writes down that it was told to end, and waits for its own end.
_PARENT = """
import pathlib, signal, subprocess, sys, time
from training_loops import processes
child = '''
import pathlib, signal, sys, time
def end(*_):
  pathlib.Path(sys.argv[1]).write_text('told')
  sys.exit()
signal.signal(signal.SIGTERM, end)
print('ready', flush=True)
time.sleep(60)
'''
command = [sys.executable, '-c', child, sys.argv[1]]
arguments = [signal.Signals[name] for name in sys.argv[2:]]
process = subprocess.Popen(
  processes.ending_with_parent(command, *arguments), stdout=subprocess.PIPE, text=True
)
assert process.stdout.readline() == 'ready\\n'
print(process.pid, flush=True)
time.sleep(60)
"""


def _kill_parent(tmp_path, *signal_name: str) -> pathlib.Path:
  """Starts a parent and its child, kills the parent, and waits for the child's end."""
  told = tmp_path / 'told'
  with subprocess.Popen(
    [sys.executable, '-c', _PARENT, str(told), *signal_name],
    stdout=subprocess.PIPE,
    text=True,
  ) as parent:
    try:
      assert parent.stdout
      child = int(parent.stdout.readline())
      assert is_alive(child)
      assert not told.exists()
    finally:
      parent.kill()
  wait_for(lambda: not is_alive(child))
  return told


def test_a_child_is_sent_the_signal_when_its_parent_is_killed(tmp_path):
  assert _kill_parent(tmp_path, 'SIGTERM').read_text() == 'told'


def test_a_child_is_killed_with_its_parent_if_no_signal_is_named(tmp_path):
  assert not _kill_parent(tmp_path).exists()


def test_the_command_is_run_with_its_arguments_and_its_exit_code():
  program = 'import sys; print(sys.argv[1:]); sys.exit(7)'
  command = [sys.executable, '-c', program, 'a b', '--c="d"', '']
  done = subprocess.run(
    processes.ending_with_parent(command), capture_output=True, text=True, timeout=20
  )
  assert (done.returncode, done.stderr) == (7, '')
  assert done.stdout == str(['a b', '--c="d"', '']) + '\n'


def test_a_child_whose_parent_has_gone_already_does_not_begin(tmp_path):
  touch = processes.ending_with_parent(['/bin/touch', str(tmp_path / 'begun')])
  # The process that starts it is another than the one that it is to end with.
  between = 'import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))'
  done = subprocess.run(
    [sys.executable, '-c', between, *touch], capture_output=True, text=True, timeout=20
  )
  assert done.returncode == 1
  assert 'the parent process has gone' in done.stderr
  assert not (tmp_path / 'begun').exists()


@pytest.mark.parametrize(
  ('code', 'words'),
  [
    (0, 'exited with code 0'),
    (7, 'exited with code 7'),
    (-15, 'was killed by SIGTERM'),
    (-11, 'was killed by SIGSEGV'),
    (-9, 'was killed by SIGKILL (often for want of memory)'),
  ],
)
def test_an_exit_is_told_by_its_code_or_its_signal(code, words):
  assert processes.describe_exit(code) == words


def test_the_code_that_subprocess_gives_is_that_of_the_signal():
  program = 'import os, signal; os.kill(os.getpid(), signal.SIGUSR1)'
  done = subprocess.run([sys.executable, '-c', program], timeout=20)
  assert processes.describe_exit(done.returncode) == 'was killed by SIGUSR1'


def test_a_signal_without_a_name_is_told_by_its_number():
  number = signal.SIGRTMIN + 1
  assert str(int(number)) in processes.describe_exit(-number)


def test_the_last_words_are_the_end_of_a_file_that_is_still_being_written():
  with tempfile.TemporaryFile() as file:
    assert processes.last_words(file.fileno()) == ''
    file.write(b'first second')
    file.flush()
    assert processes.last_words(file.fileno()) == 'first second'
    assert processes.last_words(file.fileno(), 6) == 'second'
    file.write(b' third')
    file.flush()
    assert processes.last_words(file.fileno(), 12) == 'second third'


def test_last_words_that_are_cut_within_a_letter_can_be_read_nonetheless():
  with tempfile.TemporaryFile() as file:
    file.write('ää'.encode())
    file.flush()
    assert processes.last_words(file.fileno(), 3).endswith('ä')
