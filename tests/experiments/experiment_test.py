"""Tests of what experiments share, and of the files that come with them."""

import ast
import csv
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from experiments import (
  elastic,
  experiment,
  mime_figure_1,
  mime_figure_3,
  mime_table_2,
  mixed_language,
  mixed_movies,
  mixed_smile,
  scaffold_demos,
  scaffold_emnist,
  server_optimizers,
)
from training_loops import compare, published, results, sweep_files, train_flags

_ROOT = pathlib.Path(__file__).parents[2]
_EXPERIMENTS = pathlib.Path(experiment.__file__).parent
_SWEEPS = _EXPERIMENTS / 'sweeps'

_NUM_CLIENTS, _NUM_SEEDS, _ROUNDS, _TUNING_ROUNDS = 6, 2, 4, 2
_TINY = f"""
from experiments import experiment
from experiments.experiment import Comparison, Entry, Overview, Picture, Table

_ENTRIES = {{
  'Plain': Entry({{'algorithm': 'fed_avg'}}, 'mime_light.yaml'),
  'Adam server': Entry(
    {{'algorithm': 'fed_avg', 'server_optimizer': 'adam'}},
    'mime_light_server.yaml',
    like='Plain',
  ),
}}
_DIGITS = Comparison(
  name='digits',
  title='Some digits',
  flags={{
    'task': 'digits_logistic',
    'num_clients': {_NUM_CLIENTS},
    'clients_per_round': 3,
    'rounds': 500,
    'rounds_per_eval': 2,
  }},
  entries=_ENTRIES,
  tuning_rounds={_TUNING_ROUNDS},
  num_seeds={_NUM_SEEDS},
  target=0.05,
  panels={{'one': ['Plain'], 'both': ['Plain', 'Adam server']}},
  published_clients=3400,
)
_GIVEN = Comparison(
  name='given',
  title='Rates that are given',
  flags={{
    'task': 'digits_mixed',
    'num_clients': {_NUM_CLIENTS},
    'clients_per_round': 3,
    'rounds': {_ROUNDS},
    'rounds_per_eval': 1,
  }},
  entries={{
    'Server': Entry({{'algorithm': 'only_central', 'central_steps': 2}}),
    'First the server': Entry(
      {{'algorithm': 'transfer_learning', 'central_steps': 2, 'transfer_round': 2}}
    ),
    'First clients': Entry(
      {{
        'algorithm': 'transfer_learning',
        'transfer_order': 'federated_first',
        'central_steps': 2,
        'transfer_round': 2,
      }}
    ),
  }},
  metric='eval/clients_accuracy',
  target='First the server',
  pictures={{
    'parts.png': Picture(['eval/clients_accuracy', 'eval/server_accuracy']),
    'first.png': Picture(['eval/loss'], ['First the server', 'First clients']),
  }},
  tables=[
    Table(
      'Where they end',
      {{'accuracy': 'eval/clients_accuracy', 'loss': 'eval/loss'}},
      {{'one': 'Server', 'other': 'First clients'}},
      published={{'one': (0.5,)}},
      against={{'other': 'one'}},
      num_evals=2,
    )
  ],
)
_EMNIST = Comparison(
  name='emnist',
  title='Some handwriting',
  flags={{'task': 'emnist_logistic', 'rounds': 2}},
  entries=_ENTRIES,
  tuning_rounds=1,
  num_seeds=1,
)
_BY_SIZE = [
  Comparison(
    name=f'of_{{num_clients}}',
    title=f'Of {{num_clients}} clients',
    flags={{
      'task': 'digits_logistic',
      'num_clients': num_clients,
      'clients_per_round': 3,
      'rounds': {_ROUNDS},
      'rounds_per_eval': 1,
    }},
    entries={{
      'Plain': Entry({{'algorithm': 'fed_avg'}}),
      **({{'Kept': Entry({{'algorithm': 'scaffold'}})}} if num_clients == 4 else {{}}),
    }},
    target=0.05,
  )
  for num_clients in (4, 5)
]
_OVERVIEW = Overview('By size', 'sizes.png', {{'four': 'of_4', 'five': 'of_5'}})
if __name__ == '__main__':
  experiment.main(__file__, 'A title', 'A text.', COMPARISONS)
"""


