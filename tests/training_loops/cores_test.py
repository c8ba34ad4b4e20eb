"""Tests of the number of cores."""

import os

import pytest

from training_loops import cores


@pytest.mark.parametrize(
  ('limit', 'number'),
  [('max 100000', 8), ('200000 100000', 2), ('50000 100000', 1), ('990000 1000', 8)],
)
def test_a_container_may_have_fewer_than_there_are(
  limit, number, monkeypatch, tmp_path
):
  (tmp_path / 'cpu.max').write_text(f'{limit}\n')
  monkeypatch.setattr(cores, '_LIMIT', tmp_path / 'cpu.max')
  monkeypatch.setattr(os, 'sched_getaffinity', lambda pid: set(range(8)))
  assert cores.number() == number


def test_without_containers_it_is_those_that_the_process_may_use(monkeypatch, tmp_path):
  monkeypatch.setattr(cores, '_LIMIT', tmp_path / 'none')
  assert cores.number() == len(os.sched_getaffinity(0))
