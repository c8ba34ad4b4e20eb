"""Tests of the grids over the server's rate and epsilon."""

import csv
import math

import pytest

from experiments import experiment, mime_stability
from training_loops import sweep_results


def _trial(value, **point):
  state = 'diverged' if math.isnan(value) else 'done'
  return sweep_results.Trial(point, state, value, reason='', seconds=1.0)


def test_of_every_square_the_best_client_rate_is_shown():
  trials = [
    _trial(0.9, server=1, eps=0.1, client=1),
    _trial(0.8, server=1, eps=0.1, client=0.1),
    _trial(0.7, server=10, eps=0.1, client=0.1),
    _trial(math.nan, server=10, eps=0.1, client=1),
  ]
  by_square = mime_stability._best(trials, 'server', 'eps')
  assert by_square == {(1, 0.1): 0.9, (10, 0.1): 0.7}
  assert mime_stability._best(trials, 'server', None) == {(1,): 0.9, (10,): 0.7}


def test_the_table_tells_the_default_rate_and_how_wide_the_good_region_is():
  best = {'FedAvg, Adam': {(1, 0.1): 0.5, (1, 1): 0.52, (10, 1): 0.56, (10, 0.1): 0.3}}
  row = mime_stability._spread_table(best).splitlines()[-1]
  cells = [cell.strip() for cell in row.split('|')[1:-1]]
  assert cells == ['FedAvg, Adam', '56.0%', '52.0%', '2 of 4']


@pytest.mark.slow
def test_its_page_has_both_figures_and_every_run(tmp_path, monkeypatch):
  sweeps = tmp_path / 'sweeps'
  sweeps.mkdir()
  rates = 'server_learning_rate: [1, 0.1]\n  client_learning_rate: [0.1]\n'
  (sweeps / 'mime_stability.yaml').write_text(f'search:\n  {rates}')
  for of in ('server', 'base'):
    text = f'search:\n  {rates}  {of}_epsilon: [0.001]\n'
    (sweeps / f'mime_stability_{of}_epsilon.yaml').write_text(text)
  monkeypatch.setattr(experiment, 'SWEEPS', sweeps)
  flags = {'task': 'digits_logistic', 'clients_per_round': 2}
  monkeypatch.setattr(mime_stability, '_FLAGS', flags)
  for name, of in (('_ADAPTIVE', 'Adam'), ('_OTHERS', 'SGD')):
    methods = dict(list(getattr(mime_stability, name)[of].items())[:2])
    monkeypatch.setattr(mime_stability, name, {of: methods})
  mime_stability._run(
    {
      'data_dir': None,
      'jobs': 2,
      'output_dir': str(tmp_path / 'runs'),
      'results_dir': str(tmp_path / 'results'),
      'rounds': 1,
      'tuning_rounds': None,
      'num_seeds': None,
    }
  )
  results = tmp_path / 'results'
  page = (results / 'README.md').read_text()
  for figure in ('figure_4.png', 'figure_5.png'):
    assert f'({figure})' in page
    assert (results / figure).read_bytes().startswith(b'\x89PNG')
  with open(results / 'runs.csv', newline='') as file:
    assert len(list(csv.DictReader(file))) == 2 * 2 * 2
