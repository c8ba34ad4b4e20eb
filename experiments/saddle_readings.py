"""What the saddle-point paper leaves open, read one way and another.

SCAFFOLD-Catalyst-S and SCAFFOLD-S on the quadratic games of Figure 2, with one thing
changed at a time; the text is on the page of `saddle_figures`, whose runs are used.
"""

from collections.abc import Mapping
import dataclasses
import pathlib
from typing import Any

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
- **drawn again**: entries of a_i below 1 are drawn again until they are not.
- **-h**: all signs of y turned, that is of b_i and A_i together.
- **two communications**: a synchronization counts as two, so that there are 250.
"""

_HETEROGENEITIES = (10, 15)
_BOTH = ('scaffold_catalyst_s', 'scaffold_s')
_CATALYST = ('scaffold_catalyst_s',)
_COUPLINGS = {0.5: 'h = 1/2', 1.0: 'h = 1'}
_AS_IN_THE_FIGURES = 'as in the figures'

# What is changed, and for which algorithms that matters.
_CHANGES: Mapping[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {
  _AS_IN_THE_FIGURES: ({}, _BOTH),
  'another game (seed 1)': ({'seed': 1}, _BOTH),
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


def all_runs() -> list[Run]:
  """The runs of all readings."""
  return [
    run
    for change, (_, algorithms) in _CHANGES.items()
    for algorithm in algorithms
    for coupling in _COUPLINGS
    for run in saddle_runs.all_rates(
      algorithm, _reading(change, coupling), _HETEROGENEITIES
    )
  ]


def _run(flags: dict[str, Any]) -> None:
  progress.show_on_console()
  results = pathlib.Path(flags['results_dir'])
  directory = pathlib.Path(flags['output_dir'])
  files.check_writable(results)
  saddle_runs.make(all_runs(), directory, flags['jobs'])
  results.mkdir(parents=True, exist_ok=True)
  _write(results, directory)


def _rows(directory: pathlib.Path) -> list[list[Any]]:
  """Coupling, change, algorithm and the distances."""
  rows: list[list[Any]] = []
  for coupling in _COUPLINGS:

    def add(change, algorithm, name, num_rounds=None, coupling=coupling):
      reading = _reading(change, coupling)
      distances = [
        saddle_runs.best(algorithm, reading, s, directory, num_rounds)[1][-1, 1]
        for s in _HETEROGENEITIES
      ]
      rows.append([coupling, name, ALGORITHMS[algorithm], *distances])

    for change, (_, algorithms) in _CHANGES.items():
      for algorithm in algorithms:
        add(change, algorithm, change)
    for algorithm in _BOTH:
      add(_AS_IN_THE_FIGURES, algorithm, _TWO_COMMUNICATIONS, ROUNDS // 2)
  return rows


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
  content.append(f'The numbers: [{_NUMBERS}]({_NUMBERS}).')
  page = results / 'readings.md'
  files.write_bytes(page, ('\n\n'.join(content) + '\n').encode())
  files.write_bytes(results / _NUMBERS, tables.as_csv(['h', *header], rows))
  print(f'\n{page}')


if __name__ == '__main__':
  command_line.run(_PROGRAM, _run)
