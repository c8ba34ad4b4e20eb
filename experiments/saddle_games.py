"""Plays quadratic games, for `saddle_runs`.

    python -m experiments.saddle_games DIRECTORY PART PARTS

makes every PARTS-th of the runs listed in the directory that are not there yet, and
writes each to a file: its seconds, communication rounds, and the distance of x from 0,
from the start on. All games and draws of a reading have one type, so that an algorithm
is built once for all of them.
"""

import collections
from collections.abc import Mapping
import dataclasses
import pathlib
import sys
import time
from typing import Any

import numpy as np

from experiments import saddle_runs
from experiments.saddle_runs import Reading, Run

_TAU = 20
_THETA = 1.0


class Player:
  """An algorithm on games of one reading, whatever they are drawn from."""

  def __init__(self, algorithm: str, reading: Reading):
    """Builds the algorithm."""
    import tensorflow as tf
    import tensorflow_federated as tff

    from tff_algorithms.client_inputs import ClientInput, ClientRows

    self._reading = reading
    self._trips = 2 if algorithm == 'minibatch_mirror_prox' else 1
    # Without noise the sum of tau gradients at one point is tau times their mean.
    self._gradients = _TAU if reading.gradients == 'sum' else 1
    game = self._game(0, reading.seed)
    rows = tf.nest.map_structure(
      lambda spec: tf.TensorSpec([1, *spec.shape[1:]], spec.dtype),
      game.model.input_spec,
    )
    # A client is its one row, and draws no random numbers.
    client_input = ClientInput(
      tff.types.tensorflow_to_type(rows),
      lambda row: ClientRows(tf.zeros([], tf.int64), row),
    )
    self._process = _build(algorithm, game.objective, client_input, reading)
    self._start = self._process.initialize()
    self._hparams = self._process.get_hparams(self._start)

  def _game(self, s: int, seed: int) -> Any:
    import tasks

    reading = self._reading
    return tasks.load(
      'quadratic_game',
      seed,
      heterogeneity=s,
      threshold=reading.threshold,
      coupling=reading.coupling,
      initial_value=reading.initial_value,
      precision=reading.precision,
    )

  def distances(self, run: Run) -> list[tuple[int, float]]:
    """Plays a game.

    Args:
      run: Which one, of this algorithm and this reading.

    Returns:
      Communication rounds and the distance of x from 0.
    """
    data = self._game(run.s, run.reading.seed).train
    clients = [data.rows(client_id) for client_id in data.client_ids]
    gamma = self._gradients * run.rate / max(run.s, 1)
    hparams = _with_rate(self._hparams, getattr(np, self._reading.precision)(gamma))
    state = self._process.set_hparams(self._start, hparams)
    found = [(0, _distance(state))]
    for communications in range(self._trips, saddle_runs.ROUNDS + 1, self._trips):
      state = self._process.next(state, clients).state
      found.append((communications, _distance(state)))
    return found


def _with_rate(hparams: Mapping[str, Any], rate: np.floating) -> Any:
  """The hyperparameters, all of them rates, with this for each."""
  return collections.OrderedDict(
    (
      name,
      rate
      if np.ndim(value) == 0 and not isinstance(value, Mapping)
      else _with_rate(value, rate),
    )
    for name, value in hparams.items()
  )


def _distance(state: Any) -> float:
  return float(np.linalg.norm(state.server.weights.trainable.min.astype(np.float64)))


def _build(algorithm: str, objective: Any, client_input: Any, reading: Reading) -> Any:
  """The process of an algorithm as section 6 has it, at a rate yet to be set."""
  from tff_algorithms import (
    catalyst_stopping,
    fed_avg_s,
    minibatch_mirror,
    scaffold_catalyst_s,
    scaffold_s,
  )

  common = {'client_input': client_input, 'batch_size': 1}
  local = {
    **common,
    'client_learning_rate': 1.0,
    'local_steps': _TAU,
    'shuffle': False,
    'compiled': True,
  }
  match algorithm:
    case 'minibatch_mirror_descent':
      return minibatch_mirror.build_minibatch_mirror_descent(
        objective, learning_rate=1.0, **common
      )
    case 'minibatch_mirror_prox':
      return minibatch_mirror.build_minibatch_mirror_prox(
        objective, learning_rate=1.0, **common
      )
    case 'fed_avg_s':
      return fed_avg_s.build_fed_avg_s(objective, schedule='inverse_sqrt', **local)
    case 'scaffold_s':
      return scaffold_s.build_scaffold_s(objective, **local)
    case 'scaffold_catalyst_s':
      stopping: Any = catalyst_stopping.SufficientDecrease(reading.decrease)
      if reading.inner_rounds is not None:
        stopping = catalyst_stopping.InnerRounds(reading.inner_rounds)
      return scaffold_catalyst_s.build_scaffold_catalyst_s(
        objective, theta=_THETA, stopping=stopping, **local
      )
  raise ValueError(f'Unknown algorithm {algorithm!r}.')


def main(directory: pathlib.Path, part: int, parts: int) -> None:
  """Makes a part of the runs that are not there yet."""
  from training_loops import runtimes

  # A run's seconds are all since the one before, the first one's since the start.
  before = 0.0
  # A thread for each process; a client's work is too little to be shared out.
  with runtimes.create('in_process', num_threads=1):
    player, key = None, None
    # The games of an algorithm are dealt out, so that all parts are equally long.
    for run in saddle_runs.read_list(directory)[part::parts]:
      if run.path(directory).exists():
        continue
      kind = (run.algorithm, dataclasses.replace(run.reading, seed=0))
      if player is None or key != kind:
        key = kind
        player = Player(*kind)
      found = player.distances(run)
      now = time.process_time()
      saddle_runs.write(run, directory, found, now - before)
      before = now


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
