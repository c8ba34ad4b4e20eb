"""Tests of showing a task."""

import os
import pathlib
import subprocess
import sys

from matplotlib import image
import numpy as np
import pytest

import tasks
from tasks import emnist, image_models, own_data, shakespeare
from tests.tasks import tff_data
from training_loops import show_task

_ROOT = pathlib.Path(__file__).parents[2]


def _task(client_ids, x, y, model=None, **options):
  data = own_data.from_arrays(client_ids, x=x, y=y)
  model = model or image_models.logistic(np.shape(x)[1:], 3)
  return tasks.Task('my_task', model, data, data, **options)


def _cells(line):
  return [cell.strip() for cell in line.split('|')[1:-1]]


def test_the_table_has_clients_and_examples_and_the_sizes_of_clients():
  ids = np.repeat(['a', 'b', 'c', 'd'], [1000, 2, 5, 1])
  x, y = np.zeros([1008, 2]), np.zeros(1008, int)
  train = _task(ids, x, y).train
  test = own_data.from_arrays(ids[:1002], x=x[:1002], y=y[:1002])
  task = tasks.Task('my_task', image_models.logistic((2,), 1), train, test)
  lines = show_task.sizes_table(task).splitlines()
  assert _cells(lines[2]) == ['train', '4', '1,008', '1', '3.5', '1,000']
  assert _cells(lines[3]) == ['test', '2', '1,002', '2', '501', '1,000']


def test_the_table_has_the_servers_examples_where_it_has_any():
  task = tasks.load('digits_mixed', seed=0, num_clients=4)
  *_, line = show_task.sizes_table(task).splitlines()
  num_rows = len(task.central.data.all_rows()['y'])
  assert _cells(line)[:3] == ["the server's", '4', f'{num_rows:,}']


@pytest.mark.parametrize(
  ('count', 'expected'), [(1, [0]), (3, [0, 4, 9]), (10, range(10)), (11, range(10))]
)
def test_some_rows_are_spread_over_all(count, expected):
  data = _task([0, 0, 0, 1, 2, 2, 2, 2, 2, 3], np.zeros([10, 1]), range(10)).train
  assert show_task.some_rows(data, count)['y'].tolist() == list(expected)


def test_images_are_drawn_with_their_labels_and_clients_with_theirs(tmp_path):
  task = _task(['a', 'b', 'b'], np.zeros([3, 4, 4]), [2, 0, 2])
  lines = list(show_task.show(task, tmp_path))
  assert lines[1:] == [
    'An example: x float32[4, 4], y int32[]',
    'The model: 51 weights',
    'Labels: 2 different ones, counted over 2 clients',
    f'Which client has which: {tmp_path / "label_counts.png"}',
    f'Examples: {tmp_path / "examples.png"}',
  ]
  assert image.imread(tmp_path / 'label_counts.png').shape[:2] == (720, 1200)
  # Three black squares in a row of five.
  pixels = image.imread(tmp_path / 'examples.png')[..., :3]
  assert 0.3 < (pixels == 0).all(axis=-1).mean() < 0.6
  assert {path.name for path in tmp_path.iterdir()} == {
    'label_counts.png',
    'examples.png',
  }


@pytest.mark.parametrize('show', [None, lambda rows: [f'<{y}>' for y in rows['y']]])
def test_pictures_are_titled_as_the_task_says_or_by_their_labels(monkeypatch, show):
  task = _task(['a'] * 3, np.zeros([3, 4, 4, 3]), [2, 0, 1], show=show)
  drawn = []
  monkeypatch.setattr('tasks.pictures.image_grid', lambda *args: drawn.append(args))
  show_task.draw_examples(pathlib.Path('a.png'), task, 'title')
  ((_, images, titles, _),) = drawn
  assert len(images) == 3
  assert titles == (['<2>', '<0>', '<1>'] if show else ['2', '0', '1'])


def test_text_is_shown_in_three_lines(tmp_path):
  x = np.arange(40).reshape(5, 8)
  task = _task(['a'] * 5, x, x, show=lambda rows: [f'é {row[0]}' for row in rows['x']])
  assert list(show_task.show(task, tmp_path))[3:] == [
    f'Examples: {tmp_path / "examples.txt"}'
  ]
  text = (tmp_path / 'examples.txt').read_text(encoding='utf-8')
  assert text == 'é 0\né 16\né 32\n'


@pytest.mark.parametrize(
  'y', [[0.5, 1.5], [[1, 0], [0, 1]]], ids=['targets', 'several labels']
)
def test_what_has_no_class_is_shown_in_numbers_only(tmp_path, y):
  lines = list(show_task.show(_task(['a', 'b'], np.zeros([2, 4, 4]), y), tmp_path))
  assert len(lines) == 3
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize('label', [-1, 2**31 - 1])
def test_labels_that_cannot_be_drawn_are_only_counted(tmp_path, label):
  lines = list(
    show_task.show(_task(['a', 'b'], np.zeros([2, 4]), [0, label]), tmp_path)
  )
  assert lines[3:] == ['Labels: 2 different ones, counted over 2 clients']


