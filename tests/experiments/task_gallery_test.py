"""Tests of the gallery of tasks, and of the document that it writes."""

import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import tensorflow_federated as tff

from experiments import task_gallery
import tasks
from tests.tasks import data_files, tff_data
from training_loops.options import UserError

_ROOT = pathlib.Path(__file__).parents[2]
_DOCUMENT = _ROOT / 'docs' / 'tasks.md'
_AGAIN = 'run `python -m experiments.task_gallery`'


def test_options_are_listed_with_their_defaults_and_what_these_bring():
  tree = {
    'data_dir': None,
    'depth': 3,
    'limit': None,
    'kind': tasks.Choice('b', {'a': {'rate': 0.5}, 'b': {'size': 7}}),
    'plain': tasks.Choice('c', {'c': {}}),
  }
  assert task_gallery.options_text(tree) == (
    '`depth=3`, `limit`, `kind=b`, `size=7`, `plain=c`'
  )


def test_a_part_of_a_document_is_replaced_and_nothing_else():
  document = (
    'a\n<!-- generated: x -->\nold\n<!-- end -->\nb\n<!-- generated: y -->\n\\1'
  )
  changed = task_gallery.with_part(document, 'x', r'new \1')
  assert changed == document.replace('old', r'new \1')
  assert task_gallery.with_part(changed, 'x', 'old') == document
  with pytest.raises(UserError, match='generated: z'):
    task_gallery.with_part(document, 'z', 'new')


def test_the_document_has_all_tasks_and_partitioners_as_they_are():
  text = _DOCUMENT.read_text(encoding='utf-8')
  assert task_gallery.partitioners_table() in text, _AGAIN
  table = task_gallery.tasks_table(dict.fromkeys(tasks.names(), 'WEIGHTS'))
  for line in table.splitlines()[2:]:
    start, end = line.split('WEIGHTS')
    assert re.search(rf'^{re.escape(start)}\S.*{re.escape(end)}$', text, re.M), _AGAIN


def test_the_pictures_of_the_document_are_there_and_small():
  shown = re.findall(r'!\[.*?\]\((.*?)\)', _DOCUMENT.read_text(encoding='utf-8'))
  directory = _DOCUMENT.parent / 'images' / 'tasks'
  assert {_DOCUMENT.parent / name for name in shown} == set(directory.iterdir())
  sizes = [path.stat().st_size for path in directory.iterdir()]
  assert max(sizes) < 60_000
  assert sum(sizes) < 400_000


def _run(*flags):
  return subprocess.run(
    [sys.executable, '-m', 'experiments.task_gallery', *flags],
    cwd=_ROOT,
    capture_output=True,
    text=True,
    timeout=300,
  )


def _write_data(directory: pathlib.Path) -> None:
  """Small data for every task, as many as the default clients need."""
  generator = np.random.default_rng(0)
  tff_data.write_all(directory)
  data_files.write_articles(directory / 'wikipedia')
  data_files.write_ratings(directory / 'ratings.dat', data_files.some_histories(20))
  pictures = {
    'image': generator.integers(0, 256, [100, 32, 32, 3]),
    'coarse_label': np.arange(100) // 5,
    'label': np.arange(100),
  }
  clients = tff.simulation.datasets.TestClientData({'a': pictures})
  (directory / 'cifar100.sqlite').unlink()
  tff_data.write(directory / 'cifar100.sqlite', {'train': clients, 'test': clients})
  for prefix, count, num_classes in (
    ('mnist/train', 100, 10),
    ('mnist/t10k', 10, 10),
    ('emnist-balanced/emnist-balanced-train', 470, 47),
    ('emnist-balanced/emnist-balanced-test', 47, 47),
  ):
    images = generator.integers(0, 256, [count, 28, 28])
    data_files.write_idx(directory / f'{prefix}-images-idx3-ubyte', images)
    labels = np.arange(count) % num_classes
    data_files.write_idx(directory / f'{prefix}-labels-idx1-ubyte', labels)
  lines = [','.join(map(str, row)) for row in generator.normal(size=[1030, 9])]
  (directory / 'Concrete_Data.csv').write_text('\n'.join(['a,b,c,d,e,f,g,h,i', *lines]))


@pytest.mark.slow
def test_the_document_and_its_pictures_are_written_anew(tmp_path):
  data, docs = tmp_path / 'data', tmp_path / 'docs'
  data.mkdir()
  docs.mkdir()
  _write_data(data)
  original = _DOCUMENT.read_text(encoding='utf-8')
  emptied = re.sub(
    r'(<!-- generated: \w+ -->\n).*?(<!-- end -->)', r'\1\2', original, flags=re.S
  )
  assert len(emptied) < 0.7 * len(original)
  (docs / 'tasks.md').write_text(emptied, encoding='utf-8')
  done = _run(f'--data_dir={data}', f'--docs_dir={docs}')
  assert (done.returncode, done.stderr) == (0, '')

  text = (docs / 'tasks.md').read_text(encoding='utf-8')
  # Only the lines of the texts are of other data than the original's.
  before, _, _ = original.partition('<!-- generated: texts -->')
  weights = r'\| [\d,]+ \|$'  # A vocabulary may be smaller.
  assert re.sub(weights, '', text, flags=re.M).startswith(
    re.sub(weights, '', before, flags=re.M)
  )
  assert "<s> if you're using sql 2005 or better this is a nice , " in text
  names = {path.name for path in (_DOCUMENT.parent / 'images' / 'tasks').iterdir()}
  for path in (docs / 'images' / 'tasks').iterdir():
    assert path.read_bytes().startswith(b'\x89PNG')
    names.remove(path.name)
  assert not names


def test_missing_data_are_one_line(tmp_path):
  done = _run(f'--data_dir={tmp_path}/gone', f'--docs_dir={tmp_path}')
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr == (
    f'task_gallery: error: --data_dir={tmp_path}/gone is not a directory.\n'
  )
