"""Tests of runs side by side."""

import itertools
import math
import pathlib
import statistics
import warnings

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from training_loops import results, summaries, train_flags
from training_loops.options import UserError

_NAN, _INF = math.nan, math.inf


def _row(round_num: int, accuracy: float, **columns) -> dict:
  return {
    'round': round_num,
    'train/loss': 2.0,
    'train/num_clients': 10.0,
    'train/num_clients_left_out': 0.0,
    'train/bytes_down': 100,
    'train/bytes_up': 50,
    'eval/loss': 1.0,
    'eval/accuracy': accuracy,
    **columns,
  }


def _rows(*accuracies: float) -> list[dict]:
  """A row after each 10 rounds."""
  return [_row(10 * (i + 1), value) for i, value in enumerate(accuracies)]


def _run(rows=None, *, path='run', seconds=1.0, is_finished=True, **flags):
  chosen = {
    'task': 'digits_logistic',
    'algorithm': 'fed_avg',
    'output_dir': path,
    **flags,
  }
  return results.Result(
    path=pathlib.Path(path),
    flags=train_flags.configure(**chosen),
    rows=_rows(0.5) if rows is None else rows,
    seconds=seconds,
    is_finished=is_finished,
    best_round=None,
  )


def _names(*runs) -> list[str]:
  return [group.name for group in summaries.group(runs)]


def _group(*of_seeds) -> summaries.Group:
  """One group, with the rows of each seed."""
  runs = [_run(rows, seed=seed) for seed, rows in enumerate(of_seeds)]
  (group,) = summaries.group(runs)
  return group


def _summary(*of_seeds, **arguments) -> summaries.Summary:
  (summary,) = summaries.summarize([_group(*of_seeds)], **arguments)
  return summary


def _column(header_and_rows, name: str) -> list[str]:
  header, rows = header_and_rows
  return [row[header.index(name)] for row in rows]


# Groups.


def test_runs_that_differ_in_seed_directory_and_threads_alone_are_one_group():
  runs = [
    _run(path='a', seed=2),
    _run(path='b', seed=0, num_threads=1),
    _run(path='c', seed=1, num_threads=2, rounds_per_checkpoint=7),
  ]
  (group,) = summaries.group(runs)
  assert [run.flags['seed'] for run in group.runs] == [0, 1, 2]


@pytest.mark.parametrize(
  'flags',
  [
    {'rounds': 7},
    {'label': 'mine'},
    {'algorithm': 'fed_prox'},
    {'batch_size': 3},
    {'max_client_steps': 3},
    {'server_optimizer': 'adam'},
    {'clients_per_round': 3},
    {'rounds_per_eval': 3},
    {'max_eval_examples': 3},
    {'sampling': 'by_examples'},
    {'dropout_rate': 0.5},
  ],
)
def test_runs_that_differ_in_any_other_flag_are_two_groups(flags):
  first, second = summaries.group([_run(), _run(seed=1, **flags)])
  assert [len(first.runs), len(second.runs)] == [1, 1]
  assert first.name != second.name


def test_groups_are_in_the_order_in_which_they_first_come():
  runs = [_run(label=label, seed=s) for s in (0, 1) for label in ('b', 'a')]
  assert _names(*runs) == ['b', 'a']


def test_a_run_without_an_evaluated_round_is_left_out():
  runs = [_run([], label='a'), _run(label='b'), _run([], label='b', seed=1)]
  (group,) = summaries.group(runs)
  assert (group.name, group.runs) == ('b', [runs[1]])


def test_where_no_run_has_an_evaluated_round_there_is_nothing_to_show():
  for runs in ([], [_run([])]):
    with pytest.raises(UserError, match='nothing to show'):
      summaries.group(runs)


@pytest.mark.parametrize('is_reversed', [False, True])
def test_of_two_runs_with_the_same_flags_and_seed_the_longer_counts(is_reversed):
  runs = [_run(_rows(0.1, 0.2, 0.3), path='long'), _run(_rows(0.9), path='short')]
  (group,) = summaries.group(runs[::-1] if is_reversed else runs)
  assert [str(run.path) for run in group.runs] == ['long']


def test_runs_of_different_tasks_are_refused_in_one_line_with_both():
  runs = [_run(path='a'), _run(path='b', task='digits_mlp')]
  with pytest.raises(UserError) as caught:
    summaries.group(runs)
  message = str(caught.value)
  assert 'a is of --task=digits_logistic ' in message
  assert 'b of --task=digits_mlp ' in message
  assert '\n' not in message