def _run(directory, comparisons, *flags: str) -> subprocess.CompletedProcess:
  """Runs an experiment from a file in the directory, and lets it write there."""
  content = _TINY.replace('COMPARISONS', comparisons)
  (directory / 'tiny.py').write_text(content)
  return subprocess.run(
    [
      *(sys.executable, '-m', 'tiny'),
      f'--output_dir={directory / "runs"}',
      f'--results_dir={directory / "results"}',
      *flags,
    ],
    cwd=directory,
    env={
      **os.environ,
      'PYTHONPATH': os.pathsep.join([str(_ROOT), str(directory)]),
      # Nobody listens there: there is no network.
      **dict.fromkeys(('http_proxy', 'https_proxy'), 'http://127.0.0.1:9'),
      'no_proxy': '',
    },
    capture_output=True,
    text=True,
    timeout=500,
  )


@pytest.fixture(scope='module', name='tiny')
def tiny_experiment(tmp_path_factory):
  """The directory of an experiment that was run."""
  directory = tmp_path_factory.mktemp('tiny')
  done = _run(directory, '[_DIGITS]', f'--rounds={_ROUNDS}')
  assert (done.returncode, done.stderr) == (0, '')
  assert done.stdout.splitlines()[-1] == str(directory / 'results' / 'README.md')
  return directory


@pytest.fixture(scope='module', name='page')
def page_of_the_experiment(tiny):
  return (tiny / 'results' / 'README.md').read_text(encoding='utf-8')


def _accuracies(run: pathlib.Path) -> list[float]:
  with open(run / 'metrics.csv', newline='') as file:
    return [float(row['eval/accuracy']) for row in csv.DictReader(file)]


def _flags(run: pathlib.Path) -> dict:
  return json.loads((run / 'config.json').read_text())['flags']


def _tables(page: str) -> list[list[list[str]]]:
  """The tables of a Markdown page: their rows, the first of which is the head."""
  tables = re.findall(r'(?:^\|.*\|\n)+', page, re.MULTILINE)
  return [
    [[cell.strip() for cell in line.split('|')[1:-1]] for line in table.splitlines()]
    for table in tables
  ]


@pytest.mark.slow
def test_the_page_begins_with_what_it_is_about_and_how_to_make_it(page):
  assert page.startswith('# A title\n\nA text.\n\n## How\n\n')
  assert f'\n    make experiment NAME=tiny ARGS="--rounds={_ROUNDS}"\n' in page
  assert '\n## Some digits\n' in page
  assert 'Task digits_logistic: 4 rounds of 3 clients, seeds 0, 1.' in page


@pytest.mark.slow
def test_the_table_has_what_the_runs_gave(tiny, page):
  results, *_ = _tables(page)
  assert [row[0] for row in results[2:]] == ['Plain', 'Adam server']
  for row, name in zip(results[2:], ('Plain', 'Adam_server'), strict=True):
    runs = sorted((tiny / 'runs' / 'digits' / 'runs' / name).iterdir())
    assert [run.name for run in runs] == ['seed_0', 'seed_1']
    final = [_accuracies(run)[-1] for run in runs]
    best = [max(_accuracies(run)) for run in runs]
    cells = dict(zip(results[0], row, strict=True))
    assert cells['seeds'] == '2'
    for head, values in (('final accuracy', final), ('best accuracy', best)):
      deviation = 100 * np.std(values, ddof=1)
      assert cells[head] == f'{np.mean(values):.1%} ± {deviation:.1f}'
    assert 'rounds to 5.0%' in cells


@pytest.mark.slow
def test_every_link_and_picture_of_the_page_leads_somewhere(tiny, page):
  targets = re.findall(r'\]\(([^)]*)\)', page)
  # Where results are written if nothing else is said.
  usual = _ROOT / 'docs' / 'results' / 'tiny'
  outside = [target for target in targets if target.startswith('../')]
  for target in outside:
    file, _, heading = target.partition('#')
    headings = re.findall('^#+ (.*)', (usual / file).resolve().read_text(), re.M)
    assert heading in [re.sub(r'\W+', '-', text.lower()) for text in headings]
  inside = set(targets) - set(outside)
  assert {f'digits/{name}' for name in ('panels.png', 'report.html')} <= inside
  for target in inside:
    assert (tiny / 'results' / target).is_file()
  (shown,) = re.findall(r'!\[.+\]\((.*)\)', page)
  assert shown == 'digits/panels.png'
  for name in ('curves.png', 'panels.png'):
    picture = (tiny / 'results' / 'digits' / name).read_bytes()
    assert picture.startswith(b'\x89PNG')


