"""Figures 1 and 2 of the saddle-point paper: its games, its runs, its page."""

import numpy as np
import pytest

from experiments import saddle_figures, saddle_games, saddle_readings, saddle_runs
from experiments.saddle_runs import Reading, Run
import tasks
from tests.oracles import saddle_point
from training_loops import runtimes

pytestmark = pytest.mark.slow

_ROUNDS = 6
_RATE = 0.05


@pytest.fixture(scope='module')
def in_process(runtime):
  with runtimes.create('in_process', num_threads=1) as own:
    yield own
  runtime.start()  # For the tests after these.


def _from_the_oracle(algorithm, reading, s):
  """The distances of x that the algorithm has according to the paper."""
  h = reading.coupling
  data = tasks.load(
    'quadratic_game',
    reading.seed,
    heterogeneity=s,
    coupling=h,
    threshold=reading.threshold,
  ).train
  cohort = []
  for name in data.client_ids:
    ((a, b),) = data.rows(name)['x']
    cohort.append((name, {'a': a[np.newaxis], 'b': b[np.newaxis]}))
  d = cohort[0][1]['a'].shape[1]
  start = np.full(d, reading.initial_value)
  z0 = ([start], [start])
  rounds = [cohort] * (_ROUNDS // (2 if algorithm == 'minibatch_mirror_prox' else 1))
  mapping = saddle_point.QuadraticGame(h=h).mapping
  gamma = _RATE / max(s, 1)
  of_gradients = gamma * (20 if reading.gradients == 'sum' else 1)
  local = {'gamma_l': gamma, 'tau': 20}
  match algorithm:
    case 'minibatch_mirror_descent':
      found, _ = saddle_point.mirror_descent(mapping, z0, rounds, gamma=of_gradients)
    case 'minibatch_mirror_prox':
      found, _ = saddle_point.mirror_prox(mapping, z0, rounds, gamma=of_gradients)
    case 'fed_avg_s':
      found, _ = saddle_point.fed_avg_s(
        mapping, z0, rounds, schedule='inverse_sqrt', **local
      )
    case 'scaffold_s':
      found, _ = saddle_point.scaffold_s(mapping, z0, rounds, **local)
    case 'scaffold_catalyst_s':
      rule = {'decrease': reading.decrease}
      if reading.inner_rounds is not None:
        rule = {'inner_rounds': reading.inner_rounds}
      found, _ = saddle_point.scaffold_catalyst_s(
        mapping, z0, rounds, theta=1.0, **rule, **local
      )
  return [np.linalg.norm(x) for (x,), _ in [z0, *found]]


def _played(algorithm, reading):
  """The game with s = 5."""
  run = Run(algorithm, reading, 5, _RATE)
  return saddle_games.Player(algorithm, reading).distances(run)


@pytest.mark.parametrize('algorithm', saddle_runs.ALGORITHMS)
def test_a_run_is_that_of_the_paper(in_process, monkeypatch, algorithm):
  monkeypatch.setattr(saddle_runs, 'ROUNDS', _ROUNDS)
  reading = Reading(1.0)
  player = saddle_games.Player(algorithm, reading)
  for s in (5, 0):  # One after the other, by the same process.
    found = player.distances(Run(algorithm, reading, s, _RATE))
    expected = _from_the_oracle(algorithm, reading, s)
    assert [n for n, _ in found] == list(
      range(0, _ROUNDS + 1, _ROUNDS // (len(found) - 1))
    )
    np.testing.assert_allclose([d for _, d in found], expected, rtol=1e-10)


def test_a_player_plays_other_draws_of_the_game(in_process, monkeypatch):
  monkeypatch.setattr(saddle_runs, 'ROUNDS', _ROUNDS)
  reading = Reading(1.0, seed=3)
  run = Run('scaffold_s', reading, 5, _RATE)
  found = saddle_games.Player('scaffold_s', Reading(1.0)).distances(run)
  expected = _from_the_oracle('scaffold_s', reading, 5)
  np.testing.assert_allclose([d for _, d in found], expected, rtol=1e-10)


def test_a_run_in_another_reading_is_that_of_the_oracle_in_it(in_process, monkeypatch):
  monkeypatch.setattr(saddle_runs, 'ROUNDS', _ROUNDS)
  reading = Reading(
    -0.5, threshold='redraw', initial_value=10.0, seed=1, inner_rounds=2
  )
  found = _played('scaffold_catalyst_s', reading)
  expected = _from_the_oracle('scaffold_catalyst_s', reading, 5)
  np.testing.assert_allclose([d for _, d in found], expected, rtol=1e-10)


@pytest.mark.parametrize(
  'algorithm', ['minibatch_mirror_descent', 'minibatch_mirror_prox']
)
def test_a_run_by_the_sum_of_gradients_is_that_of_the_oracle(
  in_process, monkeypatch, algorithm
):
  monkeypatch.setattr(saddle_runs, 'ROUNDS', _ROUNDS)
  reading = Reading(1.0, gradients='sum')
  found = _played(algorithm, reading)
  expected = _from_the_oracle(algorithm, reading, 5)
  np.testing.assert_allclose([d for _, d in found], expected, rtol=1e-10)


def test_a_run_in_single_precision_is_near_that_in_double(in_process, monkeypatch):
  monkeypatch.setattr(saddle_runs, 'ROUNDS', _ROUNDS)
  single, double = (
    [d for _, d in _played('scaffold_s', reading)]
    for reading in (Reading(1.0, precision='float32'), Reading(1.0))
  )
  np.testing.assert_allclose(single, double, rtol=1e-3)
  assert single[1:] != double[1:]


def test_what_diverged_is_not_the_best_and_an_exact_zero_can_be_drawn(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(saddle_runs, 'ROUNDS', 1)
  ends = {0.1: np.nan, 0.05: 0.0, 0.01: 0.5}
  for run in saddle_figures.all_runs():
    saddle_runs.write(run, tmp_path, [(0, 1.0), (1, ends[run.rate])], seconds=1.5)
  results = tmp_path / 'results'
  saddle_figures._run(
    {'output_dir': str(tmp_path), 'results_dir': str(results), 'jobs': 1}
  )
  page = (results / 'README.md').read_text()
  assert page.count('0.0e+00 (0.05)') == 2 * 16 * 5
  assert 'nan' not in page
  assert '480 runs, 12 minutes of processor time' in page
  assert (results / 'figure_2.csv').read_text().count(',0.05,0.0\n') == 2 * 16 * 5
  for picture in ('figure_1_h0.5.png', 'figure_1_h1.png', 'figure_2.png'):
    assert (results / picture).stat().st_size > 10_000


def _page_of_readings(directory, ends):
  """The lines of the page made of runs that end at ends(run)."""
  for run in saddle_readings.all_runs():
    middle = 2 * run.rate  # Another rate is best then.
    points = [(0, 1.0), (250, middle), (500, ends(run))]
    saddle_runs.write(run, directory, points, seconds=1.0)
  results = directory / 'results'
  saddle_readings._run(
    {'output_dir': str(directory), 'results_dir': str(results), 'jobs': 1}
  )
  return (results / 'readings.md').read_text().splitlines()


def test_readings_are_told_with_the_best_rate_of_the_rounds_they_count(tmp_path):
  ends = {0.1: np.nan, 0.05: 0.25, 0.01: 0.5}
  lines = _page_of_readings(tmp_path, lambda run: ends[run.rate])
  rows = [line for line in lines if '| SCAFFOLD-' in line or '| Minibatch' in line]
  assert len(rows) == 2 * (6 * 2 + 3 + 2 + 2 * 2 + 3)
  for row in rows:
    expected = '2.0e-02' if 'two communications' in row else '2.5e-01'
    assert row.count(expected) == 2


def test_of_draws_the_median_the_worst_and_who_is_ahead_are_told(tmp_path):
  def end(run):
    if run.s != 15 or run.algorithm != 'scaffold_catalyst_s':
      return 1e-3
    return 1e-2 if run.reading.seed == 7 else 1e-9 * (1 + run.reading.seed)

  lines = _page_of_readings(tmp_path, end)
  heading = next(i for i, line in enumerate(lines) if line.startswith('## 10 draws'))
  rows = [
    [cell.strip() for cell in line.strip('|').split('|')]
    for line in lines[heading:]
    if line.startswith('| h = ')
  ]
  assert rows[:3] == [
    ['h = 1/2', 'SCAFFOLD-Catalyst-S', '5.5e-09', '1.0e-02', '9'],
    ['h = 1/2', 'SCAFFOLD-S', '1.0e-03', '1.0e-03', '0'],
    ['h = 1/2', 'Minibatch MP, sum of gradients', '1.0e-03', '1.0e-03', '0'],
  ]
  numbers = (tmp_path / 'results' / 'draws.csv').read_text().splitlines()
  assert numbers[8] == '0.5,7,0.01,0.001,0.001'
  assert len(numbers) == 1 + 2 * 10


def test_of_rates_that_end_at_rounding_the_quickest_is_best(tmp_path):
  reading = Reading(0.5)
  middles = {0.1: 1e-3, 0.05: 1e-16, 0.01: 1e-9}
  ends = {0.1: 1e-17, 0.05: 3e-16, 0.01: 2e-15}
  for run in saddle_runs.all_rates('scaffold_s', reading, [5]):
    points = [(0, 1.0), (250, middles[run.rate]), (500, ends[run.rate])]
    saddle_runs.write(run, tmp_path, points, seconds=1.0)
  rate, points = saddle_runs.best('scaffold_s', reading, 5, tmp_path)
  assert rate == 0.05
  assert points[-1, 1] == 3e-16


def test_runs_have_files_of_their_own(tmp_path):
  runs = {*saddle_figures.all_runs(), *saddle_readings.all_runs()}
  assert len({run.path(tmp_path) for run in runs}) == len(runs)
  assert len(set(saddle_figures.all_runs())) == 2 * 16 * 5 * 3


def test_a_reading_comes_back_from_the_list_of_runs(tmp_path):
  reading = Reading(0.5, threshold='redraw', inner_rounds=5)
  run = Run('scaffold_s', reading, 3, 0.1)
  saddle_runs.write_list([run], tmp_path)
  assert saddle_runs.read_list(tmp_path) == [run]
