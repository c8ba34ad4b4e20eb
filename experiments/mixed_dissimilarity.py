"""Figure 4 and Table 4 of the mixed FL paper: how unlike clients and server are.

Augenstein et al. 2022, sections 5.3 and B.1: G~^2 and B~^2 of equation 7 over the first
100 rounds, with one step a round.
"""

from collections.abc import Mapping
import pathlib
from typing import Any

from experiments import experiment
from training_loops import (
  batch,
  command_line,
  compare,
  files,
  plots,
  progress,
  results,
  summaries,
  tables,
  train_flags,
)

_TITLE = 'Mixed FL paper, Figure 4 and Table 4: gradient dissimilarity'

_TEXT = """
G~_t^2 and B~_t^2, equation 7 of Augenstein et al. 2022: how unlike the gradients of
clients and server are at the weights of a round, for the three tasks of the paper
(section 5.3, Table 4; appendix B.1, Figure 4). As there, with one step a round, when
all three algorithms are the same (1-way transfer is run), and otherwise with the flags
of `experiments/flagfiles/*_small.flags`; the maximum of 3 seeds where the paper has 5.
The federated gradient is over one batch of each of 20 clients (movies: 100), the
central one over as many examples. The data are stand-ins for, or parts of, the paper's
([tasks](../../tasks.md)).

- **As in the paper**, G~^2 is large for smiles, and nearly 0 for language and movies:
  it is where parallel training falls behind ([smiles](../mixed_smile/README.md)), and
  where it does not ([language](../mixed_language/README.md),
  [movies](../mixed_movies/README.md)).
- **Otherwise than in the paper**, B~^2 is large for smiles too. The two gradients are
  nearly opposite and of one size, so that their sum is small beside them; the paper's
  1.26 with a G~^2 of 49 means a sum about as large as its parts. G~^2 has a scale, that
  of the inputs and of the initial weights, which need not be the paper's.
- For movies B~^2 is larger here than in the paper as well, at a G~^2 of the same size:
  the formula of the regularizer, which the paper does not print, is ours.
"""

_NUMBERS = 'numbers.csv'
_METRICS = {'G~^2': 'train/g_tilde_square', 'B~^2': 'train/b_tilde_square'}
_ROUNDS, _NUM_SEEDS = 100, 3
_FIRST_ROUND = 10  # Of those that Table 4 has the maximum of.


def _flags(task: str, **more: Any) -> dict[str, Any]:
  """1-w GT with one step a round, when all three algorithms are the same."""
  flags = experiment.flagfile(f'{task}_one_way_gradient_transfer_small')
  one_step = {'max_client_steps': 1, 'mixed_diagnostics': True, 'rounds_per_eval': 1}
  return flags | one_step | more


# By task: its flags, and the maxima of G~^2 and B~^2 in Table 4. A central batch is of
# as many examples as the clients' together.
_TASKS: dict[str, tuple[dict[str, Any], tuple[float, float]]] = {
  'smile classification': (
    _flags('celeba_smile', central_batch_size=100),
    (49.04, 1.26),
  ),
  'language modeling': (
    _flags(
      'stackoverflow_wikipedia_char', central_batch_size=160, max_eval_examples=50
    ),
    (0.03, 1.34),
  ),
  'movie recommendation': (
    _flags('movielens', client_epochs=1, max_eval_examples=50),
    (0.03, 1.50),
  ),
}


def _run(flags: dict[str, Any]) -> None:
  progress.show_on_console()
  directory = pathlib.Path(flags['results_dir'])
  files.check_writable(directory)
  groups = {name: _train(name, *_TASKS[name][:1], flags) for name in _TASKS}
  _write(groups, flags, directory)


def _train(
  name: str, task_flags: Mapping[str, Any], flags: dict[str, Any]
) -> summaries.Group:
  print(name, flush=True)
  common: dict[str, Any] = {'task': task_flags['task']}
  own = {flag: value for flag, value in task_flags.items() if flag != 'task'}
  own['rounds'] = flags['rounds'] or _ROUNDS
  if flags['data_dir']:
    common['data_dir'] = flags['data_dir']
  every_flags = compare.configure(
    {name: train_flags.as_arguments(own)},
    common,
    flags['num_seeds'] or _NUM_SEEDS,
    pathlib.Path(flags['output_dir']) / files.as_name(name),
  )
  batch.train(every_flags, flags['jobs'])
  runs = results.load_all(each['output_dir'] for each in every_flags)
  (group,) = summaries.group(runs)
  return group


def _write(
  groups: Mapping[str, summaries.Group], flags: dict[str, Any], directory: pathlib.Path
) -> None:
  """The page, its pictures, and every point of the curves."""
  directory.mkdir(parents=True, exist_ok=True)
  rows, shown, every = [], [], []
  for name, group in groups.items():
    row = [name]
    for (symbol, column), published in zip(
      _METRICS.items(), _TASKS[name][1], strict=True
    ):
      curve = group.curve(column)
      row += [f'{curve.high[curve.rounds >= _FIRST_ROUND].max():.3g}', f'{published:g}']
      every += [
        [name, symbol, *point]
        for point in zip(curve.rounds, curve.mean, curve.high, strict=True)
      ]
    rows.append(row)
    file = f'{files.as_name(name)}.png'
    plots.write_comparison(
      directory / file,
      {column: {name: group.curve(column)} for column in _METRICS.values()},
      f'{name}, one step a round',
    )
    shown.append(f'![{name}]({file})')
  points = [
    [name, symbol, int(t), float(m), float(h)] for name, symbol, t, m, h in every
  ]
  header = ['task', 'metric', 'round', 'mean', 'max']
  files.write_bytes(directory / _NUMBERS, tables.as_csv(header, points))
  header = ['', 'max of G~^2', "the paper's", 'max of B~^2', "the paper's"]
  seconds = sum(run.seconds for group in groups.values() for run in group.runs)
  content = [
    f'# {_TITLE}',
    _TEXT.strip(),
    f'## How\n\n{experiment.how(pathlib.Path(__file__).stem, flags)}',
    f'## Table 4: maxima from round {_FIRST_ROUND} on',
    tables.markdown(header, rows),
    '## Figure 4',
    *shown,
    f'[Every point]({_NUMBERS}). {seconds / 60:.0f} minutes of training.',
  ]
  files.write_bytes(directory / 'README.md', ('\n\n'.join(content) + '\n').encode())
  print(f'\n{directory / "README.md"}')


if __name__ == '__main__':
  command_line.run(experiment.program(__file__, _TITLE), _run)
