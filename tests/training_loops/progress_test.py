"""Tests of what is seen of a run."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios

import pytest

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


@pytest.mark.parametrize('columns', [120, 0])
def test_on_a_terminal_there_is_a_bar_and_messages_do_not_break_it(columns):
  ours, theirs = pty.openpty()
  fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack('HHHH', 30, columns, 0, 0))
  with subprocess.Popen(
    [sys.executable, '-c', _PROGRAM], stdout=theirs, stderr=theirs
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
  text = output.decode()
  assert 'fed_avg round' not in text
  lines = [line.rstrip('\r').split('\r')[-1] for line in text.split('\n')]
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
