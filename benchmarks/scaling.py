"""What becomes of time and memory with more clients a round, and with more rounds.

    python -m benchmarks.scaling --clients=10,100,1000 --output=docs/results/scaling.md

FedAvg with logistic regression on generated clients by id, on each of the runtimes:
first a long run of rounds of one size, in ten blocks, then a few rounds of each size,
from the smallest on, as the memory told is the most that there was so far. The remote
runtime has three workers on this machine, which share its cores.
"""

from collections.abc import Callable, Mapping, Sequence
import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import os
import pathlib
import tempfile
import time
from typing import Any

from absl import app, flags, logging
import numpy as np
import tqdm

from benchmarks import memory, pages, remote_workers
from benchmarks.common_flags import OUTPUT, ROUNDS, SEED
from training_loops import cores, importing, runtimes, tables

_NUM_ROUNDS = 10  # Of each size, by default.
_WARM_UP_ROUNDS = 2
_NUM_BLOCKS = 10
_NUM_WORKERS = 3
_BATCH_SIZE = 20
_LEARNING_RATE = 0.01

_RUNTIMES = flags.DEFINE_multi_enum(
  'runtime', ['in_process', 'local'], runtimes.names(), 'Where clients are computed.'
)
_SIZES = flags.DEFINE_list(
  'clients', ['10', '30', '100', '300', '1000'], 'Clients a round.'
)
flags.register_validator(
  'clients',
  lambda sizes: sizes and all(size.isdecimal() and int(size) > 0 for size in sizes),
  'Positive whole numbers are needed.',
)
_LONG_RUN_CLIENTS = flags.DEFINE_integer(
  'long_run_clients', 10, 'Clients a round of the long run.', lower_bound=1
)
_NUM_CLIENTS = flags.DEFINE_integer(
  'num_clients', 2_000, 'Clients in all.', lower_bound=1
)
flags.register_multi_flags_validator(
  ['clients', 'long_run_clients', 'num_clients'],
  lambda values: (
    max(values['long_run_clients'], *map(int, values['clients']))
    <= values['num_clients']
  ),
  'There must be as many in all as in a round.',
)
_BLOCK = flags.DEFINE_integer(
  'block', 100, 'Rounds of a block of the long run, which has ten.', lower_bound=1
)

# The clients of a round, by number -> its seconds, having done it.
Round = Callable[[Sequence[int]], float]


@dataclasses.dataclass(frozen=True)
class Plan:
  """What is measured on a runtime.

  Attributes:
    runtime: Its name.
    sizes: Clients a round, of the rounds of each size.
    num_rounds: How many there are of each.
    long_run_clients: Clients a round of the long run.
    block: A tenth of its rounds.
    num_clients: Clients in all.
    seed: Of data and cohorts.
  """

  runtime: str
  sizes: Sequence[int]
  num_rounds: int
  long_run_clients: int
  block: int
  num_clients: int
  seed: int


@dataclasses.dataclass(frozen=True)
class Megabytes:
  """The memory of the program and, added up, of its workers."""

  program: float
  workers: float

  @classmethod
  def of(cls, count: Callable[[int], float]) -> 'Megabytes':
    """What a function of process ids counts."""
    return cls(count(os.getpid()), sum(map(count, memory.descendants(os.getpid()))))


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


@dataclasses.dataclass(frozen=True)
class Measured:
  """What was measured on a runtime."""

  sizes: Sequence[OfSize]
  blocks: Sequence[Block]


def measure_blocks(run: Round, cohorts: Sequence[Sequence[int]]) -> list[Block]:
  """Does the rounds of the long run."""
  size, blocks = len(cohorts) // _NUM_BLOCKS, []
  for start in tqdm.trange(0, len(cohorts), size, unit='block', disable=None):
    seconds = np.array([run(cohort) for cohort in cohorts[start : start + size]])
    resident = Megabytes.of(memory.resident_megabytes)
    blocks.append(Block(start + size, seconds, resident))
  return blocks


