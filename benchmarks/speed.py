"""The speed of this package beside other federated simulators, on identical work.

    python -m benchmarks.speed --works=logistic_10,cnn_10 --peers=tff.learning,FedJAX

Every peer is a program in an environment of its own, which this command sets up. They
take turns, round by round, whatever else the machine does thus falling on all of them:
the same clients of unequal sizes, the same cohorts, one epoch in the same batches, the
last of which is partial. That they take the same steps is verified first: after two
rounds, nothing shuffled and nothing dropped out, all have the same weights. Ours are
measured as they are, on the runtime that is the training binary's by default: with
guards, metrics and shuffling.
"""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import pathlib
import sys
import tempfile

from absl import app, flags
import numpy as np
import tqdm

from benchmarks import environments, speed_report
from benchmarks.common_flags import OUTPUT, ROUNDS, SEED
from benchmarks.peer_processes import PeerFailure, PeerProcess
from benchmarks.peers import peer
from benchmarks.speed_report import Goal, Measured

OURS = 'this package'
OURS_DATASETS = 'this package on tf.data'
OURS_ON_WORKER = "this package on TFF's worker"
TFF, FEDJAX, PFL, FLOWER = 'tff.learning', 'FedJAX', 'pfl', 'Flower'


@dataclasses.dataclass(frozen=True)
class Kind:
  """A kind of peer.

  Attributes:
    module: Its module in `benchmarks.peers`.
    environment: The name of its environment, None for this program's own.
    arguments: Of its program.
  """

  module: str
  environment: str | None = None
  arguments: tuple[str, ...] = ()


KINDS = {
  OURS: Kind('own_peer'),
  OURS_DATASETS: Kind('own_peer', arguments=('tf.data',)),
  OURS_ON_WORKER: Kind('own_peer', arguments=('local',)),
  TFF: Kind('tff_learning_peer'),
  FEDJAX: Kind('fedjax_peer', 'fedjax'),
  PFL: Kind('pfl_peer', 'pfl'),
  FLOWER: Kind('flower_peer', 'flower'),
}


@dataclasses.dataclass(frozen=True)
class Task:
  """Work that is measured.

  Attributes:
    algorithm: See `peers.peer.Work`.
    model: Likewise.
    num_clients: Clients a round; there are twice as many in all.
    num_rounds: How many rounds are measured by default.
    peers: Who can do it, beside us.
    goals: What is wanted.
  """

  algorithm: str
  model: str
  num_clients: int
  num_rounds: int
  peers: tuple[str, ...]
  goals: tuple[Goal, ...]


_FED_AVG_PEERS = (OURS_DATASETS, OURS_ON_WORKER, TFF, FEDJAX, PFL, FLOWER)

TASKS = {
  'logistic_10': Task(
    'fed_avg',
    'logistic',
    10,
    40,
    _FED_AVG_PEERS,
    (Goal(TFF, 10), Goal(FEDJAX, 1, is_open=True)),
  ),
  'logistic_50': Task(
    'fed_avg',
    'logistic',
    50,
    15,
    _FED_AVG_PEERS,
    (Goal(TFF, 10), Goal(FEDJAX, 1.2, is_open=True)),
  ),
  'cnn_10': Task(
    'fed_avg',
    'cnn',
    10,
    10,
    _FED_AVG_PEERS,
    (Goal(TFF, 1.8), Goal(FEDJAX, 2.5), Goal(PFL, 1.8, is_open=True)),
  ),
  'cnn_50': Task(
    'fed_avg', 'cnn', 50, 2, (OURS_ON_WORKER, TFF), (Goal(TFF, 2, of='memory'),)
  ),
  'lstm_10': Task(
    'fed_avg',
    'lstm',
    10,
    5,
    (OURS_DATASETS, OURS_ON_WORKER, TFF, PFL),
    (Goal(TFF, 4, is_open=True), Goal(PFL, 1, is_open=True)),
  ),
  'mime_lite_logistic_10': Task(
    'mime_lite', 'logistic', 10, 30, (OURS_ON_WORKER, TFF, FEDJAX), (Goal(FEDJAX, 1),)
  ),
  'mime_logistic_10': Task(
    'mime', 'logistic', 10, 30, (OURS_ON_WORKER, FEDJAX), (Goal(FEDJAX, 1),)
  ),
  'mime_lite_cnn_10': Task(
    'mime_lite', 'cnn', 10, 6, (OURS_ON_WORKER, TFF, FEDJAX), (Goal(FEDJAX, 2),)
  ),
  'mime_cnn_10': Task(
    'mime', 'cnn', 10, 5, (OURS_ON_WORKER, FEDJAX), (Goal(FEDJAX, 2),)
  ),
  'scaffold_cnn_10': Task(
    'scaffold', 'cnn', 10, 8, (OURS_ON_WORKER, PFL), (Goal(PFL, 1.5),)
  ),
}


_PAGE = 'docs/results/speed.md'  # By default.
_AGREEMENT = 0.01  # Of the way that training has moved the weights.
_WARM_UP_ROUNDS = 2  # In which each client takes part once.


