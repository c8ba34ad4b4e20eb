"""The data's share of a round of emnist_logistic.

    python -m benchmarks.data_share --data_dir=DIR

The clients of FedAvg are fed in four ways, which take turns round by round, with the
same cohorts, one epoch in batches of 20. "Nothing": a client is told how many rows it
has and makes zeros, which is the round without its data. "By id": its rows are in a
file since an earlier round. "By id, all new": no client has been seen before, so its
rows are read from the data base, made and written, while the round before is computed.
"tf.data sets": the rows travel. The data's share is what a round takes longer than one
that is fed nothing; that of a long run follows from how many of its clients are new.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import pathlib
import tempfile
import time
from typing import Any

import absl.logging
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

from benchmarks import machine
import tasks
from tff_algorithms import client_inputs
from tff_algorithms.fed_avg import build_fed_avg
from training_loops import command_line, feeding, runtimes, tables
from training_loops.options import Section, UserError, integer, path
from training_loops.sampling import Participant

PROGRAM = command_line.Program(
  module='benchmarks.data_share',
  summary="Measures the data's share of a round of emnist_logistic.",
  example='--data_dir=DIR',
  sections=[
    Section(
      'Measuring',
      [
        path('data_dir', None, "Where EMNIST is; TFF's cache by default."),
        integer('clients', 10, 'Clients a round.'),
        integer('rounds', 25, 'Rounds to measure.'),
        path('output', None, 'A Markdown file to write the table to.'),
      ],
    )
  ],
)

_WARM_UP_ROUNDS = 3
_BATCH_SIZE = 20
_LONG_RUN = 1_000
_NUM_WRITERS = 3_400

_NOTHING = 'nothing'
_BY_ID = 'clients by id'
_ALL_NEW = 'clients by id, all new'
_DATASETS = 'tf.data sets'

# (this round's cohort, the next one) -> None, having done the round.
Round = Callable[[list[Participant], list[Participant]], None]


def _zeros(task: tasks.Task) -> client_inputs.ClientInput:
  """A client that is told how many rows it has, and makes them."""

  def load(num_rows):
    rows = tf.nest.map_structure(
      lambda spec: tf.zeros([num_rows, *spec.shape[1:]], spec.dtype),
      task.model.input_spec,
    )
    return client_inputs.ClientRows(tf.cast(num_rows, tf.int64), rows)

  return client_inputs.ClientInput(tff.TensorType(np.int32), load)


def _trainer(
  task: tasks.Task, client_input: client_inputs.ClientInput | None
) -> Callable[[list[Any]], None]:
  """Clients' arguments -> None, having trained on them."""
  process = build_fed_avg(
    task.model,
    client_learning_rate=0.1,
    batch_size=_BATCH_SIZE,
    client_input=client_input,
  )
  state = process.initialize()

  def train(clients):
    nonlocal state
    state = process.next(state, clients).state

  return train


def _rounds(
  task: tasks.Task, by_id: feeding.Feed, all_new: feeding.Feed
) -> dict[str, Round]:
  train_on_zeros = _trainer(task, _zeros(task))
  train_by_id = _trainer(task, by_id.client_input)
  train_all_new = _trainer(task, all_new.client_input)
  train_on_datasets = _trainer(task, None)

  def round_of_nothing(cohort, _):
    train_on_zeros([np.int32(task.train.num_examples(p.client_id)) for p in cohort])

  def round_by_id(cohort, _):
    train_by_id(by_id.arguments(cohort))

  def round_of_all_new(cohort, next_cohort):
    clients = all_new.arguments(cohort)
    all_new.prepare(next_cohort)
    train_all_new(clients)
    all_new.arguments(next_cohort)  # Waits for what was not ready in time.

  def round_of_datasets(cohort, _):
    train_on_datasets([task.train.client_dataset(p.client_id) for p in cohort])

  return {
    _NOTHING: round_of_nothing,
    _BY_ID: round_by_id,
    _ALL_NEW: round_of_all_new,
    _DATASETS: round_of_datasets,
  }