@pytest.mark.slow
def test_a_target_can_be_what_an_algorithm_ends_with(tiny):
  runs = [tiny / 'runs' / 'digits' / 'runs' / 'Plain' / f'seed_{i}' for i in (0, 1)]
  comparison = experiment.Comparison(
    name='x',
    title='X',
    flags={},
    entries={},
    tuning_rounds=1,
    num_seeds=2,
    target='Plain',
  )
  found = experiment._target(comparison, results.load_all(runs))
  assert found == pytest.approx(np.mean([_accuracies(run)[-1] for run in runs]))


@pytest.mark.slow
def test_the_page_tells_the_rates_that_were_found_and_the_runs_have_them(tiny, page):
  found = {row[0]: row[1:] for row in _tables(page)[1][2:]}
  assert list(found) == ['Plain', 'Adam server']
  before = {}
  for name, (flags, value, remark) in found.items():
    directory = tiny / 'runs' / 'digits' / 'tuning' / name.replace(' ', '_') / 'runs'
    tried = {run: max(_accuracies(run)) for run in directory.iterdir()}
    assert len(tried) == 9
    assert value == f'{max(tried.values()):.1%}'
    chosen = dict(pair.split('=') for pair in flags.split(', '))
    (searched,) = chosen.keys() - before.keys()
    # What the one before found stays, also while the next is searched for.
    assert before.items() <= chosen.items()
    rates = {}
    for run, reached in tried.items():
      own = _flags(run)
      assert all(own[flag] == float(taken) for flag, taken in before.items())
      assert (own['rounds'], own['seed']) == (_TUNING_ROUNDS, 0)
      rates[own[searched]] = reached
    rate = float(chosen[searched])
    assert rates[rate] == max(rates.values())
    ends = {max(rates): 'highest', min(rates): 'lowest'}
    assert remark == (f'{searched} is the {ends[rate]} tried' if rate in ends else '')
    final = tiny / 'runs' / 'digits' / 'runs' / name.replace(' ', '_')
    for run in final.iterdir():
      assert all(_flags(run)[flag] == float(v) for flag, v in chosen.items())
      assert _flags(run)['rounds'] == _ROUNDS
    before = chosen
  assert list(before) == ['client_learning_rate', 'server_learning_rate']


@pytest.mark.slow
def test_the_page_tells_which_data_these_are_and_that_they_are_not_the_papers(page):
  head, _, train, test = _tables(page)[2]
  assert head[:3] == ['', 'clients', 'examples']
  assert train[:2] == ['train', str(_NUM_CLIENTS)]
  assert test[0] == 'test'
  assert "**These are not the paper's data**, which have 3,400 clients" in page


@pytest.mark.slow
def test_the_page_tells_what_it_was_made_with_and_how_long_it_took(page):
  assert f'Made with python {sys.version.split()[0]}, ' in page
  assert 'tensorflow-federated 0.87.0' in page
  num_runs = 2 * 9 + 2 * _NUM_SEEDS
  assert re.search(
    rf'^{num_runs} runs, \d+ (minutes|seconds) of training in all, \d+ runs at a',
    page,
    re.M,
  )


@pytest.mark.slow
def test_the_page_names_no_place_on_this_machine(tiny, page):
  assert str(tiny) not in page
  assert str(_ROOT) not in page


@pytest.mark.slow
def test_a_second_time_nothing_is_trained_and_the_results_are_the_same(tiny):
  def content():
    return {
      path: path.read_bytes()
      for part in ('results', 'runs')
      for path in (tiny / part).rglob('*')
      # A data base may change in ways that mean nothing.
      if path.is_file() and path.suffix != '.db'
    }

  def logs():
    return {path: path.stat().st_mtime_ns for path in tiny.rglob('train.log')}

  before, before_logs = content(), logs()
  assert len(before_logs) == 2 * 9 + 2 * _NUM_SEEDS
  done = _run(tiny, '[_DIGITS]', f'--rounds={_ROUNDS}')
  assert (done.returncode, done.stderr) == (0, '')
  changed = {path.name for path, old in content().items() if before.get(path) != old}
  assert not changed
  assert logs() == before_logs


