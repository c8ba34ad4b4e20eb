"""What the saddle-point paper leaves open, read one way and another.

SCAFFOLD-Catalyst-S and SCAFFOLD-S on the quadratic games of Figure 2, and where it
matters the minibatch methods, with one thing changed at a time; then on other draws of
the game. The text is on the page of `saddle_figures`, whose runs are used.
"""

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

import numpy as np

from experiments import saddle_runs
from experiments.saddle_runs import ALGORITHMS, ROUNDS, Reading, Run
from training_loops import batch, command_line, files, progress, tables
from training_loops.options import Section, path

_TITLE = 'Saddle-point paper, Figure 2 in other readings'

_TEXT = """
The distance of x from the optimum after 500 communication rounds, with the best of the
three rates, where one thing is read differently. What follows from it stands with
[the figures](README.md).

- **as in the figures**: float64, all weights start at 1, entries of a_i below 1 are
  raised to 1, Catalyst moves on once the norm of the sub-problem's gradient mapping has
  halved, a synchronization is a communication.
- **sum of gradients**: the minibatch methods step by the sum of their tau gradients and
  not by the mean.
- **drawn again**: entries of a_i below 1 are drawn again until they are not.
- **-h**: all signs of y turned, that is of b_i and A_i together.
- **two communications**: a synchronization counts as two, so that there are 250.
"""

_HETEROGENEITIES = (10, 15)
_BOTH = ('scaffold_catalyst_s', 'scaffold_s')
_CATALYST = ('scaffold_catalyst_s',)
_MINIBATCH = ('minibatch_mirror_prox', 'minibatch_mirror_descent')
_COUPLINGS = {0.5: 'h = 1/2', 1.0: 'h = 1'}
_AS_IN_THE_FIGURES = 'as in the figures'
_SUM = 'sum of gradients'

