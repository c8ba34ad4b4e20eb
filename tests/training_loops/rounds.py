"""A few rounds of any algorithm on a small task, in whatever context is the default."""

import contextlib
import pathlib

import numpy as np
import tensorflow as tf

from training_loops import (
  client_state_exchange,
  client_state_store,
  round_arguments,
  train_flags,
  training,
)
from training_loops.options import UserError

_TASKS = ('digits_logistic', 'digits_mixed', 'quadratic_game')
_NUM_ROUNDS = 2


def on_first_task(algorithm, directory, **flags):
  """The flags of a small run on the first task that is one for the algorithm, made."""
  for task in _TASKS:
    all_flags = train_flags.configure(
      task=task,
      algorithm=algorithm,
      clients_per_round=3,
      output_dir=directory / 'run',
      **flags,
    )
    with contextlib.suppress(UserError):
      return all_flags, outputs(all_flags, directory / task)
  raise AssertionError(f'{algorithm} needs another task than {_TASKS}.')


def outputs(flags, directory):
  """What the rounds of a run give: states, metrics, what clients keep."""
  directory.mkdir()
  task = training.load_task(flags)
  sampler = training.build_sampler(flags, task)
  with contextlib.ExitStack() as stack:
    feed = round_arguments.RoundArguments(flags, task, sampler, directory)
    stack.callback(feed.close)
    process = training.build_process(flags, task, feed.client_input, feed.central_input)
    state = process.initialize()
    exchange = None
    if hasattr(process, 'initialize_client'):
      exchange = _exchange(process, directory)
      stack.callback(exchange.close)
      exchange.restore(0, None)
    found = [state]
    for round_num in range(1, _NUM_ROUNDS + 1):
      output = process.next(state, *feed.arguments(round_num, exchange))
      state = output.state
      found += [state, output.metrics]
      if exchange is not None:
        found += _kept(output.client_states)
        exchange.write(output.client_states)
  return found


def _exchange(process, directory):
  first = process.initialize_client()
  store = client_state_store.ClientStateStore(directory / 'states.sqlite', first, {})
  if not process.client_states_by_file:
    return store
  (directory / 'states').mkdir()
  return client_state_exchange.ClientStateExchange(store, directory / 'states')


def _kept(client_states):
  """What clients keep, flat, in the order of their ids."""
  kept = {bytes(client_id): value for client_id, value in client_states}
  for client_id in sorted(kept):
    value = kept[client_id]
    if isinstance(value, bytes):  # A file.
      yield np.frombuffer(pathlib.Path(value.decode()).read_bytes(), np.float32).copy()
    else:
      yield np.concatenate([np.ravel(leaf) for leaf in tf.nest.flatten(value)])


def assert_equal(found, expected, relative):
  """Asserts that outputs are those of another run, but for rounding."""
  tf.nest.assert_same_structure(found, expected)
  for a, b in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
    a, b = np.asarray(a), np.asarray(b)
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    apart = np.linalg.norm(np.subtract(a, b, dtype=np.float64))
    assert apart <= relative * np.linalg.norm(b.astype(np.float64))
