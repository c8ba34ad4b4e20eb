"""Tests of the memory of processes."""

import os
import subprocess
import sys

import numpy as np

from benchmarks import memory

_NUM_MEGABYTES = 100


def test_what_is_given_back_was_in_the_peak_only():
  program = (
    f'import numpy as np\nheld = np.ones({_NUM_MEGABYTES} * 10**6, np.uint8)\n'
    'del held\nprint(flush=True)\ninput()'
  )
  process = subprocess.Popen(
    [sys.executable, '-c', program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
  )
  with process:
    process.stdout.readline()
    resident = memory.resident_megabytes(process.pid)
    peak = memory.peak_megabytes(process.pid)
    process.kill()
  assert 5 < resident < _NUM_MEGABYTES < peak < 2 * _NUM_MEGABYTES


def test_what_is_held_is_resident():
  before = memory.resident_megabytes(os.getpid())
  held = np.ones(_NUM_MEGABYTES * 10**6, np.uint8)
  grown = memory.resident_megabytes(os.getpid()) - before
  assert held.nbytes / 10**6 * 0.9 < grown


def test_there_is_none_where_there_is_no_process():
  process = subprocess.Popen(['true'])
  process.wait()
  assert memory.resident_megabytes(process.pid) == 0
  assert memory.peak_megabytes(process.pid) == 0


def test_processes_that_processes_have_started_are_found():
  program = (
    'import subprocess, sys\n'
    'child = subprocess.Popen([sys.executable, "-c", "input()"], '
    'stdin=subprocess.PIPE)\n'
    'print(child.pid, flush=True)\ninput()'
  )
  process = subprocess.Popen(
    [sys.executable, '-c', program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
  )
  with process:
    grandchild = int(process.stdout.readline())
    assert memory.descendants(process.pid) == [grandchild]
    found = memory.descendants(os.getpid())
    assert {process.pid, grandchild} <= set(found)
    process.kill()
