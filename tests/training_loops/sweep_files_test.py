"""Tests of reading sweep files."""

import pytest

from training_loops import sweep_files
from training_loops.options import UserError
from training_loops.sweep_files import Range

_FLAGS = 'flags: {task: digits_logistic, algorithm: fed_avg}\n'
_RATES = 'search: {client_learning_rate: [0.1, 1]}\n'


def _read(tmp_path, text: str, **more_flags):
  path = tmp_path / 'sweep.yaml'
  path.write_text(text)
  return sweep_files.read(path, more_flags)


def _error(tmp_path, text: str, **more_flags) -> str:
  with pytest.raises(UserError) as caught:
    _read(tmp_path, text, **more_flags)
  message = str(caught.value)
  assert message.startswith(str(tmp_path / 'sweep.yaml'))
  assert '\n' not in message
  return message


def test_only_a_search_is_needed(tmp_path):
  sweep = _read(tmp_path, _RATES)
  assert sweep.search == {'client_learning_rate': (0.1, 1)}
  assert (sweep.sampler, sweep.trials, sweep.pruner) == ('grid', 2, 'none')
  assert (sweep.metric, sweep.goal, sweep.value) == (
    'eval/accuracy',
    'maximize',
    'best',
  )


def test_flags_of_the_command_line_come_before_those_of_the_file(tmp_path):
  sweep = _read(tmp_path, _FLAGS + _RATES, algorithm='fed_prox', rounds=7)
  assert sweep.flags == {
    'task': 'digits_logistic',
    'algorithm': 'fed_prox',
    'rounds': 7,
  }


def test_a_grid_has_every_combination_once_the_last_flag_changing_fastest(tmp_path):
  sweep = _read(tmp_path, 'search: {batch_size: [5, 10], client_epochs: [1, 2, 3]}')
  points = [(point['batch_size'], point['client_epochs']) for point in sweep.grid()]
  assert points == [(5, 1), (5, 2), (5, 3), (10, 1), (10, 2), (10, 3)]
  assert sweep.trials == 6


def test_flags_may_be_written_as_on_a_command_line(tmp_path):
  assert _read(tmp_path, 'search: {--batch_size: [5]}').search == {'batch_size': (5,)}


def test_a_single_value_is_a_list_of_one(tmp_path):
  assert _read(tmp_path, 'search: {batch_size: 5}').search == {'batch_size': (5,)}


def test_the_ends_of_a_range_may_be_written_as_yaml_does_not_know_numbers(tmp_path):
  text = 'search: {client_learning_rate: {low: 1e-3, high: 1, log: true}}\n'
  sweep = _read(tmp_path, text + 'sampler: random\ntrials: 3')
  assert sweep.search == {'client_learning_rate': Range(0.001, 1, log=True)}
  assert not sweep.search['client_learning_rate'].is_integer
  assert Range(1, 4).is_integer