def _among(known: Sequence[str]) -> dict[str, object]:
  return {
    'checker': lambda chosen: bool(chosen) and set(chosen) <= set(known),
    'message': f'Known are {", ".join(known)}.',
  }


_WORKS = flags.DEFINE_list('works', list(TASKS), 'What to measure.')
_PEERS = flags.DEFINE_list('peers', list(KINDS), 'Who takes part, beside us.')
flags.register_validator('works', **_among(list(TASKS)))
flags.register_validator('peers', **_among(list(KINDS)))
_ENVIRONMENTS = flags.DEFINE_string(
  'environments',
  'build/benchmark_environments',
  "Where the peers' environments are, and are made.",
)


def _started(
  kind: Kind, pythons: Mapping[str | None, pathlib.Path], directory: pathlib.Path
) -> PeerProcess:
  python, module = pythons[kind.environment], f'benchmarks.peers.{kind.module}'
  return PeerProcess(python, module, directory, kind.arguments)


def distances(
  start: Sequence[np.ndarray], weights: Mapping[str, Sequence[np.ndarray]]
) -> dict[str, float]:
  """How far peers' weights are from ours, in parts of the way that ours have moved.

  Raises:
    AssertionError: If one has trained to other weights.
  """

  def flat(arrays):
    return np.concatenate([np.ravel(array) for array in arrays])

  ours = flat(weights[OURS])
  way = np.linalg.norm(ours - flat(start))
  found = {
    name: float(np.linalg.norm(flat(own) - ours) / way) for name, own in weights.items()
  }
  for name, distance in found.items():
    if not distance < _AGREEMENT:
      raise AssertionError(f'{name} trains to other weights: {distance:.1e} away.')
  return found


def measure(
  work: peer.Work,
  cohorts: Sequence[Sequence[int]],
  pythons: Mapping[str | None, pathlib.Path],
  names: Sequence[str],
) -> dict[str, Measured]:
  """Has peers do work, in turns.

  Args:
    work: The work.
    cohorts: The clients of each round, those to warm up first.
    pythons: The interpreter of each environment.
    names: The peers.
  """
  with contextlib.ExitStack() as stack:
    directory = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    work.save(directory)
    peers: dict[str, PeerProcess] = {}
    first_rounds, weights = {}, {}
    for name in names:
      peers[name] = own = _started(KINDS[name], pythons, directory)
      stack.callback(own.close)
      own.start(exact=True)
      own.round(cohorts[0])
      first_rounds[name] = own.age
      own.round(cohorts[1])
      weights[name] = own.weights()
      own.start(exact=False)
    apart = distances(work.weights, weights)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for t, cohort in enumerate(tqdm.tqdm(cohorts, unit='round', leave=False)):
      first = t % len(names)  # Nobody is always the one to go after the slowest.
      for name in [*names[first:], *names[:first]]:
        seconds[name].append(peers[name].round(cohort))
    sizes = [sum(len(work.clients[i]) for i in cohort) for cohort in cohorts]
    return {
      name: Measured(
        np.array(seconds[name][_WARM_UP_ROUNDS:]),
        np.array(sizes[_WARM_UP_ROUNDS:]),
        own.peak_megabytes(),
        first_rounds[name],
        apart[name],
      )
      for name, own in peers.items()
    }


def main(argv: Sequence[str]) -> None:
  """Measures, prints the tables and writes them."""
  if len(argv) > 1:
    raise app.UsageError(f'unexpected {argv[1]!r}.')
  try:
    _measure_all()
  except (AssertionError, PeerFailure, environments.SetupError) as error:
    sys.exit(f'speed: error: {error}')


def _measure_all() -> None:
  from benchmarks import machine, works  # These import TensorFlow.

  tasks = {name: TASKS[name] for name in _WORKS.value}
  taking_part = {
    name: [OURS, *(p for p in task.peers if p in _PEERS.value)]
    for name, task in tasks.items()
  }
  pythons: dict[str | None, pathlib.Path] = {None: pathlib.Path(sys.executable)}
  needed = {KINDS[p].environment for names in taking_part.values() for p in names}
  for environment in sorted(filter(None, needed)):
    pythons[environment] = environments.python(
      environment, pathlib.Path(_ENVIRONMENTS.value)
    )
  output = pathlib.Path(OUTPUT.value or _PAGE)
  for name, task in tqdm.tqdm(tasks.items(), unit='work'):
    size, num_rounds = task.num_clients, ROUNDS.value or task.num_rounds
    measured = measure(
      works.make(task.algorithm, task.model, 2 * size, SEED.value),
      works.cohorts(2 * size, size, _WARM_UP_ROUNDS + num_rounds, SEED.value),
      pythons,
      taking_part[name],
    )
    rows = speed_report.rows_of(name, measured, OURS)
    tqdm.tqdm.write(speed_report.table(rows) + '\n')
    tqdm.tqdm.write(speed_report.goal_table(rows, {name: task.goals}, OURS) + '\n')
    # After each work: a benchmark may be stopped.
    goals = {known: of.goals for known, of in TASKS.items()}
    speed_report.update(output, rows, goals, OURS, machine.describe())


if __name__ == '__main__':
  app.run(main)
