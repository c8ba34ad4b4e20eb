"""Figures 4 and 5 of the Mime paper, small: how much the server's rate and eps matter.

Karimireddy et al. 2021, appendix E: for each server learning rate, and each eps of an
adaptive base optimizer, the accuracy at the best client learning rate; there for a CNN,
here for logistic regression.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
from typing import Any

from experiments import experiment
from training_loops import (
  command_line,
  files,
  plots,
  progress,
  summaries,
  sweep_files,
  sweep_results,
  sweeps,
  tables,
)

_TITLE = "Mime paper, Figures 4 and 5: the server's rate and epsilon"

_TEXT = """
How much the server's learning rate matters, and epsilon for the adaptive methods
(Karimireddy et al. 2021, appendix E): each value is the best accuracy over client
rates. Small: logistic regression where the paper has a CNN, 10 clients a round, one
local epoch in batches of 20, 30 rounds, one seed, and part of the paper's grid.

- Mime and MimeLite use the base optimizer in every local step, FedAvg at the server.
- Adam is TFF's, in which a step's own gradient goes into v first; AdaGrad is the
  paper's pair, from 0.1; momentum is the averaged form with beta = 0.9.
- Client rates: 1, 0.1, 0.01, 0.001 in Figure 4; 1 down to 0.01 by half powers of ten in
  Figure 5.