@pytest.mark.parametrize(
  ('metric', 'goal'),
  [
    ('eval/loss', 'minimize'),
    ('eval/mean_squared_error', 'minimize'),
    ('eval/recall_at_5', 'maximize'),
  ],
)
def test_the_goal_follows_from_the_metric(tmp_path, metric, goal):
  assert _read(tmp_path, f'{_RATES}metric: {metric}').goal == goal
  other = 'minimize' if goal == 'maximize' else 'maximize'
  assert _read(tmp_path, f'{_RATES}metric: {metric}\ngoal: {other}').goal == other


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('', 'expected entries such as `search:`'),
    ('- a', 'expected entries such as `search:`'),
    ('a: [', 'it is no YAML'),
    ('search: {}', 'the search is empty'),
    ('search:', 'the search is empty'),
    ('search: [batch_size]', 'search must be lines'),
    ('flags: 3\n' + _RATES, 'flags must be lines'),
    ('search: {batch_size: []}', 'batch_size has no values to try'),
    ('search: {batch_size: [5, 5]}', 'batch_size has a value twice'),
    ('search: {batch_size: [[1]]}', 'no number or name'),
    ('search: {output_dir: [a, b]}', '--output_dir is for the sweep as a whole'),
    ('flags: {label: a}\n' + _RATES, '--label is for the sweep as a whole'),
    (_RATES + 'serch: {}', 'unknown entry serch; did you mean search?'),
    (_RATES + 'zzz: 1', 'unknown entry zzz; known are flags, search'),
    (_RATES + 'sampler: gird', 'sampler must be one of grid, random, tpe, not gird'),
    (_RATES + 'pruner: on', 'pruner must be one of none, median, halving'),
    (_RATES + 'goal: up', 'goal must be one of maximize, minimize'),
    (_RATES + 'value: last', 'value must be one of best, final'),
    (_RATES + 'prune_after: -1', 'prune_after must be a whole number'),
    (_RATES + 'seed: x', 'seed must be a whole number'),
    (_RATES + 'trials: 5', 'a grid has as many trials as it has points'),
    (_RATES + 'sampler: random', 'sampler random needs trials'),
    (_RATES + 'sampler: random\ntrials: 3', 'there are only 2 points'),
    (_RATES + 'metric: accuracy', 'metrics are called eval/accuracy'),
    ('flags: {num_threads: }\n' + _RATES, 'num_threads has no value'),
    ('search: {batch_size: {low: 1, high: 3}}', 'batch_size is a range'),
    ('search: {batch_size: {low: 1}}', 'batch_size needs a range'),
    ('search: {batch_size: {low: 1, high: 3, step: 1}}', 'batch_size needs a range'),
    ('search: {batch_size: {low: a, high: 3}}', 'not a.'),
    ('search: {batch_size: {low: 3, high: 3}}', 'with low below high'),
    ('search: {batch_size: {low: 0, high: 3, log: true}}', 'above 0 if log'),
    ('flags: {batch_size: 5}\nsearch: {batch_size: [5]}', 'both given and searched'),
  ],
)
def test_a_mistake_is_one_line_that_names_the_file(tmp_path, text, message):
  assert message in _error(tmp_path, text)


def test_a_flag_given_on_the_command_line_cannot_be_searched_for(tmp_path):
  message = _error(tmp_path, _RATES, client_learning_rate=0.5)
  assert '--client_learning_rate is both given and searched for' in message


def test_a_file_that_is_not_there_is_named(tmp_path):
  with pytest.raises(UserError, match='it cannot be read: No such file'):
    sweep_files.read(tmp_path / 'nothing.yaml', {})


def test_the_flags_of_a_run_are_checked_and_say_at_which_point(tmp_path):
  sweep = _read(tmp_path, 'search: {batch_siz: [5]}', task='digits_mlp')
  with pytest.raises(UserError) as caught:
    sweep.run_flags({'batch_siz': 5}, tmp_path)
  assert str(caught.value) == (
    'with batch_siz=5: unknown flag --batch_siz; did you mean --batch_size, '
    '--elastic_batch_size or --central_batch_size?'
  )


def test_every_point_has_a_directory_of_its_own_and_seeds_share_a_label(tmp_path):
  sweep = _read(tmp_path, _FLAGS + 'search: {batch_size: [5, 10], seed: [0, 1]}')
  every_flags = [sweep.run_flags(point, tmp_path) for point in sweep.grid()]
  assert len({flags['output_dir'] for flags in every_flags}) == 4
  assert [flags['label'] for flags in every_flags] == [
    'batch_size=5',
    'batch_size=5',
    'batch_size=10',
    'batch_size=10',
  ]


def test_what_does_not_change_numbers_is_not_part_of_the_identity(tmp_path):
  text = _FLAGS + _RATES
  first = _read(tmp_path, text, num_threads=1, data_dir='a').identity()
  assert first == _read(tmp_path, text, num_threads=2, data_dir='b').identity()
  assert first != _read(tmp_path, text, rounds=3).identity()
  assert first != _read(tmp_path, text + 'value: final').identity()
  # More trials and other pruning continue the same sweep.
  assert first == _read(tmp_path, text + 'pruner: median').identity()