def measure(
  rounds: Mapping[str, Round], cohorts: Sequence[list[Participant]]
) -> dict[str, np.ndarray]:
  """The seconds of every round but the first few, by the way of feeding."""
  seconds: dict[str, list[float]] = {name: [] for name in rounds}
  names = list(rounds)
  for t in tqdm.trange(len(cohorts) - 1, unit='round', disable=None):
    first = t % len(names)  # Nobody is always the one to go after the slowest.
    for name in names[first:] + names[:first]:
      start = time.perf_counter()
      rounds[name](cohorts[t], cohorts[t + 1])
      seconds[name].append(time.perf_counter() - start)
  return {name: np.array(seconds[name][_WARM_UP_ROUNDS:]) for name in names}


def table(seconds: Mapping[str, np.ndarray]) -> str:
  """A Markdown table."""
  rows = []
  for name, own in seconds.items():
    # Of the same rounds; where the data cost nothing it is around 0.
    share = max(0.0, np.median(1 - seconds[_NOTHING] / own))
    low, median, high = (np.percentile(1000 * own, q) for q in (25, 50, 75))
    rows.append([name, f'{median:.0f}', f'{low:.0f} - {high:.0f}', f'{share:.0%}'])
  return tables.markdown(['fed', 'ms a round', 'quartiles', "data's share"], rows)


def share_of_run(seconds: Mapping[str, np.ndarray], num_clients: int) -> str:
  """What the rounds above make of a long run: clients are new in it only once."""
  # How many of all writers are drawn at least once.
  num_seen = _NUM_WRITERS * (1 - (1 - num_clients / _NUM_WRITERS) ** _LONG_RUN)
  new = num_seen / (num_clients * _LONG_RUN)
  means = {name: float(np.mean(own)) for name, own in seconds.items()}
  mean = new * means[_ALL_NEW] + (1 - new) * means[_BY_ID]
  return (
    f'In {_LONG_RUN:,} rounds of {num_clients} of the {_NUM_WRITERS:,} writers of '
    f"TFF's EMNIST {new:.0%} of the clients are new, which makes the data's share "
    f'{1 - means[_NOTHING] / mean:.0%} of such a run.'
  )


def _cohorts(
  task: tasks.Task, num_clients: int, num_cohorts: int
) -> list[list[Participant]]:
  """Cohorts without a client twice, so that all are new, in no order of the file."""
  ids = np.random.default_rng(0).permutation(task.train.client_ids)
  if num_cohorts * num_clients > len(ids):
    raise UserError(f'there are only {len(ids)} clients: take fewer rounds.')
  return [
    [Participant(str(client_id), None) for client_id in part]
    for part in ids[: num_cohorts * num_clients].reshape(num_cohorts, -1)
  ]


def main(options: dict[str, Any]) -> None:
  """Measures and prints the table."""
  absl.logging.set_verbosity(absl.logging.WARNING)  # TFF notes each metric it adds.
  try:
    task = tasks.load('emnist_logistic', seed=0, data_dir=options['data_dir'])
  except ValueError as error:
    raise UserError(str(error)) from error
  num_cohorts = _WARM_UP_ROUNDS + options['rounds'] + 1
  cohorts = _cohorts(task, options['clients'], num_cohorts)
  with (
    runtimes.create('in_process'),
    tempfile.TemporaryDirectory() as known,
    tempfile.TemporaryDirectory() as unknown,
    contextlib.closing(feeding.Feed(task, pathlib.Path(known), False)) as by_id,
    contextlib.closing(feeding.Feed(task, pathlib.Path(unknown), False)) as all_new,
  ):
    for cohort in cohorts:
      by_id.arguments(cohort)
    seconds = measure(_rounds(task, by_id, all_new), cohorts)
  paragraphs = [
    table(seconds),
    share_of_run(seconds, options['clients']),
    f'{machine.describe()} {options["rounds"]} rounds of {options["clients"]} clients, '
    f'{_WARM_UP_ROUNDS} before them to warm up; {len(task.train.client_ids)} writers '
    'in the data base.',
  ]
  text = '\n\n'.join(paragraphs) + '\n'
  print(text)
  if options['output']:
    pathlib.Path(options['output']).write_text(text)


if __name__ == '__main__':
  command_line.run(PROGRAM, main)