@pytest.mark.slow
def test_without_sweeps_the_page_has_results_pictures_and_nothing_tuned(tmp_path):
  done = _run(tmp_path, '[_GIVEN]')
  assert (done.returncode, done.stderr) == (0, '')
  page = (tmp_path / 'results' / 'README.md').read_text(encoding='utf-8')
  assert 'sweeps' not in page
  assert not (tmp_path / 'results' / 'given' / 'tuning.csv').exists()
  for name in ('parts.png', 'first.png'):
    assert f'![{name}](given/{name})' in page
    picture = (tmp_path / 'results' / 'given' / name).read_bytes()
    assert picture.startswith(b'\x89PNG')
  assert '[The numbers of this picture](given/first.csv)' in page
  with open(tmp_path / 'results' / 'given' / 'first.csv', newline='') as file:
    numbers = list(csv.DictReader(file))
  assert numbers[0].keys() == {'name', 'seed', 'round', 'eval/loss'}
  assert {row['name'] for row in numbers} == {'First the server', 'First clients'}
  head, _, *rows = _tables(page)[0]
  assert [row[0] for row in rows] == ['Server', 'First the server', 'First clients']
  runs = tmp_path / 'runs' / 'given' / 'runs'
  for row, name in zip(rows, sorted(os.listdir(runs), reverse=True), strict=True):
    with open(runs / name / 'seed_0' / 'metrics.csv', newline='') as file:
      *_, last = csv.DictReader(file)
    cells = dict(zip(head, row, strict=True))
    (final,) = [cells[name] for name in head if name.startswith('final')]
    assert float(final.strip('%')) == pytest.approx(
      float(last['eval/clients_accuracy']) * (100 if '%' in final else 1), abs=0.06
    )
  assert re.search(r'^3 runs, \d+ seconds of training in all, \d', page, re.M)
  assert '### Where they end\n\nMeans over the last 2 evaluated rounds:' in page
  head, _, one, other = _tables(page)[1]
  heads = (
    f'{name}{what}'
    for what in ('', ', seed by seed', ', published')
    for name in ('accuracy', 'loss')
  )
  assert head == ['', *heads]
  ends = []
  for row, name in ((one, 'Server'), (other, 'First_clients')):
    with open(runs / name / 'seed_0' / 'metrics.csv', newline='') as file:
      last = list(csv.DictReader(file))[-2:]
    ended = np.mean([float(line['eval/clients_accuracy']) for line in last])
    assert row[1] == f'{ended:.1%}'
    assert row[2] == f'{np.mean([float(line["eval/loss"]) for line in last]):.4g}'
    ends.append(ended)
  assert (one[3:], other[5:]) == (['', '', '50.0%', ''], ['', ''])
  assert float(other[3].strip('%')) == pytest.approx(
    100 * (ends[1] - ends[0]), abs=0.06
  )


@pytest.mark.slow
def test_an_overview_shows_comparisons_side_by_side(tmp_path):
  done = _run(tmp_path, '_BY_SIZE, [_OVERVIEW]')
  assert (done.returncode, done.stderr) == (0, '')
  page = (tmp_path / 'results' / 'README.md').read_text(encoding='utf-8')
  assert page.index('## By size') < page.index('## Of 4 clients')
  assert '![By size](sizes.png)' in page
  assert (tmp_path / 'results' / 'sizes.png').read_bytes().startswith(b'\x89PNG')
  assert 'Rounds to 5.0% of eval/accuracy:' in page
  overview, *of_comparisons = _tables(page)
  assert overview[0] == ['', 'four', 'five']
  assert [row[0] for row in overview[2:]] == ['Plain', 'Kept']
  four = {row[0]: row for row in of_comparisons[0][2:]}
  column = of_comparisons[0][0].index('rounds to 5.0%')
  assert [row[1] for row in overview[2:]] == [
    four[n][column] for n in ('Plain', 'Kept')
  ]
  assert overview[3][2] == ''  # It is not in the other one.


