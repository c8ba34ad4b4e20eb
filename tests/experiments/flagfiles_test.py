"""Tests of the flagfiles that come with the experiments."""

import pathlib

import pytest

from experiments import experiment
from training_loops import train_flags

_DIRECTORY = pathlib.Path(experiment.__file__).parent / 'flagfiles'
_FILES = sorted(_DIRECTORY.glob('*.flags'))
_SMALL = '_small'

# Tables 5 to 10 of Augenstein et al. 2022: S, |B_i|, K, eta, w_f and w_c.
_FEDERATED = {
  'celeba_smile': (100, 5, 2, 0.01, 0.5, 0.5),
  'stackoverflow_wikipedia_char': (100, 8, 16, 2.0, 0.75, 0.25),
  'movielens': (100, 16, 10, 0.5, 0.5, 0.5),
}
_NAMES = (
  'clients_per_round',
  'batch_size',
  'max_client_steps',
  'client_learning_rate',
  'federated_weight',
  'central_weight',
)
# |B_c| of 1-w GT, and of PT and 2-w GT; none where the loss is of the weights alone.
_CENTRAL_BATCH_SIZES = {
  'celeba_smile': (1000, 500),
  'stackoverflow_wikipedia_char': (6400, 800),
}
_OWN_RATES = {('stackoverflow_wikipedia_char', 'two_way_gradient_transfer'): 1.0}
_ALGORITHMS = (
  'one_way_gradient_transfer',
  'parallel_training',
  'two_way_gradient_transfer',
)


def _flags(path):
  return train_flags.from_arguments([f'--flagfile={path}', '--output_dir=x'])


def test_every_task_of_the_paper_has_files_of_every_algorithm():
  assert {path.stem for path in _FILES} == {
    f'{task}_{algorithm}{size}'
    for task in _FEDERATED
    for algorithm in _ALGORITHMS
    for size in ('', _SMALL)
  }


@pytest.mark.parametrize('path', _FILES, ids=lambda path: path.stem)
def test_a_file_is_a_command_line_of_what_it_is_named_after(path):
  flags = _flags(path)
  name = f'{flags["task"]}_{flags["algorithm"]}'
  assert path.stem.removesuffix(_SMALL) == name


@pytest.mark.parametrize('path', _FILES, ids=lambda path: path.stem)
def test_experiments_read_a_file_as_the_command_line_does(path):
  read = experiment.flagfile(path.stem, output_dir='x')
  assert train_flags.configure(**read) == _flags(path)
  assert experiment.flagfile(path.stem, rounds=7)['rounds'] == 7


@pytest.mark.parametrize(
  'path', [p for p in _FILES if _SMALL not in p.stem], ids=lambda path: path.stem
)
def test_a_file_has_the_numbers_of_the_papers_tables(path):
  flags = _flags(path)
  task, algorithm = flags['task'], flags['algorithm']
  expected = dict(zip(_NAMES, _FEDERATED[task], strict=True))
  if (task, algorithm) in _OWN_RATES:
    expected['client_learning_rate'] = _OWN_RATES[task, algorithm]
  is_one_way = algorithm == 'one_way_gradient_transfer'
  if task in _CENTRAL_BATCH_SIZES:
    sizes = _CENTRAL_BATCH_SIZES[task]
    expected['central_batch_size'] = sizes[0 if is_one_way else 1]
  if not is_one_way:
    # eta_c is eta where it is not said, as eta_s is 1.
    expected |= {
      'central_steps': expected['max_client_steps'],
      'central_learning_rate': None,
      'merge_learning_rate': 1.0,
    }
  expected |= {'server_optimizer': 'sgd', 'server_learning_rate': 1.0}
  assert {name: flags[name] for name in expected} == expected


@pytest.mark.parametrize(
  'path', [p for p in _FILES if _SMALL in p.stem], ids=lambda path: path.stem
)
def test_a_small_file_differs_in_size_alone(path):
  full = _flags(path.with_stem(path.stem.removesuffix(_SMALL)))
  small = _flags(path)
  sizes = {
    'central_batch_size',
    'central_steps',
    'clients_per_round',
    'embedding_size',
    'gru_units',
    'max_client_steps',
    'max_eval_examples',
    'rounds',
  }
  different = {name for name in full if small[name] != full[name]}
  assert different <= sizes
  assert all(small[name] < full[name] for name in different)
