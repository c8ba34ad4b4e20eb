"""Tests of results that are kept."""

from training_loops.kept import Kept


class _Computation:
  def __eq__(self, other):
    raise AssertionError('Computations are not to be compared,')

  def __hash__(self):
    raise AssertionError('nor to be hashed.')


def test_as_many_results_are_kept_as_may_be_and_not_mixed_up():
  computations = [_Computation() for _ in range(4)]
  made, forgotten = [], []

  def name(computation):
    made.append([c is computation for c in computations].index(True))
    return made[-1]

  kept = Kept(2, name, forgotten.append)
  for _ in range(3):
    assert [kept(computations[i]) for i in (0, 1, 0, 1)] == [0, 1, 0, 1]
  assert (made, forgotten) == ([0, 1], [])
  # Called in turn, each has been given up for the others when its turn comes again.
  for _ in range(3):
    assert [kept(computation) for computation in computations] == [0, 1, 2, 3]
  assert made == [0, 1, 2, 3, *[0, 1, 2, 3] * 2]
  assert forgotten == made[:-2]


def test_what_has_not_been_used_for_longest_is_given_up_first():
  computations = [_Computation() for _ in range(3)]
  forgotten: list = []
  kept = Kept(2, lambda computation: computation, forgotten.append)
  for i in (0, 1, 0, 2):
    kept(computations[i])
  assert len(forgotten) == 1
  assert forgotten[0] is computations[1]


def test_a_failure_is_not_kept():
  kept = Kept(2, lambda numbers: 1 // len(numbers))
  numbers: list = []
  for _ in range(2):
    try:
      kept(numbers)
    except ZeroDivisionError:
      pass
    else:
      raise AssertionError('It should fail each time.')
  numbers.append(1)
  assert kept(numbers) == 1
