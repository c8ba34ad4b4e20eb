"""Tests of reports: what is written, and that nothing is where something is wrong."""

import csv
import math
import os
import pathlib

from matplotlib import image
import pytest

from training_loops import reports, results, train_flags
from training_loops.options import UserError

_FILES = ['curves.csv', 'curves.png', 'report.html', 'report.md', 'results.csv']
_THIRD = 1 / 3  # Has more digits than a table shows.


def _run(label='a', values=(0.25, _THIRD), *, columns=None, versions=None, **flags):
  seed = flags.get('seed', 0)
  chosen = {'task': 'digits_logistic', 'algorithm': 'fed_avg', 'rounds': 20, **flags}
  rows = [
    {
      'round': 10 * (i + 1),
      'train/loss': 3.0,
      'train/num_clients': 10.0,
      'train/num_clients_left_out': 0.0,
      'train/bytes_down': 100,
      'train/bytes_up': 50,
      'eval/loss': 1 - value,
      'eval/accuracy': value,
      **(columns or {}),
    }
    for i, value in enumerate(values)
  ]
  return results.Result(
    path=pathlib.Path(f'runs/{label}/seed_{seed}'),
    flags=train_flags.configure(label=label, output_dir='x', **chosen),
    rows=rows,
    seconds=1.25,
    is_finished=True,
    best_round=10,
    versions=versions or {},
  )


def _csv(path) -> list[dict[str, str]]:
  with open(path, newline='') as file:
    return list(csv.DictReader(file))


def _content(directory) -> dict:
  return {path: path.read_bytes() for path in directory.rglob('*')}


# What is told.


def test_the_title_is_the_task_unless_there_is_another():
  assert reports.make([_run()]).title == 'digits_logistic'
  assert reports.make([_run()], title='Mine').title == 'Mine'


def test_a_sentence_tells_the_task_the_rounds_the_clients_and_the_seeds():
  (sentence,) = reports.make([_run(seed=3), _run('b', seed=3)]).sentences
  assert sentence == 'Task digits_logistic: 20 rounds of 10 clients, seed 3.'
  runs = [_run(seed=1), _run(seed=0), _run('b', seed=0, rounds=30)]
  (sentence,) = reports.make(runs).sentences
  assert 'different numbers of rounds of 10 clients, seeds 0, 1.' in sentence


def test_several_seeds_are_explained_and_one_is_not():
  def notes(*runs) -> str:
    return ' '.join(reports.make(runs).notes)

  assert 'standard deviation' in notes(_run(seed=0), _run(seed=1), _run('b'))
  assert notes(_run(), _run('b')) == ''


def test_runs_that_are_not_shown_are_counted():
  runs = [_run(), _run(), _run('b'), _run('c', values=())]
  (note,) = reports.make(runs).notes
  assert note.startswith('2 of 4 runs are not shown')


def test_published_numbers_of_what_was_not_run_are_told_of_in_a_note():
  numbers = {'a': {'best': 0.5}, 'z': {'best': 0.75}}
  (note,) = reports.make([_run()], numbers=numbers).notes
  assert note == 'Published, but not run here: z.'


def test_notes_end_with_the_versions_and_those_of_the_caller():
  runs = [_run(versions={'python': '3.11.7', 'numpy': '1.25.2'})]
  notes = reports.make(runs, notes=['And this.']).notes
  assert notes == ['Made with python 3.11.7, numpy 1.25.2.', 'And this.']


def test_the_charts_are_the_metric_the_losses_and_then_what_else_is_evaluated():
  columns = {'eval/recall_at_5': 0.5, 'train/accuracy': 0.5}
  report = reports.make([_run(columns=columns)])
  losses = ['eval/loss', 'train/loss']
  assert report.columns == ['eval/accuracy', *losses, 'eval/recall_at_5']
  report = reports.make([_run(columns=columns)], metric='train/accuracy')
  assert report.columns[:3] == ['train/accuracy', *losses]
  assert sorted(report.columns[3:]) == ['eval/accuracy', 'eval/recall_at_5']
  report = reports.make([_run(columns=columns)], metric='train/loss')
  assert report.columns[:2] == ['train/loss', 'eval/loss']
  assert len(set(report.columns)) == len(report.columns)


def test_only_metrics_that_all_groups_have_are_drawn():
  runs = [
    _run(columns={'eval/a': 1.0, 'eval/b': 1.0}),
    _run('b', columns={'eval/b': 1}),
  ]
  report = reports.make(runs)
  assert report.columns == ['eval/accuracy', 'eval/loss', 'train/loss', 'eval/b']


