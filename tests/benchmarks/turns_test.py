"""Tests of rounds measured in turns."""

import time
import types

from benchmarks import turns


def _contestant(log, name, seconds):
  def next_round(state, clients):
    log.append((name, clients))
    time.sleep(seconds)
    return types.SimpleNamespace(state=state + 1)

  process = types.SimpleNamespace(initialize=lambda: 0, next=next_round)
  return turns.Contestant(process, str.upper)


def test_everyone_trains_on_every_cohort_and_begins_a_round_in_turn():
  log, rounds = [], []
  contestants = {name: _contestant(log, name, 0) for name in 'ab'}
  cohorts = [['x'], ['y'], ['z', 'w']]
  _, states = turns.take_turns(contestants, cohorts, rounds.append)
  assert [name for name, _ in log] == list('abbaab') == rounds
  assert log[-1] == ('b', ['Z', 'W'])
  assert states == {'a': 3, 'b': 3}


def test_rounds_are_measured_after_those_to_warm_up():
  contestants = {'slow': _contestant([], '', 0.02), 'fast': _contestant([], '', 0)}
  cohorts = [['x']] * (turns.WARM_UP_ROUNDS + 3)
  seconds, _ = turns.take_turns(contestants, cohorts, lambda name: None)
  assert seconds['slow'].shape == seconds['fast'].shape == (3,)
  assert (seconds['slow'] >= 0.02).all()
