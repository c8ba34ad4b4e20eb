"""Tables 2 and 11 of the mixed FL paper: what a round of the movie task costs a client.

Augenstein et al. 2022, section 4.3 and appendix B.3. One round of each algorithm is run
with `tff.federated_select`; bytes are those that travel, operations those that
TensorFlow's profiler counts.
"""

from collections.abc import Mapping
import pathlib
from typing import Any

from experiments import experiment
from training_loops import (
  command_line,
  files,
  progress,
  run,
  tables,
  train_flags,
)

_TITLE = 'Mixed FL paper, Tables 2 and 11: what the movie task costs a client'

_TEXT = """
A round of each algorithm on `movielens`, with clients that are sent the rows of the
table that they need (`--selection=federated_select`): n = 160 of N = 3,954, d = 16.

- **Bytes** are counted in the types of what is sent and uploaded. The paper counts the
  rows of the table alone, 2Nd, 2nd and 3nd numbers of 4 bytes. On top here come the
  hidden layer (1,088 bytes each way), 160 keys of 4 bytes with an update, its
  weight, and a few scalars.
- **Operations** of one local step are counted by TensorFlow's profiler, an addition and
  a multiplication as two. The paper counts by formula, and has the regularizer on all
  pairs of movies cost N^2 d / 2. Here the sum over pairs of squared cosines is computed
  as the norm of a d x d matrix, at N d^2: the baseline's clients save most of it too,
  and mixed FL saves the rest.
- The baseline has the regularizer in the loss of every client, and the whole table.
"""

_CLIENTS = {'batch_size': 16, 'client_epochs': 10, 'max_client_steps': 10}
_MIXED = {'selection': 'federated_select', 'mixed_diagnostics': False}
# By name: flags; table rows that travel (down and up); Mflop and KiB in Table 2.
_N, _D, _FEW = 3954, 16, 160
_METHODS: Mapping[str, tuple[dict[str, Any], int, float, int]] = {
  'baseline': ({'algorithm': 'fed_avg', 'spreadout': 'clients'}, 2 * _N, 125.16, 494),
  'PT': ({'algorithm': 'parallel_training', **_MIXED}, 2 * _FEW, 0.025, 20),
  '1-w GT': ({'algorithm': 'one_way_gradient_transfer', **_MIXED}, 3 * _FEW, 0.025, 30),
  '2-w GT': ({'algorithm': 'two_way_gradient_transfer', **_MIXED}, 3 * _FEW, 0.025, 30),
}


def _run(flags: dict[str, Any]) -> None:
  progress.show_on_console()
  directory = pathlib.Path(flags['results_dir'])
  files.check_writable(directory)
  rows = []
  for name, (own, num_rows, mflop, kib) in _METHODS.items():
    run_flags = {
      'task': 'movielens',
      'clients_per_round': 10,
      'rounds': 1,
      'max_eval_examples': 100,
      'output_dir': pathlib.Path(flags['output_dir']) / files.as_name(name),
      **_CLIENTS,
      **own,
    }
    if flags['data_dir']:
      run_flags['data_dir'] = flags['data_dir']
    configured = train_flags.configure(**run_flags)
    (row,) = run.train(configured).rows
    down, up = row['train/bytes_down'], row['train/bytes_up']
    rows.append(
      [
        name,
        f'{_step_mflop(configured):.3f}',
        f'{mflop}',
        f'{down / 1024:.1f}',
        f'{up / 1024:.1f}',
        f'{(down + up) / 1024:.1f}',
        f'{num_rows * _D * 4 / 1024:.0f}',
        f'{kib}',
      ]
    )
  _write(rows, flags, directory)


def _step_mflop(flags: dict[str, Any]) -> float:
  """Millions of operations in a local step."""
  from tff_algorithms import flops, oracles
  from training_loops import training

  task = training.load_task(flags)
  objective = task.objective or oracles.as_oracle(task.model)
  batch_size = flags['batch_size']
  return flops.of_a_step(objective, batch_size, task.selection) / 1e6


def _write(
  rows: list[list[str]], flags: dict[str, Any], directory: pathlib.Path
) -> None:
  header = [
    '',
    'Mflop a step',
    "the paper's",
    'KiB down',
    'KiB up',
    'both',
    'the formula',
    "the paper's",
  ]
  content = [
    f'# {_TITLE}',
    _TEXT.strip(),
    f'## How\n\n{experiment.how(pathlib.Path(__file__).stem, flags)}',
    '## A client in a round',
    tables.markdown(header, rows),
  ]
  directory.mkdir(parents=True, exist_ok=True)
  files.write_bytes(directory / 'README.md', ('\n\n'.join(content) + '\n').encode())
  print(f'\n{directory / "README.md"}')


if __name__ == '__main__':
  command_line.run(experiment.program(__file__, _TITLE), _run)
