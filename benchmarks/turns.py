"""Measuring rounds of several processes that take turns.

Whatever else the machine does then falls on all of them alike, so that ratios within
one round mean something where times do not.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import time
from typing import Any

import numpy as np
import tensorflow_federated as tff

# The first round builds graphs on the worker, the second fills caches.
WARM_UP_ROUNDS = 2


@dataclasses.dataclass(frozen=True)
class Contestant:
  """A process, and what it wants to be given for each client of a cohort."""

  process: tff.learning.templates.LearningProcess
  argument: Callable[[str], Any]


def take_turns(
  contestants: Mapping[str, Contestant],
  cohorts: Sequence[Sequence[str]],
  on_round: Callable[[str], None],
  clock: Callable[[], float] = time.perf_counter,
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
  """Trains all contestants on the cohorts, round by round.

  Args:
    contestants: The contestants by name.
    cohorts: The ids of each round's clients, those of the warm-up rounds first.
    on_round: Called with a contestant's name after each of its rounds.
    clock: What tells the seconds.

  Returns:
    The seconds of each measured round, and the last state, both by name.
  """
  names = list(contestants)
  states = {name: contestants[name].process.initialize() for name in names}
  seconds: dict[str, list[float]] = {name: [] for name in names}
  for t, cohort in enumerate(cohorts):
    first = t % len(names)  # Nobody is always the one to go after the slowest.
    for name in names[first:] + names[:first]:
      contestant = contestants[name]
      clients = [contestant.argument(client_id) for client_id in cohort]
      start = clock()
      states[name] = contestant.process.next(states[name], clients).state
      seconds[name].append(clock() - start)
      on_round(name)
  measured = {name: np.array(seconds[name][WARM_UP_ROUNDS:]) for name in names}
  return measured, states
