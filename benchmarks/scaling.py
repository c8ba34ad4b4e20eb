"""What becomes of time and memory with more clients a round, and with more rounds.

    python -m benchmarks.scaling --clients=10,100,1000 --output=docs/results/scaling.md

FedAvg with logistic regression on generated clients by id, on the local runtime: first
a long run of small rounds, in ten blocks, then a few rounds of each size, from the
smallest on, as the memory told is the most that there was so far.
"""

from collections.abc import Callable, Sequence
import dataclasses
import os
import pathlib
import tempfile
import time

from absl import app, flags, logging
import numpy as np
import tqdm

from benchmarks import memory, pages
from benchmarks.common_flags import OUTPUT, ROUNDS, SEED
from training_loops import importing, runtimes, tables

_NUM_ROUNDS = 10  # Of each size, by default.
_WARM_UP_ROUNDS = 2
_NUM_BLOCKS = 10
_SMALL = 10  # Clients a round of the long run.
_BATCH_SIZE = 20
_LEARNING_RATE = 0.01

_SIZES = flags.DEFINE_list(
  'clients', ['10', '30', '100', '300', '1000'], 'Clients a round.'
)
flags.register_validator(
  'clients',
  lambda sizes: sizes and all(size.isdecimal() and int(size) > 0 for size in sizes),
  'Positive whole numbers are needed.',
)
_NUM_CLIENTS = flags.DEFINE_integer(
  'num_clients', 2_000, 'Clients in all.', lower_bound=_SMALL
)
flags.register_multi_flags_validator(
  ['clients', 'num_clients'],
  lambda values: max(map(int, values['clients'])) <= values['num_clients'],
  'There must be as many in all as in a round.',
)
_BLOCK = flags.DEFINE_integer(
  'block', 100, 'Rounds of a block of the long run, which has ten.', lower_bound=1
)

# The clients of a round, by number -> its seconds, having done it.
Round = Callable[[Sequence[int]], float]


@dataclasses.dataclass(frozen=True)
class Megabytes:
  """The memory of the program and of its worker."""

  program: float
  worker: float

  @classmethod
  def of(cls, count: Callable[[int], float], worker_pid: int) -> 'Megabytes':
    """What a function of process ids counts."""
    return cls(count(os.getpid()), count(worker_pid))


@dataclasses.dataclass(frozen=True)
class OfSize:
  """Rounds of a size.

  Attributes:
    num_clients: Clients a round.
    seconds: The time of each round.
    examples: How many examples each trained on.
    peak: The most memory so far.
  """

  num_clients: int
  seconds: np.ndarray
  examples: np.ndarray
  peak: Megabytes


@dataclasses.dataclass(frozen=True)
class Block:
  """Consecutive rounds of the long run.

  Attributes:
    last_round: The number of its last one.
    seconds: The time of each round.
    resident: The memory after it.
  """

  last_round: int
  seconds: np.ndarray
  resident: Megabytes


def measure_blocks(
  run: Round, cohorts: Sequence[Sequence[int]], worker_pid: int
) -> list[Block]:
  """Does the rounds of the long run."""
  size, blocks = len(cohorts) // _NUM_BLOCKS, []
  for start in tqdm.trange(0, len(cohorts), size, unit='block', disable=None):
    seconds = np.array([run(cohort) for cohort in cohorts[start : start + size]])
    resident = Megabytes.of(memory.resident_megabytes, worker_pid)
    blocks.append(Block(start + size, seconds, resident))
  return blocks


def measure_size(
  run: Round,
  cohorts: Sequence[Sequence[int]],
  sizes: Sequence[int],
  worker_pid: int,
) -> OfSize:
  """Does rounds of one size, the first few to warm up.

  Args:
    run: Does a round.
    cohorts: The clients of each.
    sizes: How many examples each client has.
    worker_pid: The worker.
  """
  seconds = np.array([run(cohort) for cohort in cohorts])
  examples = np.array([sum(sizes[i] for i in cohort) for cohort in cohorts])
  peak = Megabytes.of(memory.peak_megabytes, worker_pid)
  timed = slice(_WARM_UP_ROUNDS, None)
  return OfSize(len(cohorts[0]), seconds[timed], examples[timed], peak)


def size_table(measured: Sequence[OfSize]) -> str:
  """A Markdown table."""
  header = ['clients a round', 's a round', 'quartiles', 's per 1,000 examples']
  header += ['program, most MB', 'worker, most MB']
  rows = []
  for own in measured:
    low, median, high = (np.percentile(own.seconds, q) for q in (25, 50, 75))
    per_thousand = np.median(1000 * own.seconds / own.examples)
    cells = [f'{own.num_clients:,}', f'{median:.3f}', f'{low:.3f} - {high:.3f}']
    cells += [f'{per_thousand:.4f}']
    rows.append([*cells, f'{own.peak.program:,.0f}', f'{own.peak.worker:,.0f}'])
  return tables.markdown(header, rows)


