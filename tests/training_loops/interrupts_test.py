"""Tests of signals."""

import subprocess
import sys

import pytest


def _run(body: str) -> subprocess.CompletedProcess:
  program = f"""
import os, signal, sys, time
from training_loops import interrupts
interrupts.install()
def send(number):
  os.kill(os.getpid(), number)
  time.sleep(0.01)
{body}
print('went on')
"""
  return subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True, timeout=30
  )


@pytest.mark.parametrize(('name', 'code'), [('SIGTERM', 143), ('SIGINT', 130)])
def test_where_nothing_is_to_be_saved_a_signal_ends_the_program_at_once(name, code):
  # Not even something that swallows all exceptions can prevent it.
  done = _run(f"""
try:
  send(signal.{name})
except BaseException:
  print('swallowed')
""")
  assert (done.returncode, done.stdout, done.stderr) == (code, '', '')


@pytest.mark.parametrize(('name', 'code'), [('SIGTERM', 143), ('SIGINT', 130)])
def test_within_the_block_a_signal_is_an_exception_with_its_exit_code(name, code):
  done = _run(f"""
try:
  with interrupts.raised():
    send(signal.{name})
    print('not reached')
except interrupts.Interrupted as interrupted:
  print(interrupted, interrupted.exit_code, isinstance(interrupted, KeyboardInterrupt))
""")
  assert done.stdout == f'{name} {code} True\nwent on\n'


def test_its_exit_waits_for_no_thread_and_loses_nothing_that_was_printed():
  done = _run("""
import threading
threading.Thread(target=time.sleep, args=[1000]).start()
try:
  with interrupts.raised():
    send(signal.SIGTERM)
except interrupts.Interrupted as interrupted:
  print('saved')
  interrupted.exit()
""")
  assert (done.returncode, done.stdout, done.stderr) == (143, 'saved\n', '')


def test_an_exception_that_python_drops_is_raised_again():
  done = _run("""
class Finalized:
  def __del__(self):
    send(signal.SIGTERM)
try:
  with interrupts.raised():
    Finalized()
    print('dropped')
    time.sleep(20)
    print('not reached')
except interrupts.Interrupted:
  print('raised again')
""")
  assert done.stdout == 'dropped\nraised again\nwent on\n'
  assert done.stderr == ''


def test_once_noticed_it_is_not_raised_again():
  done = _run("""
try:
  with interrupts.raised():
    send(signal.SIGTERM)
except interrupts.Interrupted:
  time.sleep(2.5)
""")
  assert (done.stdout, done.stderr) == ('went on\n', '')


def test_a_second_signal_ends_the_program_at_once():
  done = _run("""
try:
  with interrupts.raised():
    send(signal.SIGTERM)
except interrupts.Interrupted:
  send(signal.SIGINT)
""")
  assert (done.returncode, done.stdout) == (130, '')


def test_the_same_signal_again_at_once_is_one_event_and_later_it_is_another():
  program = """
try:
  with interrupts.raised():
    send(signal.SIGTERM)
except interrupts.Interrupted:
  send(signal.SIGTERM)
  print('saved', flush=True)
  {later}
"""
  done = _run(program.format(later=''))
  assert done.stdout.startswith('saved\n')
  later = 'import time; time.sleep(0.6); send(signal.SIGTERM); print("not here")'
  done = _run(program.format(later=later))
  assert (done.returncode, done.stdout) == (143, 'saved\n')


def test_what_else_is_dropped_is_shown_as_ever():
  done = _run("""
class Finalized:
  def __del__(self):
    raise ValueError('a bug')
Finalized()
""")
  assert 'ValueError: a bug' in done.stderr
  assert done.stdout == 'went on\n'


def test_without_installation_the_block_leaves_ctrl_c_to_python():
  done = subprocess.run(
    [
      sys.executable,
      '-c',
      'import os, signal\n'
      'from training_loops import interrupts\n'
      # Some shells have it ignored in the background.
      'signal.signal(signal.SIGINT, signal.default_int_handler)\n'
      'try:\n'
      '  with interrupts.raised():\n'
      '    os.kill(os.getpid(), signal.SIGINT)\n'
      'except KeyboardInterrupt as error:\n'
      '  print(type(error).__name__)',
    ],
    capture_output=True,
    text=True,
    timeout=30,
  )
  assert done.stdout == 'KeyboardInterrupt\n'
