"""The runs of `saddle_figures` and `saddle_readings`: which they are, and their files.

They are made by `saddle_games`, in processes of its own. A run that is finished is not
made again.
"""

from collections.abc import Sequence
import dataclasses
import json
import pathlib
import subprocess
import sys
import time

import numpy as np
import tqdm

from training_loops import cores, files, processes

ROUNDS = 500
RATES = (0.1, 0.05, 0.01)
ALGORITHMS = {
  'scaffold_catalyst_s': 'SCAFFOLD-Catalyst-S',
  'scaffold_s': 'SCAFFOLD-S',
  'fed_avg_s': 'FedAvg-S',
  'minibatch_mirror_prox': 'Minibatch MP',
  'minibatch_mirror_descent': 'Minibatch MD',
}
_LIST = 'runs.json'
# What the first line of a run begins with, which tells how long it took a processor.
_SECONDS = '# seconds: '
# Distances below this, in float64, are all as good.
_ROUNDING = 1e-15
_POLL_SECONDS = 0.5


@dataclasses.dataclass(frozen=True)
class Reading:
  """What the paper leaves open.

  Attributes:
    coupling: h: 1/2 is equation 18 to the letter, 1 the saddle-point form of equation
      19; below 0, y has the other sign.
    threshold: How entries of a_i are made at least 1; an option of the task.
    initial_value: What all weights start at.
    precision: The dtype of everything.
    seed: What the game is drawn from.
    decrease: The part of its norm at zbar to which Catalyst brings the gradient mapping
      of a sub-problem,
    inner_rounds: or its number of rounds.
    gradients: Whether the minibatch methods step by the 'mean' of their tau gradients
      or by their 'sum'.
  """

  coupling: float
  threshold: str = 'raise'
  initial_value: float = 1.0
  precision: str = 'float64'
  seed: int = 0
  decrease: float = 0.5
  inner_rounds: int | None = None
  gradients: str = 'mean'


@dataclasses.dataclass(frozen=True)
class Run:
  """One algorithm with one rate on one game.

  Attributes:
    algorithm: One of `ALGORITHMS`.
    reading: What kind of game.
    s: How unlike the clients are, and how badly conditioned the game is.
    rate: gamma times max(s, 1).
  """

  algorithm: str
  reading: Reading
  s: int
  rate: float

  def path(self, directory: pathlib.Path) -> pathlib.Path:
    """Where its distances are once it is made."""
    reading = '_'.join(str(value) for value in dataclasses.astuple(self.reading))
    return directory / f'{self.algorithm}_{reading}_s{self.s}_{self.rate:g}.csv'


def all_rates(algorithm: str, reading: Reading, ss: Sequence[int]) -> list[Run]:
  """The runs of an algorithm with all rates."""
  return [Run(algorithm, reading, s, rate) for s in ss for rate in RATES]


def write_list(runs: Sequence[Run], directory: pathlib.Path) -> None:
  """Writes which runs are to be made."""
  listed = json.dumps([dataclasses.asdict(run) for run in runs])
  files.write_bytes(directory / _LIST, listed.encode())


def read_list(directory: pathlib.Path) -> list[Run]:
  """Reads which runs are to be made."""
  runs = json.loads((directory / _LIST).read_bytes())
  return [Run(**{**run, 'reading': Reading(**run['reading'])}) for run in runs]


def write(
  run: Run,
  directory: pathlib.Path,
  points: Sequence[tuple[int, float]],
  seconds: float,
) -> None:
  """Writes rows of communication rounds and distance, and the seconds they took."""
  lines = [f'{_SECONDS}{seconds:.2f}']
  lines += [f'{rounds},{distance!r}' for rounds, distance in points]
  content = '\n'.join(lines) + '\n'
  files.write_bytes(run.path(directory), content.encode(), durable=False)


def read(run: Run, directory: pathlib.Path) -> np.ndarray:
  """Rows of communication rounds and distance."""
  return np.loadtxt(run.path(directory), delimiter=',', comments=_SECONDS, ndmin=2)


def time_taken(runs: Sequence[Run], directory: pathlib.Path) -> str:
  """How long the runs took, as a sentence."""
  seconds = 0.0
  for run in runs:
    with open(run.path(directory)) as file:
      seconds += float(file.readline().removeprefix(_SECONDS))
  return (
    f'{len(runs)} runs, {seconds / 60:.0f} minutes of processor time in all; by the '
    'clock that is divided by `--jobs`.'
  )


def best(
  algorithm: str,
  reading: Reading,
  s: int,
  directory: pathlib.Path,
  num_rounds: int | None = None,
) -> tuple[float, np.ndarray]:
  """The rate that is best at the end, and what it gives.

  Args:
    algorithm: One of `ALGORITHMS`.
    reading: What kind of game.
    s: Which game.
    directory: Where the runs are.
    num_rounds: The communication rounds to look at; all if None.
  """
  found = []
  for rate in RATES:
    points = read(Run(algorithm, reading, s, rate), directory)
    if num_rounds is not None:
      points = points[points[:, 0] <= num_rounds]
    found.append((rate, points))
  return min(found, key=lambda f: _badness(f[1]))


def _badness(points: np.ndarray) -> tuple[float, float]:
  """The last distance; of those that came to rounding the quickest is best."""
  # One that diverged is no good; its distance may be no number either.
  last = np.nan_to_num(points[-1, 1], nan=np.inf)
  if last > _ROUNDING:
    return last, 0
  return _ROUNDING, points[points[:, 1] <= _ROUNDING][0, 0]


def make(runs: Sequence[Run], directory: pathlib.Path, jobs: int | None) -> None:
  """Makes the runs that are not there yet, several at once.

  Args:
    runs: Which runs.
    directory: Where they are kept.
    jobs: How many at once; as many as there are cores if None.
  """
  files.check_writable(directory)
  directory.mkdir(parents=True, exist_ok=True)
  files.remove_leftovers(directory)  # Of one that was killed.

  def num_done():
    return sum(run.path(directory).exists() for run in runs)

  if num_done() == len(runs):
    return
  jobs = jobs or cores.number()
  write_list(runs, directory)
  children = [
    subprocess.Popen(
      processes.ending_with_parent(
        [sys.executable, '-m', 'experiments.saddle_games', str(directory), str(part)]
        + [str(jobs)]
      ),
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      # Ctrl-C is for this program, which ends them.
      start_new_session=True,
    )
    for part in range(jobs)
  ]
  try:
    with tqdm.tqdm(total=len(runs), initial=num_done(), unit='run') as bar:
      while any(child.poll() is None for child in children):
        time.sleep(_POLL_SECONDS)
        bar.update(num_done() - bar.n)
        if any(child.poll() for child in children):
          raise RuntimeError('A process that plays the games has failed; see above.')
  finally:
    for child in children:
      child.kill()
      child.wait()
