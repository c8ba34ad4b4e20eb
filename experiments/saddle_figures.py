"""Figures 1 and 2 of Hou et al. 2021: five algorithms on quadratic games.

The runs are made by `saddle_games`, in processes of its own; here are the pictures and
the page. A run that is finished is not made again.
"""

from collections.abc import Mapping
import pathlib
import subprocess
import sys
import time
from typing import Any

import numpy as np
import tqdm

from experiments import saddle_games
from experiments.saddle_games import (
  ALGORITHMS,
  COUPLINGS,
  HETEROGENEITIES,
  RATES,
  ROUNDS,
  Run,
)
from training_loops import batch, command_line, files, pool, processes, progress, tables
from training_loops.options import Section, path

_TITLE = 'Saddle-point paper, Figures 1 and 2: quadratic games'

_TEXT = """
TEXT
"""

_CURVES = (0, 5, 10)  # The s of Figure 1.
_READINGS = {0.5: 'h = 1/2', 1.0: 'h = 1'}
# Below this there is nothing but rounding; an exact 0 has no logarithm.
_FLOOR = 1e-18
_POLL_SECONDS = 0.5

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


def _run(flags: dict[str, Any]) -> None:
  progress.show_on_console()
  results = pathlib.Path(flags['results_dir'])
  directory = pathlib.Path(flags['output_dir'])
  for where in (results, directory):
    files.check_writable(where)
  directory.mkdir(parents=True, exist_ok=True)
  _make_runs(directory, flags['jobs'] or pool.num_cores())
  best = {coupling: _best(directory, coupling) for coupling in COUPLINGS}
  results.mkdir(parents=True, exist_ok=True)
  _draw(results, best)
  _write(results, best)


def _make_runs(directory: pathlib.Path, jobs: int) -> None:
  """Makes the runs that are not there yet, several at once."""
  files.remove_leftovers(directory)  # Of one that was killed.
  runs = saddle_games.all_runs()

  def num_done():
    return sum(run.path(directory).exists() for run in runs)

  if num_done() == len(runs):
    return
  children = [
    subprocess.Popen(
      processes.ending_with_parent(
        [sys.executable, '-m', 'experiments.saddle_games', str(directory), str(part)]
        + [str(jobs)]
      ),
      stdin=subprocess.DEVNULL,
      stdout=subprocess.DEVNULL,
      # Ctrl-C is for this program, which ends them.
      start_new_session=True,
    )
    for part in range(jobs)
  ]
  try:
    with tqdm.tqdm(total=len(runs), initial=num_done(), unit='run') as bar:
      while any(child.poll() is None for child in children):
        time.sleep(_POLL_SECONDS)
        bar.update(num_done() - bar.n)
        if any(child.poll() for child in children):
          raise RuntimeError('A process that plays the games has failed; see above.')
  finally:
    for child in children:
      child.kill()
      child.wait()


def _best(directory: pathlib.Path, coupling: float) -> _Best:
  """What the best of the rates has, at the end."""
  best = {}
  for algorithm in ALGORITHMS:
    for s in HETEROGENEITIES:
      found = [
        (rate, saddle_games.read(Run(algorithm, coupling, s, rate), directory))
        for rate in RATES
      ]
      # One that diverged is no good; its distance may be no number either.
      best[algorithm, s] = min(
        found, key=lambda f: np.nan_to_num(f[1][-1, 1], nan=np.inf)
      )
  return best


def _draw(results: pathlib.Path, best: Mapping[float, _Best]) -> None:
  from training_loops import plots

  for coupling, reading in _READINGS.items():
    panels = {
      f's = {s}': {
        name: _visible(best[coupling][algorithm, s][1])
        for algorithm, name in ALGORITHMS.items()
      }
      for s in _CURVES
    }
    plots.write_decades(
      results / f'figure_1_h{coupling:g}.png',
      panels,
      ('communication rounds', 'distance of x from the optimum'),
      f'Figure 1, {reading}',
    )
  panels = {
    reading: {
      name: _visible(
        np.array([[s, best[coupling][algorithm, s][1][-1, 1]] for s in HETEROGENEITIES])
      )
      for algorithm, name in ALGORITHMS.items()
    }
    for coupling, reading in _READINGS.items()
  }
  plots.write_decades(
    results / 'figure_2.png',
    panels,
    ('s', f'distance of x after {ROUNDS} communication rounds'),
    'Figure 2',
  )


def _visible(points: np.ndarray) -> np.ndarray:
  return np.column_stack([points[:, 0], np.maximum(points[:, 1], _FLOOR)])


def _table(best: _Best) -> str:
  rows = []
  for s in HETEROGENEITIES:
    cells = [str(s)]
    for algorithm in ALGORITHMS:
      rate, points = best[algorithm, s]
      cells.append(f'{points[-1, 1]:.1e} ({rate:g})')
    rows.append(cells)
  return tables.markdown(['s', *ALGORITHMS.values()], rows)


def _write(results: pathlib.Path, best: Mapping[float, _Best]) -> None:
  content = [
    f'# {_TITLE}',
    _TEXT.strip(),
    '## How\n\n    make experiment NAME=saddle_figures',
    '## Figure 2\n\n![Figure 2](figure_2.png)',
  ]
  for coupling, reading in _READINGS.items():
    content += [
      f'## {reading}',
      f'![Figure 1](figure_1_h{coupling:g}.png)',
      f'The distance of x after {ROUNDS} communication rounds, with the best of the '
      'rates (times max(s, 1), in brackets):',
      _table(best[coupling]),
    ]
  files.write_bytes(results / 'README.md', ('\n\n'.join(content) + '\n').encode())
  print(f'\n{results / "README.md"}')


if __name__ == '__main__':
  command_line.run(_PROGRAM, _run)
