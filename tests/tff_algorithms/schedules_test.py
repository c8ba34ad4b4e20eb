"""Schedules: the formulas of their docstrings."""

import numpy as np
import pytest
import tensorflow as tf

from tff_algorithms import schedules

_FORMULAS = {
  'constant': (schedules.constant(), lambda t: 1.0),
  'exponential': (schedules.exponential(10), lambda t: 2 ** (-t / 10)),
  'inverse_sqrt': (schedules.inverse_sqrt(4.0), lambda t: np.sqrt(4 / (4 + t))),
  'linear_warmup': (schedules.linear_warmup(5), lambda t: min(1, (t + 1) / 5)),
}


@pytest.mark.parametrize('name', _FORMULAS)
def test_is_its_formula(name):
  schedule, formula = _FORMULAS[name]
  for t in (0, 1, 4, 100):
    np.testing.assert_allclose(schedule(tf.constant(t)), formula(t), rtol=1e-6)


def test_a_bad_value_is_refused_by_name():
  with pytest.raises(ValueError, match='half_life_rounds'):
    schedules.exponential(0)