def measure_size(
  run: Round, cohorts: Sequence[Sequence[int]], sizes: Sequence[int]
) -> OfSize:
  """Does rounds of one size, the first few to warm up.

  Args:
    run: Does a round.
    cohorts: The clients of each.
    sizes: How many examples each client has.
  """
  seconds = np.array([run(cohort) for cohort in cohorts])
  examples = np.array([sum(sizes[i] for i in cohort) for cohort in cohorts])
  peak = Megabytes.of(memory.peak_megabytes)
  timed = slice(_WARM_UP_ROUNDS, None)
  return OfSize(len(cohorts[0]), seconds[timed], examples[timed], peak)


def size_table(measured: Sequence[OfSize]) -> str:
  """A Markdown table."""
  header = ['clients a round', 's a round', 'quartiles', 's per 1,000 examples']
  header += ['program, most MB', 'workers, most MB']
  rows = []
  for own in measured:
    low, median, high = (np.percentile(own.seconds, q) for q in (25, 50, 75))
    per_thousand = np.median(1000 * own.seconds / own.examples)
    cells = [f'{own.num_clients:,}', f'{median:.3f}', f'{low:.3f} - {high:.3f}']
    cells += [f'{per_thousand:.4f}']
    rows.append([*cells, f'{own.peak.program:,.0f}', f'{own.peak.workers:,.0f}'])
  return tables.markdown(header, rows)


def block_table(blocks: Sequence[Block]) -> str:
  """A Markdown table."""
  header = ['rounds', 'ms a round', 'quartiles', 'program, MB', 'workers, MB']
  rows = []
  for block in blocks:
    low, median, high = (np.percentile(1000 * block.seconds, q) for q in (25, 50, 75))
    which = f'{block.last_round - len(block.seconds) + 1:,} - {block.last_round:,}'
    cells = [which, f'{median:.1f}', f'{low:.1f} - {high:.1f}']
    memories = (block.resident.program, block.resident.workers)
    rows.append([*cells, *(f'{megabytes:,.1f}' for megabytes in memories)])
  return tables.markdown(header, rows)


