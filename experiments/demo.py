"""A first look: FedAvg, FedProx and server-only training on handwritten digits.

Trains a model with each for the same rounds and cohorts, then prints a table and the
path of a picture. `make demo` runs it; everything is written below runs/demo, anew each
time.
"""

import pathlib
import shutil
from typing import Any

from training_loops import command_line, progress, results, run, tables, train_flags

_OUTPUT_DIR = pathlib.Path('runs') / 'demo'
_ROUNDS = 100
_TARGET_ACCURACY = 0.9

_COMMON: dict[str, Any] = {
  'task': 'digits_logistic',
  'rounds': _ROUNDS,
  'clients_per_round': 10,
  'rounds_per_eval': 2,
  'rounds_per_checkpoint': 50,
}
# The best rates of 0.1, 0.3 and 1 for clients, of 0.3, 1 and 3 for the server alone.
_RUNS: dict[str, dict[str, Any]] = {
  'FedAvg': {'algorithm': 'fed_avg', 'client_learning_rate': 1.0, 'client_epochs': 5},
  'FedProx': {
    'algorithm': 'fed_prox',
    'client_learning_rate': 1.0,
    'client_epochs': 5,
    'fed_prox_rho': 0.3,
  },
  'Server-only': {'algorithm': 'server_only', 'server_learning_rate': 3.0},
}


def table(runs: dict[str, results.Result]) -> str:
  """A Markdown table with a row a run."""
  rows = []
  for name, result in runs.items():
    accuracies = {row['round']: row['eval/accuracy'] for row in result.rows}
    reached = [r for r, accuracy in accuracies.items() if accuracy >= _TARGET_ACCURACY]
    last = result.rows[-1]
    megabytes = [
      last[f'train/bytes_{way}'] * _COMMON['clients_per_round'] * _ROUNDS / 1e6
      for way in ('down', 'up')
    ]
    rows.append(
      [
        name,
        f'{last["eval/accuracy"]:.1%}',
        f'{max(accuracies.values()):.1%}',
        str(reached[0]) if reached else 'never',
        *(f'{size:.2f}' for size in megabytes),
        f'{result.seconds:.1f}',
      ]
    )
  header = ['algorithm', 'final accuracy', 'best', f'rounds to {_TARGET_ACCURACY:.0%}']
  return tables.markdown(header + ['MB down', 'MB up', 'seconds'], rows)


def main(flags: dict[str, Any]) -> None:
  """Runs the comparison."""
  del flags  # There are none.
  progress.show_on_console()
  print(
    f'Handwritten digits over 50 clients of different habits: {_ROUNDS} rounds of 10 '
    'clients for each algorithm. Starting TensorFlow Federated takes a few seconds.',
    flush=True,
  )
  every_run = {
    name: train_flags.configure(
      output_dir=_OUTPUT_DIR / chosen['algorithm'], **_COMMON, **chosen
    )
    for name, chosen in _RUNS.items()
  }
  for run_flags in every_run.values():
    shutil.rmtree(run_flags['output_dir'], ignore_errors=True)
  runtime = train_flags.create_runtime(every_run['FedAvg'])
  runtime.launch()
  with runtime:
    runs = {
      name: run.train(run_flags, runtime=runtime)
      for name, run_flags in every_run.items()
    }

  from training_loops import plots

  picture = _OUTPUT_DIR / 'comparison.png'
  curves = {name: result.rows for name, result in runs.items()}
  columns = ('eval/loss', 'eval/accuracy')
  plots.write_comparison(picture, curves, columns, 'Handwritten digits, 50 clients')
  print(f'\n{table(runs)}\n\n{picture.absolute()}')


if __name__ == '__main__':
  command_line.run(
    command_line.Program(
      module='experiments.demo',
      summary='Compares FedAvg, FedProx and server-only training; it takes no flags.',
      example='',
      sections=[],
    ),
    main,
  )
