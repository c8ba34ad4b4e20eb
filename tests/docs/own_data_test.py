"""The examples of docs/own_data.md, as they stand there."""

import math
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
from sklearn import datasets
import tensorflow as tf
import tensorflow_federated as tff

import tasks
from tests.tasks import tff_data
from training_loops import run, train_flags

_ROOT = pathlib.Path(__file__).parents[2]
_DOCUMENT = (_ROOT / 'docs' / 'own_data.md').read_text()
_BLOCKS = dict(
  re.findall(
    r'^## ([^\n]+)\n(?:(?!^## ).)*?^```python\n(.*?)^```', _DOCUMENT, re.M | re.S
  )
)
_TASKS = {title: block for title, block in _BLOCKS.items() if 'def f(' in block}
_HEADER = 'hospital,age,pressure,dose,outcome'


def _write_inputs(directory: pathlib.Path) -> None:
  """Writes the files that the examples read: 8 clients or more, 12 examples each."""
  generator = np.random.default_rng(0)
  clients = np.repeat([f'c{i}' for i in range(8)], 12)
  num_rows = len(clients)

  labels = generator.integers(0, 4, num_rows)
  x = generator.normal(size=[num_rows, 6]) + labels[:, np.newaxis]
  np.savez(directory / 'phones.npz', phone=clients, x=x, y=labels)

  digits = datasets.load_digits()
  np.savez(directory / 'digits.npz', x=digits.images / 16, y=digits.target)

  lines = [
    f'{c},{generator.integers(20, 90)},{generator.integers(90, 180)},'
    f'{generator.uniform():.2f},{generator.choice(["ill", "well"])}'
    for c in clients
  ]
  (directory / 'patients.csv').write_text('\n'.join([_HEADER, *lines]))

  sizes = generator.uniform(1, 2, [num_rows, 2])
  lines = [f'{c},{a},{b},{a + 2 * b}' for c, (a, b) in zip(clients, sizes, strict=True)]
  (directory / 'houses.csv').write_text('\n'.join(['town,rooms,area,price', *lines]))

  for i, client in enumerate(clients):
    folder = directory / 'photos' / client / ('cat', 'dog')[i % 2]
    folder.mkdir(parents=True, exist_ok=True)
    pixels = generator.integers(0, 255, [20, 30, 3], np.uint8)
    (folder / f'{i}.png').write_bytes(tf.io.encode_png(pixels).numpy())

  images = {
    client: {
      'pixels': generator.uniform(size=[12, 28, 28]).astype(np.float32),
      'label': generator.integers(0, 10, 12),
    }
    for client in np.unique(clients)
  }
  (directory / 'phones').mkdir()
  for client in np.unique(clients):
    path = directory / 'phones' / f'{client}.tfrecord'
    with tf.io.TFRecordWriter(str(path)) as writer:
      for i in np.flatnonzero(clients == client):
        example = tf.train.Example()
        example.features.feature['x'].float_list.value.extend(x[i])
        example.features.feature['y'].int64_list.value.append(labels[i])
        writer.write(example.SerializeToString())

  data = tff.simulation.datasets.TestClientData(images)
  tff_data.write(directory / 'mine.sqlite', {'train': data, 'test': data})


@pytest.fixture(scope='module')
def inputs(tmp_path_factory):
  directory = tmp_path_factory.mktemp('inputs')
  _write_inputs(directory)
  return directory


@pytest.fixture
def use(inputs, tmp_path, monkeypatch):
  """Makes an example `my_tasks` of a directory that is the current one."""
  for path in inputs.iterdir():
    (tmp_path / path.name).symlink_to(path)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)

  def write(block):
    (tmp_path / 'my_tasks.py').write_text(block)
    monkeypatch.delitem(sys.modules, 'my_tasks', raising=False)

  yield write
  sys.modules.pop('my_tasks', None)


def test_there_is_an_example_of_each_kind():
  assert len(_TASKS) == 7
  assert len(_BLOCKS) == len(re.findall('^```python', _DOCUMENT, re.M)) == 9
  assert f'\n    {_HEADER}\n' in _DOCUMENT


@pytest.mark.parametrize('title', _TASKS)
def test_an_example_is_short_and_makes_a_task(title, use):
  lines = [line for line in _TASKS[title].splitlines() if line.strip()]
  assert len(lines) <= 20
  use(_TASKS[title])
  task = tasks.load('my_tasks.f', seed=0)
  assert task.name == 'my_tasks.f'
  assert len(task.train.client_ids) >= 8
  for data in (task.train, task.test):
    rows = data.all_rows()
    assert len(rows['y']) > 0
    for name, spec in task.model.input_spec.items():
      assert spec.is_compatible_with(tf.convert_to_tensor(rows[name]))


@pytest.mark.slow
@pytest.mark.parametrize('title', _TASKS)
def test_an_example_can_be_trained(title, use, runtime, tmp_path):
  use(_TASKS[title])
  flags = train_flags.configure(
    task='my_tasks.f',
    algorithm='fed_avg',
    rounds=2,
    clients_per_round=4,
    output_dir=tmp_path / 'run',
  )
  (row,) = run.train(flags, runtime=runtime).rows
  assert row['round'] == 2
  assert row['train/num_clients'] == 4
  assert math.isfinite(row['eval/loss'])


@pytest.mark.slow
def test_the_server_of_an_example_can_be_trained_on_too(use, runtime, tmp_path):
  use(_TASKS['A server with data of its own'])
  flags = train_flags.configure(
    task='my_tasks.f',
    algorithm='one_way_gradient_transfer',
    central_batch_size=10,
    rounds=1,
    clients_per_round=4,
    output_dir=tmp_path / 'run',
  )
  (row,) = run.train(flags, runtime=runtime).rows
  assert 0 <= row['eval/public_accuracy'] <= 1


def _printed_losses(title, directory):
  """What an example that is a program prints."""
  done = subprocess.run(
    [sys.executable, '-c', _BLOCKS[title]],
    env={**os.environ, 'PYTHONPATH': f'{_ROOT}:{directory}'},
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.returncode == 0, done.stderr
  return [float(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_task_is_used_from_python(use, tmp_path):
  use(_TASKS['Arrays without clients'])
  losses = _printed_losses('From Python', tmp_path)
  # Ten classes, and hardly begun.
  assert len(losses) == 2
  assert all(0 < loss < 1.1 * math.log(10) for loss in losses)


@pytest.mark.slow
def test_a_client_larger_than_memory_is_trained_on(use, tmp_path):
  (loss,) = _printed_losses('A client larger than memory', tmp_path)
  assert 0 < loss < 2 * math.log(4)