def test_runs_of_a_task_with_other_options_are_refused_in_one_line_with_both():
  runs = [_run(path='a', num_clients=20), _run(path='b', num_clients=30)]
  with pytest.raises(UserError) as caught:
    summaries.group(runs)
  message = str(caught.value)
  assert '--num_clients=20' in message and '--num_clients=30' in message
  assert '\n' not in message


def test_where_the_data_are_does_not_make_it_another_task():
  runs = [_run(task='emnist_logistic', data_dir=where) for where in ('a', 'b')]
  assert len(summaries.group(runs)) == 1


def test_a_run_without_rows_may_be_of_any_task():
  assert _names(_run(), _run([], task='digits_mlp')) == ['fed_avg']


# Names.


def test_a_group_is_called_by_its_label_or_else_by_its_algorithm():
  assert _names(_run(label='mine'), _run(), _run(algorithm='fed_prox')) == [
    'mine',
    'fed_avg',
    'fed_prox',
  ]


def test_groups_of_one_algorithm_are_called_by_the_flags_that_tell_them_apart():
  runs = [_run(batch_size=b, dropout_rate=d) for b, d in ((3, 0.0), (4, 0.5))]
  assert _names(*runs) == [
    'fed_avg, batch_size=3, dropout_rate=0.0',
    'fed_avg, batch_size=4, dropout_rate=0.5',
  ]


def test_a_flag_that_is_not_set_is_not_in_the_name():
  assert _names(_run(), _run(max_client_steps=3)) == [
    'fed_avg',
    'fed_avg, max_client_steps=3',
  ]


def test_equal_labels_are_told_apart_by_their_flags():
  assert _names(_run(label='a', rounds=5), _run(label='a', rounds=6)) == [
    'a, rounds=5',
    'a, rounds=6',
  ]


def test_equal_labels_of_two_algorithms_are_told_apart():
  first, second = _names(
    _run(label='a', algorithm='fed_avg'), _run(label='a', algorithm='fed_prox')
  )
  assert first != second
  assert first.startswith('a') and second.startswith('a')


def test_a_label_that_is_the_algorithm_of_another_group_is_told_apart():
  first, second = _names(_run(), _run(label='fed_avg', algorithm='fed_prox'))
  assert first != second


def test_a_group_of_before_a_flag_was_invented_is_told_apart():
  old = _run()
  del old.flags['dropout_rate']
  first, second = _names(old, _run())
  assert first != second


def test_a_label_that_looks_like_a_name_with_flags_is_told_apart():
  names = _names(
    _run(label='a', rounds=5),
    _run(label='a', rounds=6),
    _run(label='a, rounds=5', rounds=7),
  )
  assert len(set(names)) == 3


# None of these values is a default, so that other flags are other settings.
_SOME_FLAGS = st.fixed_dictionaries(
  {'algorithm': st.sampled_from(['fed_avg', 'fed_prox']), 'seed': st.integers(0, 1)},
  optional={
    'label': st.sampled_from(['a', 'fed_avg']),
    'max_eval_examples': st.integers(1, 2),
  },
)


@hypothesis.given(st.lists(_SOME_FLAGS, min_size=1, max_size=8))
def test_all_names_are_different_and_no_run_is_in_two_groups(every_flags):
  runs = [_run(path=str(i), **flags) for i, flags in enumerate(every_flags)]
  groups = summaries.group(runs)
  settings = {tuple(sorted({**f, 'seed': 0}.items())) for f in every_flags}
  assert len(groups) == len(settings)
  assert len({group.name for group in groups}) == len(groups)
  shown = [run.path for group in groups for run in group.runs]
  assert len(set(shown)) == len(shown)


# Curves.


def test_a_curve_has_the_mean_the_lowest_and_the_highest_of_the_seeds():
  curve = _group(_rows(0.1, 0.6), _rows(0.2, 0.4), _rows(0.6, 0.2)).curve(
    'eval/accuracy'
  )
  assert curve.rounds.tolist() == [10, 20]
  # (0.1 + 0.2 + 0.6) / 3 and (0.6 + 0.4 + 0.2) / 3.
  np.testing.assert_allclose(curve.mean, [0.3, 0.4])
  assert curve.low.tolist() == [0.1, 0.2]
  assert curve.high.tolist() == [0.6, 0.6]


def test_a_curve_has_only_the_rounds_that_all_seeds_have_evaluated():
  short = [_row(10, 0.1), _row(15, 0.3)]
  curve = _group(_rows(0.3, 0.4), short).curve('eval/accuracy')
  assert curve.rounds.tolist() == [10]
  np.testing.assert_allclose(curve.mean, [0.2])


