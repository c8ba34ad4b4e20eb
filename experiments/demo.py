"""A first look: FedAvg, FedProx and server-only training on handwritten digits.

Trains a model with each for the same rounds and cohorts, then prints a table and the
paths of a page and a picture. `make demo` runs it; everything is written below
runs/demo, anew each time.
"""

import pathlib
import shutil
from typing import Any

from training_loops import batch, command_line, compare, progress, report, results

_OUTPUT_DIR = pathlib.Path('runs') / 'demo'
_COMMON: dict[str, Any] = {
  'task': 'digits_logistic',
  'rounds': 100,
  'clients_per_round': 10,
  'rounds_per_eval': 2,
  'rounds_per_checkpoint': 50,
}
# The best rates of 0.1, 0.3 and 1 for clients, of 0.3, 1 and 3 for the server alone.
_RUNS = {
  'FedAvg': ['--algorithm=fed_avg', '--client_learning_rate=1', '--client_epochs=5'],
  'FedProx': [
    '--algorithm=fed_prox',
    '--client_learning_rate=1',
    '--client_epochs=5',
    '--fed_prox_rho=0.3',
  ],
  'Server-only': ['--algorithm=server_only', '--server_learning_rate=3'],
}


def main(flags: dict[str, Any]) -> None:
  """Runs the comparison."""
  del flags  # There are none.
  progress.show_on_console()
  print(
    f'Handwritten digits over 50 clients of different habits: {_COMMON["rounds"]} '
    f'rounds of {_COMMON["clients_per_round"]} clients for each algorithm. Starting '
    'TensorFlow Federated takes a few seconds.',
    flush=True,
  )
  every_flags = compare.configure(_RUNS, _COMMON, 1, _OUTPUT_DIR)
  shutil.rmtree(_OUTPUT_DIR, ignore_errors=True)
  batch.train(every_flags)
  runs = results.load_all(run_flags['output_dir'] for run_flags in every_flags)
  report.write(runs, _OUTPUT_DIR, title='Handwritten digits, 50 clients', target=0.9)


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