def _assert_is_refused(done, directory, *parts: str):
  assert done.returncode == 2, done.stderr
  assert done.stderr.startswith('tiny: error: ')
  assert done.stderr.count('\n') == 1
  for part in parts:
    assert part in done.stderr
  assert not (directory / 'runs').exists()


def test_data_that_are_not_there_are_told_of_before_anything_is_done(tmp_path):
  (tmp_path / 'data').mkdir()
  flag = f'--data_dir={tmp_path / "data"}'
  done = _run(tmp_path, '[_DIGITS, _EMNIST]', flag)
  _assert_is_refused(done, tmp_path, 'emnist_all.sqlite', str(tmp_path / 'data'))
  assert done.stdout == ''
  assert not (tmp_path / 'results').exists()


def test_where_results_cannot_be_written_nothing_is_trained(tmp_path):
  (tmp_path / 'results').touch()
  done = _run(tmp_path, '[_DIGITS]', '--rounds=1')
  _assert_is_refused(done, tmp_path, f'{tmp_path / "results"} is not a directory')


def test_a_flag_that_there_is_not_is_refused(tmp_path):
  done = _run(tmp_path, '[_DIGITS]', '--round=3')
  _assert_is_refused(done, tmp_path, 'did you mean --rounds?')


# The files that come with the experiments.


def _half_powers_of_ten(first: float, count: int) -> list[float]:
  return [first * 10 ** (-k / 2) for k in range(count)]


_CLIENT_RATES = _half_powers_of_ten(1, 9)
_SERVER_RATES = _half_powers_of_ten(10, 9)
_EPSILONS = [0.1, 1e-3, 1e-7]


@pytest.mark.parametrize(
  ('file', 'algorithm', 'search'),
  [
    ('mime_light.yaml', 'fed_avg', {'client_learning_rate': _CLIENT_RATES}),
    ('mime_light_server.yaml', 'server_only', {'server_learning_rate': _CLIENT_RATES}),
    (
      'mime_heavy.yaml',
      'fed_avg',
      {'client_learning_rate': _CLIENT_RATES, 'server_learning_rate': _SERVER_RATES},
    ),
    (
      'mime_heavy_adaptive.yaml',
      'fed_avg',
      {
        'client_learning_rate': _CLIENT_RATES,
        'server_learning_rate': _SERVER_RATES,
        'server_epsilon': [10**-k for k in range(8)],
      },
    ),
    ('mime_part.yaml', 'mime', {'client_learning_rate': _CLIENT_RATES[2:7]}),
    (
      'mime_stability.yaml',
      'mime',
      {
        'server_learning_rate': _SERVER_RATES[:5],
        'client_learning_rate': _CLIENT_RATES[:5],
      },
    ),
    (
      'mime_stability_server_epsilon.yaml',
      'fed_avg',
      {'server_learning_rate': _SERVER_RATES[:5:2], 'server_epsilon': _EPSILONS}
      | {'client_learning_rate': _CLIENT_RATES[:7:2]},
    ),
    (
      'mime_stability_base_epsilon.yaml',
      'mime',
      {'server_learning_rate': _SERVER_RATES[:5:2], 'base_epsilon': _EPSILONS}
      | {'client_learning_rate': _CLIENT_RATES[:7:2]},
    ),
    (
      'scaffold_client_rate.yaml',
      'scaffold',
      {'client_learning_rate': [0.03, 0.1, 0.3, 1.0]},
    ),
    (
      'scaffold_server_rate.yaml',
      'server_only',
      {'server_learning_rate': [0.03, 0.1, 0.3, 1.0, 3.0]},
    ),
  ],
)
def test_a_sweep_file_has_its_values_and_training_takes_them(file, algorithm, search):
  flags = {'task': 'digits_logistic', 'algorithm': algorithm}
  if 'server_epsilon' in search and 'adaptive' not in file:
    flags['server_optimizer'] = 'adam'
  if 'base_epsilon' in search:
    flags['base_optimizer'] = 'adam'
  sweep = sweep_files.read(_SWEEPS / file, flags)
  assert sweep.sampler == 'grid'
  assert list(sweep.search) == list(search)
  for name, values in search.items():
    np.testing.assert_allclose(sweep.search[name], values, rtol=1e-6)
  points = sweep.grid()
  assert sweep.trials == len(points) == np.prod([len(v) for v in search.values()])
  # Training takes its flags, at either end.
  for point in (points[0], points[-1]):
    taken = sweep.run_flags(point, pathlib.Path('x'))
    assert {name: taken[name] for name in point} == point