def test_seeds_without_a_common_round_have_an_empty_curve():
  curve = _group([_row(10, 0.1)], [_row(15, 0.1)]).curve('eval/accuracy')
  assert [len(values) for values in (curve.rounds, curve.mean)] == [0, 0]
  assert [len(values) for values in (curve.low, curve.high)] == [0, 0]


_SEED = st.dictionaries(
  st.integers(1, 8), st.floats(-10, 10), min_size=1, max_size=8
).map(lambda values: [_row(r, values[r]) for r in sorted(values)])


@hypothesis.given(st.lists(_SEED, min_size=1, max_size=4))
def test_every_curve_is_what_plain_arithmetic_says(of_seeds):
  curve = _group(*of_seeds).curve('eval/accuracy')
  values = [{row['round']: row['eval/accuracy'] for row in rows} for rows in of_seeds]
  common = [r for r in range(1, 9) if all(r in of_seed for of_seed in values)]
  assert curve.rounds.tolist() == common
  for i, round_num in enumerate(common):
    at_round = [of_seed[round_num] for of_seed in values]
    assert curve.mean[i] == pytest.approx(math.fsum(at_round) / len(at_round), abs=1e-9)
    assert (curve.low[i], curve.high[i]) == (min(at_round), max(at_round))


def test_the_columns_are_those_that_all_runs_have_in_the_order_of_the_first():
  first = [{'round': 1, 'c': 0.0, 'a': 0.0, 'b': 0.0}]
  second = [{'round': 1, 'a': 0.0, 'c': 0.0, 'd': 0.0}]
  assert _group(first, second).columns == ['c', 'a']


def test_how_a_task_is_trained_does_not_make_it_another_task():
  of_movies = {'task': 'movielens'}
  every_flags = {
    'a': _run(**of_movies, spreadout='clients').flags,
    'b': _run(**of_movies, spreadout='server', selection='none').flags,
    'c': _run(**of_movies, algorithm='parallel_training').flags,
  }
  summaries.check_task(every_flags)
  with pytest.raises(UserError, match='runs of different tasks cannot be compared'):
    summaries.check_task(every_flags | {'d': _run().flags})


# Metrics.


def test_accuracies_and_their_like_are_shares_and_losses_are_not():
  shares = ['eval/accuracy', 'train/accuracy', 'eval/accuracy_without_oov', 'accuracy']
  for column in [*shares, 'eval/precision', 'eval/recall_at_5']:
    assert summaries.is_share(column)
    assert not summaries.is_lower_better(column)
  for column in ('eval/loss', 'train/num_clients', 'train/bytes_up'):
    assert not summaries.is_share(column)


def test_losses_and_errors_are_the_better_the_lower():
  for column in ('eval/loss', 'train/loss', 'eval/mean_squared_error'):
    assert summaries.is_lower_better(column)
  for column in ('eval/duality_gap', 'eval/gradient_mapping_norm'):
    assert summaries.is_lower_better(column)


def test_a_share_is_shown_in_per_cent_and_other_numbers_with_4_digits():
  assert summaries.display('eval/accuracy', 0.91249) == '91.2%'
  assert summaries.display('eval/loss', 0.123456) == '0.1235'
  assert summaries.display('eval/loss', 1234567.0) == '1.235e+06'


@pytest.mark.parametrize('value', [_NAN, _INF, -_INF])
@pytest.mark.parametrize('where', ['train', 'eval'])
def test_a_run_diverged_in_the_first_row_whose_loss_is_not_finite(where, value):
  rows = [_row(10, 0.5), _row(20, 0.5, **{f'{where}/loss': value}), _row(30, 0.5)]
  assert summaries.diverged_round(rows) == 20


def test_a_run_with_finite_losses_did_not_diverge_whatever_else_is_no_number():
  rows = [_row(10, _NAN, **{'train/client_drift': _INF})]
  assert summaries.diverged_round(rows) is None
  assert summaries.diverged_round([{'round': 1}]) is None
  assert summaries.diverged_round([]) is None


def test_the_accuracy_is_compared_by_where_all_groups_have_it_and_else_the_loss():
  with_it, without = _run(label='a'), _run([{'round': 1, 'eval/loss': 1.0}], label='b')
  assert summaries.main_metric(summaries.group([with_it])) == 'eval/accuracy'
  assert summaries.main_metric(summaries.group([with_it, without])) == 'eval/loss'


# Summaries.


def test_final_is_the_last_value_and_best_the_highest_of_each_seed():
  summary = _summary(_rows(0.1, 0.7, 0.6), _rows(0.9, 0.2))
  assert (summary.metric, summary.target) == ('eval/accuracy', None)
  assert (summary.final, summary.best) == ([0.6, 0.2], [0.7, 0.9])
  assert summary.rounds_to_target == [None, None]


