"""Figures 1 and 2 of the saddle-point paper: its games, its runs, its page."""

import numpy as np
import pytest

from experiments import saddle_figures, saddle_games
from experiments.saddle_games import Run
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


def _from_the_oracle(algorithm, h, s):
  """The distances of x that the algorithm has according to the paper."""
  data = tasks.load('quadratic_game', 0, heterogeneity=s, coupling=h).train
  cohort = []
  for name in data.client_ids:
    ((a, b),) = data.rows(name)['x']
    cohort.append((name, {'a': a[np.newaxis], 'b': b[np.newaxis]}))
  d = cohort[0][1]['a'].shape[1]
  z0 = ([np.ones(d)], [np.ones(d)])
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
      found, _ = saddle_point.scaffold_catalyst_s(
        mapping, z0, rounds, theta=1.0, decrease=0.5, **local
      )
  return [np.linalg.norm(x) for (x,), _ in [z0, *found]]


@pytest.mark.parametrize('algorithm', saddle_games.ALGORITHMS)
def test_a_run_is_that_of_the_paper(in_process, monkeypatch, algorithm):
  monkeypatch.setattr(saddle_games, 'ROUNDS', _ROUNDS)
  player = saddle_games.Player(algorithm, 1.0)
  for s in (5, 0):  # One after the other, by the same process.
    found = player.distances(s, _RATE)
    expected = _from_the_oracle(algorithm, 1.0, s)
    assert [n for n, _ in found] == list(
      range(0, _ROUNDS + 1, _ROUNDS // (len(found) - 1))
    )
    np.testing.assert_allclose([d for _, d in found], expected, rtol=1e-10)


def test_what_diverged_is_not_the_best_and_an_exact_zero_can_be_drawn(
  tmp_path, monkeypatch
):
  monkeypatch.setattr(saddle_games, 'ROUNDS', 1)
  ends = {0.1: 'nan', 0.05: '0.0', 0.01: '0.5'}
  for run in saddle_games.all_runs():
    run.path(tmp_path).write_text(f'0,1.0\n1,{ends[run.rate]}\n')
  results = tmp_path / 'results'
  saddle_figures._run(
    {'output_dir': str(tmp_path), 'results_dir': str(results), 'jobs': 1}
  )
  page = (results / 'README.md').read_text()
  assert page.count('0.0e+00 (0.05)') == 2 * 16 * 5
  assert 'nan' not in page
  for picture in ('figure_1_h0.5.png', 'figure_1_h1.png', 'figure_2.png'):
    assert (results / picture).stat().st_size > 10_000


def test_runs_have_files_of_their_own(tmp_path):
  paths = {run.path(tmp_path) for run in saddle_games.all_runs()}
  assert len(paths) == 2 * 16 * 5 * 3
  assert Run('scaffold_s', 0.5, 0, 0.1).path(tmp_path) in paths