def test_there_are_6_charts_at_most():
  columns = {f'eval/{i}': 1.0 for i in range(10)}
  assert len(reports.make([_run(columns=columns)]).columns) == 6


def test_published_numbers_are_further_columns_of_the_table():
  runs = [_run('a', [0.5]), _run('b', [0.25])]
  plain, rows = reports.make(runs).table
  header, with_them = reports.make(runs, numbers={'b': {'best': 0.5}}).table
  assert header == [*plain, 'published best', 'ours minus it']
  assert with_them == [[*rows[0], '', ''], [*rows[1], '50.0%', '-25.0']]


@pytest.mark.parametrize(
  ('runs', 'arguments', 'message'),
  [
    ([], {}, 'nothing to show'),
    ([_run(values=())], {}, 'nothing to show'),
    ([_run(), _run('b', task='digits_mlp')], {}, 'different tasks'),
    ([_run()], {'metric': 'eval/acuracy'}, 'no metric eval/acuracy'),
    ([_run()], {'numbers': {'b': {'best': 0.5}}}, 'none of the published'),
    ([_run()], {'numbers': {'a': {'best': 50.0}}}, '50%'),
    ([_run()], {'numbers': {'a': {'rounds': 5.0}}}, '--target'),
  ],
)
def test_what_cannot_be_reported_is_refused_in_one_line(runs, arguments, message):
  with pytest.raises(UserError) as caught:
    reports.make(runs, **arguments)
  assert message in str(caught.value)
  assert '\n' not in str(caught.value)


def test_a_share_to_reach_that_is_above_1_is_refused_with_how_to_write_it():
  with pytest.raises(UserError, match=r'0\.9'):
    reports.make([_run()], target=90.0)
  assert reports.make([_run()], metric='eval/loss', target=90.0)


# What is written.


def test_all_files_are_written_into_a_directory_that_is_made(tmp_path):
  directory = tmp_path / 'a' / 'b'
  reports.write(reports.make([_run()]), directory)
  assert sorted(os.listdir(directory)) == _FILES


def test_a_report_takes_the_place_of_an_older_one_and_of_nothing_else(tmp_path):
  (tmp_path / 'thesis.tex').write_text('mine')
  reports.write(reports.make([_run('old')]), tmp_path)
  reports.write(reports.make([_run('new')]), tmp_path)
  assert sorted(os.listdir(tmp_path)) == sorted([*_FILES, 'thesis.tex'])
  assert (tmp_path / 'thesis.tex').read_text() == 'mine'
  for name in ('curves.csv', 'report.md', 'results.csv'):
    text = (tmp_path / name).read_text()
    assert 'new' in text and 'old' not in text


def test_the_same_runs_give_the_same_files(tmp_path):
  contents = []
  for _ in range(2):
    reports.write(reports.make([_run(seed=0), _run(seed=1)]), tmp_path)
    contents.append(_content(tmp_path))
  assert contents[0] == contents[1]


def test_where_nothing_can_be_written_nothing_is(tmp_path):
  file = tmp_path / 'file'
  file.write_text('mine')
  for directory in (file, file / 'below'):
    with pytest.raises(UserError, match='not a directory'):
      reports.write(reports.make([_run()]), directory)
  assert _content(tmp_path) == {file: b'mine'}


def test_a_report_that_cannot_be_made_whole_leaves_the_old_one(tmp_path, monkeypatch):
  reports.write(reports.make([_run('old')]), tmp_path)
  before = _content(tmp_path)

  def fail(report):
    raise OSError('The page cannot be made.')

  monkeypatch.setattr(reports, 'page', fail)
  with pytest.raises(OSError, match='The page cannot be made'):
    reports.write(reports.make([_run('new')]), tmp_path)
  assert _content(tmp_path) == before


def test_the_markdown_has_title_sentence_table_and_notes_in_this_order(tmp_path):
  runs = [_run('a', [0.5], seed=0), _run('a', [0.25], seed=1), _run('b', [0.75])]
  reports.write(reports.make(runs, title='Mine', notes=['The end.']), tmp_path)
  title, sentence, table, *notes = (
    (tmp_path / 'report.md').read_text().strip().split('\n\n')
  )
  assert title == '# Mine'
  assert sentence.startswith('Task digits_logistic: ')
  header, rule, first, second = (
    [cell.strip() for cell in line.strip('|').split('|')] for line in table.splitlines()
  )
  assert header[:4] == ['', 'seeds', 'final accuracy', 'best accuracy']
  assert all(set(cell) <= set('-:') for cell in rule)
  # (0.5 + 0.25) / 2 = 0.375, and the deviation is 0.25 / sqrt(2).
  assert first[:3] == ['a', '2', f'37.5% ± {100 * 0.25 / math.sqrt(2):.1f}']
  assert second[:3] == ['b', '1', '75.0%']
  assert notes[-1] == 'The end.'


