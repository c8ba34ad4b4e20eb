"""Tests of what is seen of a run."""

import fcntl
import logging
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

from training_loops import progress

_PROGRAM = """
import logging, time
from training_loops import progress
progress.show_on_console()
logger = logging.getLogger('training_loops.somewhere')
logger.info('Beginning.')
with progress.Progress(40, 10, 'fed_avg') as shown:
  for r in range(11, 41):
    time.sleep(0.02)
    metrics = {'loss': 1 / r, 'accuracy': 0.25, 'num_clients': 3}
    if r % 10 == 0:
      row = {'round': r, **{f'train/{k}': v for k, v in metrics.items()}}
      shown.evaluated({**row, 'eval/loss': 0.5, 'eval/accuracy': 0.75})
    shown.round_done(metrics)
    if r == 20:
      logger.warning('Careful.')
print('Done.')
"""


def test_in_a_pipe_there_is_a_plain_line_for_each_evaluated_round():
  done = subprocess.run(
    [sys.executable, '-c', _PROGRAM], capture_output=True, text=True, timeout=30
  )
  lines = done.stdout.splitlines()
  assert lines[0] == 'Beginning.'
  assert lines[-1] == 'Done.'
  assert len(lines) == 5
  expected = (
    'fed_avg round 20/40 | train: loss 0.0500 accuracy 0.2500 '
    '| eval: loss 0.5000 accuracy 0.7500 | '
  )
  assert lines[1].startswith(expected)
  assert 'rounds/s, 00:0' in lines[1]
  assert done.stderr == 'warning: Careful.\n'


def _lines_on_a_terminal(program: str, columns: int) -> list[str]:
  """What can be read on a terminal in the end."""
  ours, theirs = pty.openpty()
  fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('HHHH', 30, columns, 0, 0))
  with subprocess.Popen(
    [sys.executable, '-c', program], stdout=theirs, stderr=theirs
  ) as process:
    os.close(theirs)
    output = b''
    try:
      while chunk := os.read(ours, 4096):
        output += chunk
    except OSError:  # Linux's way to say that the other side is closed.
      pass
  os.close(ours)
  assert process.returncode == 0
  lines = output.decode().split('\n')
  return [line.rstrip('\r').split('\r')[-1] for line in lines]


@pytest.mark.parametrize('columns', [120, 0])
def test_on_a_terminal_there_is_a_bar_and_messages_do_not_break_it(columns):
  lines = _lines_on_a_terminal(_PROGRAM, columns)
  assert not any(line.startswith('fed_avg round') for line in lines)
  assert lines[0] == 'Beginning.'
  assert 'warning: Careful.' in lines
  bar = next(line for line in lines if line.startswith('fed_avg: 100%'))
  for part in ('40/40', 'round/s', 'loss 0.0250 accuracy 0.2500'):
    assert part in bar


def test_a_log_file_gets_all_messages_and_is_closed_afterwards(tmp_path):
  program = f"""
import logging, pathlib
from training_loops import progress
progress.show_on_console()
logger = logging.getLogger('training_loops.x')
for _ in range(2):
  with progress.logged_to(pathlib.Path({str(tmp_path / 'log')!r})):
    logger.info('inside')
logger.info('outside')
"""
  subprocess.run([sys.executable, '-c', program], check=True, timeout=30)
  lines = (tmp_path / 'log').read_text().splitlines()
  assert [line.split(' ', 3)[2:] for line in lines] == [['INFO', 'inside']] * 2


_RUNS_PROGRAM = """
from training_loops import progress
progress.show_on_console()
with progress.RunsProgress(40) as shown:
  shown.reached('a', 10, is_new=False)
  shown.reached('b', 20)
  shown.say('1/2 b: loss 0.5000', 'best 0.7500')
  shown.reached('a', 20)
  shown.say('2/2 a: loss 0.2500', 'best 0.8750')
"""


def test_in_a_pipe_a_line_tells_of_a_run_with_the_status_and_the_time_left():
  done = subprocess.run(
    [sys.executable, '-c', _RUNS_PROGRAM], capture_output=True, text=True, timeout=30
  )
  assert done.stdout.splitlines() == [
    '1/2 b: loss 0.5000 | best 0.7500 | 00:00 left',
    '2/2 a: loss 0.2500 | best 0.8750 | 00:00 left',
  ]
  assert done.stderr == ''


def test_on_a_terminal_the_lines_stand_above_a_bar_that_keeps_the_status():
  lines = _lines_on_a_terminal(_RUNS_PROGRAM, 120)
  assert lines[:2] == ['1/2 b: loss 0.5000', '2/2 a: loss 0.2500']
  (bar,) = (line for line in lines if line.startswith('100%'))
  for part in ('40/40', 'round/s', 'best 0.8750'):
    assert part in bar


@pytest.fixture(name='clock')
def settable_clock(monkeypatch):
  """A list whose last entry is the time."""
  times = [1000.0]
  monkeypatch.setattr('time.monotonic', lambda: times[-1])
  return times


def test_the_time_left_is_told_by_rounds_that_took_time(clock):
  with progress.RunsProgress(100) as shown:
    assert shown.seconds_left() is None
    shown.reached('a', 20, is_new=False)
    clock.append(1010.0)
    assert shown.seconds_left() is None  # As fast as of an earlier time is not known.
    shown.reached('a', 25)
    shown.reached('b', 5)
    # 10 rounds in 10 seconds, and 70 are left.
    assert shown.seconds_left() == 70
    # A run that is given up takes no more time, and does not count as fast.
    shown.reached('b', 50, is_new=False)
    assert shown.seconds_left() == 25
    shown.reached('a', 50)
    assert shown.seconds_left() == 0


def test_a_run_that_stands_where_it_stood_or_before_does_not_move_anything(clock):
  with progress.RunsProgress(100) as shown:
    clock.append(1010.0)
    shown.reached('a', 10)
    for round_num in (10, 4):
      shown.reached('a', round_num)
    assert shown.seconds_left() == 90
    shown.reached('a', 20)  # 10 rounds on from 10, not 16 on from 4.
    assert shown.seconds_left() == 40


def test_a_line_without_a_status_or_a_time_left_is_the_text_alone(caplog):
  caplog.set_level(logging.INFO, 'training_loops')
  with progress.RunsProgress(10) as shown:
    shown.say('text')
    shown.say('text', 'status')
  assert caplog.messages == ['text', 'text | status']


def test_a_group_of_a_row_is_told_by_its_loss_and_accuracy_where_there_are_such():
  row = {
    'round': 3,
    'train/loss': 2,
    'train/num_clients': 7,
    'eval/accuracy': 0.75,
    'eval/loss': 0.12345,
    'other/eval/loss': 9,
  }
  assert progress.describe_group(row, 'eval') == 'loss 0.1235 accuracy 0.7500'
  assert progress.describe_group(row, 'train') == 'loss 2.0000'
  assert progress.describe_group({}, 'eval') == ''
  assert progress.describe_group({'eval/loss': float('nan')}, 'eval') == 'loss nan'
