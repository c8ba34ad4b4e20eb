"""A peer that trains by adding up: rounds told apart without a framework.

To the initial weights a round adds the numbers of its clients and, unless it is exact,
1,000. Arguments: 'grandchild' leaves a process behind that is no child of it any more,
its id in a file in the directory of the work; 'odd' trains to other weights; 'broken'
does not start.
"""

from collections.abc import Sequence
import pathlib
import subprocess
import sys

import numpy as np

from benchmarks.peers.peer import Peer, Work, serve

GRANDCHILD = 'grandchild.pid'
DEADLY = 13  # A round with this client fails.

_LEAVE_ONE_BEHIND = """
import subprocess, sys
child = subprocess.Popen(['sleep', '1000'], start_new_session=True)
open(sys.argv[1], 'w').write(str(child.pid))
"""


class FakePeer(Peer):
  """See above."""

  def __init__(self, work: Work):
    if 'broken' in sys.argv:
      raise RuntimeError('broken, as planned')
    if 'grandchild' in sys.argv:
      path = pathlib.Path(sys.argv[1], GRANDCHILD)
      subprocess.run([sys.executable, '-c', _LEAVE_ONE_BEHIND, path], check=True)
    print('Frameworks like to print.')
    self._work = work

  def start(self, exact: bool) -> None:
    self._weights = [array.copy() for array in self._work.weights]
    self._more = (0 if exact else 1_000) + ('odd' in sys.argv)

  def round(self, cohort: Sequence[int]) -> None:
    if DEADLY in cohort:
      raise RuntimeError('failed, as planned')
    self._weights = [array + sum(cohort) + self._more for array in self._weights]

  def weights(self) -> Sequence[np.ndarray]:
    return self._weights


if __name__ == '__main__':
  serve(FakePeer)
