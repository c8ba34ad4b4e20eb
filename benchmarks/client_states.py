"""What the states of clients cost a round of SCAFFOLD, in time and memory.

    python -m benchmarks.client_states

3,400 generated clients and the CNN of EMNIST, 1.2 M parameters: 16 GB of states, all of
which are in the store before the first round, as late in a long run. SCAFFOLD and
FedAvg take turns round by round, with the same cohorts, one epoch in batches of 20. Of
a round of SCAFFOLD it is measured what the store takes: reading the cohort's states,
writing the new ones, and a tenth of a commit, one every ten rounds.
"""

from collections.abc import Mapping, Sequence
import contextlib
import os
import pathlib
import tempfile
import time
from typing import Any

import absl.logging
import numpy as np
import tqdm

from benchmarks import machine, memory
import tasks
from tasks import image_models
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.scaffold import build_scaffold
from training_loops import (
  client_state_exchange,
  client_state_store,
  command_line,
  feeding,
  runtimes,
  tables,
)
from training_loops.options import Section, integer, path
from training_loops.sampling import Sampler

PROGRAM = command_line.Program(
  module='benchmarks.client_states',
  summary='Measures what the states of clients cost a round of SCAFFOLD.',
  example='--rounds=30',
  sections=[
    Section(
      'Measuring',
      [
        integer('num_clients', 3_400, 'Clients in all, 4.8 MB of disk each.'),
        integer('clients', 20, 'Clients a round.'),
        integer('rounds', 30, 'Rounds to measure.'),
        path('directory', None, 'Where to put the states; the temporary one if unset.'),
        path('output', None, 'A Markdown file to write the table to.'),
      ],
    )
  ],
)

_WARM_UP_ROUNDS = 3
_ROUNDS_PER_COMMIT = 10
_CLIENTS_PER_FILL = 100
_NUM_CLASSES = 62
_TRAINING: dict[str, Any] = {'client_learning_rate': 0.01, 'batch_size': 20}

SCAFFOLD, FED_AVG = 'SCAFFOLD', 'FedAvg'
READ, WRITE, COMMIT = 'reading', 'writing', 'committing'

Seconds = Mapping[str, Sequence[float]]


def generated(num_clients: int) -> tasks.Task:
  """Noise in the form of EMNIST, of 100 to 300 rows a client."""

  def load(client_id: str) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(int(client_id))
    n = generator.integers(100, 300)
    return {
      'x': generator.random([n, 28, 28], np.float32),
      'y': generator.integers(0, _NUM_CLASSES, n, np.int32),
    }

  data = tasks.FederatedData([str(i) for i in range(num_clients)], load)
  return tasks.Task('generated', image_models.cnn_dropout(_NUM_CLASSES), data, data)