def test_the_best_of_a_metric_that_should_be_low_is_the_lowest():
  rows = [_row(r, 0.0, **{'eval/loss': v}) for r, v in ((1, 3.0), (2, 1.5), (3, 2.0))]
  summary = _summary(rows, metric='eval/loss', target=2.0)
  assert (summary.final, summary.best) == ([2.0], [1.5])
  assert summary.rounds_to_target == [2]


@pytest.mark.parametrize('metric', ['eval/accuracy', 'eval/loss'])
def test_the_best_is_never_what_is_no_number_unless_all_are(metric):
  for order in itertools.permutations([0.25, _NAN, 0.25]):
    rows = [_row(i + 1, v, **{'eval/loss': v}) for i, v in enumerate(order)]
    assert _summary(rows, metric=metric).best == [0.25]
  rows = [_row(1, _NAN, **{'eval/loss': _NAN})]
  assert math.isnan(_summary(rows, metric=metric).best[0])


def test_the_target_is_reached_in_the_first_round_at_or_beyond_it():
  summary = _summary(_rows(0.1, 0.5, 0.4, 0.6), _rows(_NAN, 0.4, 0.51), target=0.5)
  assert summary.rounds_to_target == [20, 30]


def test_a_target_that_is_not_reached_or_not_a_number_is_never():
  summary = _summary(_rows(0.1, 0.49), _rows(_NAN), target=0.5)
  assert summary.rounds_to_target == [None, None]
  assert _column(summaries.table([summary]), 'rounds to 50.0%') == ['never']


def test_bytes_are_those_of_all_rounds_and_all_clients_also_those_left_out():
  rows = [
    _row(10, 0.5, **{'train/num_clients': 8.0, 'train/num_clients_left_out': 2.0}),
    _row(20, 0.5, **{'train/num_clients': 5.0, 'train/num_clients_left_out': 1.0}),
  ]
  summary = _summary(rows)
  # 10 and 6 clients, 8 a round; 20 rounds; 100 bytes down and 50 up for each.
  assert summary.bytes_down == pytest.approx(20 * 8 * 100)
  assert summary.bytes_up == pytest.approx(20 * 8 * 50)


def test_rounds_of_the_server_alone_send_nothing():
  alone = {'round': 10, 'train/num_clients': 0.0, 'eval/accuracy': 0.1}
  summary = _summary([alone, _row(20, 0.5)])
  assert summary.bytes_down == pytest.approx(20 * 5 * 100)
  assert _summary([alone]).bytes_up == 0


def test_a_metric_is_one_that_all_rounds_have():
  alone = {'round': 10, 'train/num_clients': 0.0, 'eval/accuracy': 0.1}
  for rows in ([alone, _row(20, 0.5)], [_row(5, 0.5), alone]):
    group = _group(rows)
    assert group.columns == ['train/num_clients', 'eval/accuracy']
    assert len(group.curve('eval/accuracy').rounds) == 2


def test_seconds_and_bytes_are_means_over_seeds():
  runs = [
    _run(_rows(0.5), seed=0, seconds=1.0),
    _run(_rows(0.5, 0.5), seed=1, seconds=4.0),
  ]
  (summary,) = summaries.summarize(summaries.group(runs))
  assert summary.seconds == pytest.approx(2.5)
  assert summary.bytes_up == pytest.approx((10 + 20) / 2 * 10 * 50)


def test_a_run_that_is_not_finished_says_how_far_it_came():
  runs = [
    _run(_rows(0.5, 0.5), rounds=100, is_finished=False, seed=0),
    _run(_rows(0.5, 0.5), rounds=100, is_finished=False, seed=1),
    _run(_rows(0.5), rounds=100, is_finished=False, seed=2),
    _run(_rows(*[0.5] * 10), rounds=100, seed=3),
  ]
  (summary,) = summaries.summarize(summaries.group(runs))
  assert summary.remark == (
    'stopped after round 20 of 100; stopped after round 10 of 100'
  )


def test_a_run_that_diverged_says_when():
  rows = [_row(10, 0.5), _row(20, 0.1, **{'eval/loss': _NAN})]
  assert _summary(rows).remark == 'diverged by round 20'
  assert _summary(_rows(0.5)).remark == ''


def test_a_metric_that_a_group_does_not_have_is_refused_with_those_it_has():
  rows = [{'round': 1, 'eval/loss': 1.0, 'eval/error': 2.0}]
  groups = summaries.group([_run(label='a'), _run(rows, label='b')])
  with pytest.raises(UserError) as caught:
    summaries.summarize(groups, metric='eval/accuracy')
  assert str(caught.value).startswith('b has no metric eval/accuracy')
  assert 'eval/loss, eval/error' in str(caught.value)
  assert '\n' not in str(caught.value)