def test_a_name_with_a_bar_does_not_break_the_markdown_table(tmp_path):
  reports.write(reports.make([_run('a|b')]), tmp_path)
  lines = (tmp_path / 'report.md').read_text().splitlines()
  header, _, row = (line for line in lines if line.startswith('|'))
  assert row.replace(r'\|', '').count('|') == header.count('|')


def test_the_numbers_are_a_line_a_run_and_are_not_rounded(tmp_path):
  runs = [_run('a', [_THIRD, 0.25], seed=0), _run('a', [0.125], seed=1), _run('b')]
  reports.write(reports.make(runs, target=0.3), tmp_path)
  rows = _csv(tmp_path / 'results.csv')
  assert [(row['name'], row['seed']) for row in rows] == [
    ('a', '0'),
    ('a', '1'),
    ('b', '0'),
  ]
  assert [float(row['final eval/accuracy']) for row in rows] == [0.25, 0.125, _THIRD]
  assert [float(row['best eval/accuracy']) for row in rows] == [_THIRD, 0.125, _THIRD]
  assert [row['rounds_to_target'] for row in rows] == ['10', '', '20']
  assert [row['run'] for row in rows] == [str(run.path) for run in runs]


def test_the_curves_are_a_line_a_point_and_are_not_rounded(tmp_path):
  seeds = [_run('a', [_THIRD], seed=0), _run('a', [0.5], seed=1)]
  report = reports.make([*seeds, _run('b', [0.5, 0.25])])
  reports.write(report, tmp_path)
  rows = _csv(tmp_path / 'curves.csv')
  assert list(dict.fromkeys(row['metric'] for row in rows)) == report.columns
  points = [
    (row['name'], int(row['round']), *(float(row[n]) for n in ('mean', 'low', 'high')))
    for row in rows
    if row['metric'] == 'eval/accuracy'
  ]
  assert points == [
    ('a', 10, pytest.approx((_THIRD + 0.5) / 2, rel=1e-15), _THIRD, 0.5),
    ('b', 10, 0.5, 0.5, 0.5),
    ('b', 20, 0.25, 0.25, 0.25),
  ]


def test_the_page_tells_of_title_names_sentences_and_notes():
  runs = [_run('FedThis'), _run('FedThat')]
  page = reports.page(reports.make(runs, title='Mine', notes=['The end.']))
  for text in ('Mine', 'FedThis', 'FedThat', 'Task digits_logistic', 'The end.'):
    assert text in page
  assert page.lstrip().lower().startswith('<!doctype html')


def test_the_picture_shows_what_is_compared_by_and_the_loss(tmp_path):
  def width(**arguments) -> int:
    runs = [_run('a', seed=0), _run('a', [0.5, 0.75], seed=1), _run('b')]
    reports.write(reports.make(runs, **arguments), tmp_path)
    pixels = image.imread(tmp_path / 'curves.png')[..., :3]
    assert 0.5 < pixels.mean() < 0.999  # Neither blank nor black.
    is_grey = pixels.max(axis=-1) - pixels.min(axis=-1) < 0.1
    assert (~is_grey).sum() > 100  # Curves are coloured.
    return pixels.shape[1]

  # Two pictures side by side, and one where the loss is what is compared by.
  assert width() == 2 * width(metric='eval/loss')


def test_runs_that_diverged_or_have_no_common_round_can_be_reported(tmp_path):
  runs = [
    _run('nan', [math.nan, math.nan]),
    _run('inf', [0.5, -math.inf]),
    _run('a', [0.5, 0.5], seed=0),
    _run('a', [0.5, 0.5], seed=1),
  ]
  runs[3].rows[:] = [{**row, 'round': row['round'] + 5} for row in runs[3].rows]
  reports.write(reports.make(runs, target=0.5), tmp_path)
  assert sorted(os.listdir(tmp_path)) == _FILES
  assert 'diverged by round 10' in (tmp_path / 'report.md').read_text()