def fill(store: client_state_store.ClientStateStore, client_ids: Sequence[str]) -> None:
  """Gives every client a state."""
  noise = np.random.default_rng(0)
  content = noise.normal(0, 1e-3, len(store.first) // 4).astype(np.float32).tobytes()
  for start in tqdm.trange(0, len(client_ids), _CLIENTS_PER_FILL, disable=None):
    for client_id in client_ids[start : start + _CLIENTS_PER_FILL]:
      store.put(client_id, content)
    store.commit(0)


def measure(
  task: tasks.Task,
  store: client_state_store.ClientStateStore,
  process: Any,
  feed: feeding.Feed,
  directory: pathlib.Path,
  sampler: Sampler,
  num_rounds: int,
) -> dict[str, list[float]]:
  """The seconds of whole rounds, and of the parts of SCAFFOLD's, in every round."""
  fed_avg = build_fed_avg(task.model, client_input=feed.client_input, **_TRAINING)
  exchange = client_state_exchange.ClientStateExchange(store, directory)
  states = {SCAFFOLD: process.initialize(), FED_AVG: fed_avg.initialize()}
  seconds: dict[str, list[float]] = {
    name: [] for name in (SCAFFOLD, FED_AVG, READ, WRITE, COMMIT)
  }

  @contextlib.contextmanager
  def timed(name):
    start = time.perf_counter()
    yield
    seconds[name].append(time.perf_counter() - start)

  for t in tqdm.trange(1, _WARM_UP_ROUNDS + num_rounds + 1, unit='round', disable=None):
    cohort = sampler.draw(t)
    clients = feed.arguments(cohort)
    with timed(SCAFFOLD):
      with timed(READ):
        given = exchange.read([participant.client_id for participant in cohort])
      output = process.next(states[SCAFFOLD], clients, given)
      states[SCAFFOLD] = output.state
      with timed(WRITE):
        exchange.write(output.client_states)
      if t % _ROUNDS_PER_COMMIT == 0:
        with timed(COMMIT):
          store.commit(t)
    with timed(FED_AVG):
      states[FED_AVG] = fed_avg.next(states[FED_AVG], clients).state
  for name in (SCAFFOLD, FED_AVG, READ, WRITE):
    seconds[name] = seconds[name][_WARM_UP_ROUNDS:]
  return seconds


def shares_of_round(seconds: Seconds) -> tuple[float, float]:
  """The share of reading and writing in a round of SCAFFOLD; that with commits."""
  commits = sum(seconds[COMMIT]) / _ROUNDS_PER_COMMIT / max(1, len(seconds[COMMIT]))
  own = np.mean(seconds[READ]) + np.mean(seconds[WRITE])
  whole = np.mean(seconds[SCAFFOLD])
  return float(own / whole), float((own + commits) / whole)


def table(seconds: Seconds) -> str:
  """A Markdown table."""
  whole = np.mean(seconds[SCAFFOLD])
  rows = []
  for name, label in (
    (FED_AVG, 'a round of FedAvg'),
    (SCAFFOLD, 'a round of SCAFFOLD'),
    (READ, "of it, reading the cohort's states"),
    (WRITE, 'of it, writing the new ones'),
    (COMMIT, f'a commit, every {_ROUNDS_PER_COMMIT} rounds'),
  ):
    if seconds[name]:
      mean = np.mean(seconds[name])
      most = max(seconds[name])
      numbers = [f'{1000 * mean:.0f}', f'{1000 * most:.0f}', f'{mean / whole:.1%}']
      rows.append([label, *numbers])
  return tables.markdown(['', 'ms', 'at most', 'of a round of SCAFFOLD'], rows)


def peak_megabytes() -> dict[str, float]:
  """The most memory that this process and its worker have had resident."""
  lists = pathlib.Path('/proc/self/task').glob('*/children')
  children = [int(child) for path_ in lists for child in path_.read_text().split()]
  return {
    'the program': memory.peak_megabytes(os.getpid()),
    'its worker': sum(map(memory.peak_megabytes, children)),
  }


def main(options: dict[str, Any]) -> None:
  """Measures and prints the table."""
  absl.logging.set_verbosity(absl.logging.WARNING)  # TFF notes each metric it adds.
  task = generated(options['num_clients'])
  with (
    runtimes.create('local'),
    tempfile.TemporaryDirectory(dir=options['directory']) as directory,
    contextlib.ExitStack() as stack,
  ):
    here = pathlib.Path(directory)
    for name in ('rows', 'states'):
      (here / name).mkdir()
    feed = stack.enter_context(
      contextlib.closing(feeding.Feed(task, here / 'rows', False))
    )
    process = build_scaffold(
      task.model,
      num_clients=options['num_clients'],
      client_input=feed.client_input,
      client_states_by_file=True,
      **_TRAINING,
    )
    store = client_state_store.ClientStateStore(
      here / 'states.sqlite', process.initialize_client(), {}
    )
    stack.callback(store.close)
    store.restore(0, None)
    fill(store, task.train.client_ids)
    sampler = Sampler(
      client_ids=task.train.client_ids, clients_per_round=options['clients'], seed=0
    )
    seconds = measure(
      task, store, process, feed, here / 'states', sampler, options['rounds']
    )
    memory = peak_megabytes()
    size = sum(p.stat().st_size for p in here.glob('states.*'))
  share, with_commits = shares_of_round(seconds)
  paragraphs = [
    table(seconds),
    f'Reading and writing: {share:.1%} of a round of SCAFFOLD. With a commit every '
    f'{_ROUNDS_PER_COMMIT} rounds, which waits for the disk: {with_commits:.1%}.',
    f'The store: {options["num_clients"]:,} clients, {size / 1e9:.1f} GB on disk. Most '
    'memory resident: '
    + ', '.join(f'{name} {peak:,.0f} MB' for name, peak in memory.items())
    + f'; together {sum(memory.values()) / 1000:.2f} GB.',
    f'{machine.describe()} {options["rounds"]} rounds of {options["clients"]} clients, '
    f'{_WARM_UP_ROUNDS} before them to warm up.',
  ]
  text = '\n\n'.join(paragraphs) + '\n'
  print(text)
  if options['output']:
    pathlib.Path(options['output']).write_text(text)


if __name__ == '__main__':
  command_line.run(PROGRAM, main)
