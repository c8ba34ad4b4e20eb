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
  local = {'gamma_l': gamma, 'tau': 20}
  match algorithm:
    case 'minibatch_mirror_descent':
      found, _ = saddle_point.mirror_descent(mapping, z0, rounds, gamma=gamma)
    case 'minibatch_mirror_prox':
      found, _ = saddle_point.mirror_prox(mapping, z0, rounds, gamma=gamma)
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


@pytest.mark.parametrize('algorithm', saddle_runs.ALGORITHMS)
def test_a_run_is_that_of_the_paper(in_process, monkeypatch, algorithm):
  monkeypatch.setattr(saddle_runs, 'ROUNDS', _ROUNDS)
  reading = Reading(1.0)
  player = saddle_games.Player(algorithm, reading)
  for s in (5, 0):  # One after the other, by the same process.
    found = player.distances(s, _RATE)
    expected = _from_the_oracle(algorithm, reading, s)
    assert [n for n, _ in found] == list(
      range(0, _ROUNDS + 1, _ROUNDS // (len(found) - 1))
    )
    np.testing.assert_allclose([d for _, d in found], expected, rtol=1e-10)


def test_a_run_in_another_reading_is_that_of_the_oracle_in_it(in_process, monkeypatch):
  monkeypatch.setattr(saddle_runs, 'ROUNDS', _ROUNDS)
  reading = Reading(
    -0.5, threshold='redraw', initial_value=10.0, seed=1, inner_rounds=2
  )
  found = saddle_games.Player('scaffold_catalyst_s', reading).distances(5, _RATE)
  expected = _from_the_oracle('scaffold_catalyst_s', reading, 5)
  np.testing.assert_allclose([d for _, d in found], expected, rtol=1e-10)


def test_a_run_in_single_precision_is_near_that_in_double(in_process, monkeypatch):
  monkeypatch.setattr(saddle_runs, 'ROUNDS', _ROUNDS)
  single, double = (
    [d for _, d in saddle_games.Player('scaffold_s', reading).distances(5, _RATE)]
    for reading in (Reading(1.0, precision='float32'), Reading(1.0))
  )
  np.testing.assert_allclose(single, double, rtol=1e-3)
  assert single[1:] != double[1:]


def test_what_diverged_is_not_the_best_and_an_exact_zero_can_be_drawn(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(saddle_runs, 'ROUNDS', 1)
  ends = {0.1: 'nan', 0.05: '0.0', 0.01: '0.5'}
  for run in saddle_figures.all_runs():
    run.path(tmp_path).write_text(f'0,1.0\n1,{ends[run.rate]}\n')
  results = tmp_path / 'results'
  saddle_figures._run(
    {'output_dir': str(tmp_path), 'results_dir': str(results), 'jobs': 1}
  )
  page = (results / 'README.md').read_text()
  assert page.count('0.0e+00 (0.05)') == 2 * 16 * 5
  assert 'nan' not in page
  assert (results / 'figure_2.csv').read_text().count(',0.05,0.0\n') == 2 * 16 * 5
  for picture in ('figure_1_h0.5.png', 'figure_1_h1.png', 'figure_2.png'):
    assert (results / picture).stat().st_size > 10_000


def test_readings_are_told_with_the_best_rate_of_the_rounds_they_count(tmp_path):
  ends = {0.1: 'nan', 0.05: '0.25', 0.01: '0.5'}
  for run in saddle_readings.all_runs():
    middle = 2 * run.rate  # Another rate is best then.
    run.path(tmp_path).write_text(f'0,1.0\n250,{middle}\n500,{ends[run.rate]}\n')
  results = tmp_path / 'results'
  saddle_readings._run(
    {'output_dir': str(tmp_path), 'results_dir': str(results), 'jobs': 1}
  )
  lines = (results / 'readings.md').read_text().splitlines()
  rows = [line for line in lines if '| SCAFFOLD-' in line]
  assert len(rows) == 2 * (7 * 2 + 3 + 2)
  for row in rows:
    expected = '2.0e-02' if 'two communications' in row else '2.5e-01'
    assert row.count(expected) == 2


def test_of_rates_that_end_at_rounding_the_quickest_is_best(tmp_path):
  reading = Reading(0.5)
  middles = {0.1: 1e-3, 0.05: 1e-16, 0.01: 1e-9}
  ends = {0.1: 1e-17, 0.05: 3e-16, 0.01: 2e-15}
  for run in saddle_runs.all_rates('scaffold_s', reading, [5]):
    lines = f'0,1.0\n250,{middles[run.rate]}\n500,{ends[run.rate]}\n'
    run.path(tmp_path).write_text(lines)
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
