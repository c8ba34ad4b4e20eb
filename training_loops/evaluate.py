"""Evaluates a run on its test clients: all examples together, and client by client.

Writes into the run's directory: evaluation.csv (a row a client), evaluation.md (the
table) and evaluation.png (the spread over clients).
"""

from collections.abc import Mapping
import pathlib
from typing import TYPE_CHECKING, Any

import numpy as np

from training_loops import (
  checkpoints,
  command_line,
  files,
  progress,
  run_directory,
  runtimes,
  sampling,
  tables,
  train_flags,
)
from training_loops.options import REQUIRED, Section, UserError, choice, integer, path

if TYPE_CHECKING:
  import tasks

PROGRAM = command_line.Program(
  module='training_loops.evaluate',
  summary=(
    'Evaluates a run on its test clients: all examples together, and the spread of '
    'the metrics over clients.'
  ),
  example='--run=runs/x',
  sections=[
    Section(
      'Run',
      [
        path('run', REQUIRED, 'The output directory of a run.'),
        choice('checkpoint', 'last', 'Which of its models.', {'last': [], 'best': []}),
        integer('max_clients', None, 'Evaluates on a fixed random subset of clients.'),
      ],
    )
  ],
)

_PERCENTILES = {'min': 0, '5 %': 5, '25 %': 25, '50 %': 50, '75 %': 75, '95 %': 95}
_PERCENTILES['max'] = 100

Metrics = Mapping[str, Any]
Clients = Mapping[str, Metrics]


def find_checkpoint(
  directory: run_directory.RunDirectory, which: str
) -> checkpoints.Checkpoint:
  """The last or the best checkpoint of a run.

  Raises:
    UserError: If there is none, or the best is damaged.
  """
  store = checkpoints.Store(directory.checkpoints)
  for last in store.newest_first():
    if which == 'last':
      return last
    try:
      return store.read(last.record['best_round'])
    except (FileNotFoundError, checkpoints.DamagedError) as error:
      raise UserError(f'The best checkpoint cannot be read: {error}') from error
  raise UserError(f'{directory.path} has no whole checkpoint yet.')


def table(overall: Metrics, clients: Clients) -> str:
  """A Markdown table: each metric over all examples, and its spread over clients."""
  header = ['', 'all examples', 'mean of clients', *_PERCENTILES]
  rows = []
  for name, value in overall.items():
    spread = np.array([metrics[name] for metrics in clients.values()])
    spread = spread[np.isfinite(spread)]  # A client of one label has no AUC.
    quantiles: Any = np.full(len(_PERCENTILES), np.nan)
    if len(spread):
      quantiles = np.percentile(spread, list(_PERCENTILES.values()))
    numbers = [value, spread.mean() if len(spread) else np.nan, *quantiles]
    rows.append([name, *(f'{number:.4f}' for number in numbers)])
  return tables.markdown(header, rows)


def main(flags: dict[str, Any]) -> None:
  """Evaluates, prints the table and says where the files are."""
  progress.show_on_console()
  directory = run_directory.RunDirectory(flags['run'])
  run_flags = directory.flags()
  checkpoint = find_checkpoint(directory, flags['checkpoint'])
  train_flags.check_task(run_flags)
  with runtimes.create('in_process'):  # No client is computed, wherever it was trained.
    overall, clients, num_empty = _evaluate(run_flags, checkpoint, flags['max_clients'])

  round_num = checkpoint.record['round']
  num_examples = sum(int(metrics['num_examples']) for metrics in clients.values())
  title = f'{run_flags["algorithm"]} on {run_flags["task"]} after round {round_num}'
  summary = f'{title}: {num_examples} test examples of {len(clients)} clients.'
  if num_empty:
    summary += f' {num_empty} more clients have none.'
  text = f'{summary}\n\n{table(overall, clients)}'
  _write(directory.path, title, text, overall, clients)
  print(text)
  print(f'\nClient by client: {directory.path / "evaluation.csv"}')
  print(f'Picture: {directory.path / "evaluation.png"}')


def _evaluate(
  run_flags: dict[str, Any],
  checkpoint: checkpoints.Checkpoint,
  max_clients: int | None,
) -> tuple[Metrics, Clients, int]:
  """The metrics over all examples, by client, and how many clients have none."""
  from tff_algorithms.process_types import model_weights
  from training_loops import evaluation, training

  task = training.load_task(run_flags)
  process = training.build_process(run_flags, task)
  state = training.restored(checkpoint, process.initialize(), run_flags)
  weights = model_weights(state)
  evaluate = evaluation.Evaluator(task.model)
  data = _some_clients(task.test, max_clients, run_flags['seed'])
  with training.data_errors(run_flags):
    overall = evaluate(weights, data.all_rows())
    clients = {
      client_id: {
        'num_examples': data.num_examples(client_id),
        **evaluate(weights, data.rows(client_id)),
      }
      for client_id in data.client_ids
      if data.num_examples(client_id) > 0
    }
  return overall, clients, len(data.client_ids) - len(clients)


def _some_clients(
  data: 'tasks.FederatedData', size: int | None, seed: int
) -> 'tasks.FederatedData':
  """So many of the clients that have examples, drawn at random, or all clients."""
  if size is None:
    return data
  ids = [client_id for client_id in data.client_ids if data.num_examples(client_id)]
  chosen = [ids[i] for i in sampling.subset(len(ids), size, seed=seed)]
  return type(data)(chosen, data.rows, data.num_examples)


def _write(
  path: pathlib.Path,
  title: str,
  text: str,
  overall: Metrics,
  clients: Clients,
) -> None:
  from training_loops import plots

  header = ['client', *next(iter(clients.values()))]
  rows = [[client_id, *metrics.values()] for client_id, metrics in clients.items()]
  files.write_bytes(path / 'evaluation.csv', tables.as_csv(header, rows))
  files.write_bytes(path / 'evaluation.md', f'{text}\n'.encode())
  name = 'accuracy' if 'accuracy' in overall else 'loss'
  spread = np.array([metrics[name] for metrics in clients.values()])
  plots.write_spread(path / 'evaluation.png', spread, overall[name], name, title)


if __name__ == '__main__':
  command_line.run(PROGRAM, main)
