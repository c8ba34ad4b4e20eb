"""Tests of the demonstration."""

import os
import pathlib
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[2]


def _demo(directory, *flags: str) -> subprocess.CompletedProcess:
  return subprocess.run(
    [sys.executable, '-m', 'experiments.demo', *flags],
    cwd=directory,
    env={**os.environ, 'PYTHONPATH': str(_ROOT)},
    capture_output=True,
    text=True,
    timeout=300,
  )


def _write_old_run(directory) -> pathlib.Path:
  """A run as left by another version, where one of the demonstration's goes."""
  path = directory / 'runs' / 'demo' / 'FedAvg' / 'seed_0'
  path.mkdir(parents=True)
  (path / 'config.json').write_text('{"flags": {"task": "other"}}')
  return path


@pytest.mark.slow
def test_it_compares_three_algorithms_and_ends_with_the_path_of_a_picture(tmp_path):
  _write_old_run(tmp_path)
  (tmp_path / 'runs' / 'mine').touch()
  done = _demo(tmp_path)
  assert (done.returncode, done.stderr) == (0, '')
  *_, fed_avg, fed_prox, server_only, empty, page, picture = done.stdout.splitlines()
  for line, name in (
    (fed_avg, 'FedAvg'),
    (fed_prox, 'FedProx'),
    (server_only, 'Server-only'),
  ):
    assert line.startswith(f'| {name} ')
    final, best, rounds = (cell.strip(' %') for cell in line.split('|')[2:5])
    assert 90 < float(final) <= float(best)
    assert int(rounds) <= 100
  assert empty == ''
  html = pathlib.Path(page.removeprefix('Page: ')).read_text(encoding='utf-8')
  assert '<html' in html
  content = pathlib.Path(picture.removeprefix('Picture: ')).read_bytes()
  assert content.startswith(b'\x89PNG')
  assert (tmp_path / 'runs' / 'mine').exists()


def test_a_flag_is_refused_and_the_results_of_an_earlier_time_stay(tmp_path):
  old = _write_old_run(tmp_path)
  done = _demo(tmp_path, '--rounds=3')
  assert (done.returncode, done.stdout) == (2, '')
  assert done.stderr == 'demo: error: unknown flag --rounds; --helpshort shows all.\n'
  assert os.listdir(old) == ['config.json']