def test_of_very_many_clients_the_first_are_counted_and_that_is_said(
  tmp_path, monkeypatch
):
  y = np.arange(1200) // 400
  task = _task([f'{i:04d}' for i in range(1200)], np.zeros([1200, 2]), y)
  drawn = []
  monkeypatch.setattr('tasks.pictures.label_counts', lambda *args: drawn.append(args))
  lines = list(show_task.show(task, tmp_path))
  ((_, counts, title),) = drawn
  np.testing.assert_array_equal(counts, np.eye(2, dtype=int)[y[:500]])
  assert title == 'my_task: the first 500 clients of 1,200'
  assert lines[3] == (
    'Labels: 2 different ones, counted over the first 500 clients of 1,200'
  )


def test_speeches_are_shown_on_a_line_with_where_they_begin_and_end():
  snippets = np.array([b'To be,\nor not {to} be?', b'x' * 79 + b'yz'], object)
  rows = shakespeare._preprocess({'snippets': snippets})
  assert shakespeare._show(rows) == [
    '<s>To be,⏎or not �to� be?</s>',
    f'<s>{"x" * 79}y',
    'z</s>',
  ]


def test_characters_of_emnist_are_shown_as_such():
  assert emnist._show({'y': np.array([0, 9, 10, 35, 36, 61])}) == list('09AZaz')


@pytest.fixture(scope='module')
def synthetic(tmp_path_factory):
  directory = tmp_path_factory.mktemp('synthetic')
  tff_data.write_all(directory)
  return directory


@pytest.mark.slow
def test_sentences_are_shown_in_the_words_of_the_vocabulary(synthetic):
  def first_line(size):
    task = tasks.load(
      'stackoverflow_word', 0, data_dir=str(synthetic), vocabulary_size=size
    )
    return task.show(show_task.some_rows(task.train, 1))

  assert first_line(60) == [
    "<s> if you're using sql 2005 or better this is a nice , simple-ish median "
    'calculation for a single column in'
  ]
  # The most frequent two of the table are a full stop and "is".
  words = ['<unknown>'] * 20
  words[8] = 'is'
  assert first_line(2) == [' '.join(['<s>', *words])]


@pytest.mark.slow
def test_questions_are_shown_with_their_tags(synthetic):
  task = tasks.load('stackoverflow_tag', 0, data_dir=str(synthetic), num_tags=13)
  (line,) = task.show(show_task.some_rows(task.train, 1))
  # Words of the title that are not in the table are left out, and so are rarer tags.
  assert line == (
    "if you're using sql 2005 or better this is a nice , simple-ish median calculation "
    'for a single column in a table : to median in sql -> sql sql-server'
  )


def _show(*flags, cwd=_ROOT):
  return subprocess.run(
    [sys.executable, '-m', 'training_loops.show_task', *flags],
    cwd=cwd,
    env={**os.environ, 'PYTHONPATH': str(_ROOT)},
    capture_output=True,
    text=True,
    timeout=120,
  )


def test_missing_data_are_one_line_before_tensorflow_is_imported(tmp_path):
  source = f"""
import sys
from training_loops import command_line, show_task
try:
  show_task.main(command_line.parse(show_task.PROGRAM, [
    '--task=emnist_cnn', '--data_dir={tmp_path}/gone', '--output_dir={tmp_path}/x']))
except command_line.UserError as error:
  assert 'gone is not a directory' in str(error), error
assert 'tensorflow' not in sys.modules
"""
  subprocess.run([sys.executable, '-c', source], cwd=_ROOT, check=True, timeout=60)
  assert not (tmp_path / 'x').exists()


def test_a_flag_that_the_task_does_not_take_is_refused():
  done = _show('--task=digits_mlp', '--dimension=3', '--output_dir=x')
  assert done.returncode == 2
  assert done.stderr.startswith('show_task: error: --dimension is not used with')
  assert len(done.stderr.splitlines()) == 1


@pytest.mark.slow
def test_the_program_shows_digits_over_the_clients_asked_for(tmp_path):
  done = _show('--task=digits_mlp', '--num_clients=7', f'--output_dir={tmp_path}/a/b')
  assert (done.returncode, done.stderr) == (0, '')
  train, test = map(_cells, done.stdout.splitlines()[2:4])
  assert [train[:2], test[:2]] == [['train', '7'], ['test', '7']]
  assert sum(int(line[2].replace(',', '')) for line in (train, test)) == 1797
  # 64 inputs, 64 hidden units, 10 classes.
  assert f'The model: {64 * 64 + 64 + 64 * 10 + 10:,} weights' in done.stdout
  for name in ('label_counts.png', 'examples.png'):
    assert (tmp_path / 'a' / 'b' / name).read_bytes().startswith(b'\x89PNG')


@pytest.mark.slow
def test_a_mistake_in_data_of_ones_own_is_one_line(tmp_path):
  (tmp_path / 'my_tasks.py').write_text("""
from tasks import Task, image_models, own_data

def bad(name, seed):
  data = own_data.from_image_folders('pictures', (4, 4))
  return Task(name, image_models.logistic((4, 4, 3), 2), data, data)
""")
  folder = tmp_path / 'pictures' / 'client' / 'label'
  folder.mkdir(parents=True)
  (folder / 'bad.png').write_bytes(b'nothing')
  done = _show('--task=my_tasks.bad', '--output_dir=shown', cwd=tmp_path)
  assert done.returncode == 2
  assert done.stderr.startswith('show_task: error: my_tasks.bad: pictures/client/label')
  assert len(done.stderr.splitlines()) == 1
