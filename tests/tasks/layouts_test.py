"""Tests of clients' rows that stay from run to run."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

import tasks
from tasks import client_files, layouts
from tasks.client_files import Condition
from tasks.federated_data import FederatedData, Origin


@pytest.fixture
def source(tmp_path):
  path = tmp_path / 'source.sqlite'
  path.write_text('as it is')
  return path


def _data(source, made=None):
  def load(client_id):
    if made is not None:
      made.append(client_id)
    return {'x': np.ones([3, 2], np.float32), 'y': np.arange(3, dtype=np.int32)}

  return FederatedData(['ann', 'bob'], load, origin=Origin(source, ('as is',)))


def _opened(data, parent):
  features = client_files.features_of(data.rows('ann'))
  return layouts.opened(data, features, parent)


def test_rows_are_made_once_and_a_damaged_file_is_mended(source, tmp_path):
  made = []
  layout = _opened(_data(source), tmp_path / 'kept')
  assert layout.provide('ann') == Condition.MISSING
  layout.close()
  layout = _opened(_data(source, made), tmp_path / 'kept')
  made.clear()
  assert layout.provide('ann') == Condition.WHOLE
  assert not made
  path = layout.files.path('ann')
  whole = path.read_bytes()
  for damaged in (whole[:-1], b'', whole[:-1] + b'\7'):
    path.write_bytes(damaged)
    assert layout.provide('ann') == Condition.DAMAGED
    assert path.read_bytes() == whole
  layout.close()


@pytest.mark.parametrize('what', ['code', 'source'])
def test_another_version_takes_the_place_of_one_that_nobody_uses(
  source, tmp_path, monkeypatch, what
):
  first = _opened(_data(source), tmp_path / 'kept')
  first.provide('ann')
  if what == 'code':
    monkeypatch.setattr(layouts, 'code_hash', lambda: 'another')
  else:
    source.write_text('changed since')
  second = _opened(_data(source), tmp_path / 'kept')
  assert second.provide('ann') == Condition.MISSING
  assert first.provide('ann') == Condition.WHOLE  # It is in use.
  first.close()
  second.close()
  _opened(_data(source), tmp_path / 'kept').close()
  assert not first.files.directory.exists()
  assert second.files.condition('ann') == Condition.WHOLE


def test_what_a_killed_process_left_is_removed(source, tmp_path):
  layout = _opened(_data(source), tmp_path / 'kept')
  left = layout.files.directory.parent / 'unfinished' / 'left'
  left.write_bytes(b'half')
  _opened(_data(source), tmp_path / 'kept').close()
  assert left.exists()  # It may be the other's.
  layout.close()
  _opened(_data(source), tmp_path / 'kept').close()
  assert not left.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
  'name', ['emnist_logistic', 'cifar100', 'celeba_smile', 'shakespeare']
)
def test_real_rows_come_back_bit_by_bit(name, data_dir, tmp_path):
  _check_real(tasks.load(name, seed=0, data_dir=str(data_dir)), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['stackoverflow_word', 'stackoverflow_tag'])
def test_real_words_come_back_bit_by_bit(name, data_dir, tmp_path):
  _check_real(tasks.load(name, seed=0, data_dir=str(data_dir)), tmp_path)


def _check_real(task, tmp_path):
  client_ids = task.train.client_ids[:30]
  features = client_files.features_of(task.train.rows(client_ids[0]))
  layout = layouts.opened(task.train, features, tmp_path)
  load = tf.function(layout.files.load, input_signature=[tf.TensorSpec([], tf.string)])
  for client_id in client_ids:
    layout.provide(client_id)
    expected = task.train.rows(client_id)
    for name, array in load(tf.constant(client_id)).items():
      assert array.numpy().tobytes() == expected[name].tobytes()
  layout.close()


_PROVIDE = """
import sys, pathlib, numpy as np
from tasks import client_files, layouts
from tasks.federated_data import FederatedData, Origin
rows = {'x': np.arange(4000.0), 'y': np.arange(4000)}
ids = [str(i) for i in range(200)]
data = FederatedData(ids, lambda _: rows, origin=Origin(pathlib.Path(sys.argv[1]), ()))
features = client_files.features_of(rows)
layout = layouts.opened(data, features, pathlib.Path(sys.argv[2]))
for i in ids:
  layout.provide(i)
assert all(layout.files.condition(i).value == 'whole' for i in ids)
"""


@pytest.mark.slow
def test_two_processes_at_once_do_not_spoil_each_other(source, tmp_path):
  command = [sys.executable, '-c', _PROVIDE, str(source), str(tmp_path / 'kept')]
  here = pathlib.Path(__file__).parents[2]
  both = [subprocess.Popen(command, cwd=here, env=os.environ) for _ in range(2)]
  assert [process.wait(120) for process in both] == [0, 0]
