"""Checks of arguments: what is let through and what is not."""

import numpy as np
import pytest

from tff_algorithms import checks


@pytest.mark.parametrize(
  ('check', 'good', 'bad'),
  [
    (checks.positive, [1e-9, 3], [0, -1, float('nan'), float('inf')]),
    (checks.not_negative, [0, 0.5], [-1e-9, float('nan'), float('inf')]),
    (checks.fraction, [0, 0.99], [1, -0.1, float('nan')]),
    (checks.share, [1e-9, 0.5, 1], [0, -0.1, 1.01, float('nan')]),
    (checks.count, [1, 10**6, np.int64(3)], [0, -1, 1.0, True]),
  ],
)
def test_lets_good_values_through_and_names_the_argument_of_bad_ones(check, good, bad):
  for value in good:
    assert check(value, 'some_name') == value
  for value in bad:
    with pytest.raises(ValueError, match='some_name'):
      check(value, 'some_name')


def test_one_of_lists_the_choices():
  assert checks.one_of('a', ('a', 'b'), 'letter') == 'a'
  with pytest.raises(ValueError, match=r"letter must be one of a, b, found 'c'"):
    checks.one_of('c', ('a', 'b'), 'letter')