- A dash: every client rate diverged.
- The data are not the paper's, but those of 318 other writers
  ([what they are](../../tasks.md#what-examples-look-like)).

What came out, beside the paper's figures:

- **Figure 4.** As in the paper, FedAvg with Adam does badly at the default of
  centralized training (server rate 1, epsilon 1e-7) and Mime best of all; Mime is
  within 5 points of its best everywhere. With AdaGrad all suffer at a server rate of
  10, FedAvg at 1 too, Mime and MimeLite not.
- **Figure 5.** As in the paper, a server rate of 1 does well for all, and momentum
  makes them less sensitive to it, above all to rates that are too high. FedAvg and
  MimeLite with SGD are one line, because they are one algorithm.
"""

_METRIC = 'eval/accuracy'
_FLAGS = {'task': 'emnist_logistic', 'clients_per_round': 10, 'batch_size': 20}
_ROUNDS = 30
_SERVER_RATE = 'server_learning_rate'
_NUMBERS = 'runs.csv'


@dataclasses.dataclass(frozen=True)
class _Method:
  """An algorithm with one base optimizer.

  Attributes:
    flags: Its flags.
    epsilon: The flag of its epsilon; None where it has none.
  """

  flags: Mapping[str, Any]
  epsilon: str | None = None

  @property
  def sweep(self) -> str:
    """The file in sweeps/ with what is tried."""
    if self.epsilon is None:
      return 'mime_stability.yaml'
    return f'mime_stability_{self.epsilon.partition("_")[0]}_epsilon.yaml'


def _methods(server: str, base: str, is_adaptive: bool) -> dict[str, _Method]:
  """FedAvg with a server optimizer, Mime and MimeLite with a base optimizer."""
  fed_avg = {'algorithm': 'fed_avg', 'server_optimizer': server}
  epsilons = ('server_epsilon', 'base_epsilon') if is_adaptive else (None, None)
  methods = {'FedAvg': _Method(fed_avg, epsilons[0])}
  for name, algorithm in (('Mime', 'mime'), ('MimeLite', 'mime_lite')):
    flags = {'algorithm': algorithm, 'base_optimizer': base}
    methods[name] = _Method(flags, epsilons[1])
  return methods


_ADAPTIVE = {
  'Adam': _methods('adam', 'tff_adam', True),
  'Adagrad': _methods('base_adagrad', 'adagrad', True),
}
_OTHERS = {
  'SGD': _methods('sgd', 'sgd', False),
  'Mom': _methods('base_momentum', 'momentum', False),
}

Trials = Sequence[sweep_results.Trial]


def _run(flags: dict[str, Any]) -> None:
  progress.show_on_console()
  results_dir = pathlib.Path(flags['results_dir'])
  files.check_writable(results_dir)
  trials: dict[tuple[str, str], Trials] = {}
  for base, methods in {**_ADAPTIVE, **_OTHERS}.items():
    for name, method in methods.items():
      print(f'{name}, {base}', flush=True)
      trials[name, base] = _try_all(method, f'{name}{base}', flags)
  _write(trials, flags, results_dir)


def _try_all(method: _Method, name: str, flags: dict[str, Any]) -> Trials:
  run_flags = {**_FLAGS, **method.flags, 'rounds': flags['rounds'] or _ROUNDS}
  if flags['data_dir']:
    run_flags['data_dir'] = flags['data_dir']
  sweep = sweep_files.read(experiment.SWEEPS / method.sweep, run_flags)
  directory = pathlib.Path(flags['output_dir']) / name
  return sweeps.run(sweep, directory, jobs=flags['jobs']).trials


def _best(trials: Trials, *names: str | None) -> dict[tuple, float]:
  """The best accuracy for each combination of values of some flags."""
  best: dict[tuple, float] = {}
  for trial in trials:  # The best come first, those that diverged last.
    best.setdefault(tuple(trial.point[name] for name in names if name), trial.value)
  return best


def _write(
  trials: Mapping[tuple[str, str], Trials],
  flags: dict[str, Any],
  directory: pathlib.Path,
) -> None:
  """The page, its pictures, and every run."""
  directory.mkdir(parents=True, exist_ok=True)
  grids = {
    f'{name}, {base}': _best(trials[name, base], _SERVER_RATE, method.epsilon)
    for base, methods in _ADAPTIVE.items()
    for name, method in methods.items()
  }
  lines = {
    f'{name}, {base}': _best(trials[name, base], _SERVER_RATE)
    for base, methods in _OTHERS.items()
    for name in methods
  }
  plots.write_grids(
    directory / 'figure_4.png', grids, ('server learning rate', 'epsilon'), 3, _METRIC
  )
  plots.write_lines(
    directory / 'figure_5.png',
    {name: {rate: v for (rate,), v in best.items()} for name, best in lines.items()},
    'server learning rate',
    _METRIC,
  )
  rows = [
    [name, base, sweep_files.point_text(t.point), t.state, t.value, t.reason]
    for (name, base), of_method in trials.items()
    for t in of_method
  ]
  header = ['name', 'base optimizer', 'tried', 'state', 'value', 'reason']
  files.write_bytes(directory / _NUMBERS, tables.as_csv(header, rows))
  seconds = sum(t.seconds for of_method in trials.values() for t in of_method)
  content = [
    f'# {_TITLE}',
    _TEXT.strip(),
    f'## How\n\n{experiment.how(pathlib.Path(__file__).stem, flags)}',
    '## Figure 4: adaptive base optimizers',
    '![Grids](figure_4.png)',
    _spread_table(grids),
    '## Figure 5: SGD and momentum',
    '![Lines](figure_5.png)',
    _spread_table(lines),
    f'[All runs]({_NUMBERS}): {len(rows)}, {seconds / 60:.0f} minutes of training.',
  ]
  files.write_bytes(directory / 'README.md', ('\n\n'.join(content) + '\n').encode())
  print(f'\n{directory / "README.md"}')


def _spread_table(best: Mapping[str, Mapping[tuple, float]]) -> str:
  """How often a method is near its own best, and what the default gives."""
  rows = []
  for name, values in best.items():
    top = max(values.values())
    near = sum(value > top - 0.05 for value in values.values())
    default = max(v for point, v in values.items() if point[0] == 1)
    shown = [summaries.display(_METRIC, value) for value in (top, default)]
    rows.append([name, *shown, f'{near} of {len(values)}'])
  header = ['', 'best', 'at server rate 1', 'within 5 points of its best']
  return tables.markdown(header, rows)


if __name__ == '__main__':
  command_line.run(experiment.program(__file__, _TITLE), _run)
