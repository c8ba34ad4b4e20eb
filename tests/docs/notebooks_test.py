"""Tests that the notebooks run, and hold what they gave when they were run."""

import ast
import pathlib
import re

import nbclient
import nbformat
import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_NOTEBOOKS = sorted((_ROOT / 'docs' / 'notebooks').rglob('*.ipynb'))
_MAX_BYTES = 200_000

of_each_notebook = pytest.mark.parametrize(
  'path', _NOTEBOOKS, ids=lambda path: path.stem
)


def _code_cells(notebook) -> list:
  return [cell for cell in notebook.cells if cell.cell_type == 'code']


def _kinds(cell) -> list[list[str]]:
  """What a cell shows: text, a table, a picture. Warnings are no part of it."""
  return [
    sorted(output.get('data', ['text']))
    for output in cell.outputs
    if output.get('name') != 'stderr'
  ]


def _ends_with_a_value(source: str) -> bool:
  return isinstance(ast.parse(source).body[-1], ast.Expr)


def _texts(notebook) -> list[str]:
  """All that can be read in a notebook; a picture's bytes could read as anything."""
  texts = [cell.source for cell in notebook.cells]
  for cell in _code_cells(notebook):
    for output in cell.outputs:
      texts.append(str(output.get('text', '')))
      data = output.get('data', {})
      texts += [str(data[kind]) for kind in data if not kind.startswith('image/')]
  return texts


def test_there_are_notebooks():
  assert _NOTEBOOKS


@of_each_notebook
def test_a_notebook_was_run_from_its_top_and_shows_what_it_gave(path):
  cells = _code_cells(nbformat.read(path, as_version=4))
  assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
  for cell in cells:
    kinds = {output.output_type for output in cell.outputs}
    assert 'error' not in kinds
    assert kinds or not _ends_with_a_value(cell.source), cell.source
    assert 'stderr' not in {output.get('name') for output in cell.outputs}


@of_each_notebook
def test_a_notebook_is_small_and_names_no_place_on_its_makers_machine(path):
  assert path.stat().st_size < _MAX_BYTES
  for text in _texts(nbformat.read(path, as_version=4)):
    assert not re.search(r'/(tmp|home|root|work|Users|var)\b', text), text


@pytest.mark.slow
@pytest.mark.parametrize('start', ['.', 'docs/notebooks'])
@of_each_notebook
def test_a_notebook_runs_from_either_place_and_shows_the_same_things(
  path, start, tmp_path, monkeypatch
):
  monkeypatch.setenv('TMPDIR', str(tmp_path))  # What it leaves goes with the test.
  notebook = nbformat.read(path, as_version=4)
  shown = [_kinds(cell) for cell in _code_cells(notebook)]
  for cell in _code_cells(notebook):
    cell.outputs, cell.execution_count = [], None
  nbclient.NotebookClient(  # Raises an error that a cell raises.
    notebook,
    kernel_name='python3',
    timeout=300,
    resources={'metadata': {'path': str(_ROOT / start)}},
  ).execute()
  assert [_kinds(cell) for cell in _code_cells(notebook)] == shown