def test_every_sweep_file_is_tested():
  (marker,) = test_a_sweep_file_has_its_values_and_training_takes_them.pytestmark
  tested = {file for file, *_ in marker.args[1]}
  assert {path.name for path in _SWEEPS.iterdir()} == tested


_MIXED = (mixed_language, mixed_movies, mixed_smile)


@pytest.mark.parametrize(
  'comparison',
  [
    pytest.param(c, id=f'{module.__name__.rpartition(".")[2]}-{c.name}')
    for module in _MIXED
    for c in module._COMPARISONS
  ],
)
def test_the_runs_of_a_mixed_comparison_are_configured(comparison):
  arguments = {
    name: train_flags.as_arguments(entry.flags)
    for name, entry in comparison.entries.items()
  }
  every = compare.configure(arguments, comparison.flags, comparison.num_seeds, 'x')
  assert len(every) == len(comparison.entries) * comparison.num_seeds
  # Nothing that they have in common may be said again by one of them.
  for entry in comparison.entries.values():
    assert entry.sweep is None
    assert not comparison.flags.keys() & entry.flags.keys()
  # They train for as long, with as many clients.
  for name in ('task', 'rounds', 'clients_per_round', 'rounds_per_eval'):
    assert len({flags[name] for flags in every}) == 1
  assert comparison.target in (None, *comparison.entries)
  for picture in comparison.pictures.values():
    assert set(picture.entries or ()) <= comparison.entries.keys()


def test_published_numbers_can_be_read_and_are_of_algorithms_that_are_compared():
  used = set()
  mime = (mime_figure_1, mime_table_2, mime_figure_3)
  scaffold = (scaffold_demos, scaffold_emnist)
  modules = (server_optimizers, *mime, *_MIXED, *scaffold, elastic)
  for comparison in [c for module in modules for c in module._COMPARISONS]:
    shown = [
      *comparison.panels.values(),
      *(t.entries.values() for t in comparison.tables),
    ]
    assert all(name in comparison.entries for name in itertools.chain(*shown))
    for table in comparison.tables:
      named = {*table.published, *table.against, *table.against.values()}
      assert named <= table.entries.keys()
    if comparison.published:
      numbers = published.read(_EXPERIMENTS / 'published' / comparison.published)
      assert numbers
      assert numbers.keys() <= comparison.entries.keys()
      assert all(0 < v <= 1 for row in numbers.values() for v in row.values())
      used.add(comparison.published)
  assert used == {path.name for path in (_EXPERIMENTS / 'published').iterdir()}


def _names_of_experiments() -> list[str]:
  return [
    path.stem
    for path in sorted(_EXPERIMENTS.glob('*.py'))
    if path.stem != 'experiment'
    and re.search(r'experiment\.(main|program)\(', path.read_text())
  ]


def test_the_experiments_are_found():
  assert {'server_optimizers', 'mime_stability'} < set(_names_of_experiments())


@pytest.mark.parametrize('name', _names_of_experiments())
def test_an_experiment_says_what_it_is_and_its_help_fits_a_terminal(name):
  source = (_EXPERIMENTS / f'{name}.py').read_text()
  assert ast.get_docstring(ast.parse(source))
  done = subprocess.run(
    [sys.executable, '-m', f'experiments.{name}', '--helpshort'],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert (done.returncode, done.stderr) == (0, '')
  assert f'docs/results/{name}' in done.stdout
  assert max(map(len, done.stdout.splitlines())) <= 88


@pytest.mark.parametrize('comparison', server_optimizers._COMPARISONS)
def test_an_entry_starts_only_from_one_before_it_and_its_sweep_is_there(comparison):
  before = []
  for name, entry in comparison.entries.items():
    assert entry.like in (None, *before)
    assert (_SWEEPS / entry.sweep).is_file()
    before.append(name)