# Tables.


def test_one_value_stands_alone_and_several_have_their_standard_deviation():
  assert summaries.spread('eval/accuracy', [0.912]) == '91.2%'
  # Of 0.90, 0.91 and 0.95 the mean is 0.92, and the squares sum to 4 + 1 + 9 = 14.
  deviation = math.sqrt(14 / 2)  # In per cent.
  values = [0.90, 0.91, 0.95]
  assert deviation == pytest.approx(100 * statistics.stdev(values))
  assert summaries.spread('eval/accuracy', values) == f'92.0% ± {deviation:.1f}'
  # Of 1 and 3 the mean is 2, and the deviation sqrt(1 + 1) = 1.414...
  assert summaries.spread('eval/loss', [1.0, 3.0]) == '2 ± 1.4'


@pytest.mark.parametrize('value', [_NAN, _INF])
def test_a_seed_that_diverged_is_told_of_without_a_warning_from_numpy(value):
  rows = [_row(10, 0.5, **{'eval/loss': value})]
  groups = [_group(_rows(0.5), rows, rows)]
  with warnings.catch_warnings():
    warnings.simplefilter('error')
    groups[0].curve('eval/loss')
    table = summaries.table(summaries.summarize(groups, 'eval/loss', 0.5))
  assert _column(table, 'rounds to 0.5') == ['never']


def test_seeds_remarks_and_a_target_have_columns_only_where_they_say_something():
  plain = ['', 'final accuracy', 'best accuracy', 'seconds', 'MB down', 'MB up']
  header, rows = summaries.table([_summary(_rows(0.5, 0.4))])
  assert header == plain
  # 20 rounds of 10 clients, 100 and 50 bytes for each.
  assert rows == [['fed_avg', '40.0%', '50.0%', '1.0', '0.02', '0.01']]

  header, rows = summaries.table([_summary(_rows(0.4), _rows(0.6), target=0.5)])
  assert header == [*plain[:1], 'seeds', *plain[1:3], 'rounds to 50.0%', *plain[3:]]
  assert rows[0][1] == '2'

  (group,) = summaries.group([_run(rounds=50, is_finished=False)])
  header, rows = summaries.table(summaries.summarize([group]))
  assert header == [*plain, 'remark']
  assert rows[0][-1] == 'stopped after round 10 of 50'


def test_every_row_has_as_many_cells_as_the_head_whatever_its_group_has_to_say():
  several = [_run(_rows(0.5), label='a', seed=s) for s in range(2)]
  one = _run(_rows(0.4), label='b', rounds=50, is_finished=False)
  groups = summaries.group([*several, one])
  table = summaries.table(summaries.summarize(groups, target=0.45))
  assert [len(row) for row in table[1]] == [len(table[0])] * 2
  assert _column(table, '') == ['a', 'b']
  assert _column(table, 'seeds') == ['2', '1']
  assert _column(table, 'rounds to 45.0%') == ['10', 'never']
  assert _column(table, 'remark') == ['', 'stopped after round 10 of 50']


def test_rounds_to_the_target_are_those_of_the_seeds_that_reached_it():
  def told(*of_seeds) -> str:
    table = summaries.table([_summary(*of_seeds, target=0.5)])
    return _column(table, 'rounds to 50.0%')[0]

  late, early, never = _rows(0.1, 0.1, 0.5), _rows(0.5), _rows(0.1)
  assert told(early) == '10'
  assert told(early, late) == '20'  # (10 + 30) / 2.
  assert told(early, never, late) == '20 (2 of 3 seeds)'
  assert told(never, never) == 'never'


def test_a_table_names_the_metric_that_it_is_of():
  rows = [_row(10, 0.5, **{'eval/mean_squared_error': 0.25})]
  header, cells = summaries.table([_summary(rows, metric='eval/mean_squared_error')])
  assert header[1:3] == ['final mean squared error', 'best mean squared error']
  assert cells[0][1:3] == ['0.25', '0.25']


def test_megabytes_are_millions_of_bytes():
  rows = [_row(1000, 0.5, **{'train/bytes_down': 4_000, 'train/bytes_up': 1})]
  table = summaries.table([_summary(rows)])
  # 1000 rounds of 10 clients: 10,000 times 4,000 bytes down, and 1 up.
  assert _column(table, 'MB down') == ['40']
  assert _column(table, 'MB up') == ['0.01']