def block_table(blocks: Sequence[Block]) -> str:
  """A Markdown table."""
  header = ['rounds', 'ms a round', 'quartiles', 'program, MB', 'worker, MB']
  rows = []
  for block in blocks:
    low, median, high = (np.percentile(1000 * block.seconds, q) for q in (25, 50, 75))
    which = f'{block.last_round - len(block.seconds) + 1:,} - {block.last_round:,}'
    cells = [which, f'{median:.1f}', f'{low:.1f} - {high:.1f}']
    memories = (block.resident.program, block.resident.worker)
    rows.append([*cells, *(f'{megabytes:,.1f}' for megabytes in memories)])
  return tables.markdown(header, rows)


def draw(
  path: pathlib.Path, measured: Sequence[OfSize], blocks: Sequence[Block]
) -> None:
  """A picture: the time over the clients of a round, the memory over the rounds."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(9, 3.5), layout='constrained')
  left, right = figure.subplots(1, 2)
  numbers = [own.num_clients for own in measured]
  medians = np.array([np.median(own.seconds) for own in measured])
  left.plot(numbers, medians, 'o-', label='measured')
  in_proportion = medians[-1] * np.array(numbers) / numbers[-1]
  left.plot(numbers, in_proportion, 'k:', label='in proportion')
  left.set(xscale='log', yscale='log', xlabel='clients a round', ylabel='s a round')
  left.legend(fontsize='small')
  rounds = [block.last_round for block in blocks]
  right.plot(rounds, [block.resident.program for block in blocks], label='program')
  right.plot(rounds, [block.resident.worker for block in blocks], label='worker')
  right.set(xlabel=f'round, of {_SMALL} clients', ylabel='MB resident')
  right.set_ylim(bottom=0)
  right.legend(fontsize='small')
  figure.savefig(path, dpi=120)


def main(argv: Sequence[str]) -> None:
  """Measures, prints the tables and writes them."""
  if len(argv) > 1:
    raise app.UsageError(f'unexpected {argv[1]!r}.')
  logging.set_verbosity(logging.WARNING)  # TFF notes each metric that it adds.
  runtime = runtimes.LocalRuntime()
  runtime.launch()
  importing.import_tff()
  from benchmarks import machine, works
  from tasks import client_files, image_models
  from tff_algorithms import client_inputs
  from tff_algorithms.fed_avg import build_fed_avg
  from training_loops import feeding

  model = image_models.logistic((28, 28), works.NUM_CLASSES)
  generator = np.random.default_rng([SEED.value, 1])

  def drawn(num_clients, num_rounds):
    return [
      generator.choice(_NUM_CLIENTS.value, num_clients, replace=False)
      for _ in range(num_rounds)
    ]

  with runtime, tempfile.TemporaryDirectory() as directory:
    files = client_files.ClientFiles(pathlib.Path(directory), feeding.features(model))
    sizes: list[int] = []
    # One at a time: together they would take more memory than all else.
    for client in works.clients('logistic', _NUM_CLIENTS.value, SEED.value):
      x = client.x.astype(np.float32) / np.float32(255)
      files.add(str(len(sizes)), {'x': x, 'y': client.y})
      sizes.append(len(client))
    process = build_fed_avg(
      model,
      client_learning_rate=_LEARNING_RATE,
      batch_size=_BATCH_SIZE,
      client_input=client_inputs.from_id(files.load),
      seed=SEED.value,
    )
    state = process.initialize()

    def run(cohort):
      nonlocal state
      clients = [str(i) for i in cohort]
      start = time.perf_counter()
      state = process.next(state, clients).state
      return time.perf_counter() - start

    pid = runtime.worker_pid
    assert pid is not None
    num_rounds = ROUNDS.value or _NUM_ROUNDS
    long_run = drawn(_SMALL, _NUM_BLOCKS * _BLOCK.value)
    blocks = measure_blocks(run, long_run, pid)
    measured = [
      measure_size(run, drawn(size, _WARM_UP_ROUNDS + num_rounds), sizes, pid)
      for size in tqdm.tqdm(sorted(map(int, _SIZES.value)), unit='size', disable=None)
    ]
  circumstances = (
    f'{machine.describe()} {_NUM_CLIENTS.value:,} clients in all; {num_rounds} '
    f'rounds of each size, after {_WARM_UP_ROUNDS} to warm up; batches of '
    f'{_BATCH_SIZE}, one epoch.'
  )
  found = [size_table(measured), block_table(blocks)]
  print('\n\n'.join([*found, circumstances]))
  if OUTPUT.value:
    output = pathlib.Path(OUTPUT.value)
    picture = output.with_suffix('.png')
    pages.renew(output, [f'![Time and memory]({picture.name})', *found, circumstances])
    draw(picture, measured, blocks)


if __name__ == '__main__':
  app.run(main)
