"""Figures 1 and 2 of Hou et al. 2021: five algorithms on quadratic games.

The runs are those of `saddle_runs`; here are the pictures and the page.
"""

from collections.abc import Mapping
import pathlib
from typing import Any

import numpy as np

from experiments import saddle_runs
from experiments.saddle_runs import ALGORITHMS, ROUNDS, Reading, Run
from training_loops import batch, command_line, files, progress, tables
from training_loops.options import Section, path

_TITLE = 'Saddle-point paper, Figures 1 and 2: quadratic games'

_TEXT = """
TEXT
"""

_CURVES = (0, 5, 10)  # The s of Figure 1.
_HETEROGENEITIES = tuple(range(16))  # Those of Figure 2.
_READINGS = {'h = 1/2': Reading(0.5), 'h = 1': Reading(1.0)}
# Below this there is nothing but rounding; an exact 0 has no logarithm.
_FLOOR = 1e-18
_NUMBERS = 'figure_2.csv'

_PROGRAM = command_line.Program(
  module='experiments.saddle_figures',
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

# The best rate's distances, by algorithm and s.
_Best = Mapping[tuple[str, int], tuple[float, np.ndarray]]


def all_runs() -> list[Run]:
  """The runs of both figures."""
  return [
    run
    for algorithm in ALGORITHMS
    for reading in _READINGS.values()
    for run in saddle_runs.all_rates(algorithm, reading, _HETEROGENEITIES)
  ]


def _run(flags: dict[str, Any]) -> None:
  progress.show_on_console()
  results = pathlib.Path(flags['results_dir'])
  directory = pathlib.Path(flags['output_dir'])
  files.check_writable(results)
  saddle_runs.make(all_runs(), directory, flags['jobs'])
  best = {
    name: {
      (algorithm, s): saddle_runs.best(algorithm, reading, s, directory)
      for algorithm in ALGORITHMS
      for s in _HETEROGENEITIES
    }
    for name, reading in _READINGS.items()
  }
  results.mkdir(parents=True, exist_ok=True)
  _draw(results, best)
  _write(results, best)


def _draw(results: pathlib.Path, best: Mapping[str, _Best]) -> None:
  from training_loops import plots

  for reading in _READINGS:
    panels = {
      f's = {s}': {
        name: _visible(best[reading][algorithm, s][1])
        for algorithm, name in ALGORITHMS.items()
      }
      for s in _CURVES
    }
    plots.write_decades(
      results / _figure_1(reading),
      panels,
      ('communication rounds', 'distance of x from the optimum'),
      f'Figure 1, {reading}',
    )
  panels = {
    reading: {
      name: _visible(
        np.array([[s, best[reading][algorithm, s][1][-1, 1]] for s in _HETEROGENEITIES])
      )
      for algorithm, name in ALGORITHMS.items()
    }
    for reading in _READINGS
  }
  plots.write_decades(
    results / 'figure_2.png',
    panels,
    ('s', f'distance of x after {ROUNDS} communication rounds'),
    'Figure 2',
  )


def _figure_1(reading: str) -> str:
  return f'figure_1_h{_READINGS[reading].coupling:g}.png'


def _visible(points: np.ndarray) -> np.ndarray:
  return np.column_stack([points[:, 0], np.maximum(points[:, 1], _FLOOR)])


def _table(best: _Best) -> str:
  rows = []
  for s in _HETEROGENEITIES:
    cells = [str(s)]
    for algorithm in ALGORITHMS:
      rate, points = best[algorithm, s]
      cells.append(f'{points[-1, 1]:.1e} ({rate:g})')
    rows.append(cells)
  return tables.markdown(['s', *ALGORITHMS.values()], rows)


def _write(results: pathlib.Path, best: Mapping[str, _Best]) -> None:
  content = [
    f'# {_TITLE}',
    _TEXT.strip(),
    '## How\n\n    make experiment NAME=saddle_figures',
    '## Figure 2\n\n![Figure 2](figure_2.png)',
  ]
  for reading in _READINGS:
    content += [
      f'## {reading}',
      f'![Figure 1]({_figure_1(reading)})',
      f'The distance of x after {ROUNDS} communication rounds, with the best of the '
      'rates (times max(s, 1), in brackets):',
      _table(best[reading]),
    ]
  content.append(f'The numbers: [{_NUMBERS}]({_NUMBERS}).')
  numbers = [
    [_READINGS[reading].coupling, s, name, rate, points[-1, 1]]
    for reading in _READINGS
    for s in _HETEROGENEITIES
    for algorithm, name in ALGORITHMS.items()
    for rate, points in [best[reading][algorithm, s]]
  ]
  header = ['h', 's', 'algorithm', 'rate', 'distance']
  files.write_bytes(results / _NUMBERS, tables.as_csv(header, numbers))
  files.write_bytes(results / 'README.md', ('\n\n'.join(content) + '\n').encode())
  print(f'\n{results / "README.md"}')


if __name__ == '__main__':
  command_line.run(_PROGRAM, _run)
