"""Tests of schedules made of flags."""

import pytest
import tensorflow as tf

from training_loops import learning_rate_schedules, options


def _factors(*flags: tuple[str, object], who: str = 'client') -> list[float]:
  option = learning_rate_schedules.schedule_option(who)
  values = options.used([option], dict(flags))
  schedule = learning_rate_schedules.build_schedule(who, values)
  return [float(schedule(tf.constant(t))) for t in range(3)]


def test_the_rate_is_constant_by_default():
  assert _factors() == [1, 1, 1]


@pytest.mark.parametrize('who', ['client', 'server'])
@pytest.mark.parametrize(
  ('name', 'parameter', 'value', 'factors'),
  [
    ('exponential', 'half_life', 1.0, [1, 0.5, 0.25]),
    ('inverse_sqrt', 'offset', 1.0, [1, 2**-0.5, 3**-0.5]),
    ('linear_warmup', 'warmup', 2.0, [0.5, 1, 1]),
  ],
)
def test_a_schedule_uses_its_parameter(who, name, parameter, value, factors):
  flags = ((f'{who}_lr_schedule', name), (f'{who}_lr_{parameter}', value))
  assert _factors(*flags, who=who) == pytest.approx(factors)