# What is changed, and for which algorithms that matters.
_CHANGES: Mapping[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {
  _AS_IN_THE_FIGURES: ({}, (*_BOTH, *_MINIBATCH)),
  _SUM: ({'gradients': 'sum'}, _MINIBATCH),
  'drawn again': ({'threshold': 'redraw'}, _BOTH),
  'drawn again (seed 1)': ({'threshold': 'redraw', 'seed': 1}, _BOTH),
  'start at 10': ({'initial_value': 10.0}, _BOTH),
  '-h': ({'coupling': -1.0}, _BOTH),  # Times h.
  'float32': ({'precision': 'float32'}, _BOTH),
  'Catalyst: 1 inner round': ({'inner_rounds': 1}, _CATALYST),
  'Catalyst: 5 inner rounds': ({'inner_rounds': 5}, _CATALYST),
  'Catalyst: to a tenth': ({'decrease': 0.1}, _CATALYST),
}
_TWO_COMMUNICATIONS = 'two communications'
_NUMBERS = 'readings.csv'
# What is played on other draws of the game, with which change.
_DRAWN = {
  'scaffold_catalyst_s': _AS_IN_THE_FIGURES,
  'scaffold_s': _AS_IN_THE_FIGURES,
  'minibatch_mirror_prox': _SUM,
}
_COMPARED_WITH = 'scaffold_s'
_SEEDS = range(10)
_DRAWN_S = 15
_NUMBERS_OF_DRAWS = 'draws.csv'

_PROGRAM = command_line.Program(
  module='experiments.saddle_readings',
  summary=f'{_TITLE}. Writes docs/results/saddle_figures.',
  example='--jobs=2',
  sections=[
    Section(
      'Experiment',
      [
        batch.JOBS,
        path('output_dir', 'runs/saddle_figures', 'Where the runs are kept.'),
        path(
          'results_dir', 'docs/results/saddle_figures', 'Where the results are written.'
        ),
      ],
    )
  ],
)


def _reading(change: str, coupling: float) -> Reading:
  fields = dict(_CHANGES[change][0])
  fields['coupling'] = coupling * fields.get('coupling', 1.0)
  return dataclasses.replace(Reading(coupling), **fields)


def _draw(algorithm: str, coupling: float, seed: int) -> Reading:
  return dataclasses.replace(_reading(_DRAWN[algorithm], coupling), seed=seed)


def all_runs() -> list[Run]:
  """The runs of all readings and draws."""
  of_readings = [
    run
    for change, (_, algorithms) in _CHANGES.items()
    for algorithm in algorithms
    for coupling in _COUPLINGS
    for run in saddle_runs.all_rates(
      algorithm, _reading(change, coupling), _HETEROGENEITIES
    )
  ]
  of_draws = [
    run
    for algorithm in _DRAWN
    for coupling in _COUPLINGS
    for seed in _SEEDS
    for run in saddle_runs.all_rates(
      algorithm, _draw(algorithm, coupling, seed), [_DRAWN_S]
    )
  ]
  return list(dict.fromkeys(of_readings + of_draws))


def _run(flags: dict[str, Any]) -> None:
  progress.show_on_console()
  results = pathlib.Path(flags['results_dir'])
  directory = pathlib.Path(flags['output_dir'])
  files.check_writable(results)
  saddle_runs.make(all_runs(), directory, flags['jobs'])
  results.mkdir(parents=True, exist_ok=True)
  _write(results, directory)


def _distance(
  algorithm: str,
  reading: Reading,
  s: int,
  directory: pathlib.Path,
  num_rounds: int | None = None,
) -> float:
  """The last one with the best rate; see `saddle_runs.best`."""
  _, points = saddle_runs.best(algorithm, reading, s, directory, num_rounds)
  return float(points[-1, 1])


def _rows(directory: pathlib.Path) -> list[list[Any]]:
  """Coupling, change, algorithm and the distances."""
  rows: list[list[Any]] = []
  for coupling in _COUPLINGS:

    def add(change, algorithm, name, num_rounds=None, coupling=coupling):
      reading = _reading(change, coupling)
      distances = [
        _distance(algorithm, reading, s, directory, num_rounds)
        for s in _HETEROGENEITIES
      ]
      rows.append([coupling, name, ALGORITHMS[algorithm], *distances])

    for change, (_, algorithms) in _CHANGES.items():
      for algorithm in algorithms:
        add(change, algorithm, change)
    for algorithm in _BOTH:
      add(_AS_IN_THE_FIGURES, algorithm, _TWO_COMMUNICATIONS, ROUNDS // 2)
  return rows


def _draws(directory: pathlib.Path) -> list[list[Any]]:
  """Coupling, seed and the distances of those of `_DRAWN`."""
  rows: list[list[Any]] = []
  for coupling in _COUPLINGS:
    for seed in _SEEDS:
      distances = [
        _distance(algorithm, _draw(algorithm, coupling, seed), _DRAWN_S, directory)
        for algorithm in _DRAWN
      ]
      rows.append([coupling, seed, *distances])
  return rows


def _table_of_draws(draws: list[list[Any]]) -> str:
  rows = []
  for coupling, name in _COUPLINGS.items():
    columns = zip(*(found for h, _, *found in draws if h == coupling), strict=True)
    distances = dict(zip(_DRAWN, map(np.array, columns), strict=True))
    for algorithm, found in distances.items():
      num_ahead = (found < distances[_COMPARED_WITH]).sum()
      cells = [f'{np.median(found):.1e}', f'{found.max():.1e}', str(num_ahead)]
      rows.append([name, _name_of_drawn(algorithm), *cells])
  ahead = f'games ahead of {ALGORITHMS[_COMPARED_WITH]}'
  return tables.markdown(['coupling', 'algorithm', 'median', 'worst', ahead], rows)


def _name_of_drawn(algorithm: str) -> str:
  change = _DRAWN[algorithm]
  suffix = '' if change == _AS_IN_THE_FIGURES else f', {change}'
  return f'{ALGORITHMS[algorithm]}{suffix}'


def _write(results: pathlib.Path, directory: pathlib.Path) -> None:
  rows = _rows(directory)
  header = ['reading', 'algorithm', *(f's = {s}' for s in _HETEROGENEITIES)]
  content = [
    f'# {_TITLE}',
    _TEXT.strip(),
    '## How\n\n    make experiment NAME=saddle_figures'
    '\n    make experiment NAME=saddle_readings',
  ]
  for coupling, name in _COUPLINGS.items():
    shown = [
      [change, algorithm, *(f'{distance:.1e}' for distance in distances)]
      for h, change, algorithm, *distances in rows
      if h == coupling
    ]
    content += [f'## {name}', tables.markdown(header, shown)]
  draws = _draws(directory)
  content += [
    f'## {len(_SEEDS)} draws of the game',
    f'The distances at s = {_DRAWN_S} with seeds {_SEEDS[0]} to {_SEEDS[-1]}:',
    _table_of_draws(draws),
    f'The numbers: [{_NUMBERS}]({_NUMBERS}) and [{_NUMBERS_OF_DRAWS}]'
    f'({_NUMBERS_OF_DRAWS}). {saddle_runs.time_taken(all_runs(), directory)}',
  ]
  page = results / 'readings.md'
  files.write_bytes(page, ('\n\n'.join(content) + '\n').encode())
  files.write_bytes(results / _NUMBERS, tables.as_csv(['h', *header], rows))
  header = ['h', 'seed', *map(_name_of_drawn, _DRAWN)]
  files.write_bytes(results / _NUMBERS_OF_DRAWS, tables.as_csv(header, draws))
  print(f'\n{page}')


if __name__ == '__main__':
  command_line.run(_PROGRAM, _run)