def draw(
  path: pathlib.Path, measured: Mapping[str, Measured], long_run_clients: int
) -> None:
  """A picture: time over the clients of a round; time and memory over the rounds."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(12, 3.5), layout='constrained')
  sizes, times, memories = figure.subplots(1, 3)
  for name, own in measured.items():
    numbers = [of_size.num_clients for of_size in own.sizes]
    medians = [np.median(of_size.seconds) for of_size in own.sizes]
    (line,) = sizes.plot(numbers, medians, 'o-', label=name)
    color = line.get_color()
    in_proportion = medians[-1] * np.array(numbers) / numbers[-1]
    sizes.plot(numbers, in_proportion, ':', color=color)
    rounds = [block.last_round for block in own.blocks]
    times.plot(rounds, [1000 * np.median(b.seconds) for b in own.blocks], label=name)
    resident = [block.resident for block in own.blocks]
    memories.plot(rounds, [r.program for r in resident], label=f'{name}: program')
    if any(r.workers for r in resident):
      workers = [r.workers for r in resident]
      memories.plot(rounds, workers, '--', color=color, label=f'{name}: workers')
  sizes.set(xscale='log', yscale='log', xlabel='clients a round', ylabel='s a round')
  sizes.set_title('dotted: in proportion', fontsize='small')
  label = f'round, of {long_run_clients} clients'
  times.set(xlabel=label, ylabel='ms a round')
  memories.set(xlabel=label, ylabel='MB resident')
  for axes in (times, memories):
    axes.set_ylim(bottom=0)
  for axes in (sizes, times, memories):
    axes.legend(fontsize='x-small')
  figure.savefig(path, dpi=120)


def measure(plan: Plan) -> Measured:
  """Measures a runtime, in a process that has done nothing else."""
  logging.set_verbosity(logging.WARNING)  # TFF notes each metric that it adds.
  with contextlib.ExitStack() as stack:
    options: dict[str, Any] = {}
    if plan.runtime == 'remote':
      num_threads = max(1, cores.number() // _NUM_WORKERS)
      workers = remote_workers.started(_NUM_WORKERS, num_threads)
      options = stack.enter_context(workers)
    runtime = runtimes.create(plan.runtime, **options)
    runtime.launch()
    importing.import_tff()
    stack.enter_context(runtime)
    directory = stack.enter_context(tempfile.TemporaryDirectory())
    return _measured(plan, pathlib.Path(directory))


def _measured(plan: Plan, directory: pathlib.Path) -> Measured:
  from benchmarks import works
  from tasks import client_files, image_models
  from tff_algorithms import client_inputs
  from tff_algorithms.fed_avg import build_fed_avg
  from training_loops import feeding

  model = image_models.logistic((28, 28), works.NUM_CLASSES)
  generator = np.random.default_rng([plan.seed, 1])

  def drawn(num_clients, num_rounds):
    return [
      generator.choice(plan.num_clients, num_clients, replace=False)
      for _ in range(num_rounds)
    ]

  files = client_files.ClientFiles(directory, feeding.features(model))
  sizes: list[int] = []
  # One at a time: together they would take more memory than all else.
  for client in works.clients('logistic', plan.num_clients, plan.seed):
    x = client.x.astype(np.float32) / np.float32(255)
    files.add(str(len(sizes)), {'x': x, 'y': client.y})
    sizes.append(len(client))
  process = build_fed_avg(
    model,
    client_learning_rate=_LEARNING_RATE,
    batch_size=_BATCH_SIZE,
    client_input=client_inputs.from_id(files.load),
    seed=plan.seed,
  )
  state = process.initialize()

  def run(cohort):
    nonlocal state
    clients = [str(i) for i in cohort]
    start = time.perf_counter()
    state = process.next(state, clients).state
    return time.perf_counter() - start

  blocks = measure_blocks(run, drawn(plan.long_run_clients, _NUM_BLOCKS * plan.block))
  measured = [
    measure_size(run, drawn(size, _WARM_UP_ROUNDS + plan.num_rounds), sizes)
    for size in tqdm.tqdm(sorted(plan.sizes), unit='size', disable=None)
  ]
  return Measured(measured, blocks)


def main(argv: Sequence[str]) -> None:
  """Measures, prints the tables and writes them."""
  if len(argv) > 1:
    raise app.UsageError(f'unexpected {argv[1]!r}.')
  num_rounds = ROUNDS.value or _NUM_ROUNDS
  measured, found = {}, []
  for name in dict.fromkeys(_RUNTIMES.value):
    plan = Plan(
      runtime=name,
      sizes=[int(size) for size in _SIZES.value],
      num_rounds=num_rounds,
      long_run_clients=_LONG_RUN_CLIENTS.value,
      block=_BLOCK.value,
      num_clients=_NUM_CLIENTS.value,
      seed=SEED.value,
    )
    fresh = multiprocessing.get_context('spawn')
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=fresh) as processes:
      measured[name] = own = processes.submit(measure, plan).result()
    found += [f'`--runtime={name}`:', size_table(own.sizes), block_table(own.blocks)]
  from benchmarks import machine

  circumstances = (
    f'{machine.describe()} {_NUM_CLIENTS.value:,} clients in all; {num_rounds} '
    f'rounds of each size, after {_WARM_UP_ROUNDS} to warm up; '
    f'{_LONG_RUN_CLIENTS.value} clients a round of the long run; batches of '
    f'{_BATCH_SIZE}, one epoch.'
  )
  print('\n\n'.join([*found, circumstances]))
  if OUTPUT.value:
    output = pathlib.Path(OUTPUT.value)
    picture = output.with_suffix('.png')
    pages.renew(output, [f'![Time and memory]({picture.name})', *found, circumstances])
    draw(picture, measured, _LONG_RUN_CLIENTS.value)


if __name__ == '__main__':
  app.run(main)
