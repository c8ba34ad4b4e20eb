"""Tests of functions that are built once and called with little ado."""

import gc
import subprocess
import sys
import threading

import numpy as np
import pytest
import tensorflow as tf

from training_loops.graph_functions import GraphFunction, Run

_COUNTING = """
import tensorflow as tf
from training_loops import runtimes
from training_loops.graph_functions import GraphFunction, Run
(cpu,) = tf.config.list_physical_devices('CPU')
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)

def count(n):
  text = tf.strings.as_string(n)  # Not every device can do that.
  return [tf.while_loop(lambda i: i < n, lambda i: [i + 1], [0])[0], text]

function = GraphFunction(count, [tf.TensorSpec([], tf.int32)], 2)
for device in (None, '/CPU:1', runtimes.known_device('cpu:1')):
  found, text = function([tf.constant(3)], Run(device))
  assert (found.numpy(), text.numpy()) == (3, b'3')
  print(found.device)
"""


_FOR_EVER = tf.constant(10**15, tf.int64)


@pytest.fixture(name='count')
def a_function_that_counts():
  def count(n):
    return [
      tf.while_loop(lambda i: i < n, lambda i: [i + 1], [tf.constant(0, n.dtype)])[0]
    ]

  return GraphFunction(count, [tf.TensorSpec([], tf.int64)], 1)


def test_it_is_built_once_and_called_as_often_as_wanted():
  num_built = 0

  def build(x, y):
    nonlocal num_built
    num_built += 1
    return [x + y, x * y]

  spec = tf.TensorSpec([None])
  function = GraphFunction(build, [spec, spec], 2)
  for n in (1, 2, 3):
    x = tf.fill([n], 2.0)
    total, product = function([x, x + 1], Run())
    np.testing.assert_array_equal(total, [5.0] * n)
    np.testing.assert_array_equal(product, [6.0] * n)
  assert num_built == 1


def test_it_may_have_neither_inputs_nor_effects_that_wait_for_each_other():
  function = GraphFunction(lambda: [tf.constant(1.0)], [], 1)
  assert function([], Run())[0].numpy() == 1


def test_a_run_stops_a_call_that_is_being_made_and_those_to_come(count):
  run, error = Run(), None

  def call():
    nonlocal error
    try:
      count([_FOR_EVER], run)
    except tf.errors.CancelledError as cancelled:
      error = cancelled

  thread = threading.Thread(target=call)
  thread.start()
  run.start_cancel()
  thread.join()
  assert error is not None
  with pytest.raises(tf.errors.CancelledError):
    count([_FOR_EVER], run)
  assert count([tf.constant(10, tf.int64)], Run())[0].numpy() == 10


def test_calls_leave_nothing_behind():
  function = GraphFunction(lambda x: [x + 1, x * 2], [tf.TensorSpec([])], 2)
  x, run, num_calls = tf.constant(1.0), Run(), 1_000

  def blocks_of_calls():
    before = sys.getallocatedblocks()
    for _ in range(num_calls):
      function([x], run)
    gc.collect()
    return sys.getallocatedblocks() - before

  blocks_of_calls()  # What is made once.
  assert blocks_of_calls() < num_calls / 10


def test_it_runs_on_the_device_of_its_run():
  command = [sys.executable, '-c', _COUNTING]
  found = subprocess.run(command, capture_output=True, text=True)
  assert found.returncode == 0, found.stderr
  devices = [line.rpartition('/')[2] for line in found.stdout.split()]
  assert devices == ['device:CPU:0', 'device:CPU:1', 'device:CPU:1']
