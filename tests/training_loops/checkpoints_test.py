"""Tests of checkpoints."""

import collections
import logging
import os
from typing import Any, NamedTuple

import numpy as np
import pytest
import tree

from training_loops import checkpoints


class _State(NamedTuple):
  weights: Any
  optimizer: Any


def _state(value: float = 0.0) -> _State:
  generator = np.random.default_rng(0)
  return _State(
    weights=[generator.normal(size=(3, 2)).astype(np.float32) + value, np.float64(7)],
    optimizer=collections.OrderedDict(
      z=np.int64(2**62 + 1), a=((), np.array([True, False])), empty=np.zeros([0, 4])
    ),
  )


def _assert_equal(a, b):
  tree.assert_same_structure(a, b)
  for x, y in zip(tree.flatten(a), tree.flatten(b), strict=True):
    x, y = np.asarray(x), np.asarray(y)
    assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


def test_a_structure_comes_back_bit_by_bit_in_the_shape_of_its_template(tmp_path):
  state = _state()
  state.weights[0][0] = [np.nan, -0.0]
  checkpoints.write(tmp_path / 'a', state, {'round': 3, 'rows': [{'loss': 0.1}]})
  checkpoint = checkpoints.read(tmp_path / 'a')
  assert checkpoint.record == {'round': 3, 'rows': [{'loss': 0.1}]}
  _assert_equal(checkpoint.restore(_state(1.0)), state)


def test_a_restored_array_can_be_changed(tmp_path):
  checkpoints.write(tmp_path / 'a', {'x': np.zeros(3)}, {})
  checkpoints.read(tmp_path / 'a').arrays['x'][0] = 1


@pytest.mark.parametrize(
  ('template', 'message'),
  [
    ({'y': np.zeros(3)}, 'on one side only'),
    ({'x': np.zeros(3), 'y': np.zeros(3)}, 'y is on one side only'),
    ({'x': np.zeros(4)}, r'x is float64\[3\] in the checkpoint, not float64\[4\]'),
    ({'x': np.zeros(3, np.float32)}, r'x is float64\[3\] .*, not float32\[3\]'),
  ],
)
def test_another_structure_than_the_saved_one_is_refused(tmp_path, template, message):
  checkpoints.write(tmp_path / 'a', {'x': np.zeros(3)}, {})
  with pytest.raises(checkpoints.MismatchError, match=message):
    checkpoints.read(tmp_path / 'a').restore(template)


def test_what_is_no_number_is_refused(tmp_path):
  with pytest.raises(TypeError, match='x/0 is no numeric array'):
    checkpoints.write(tmp_path / 'a', {'x': [np.array([None])]}, {})
  assert os.listdir(tmp_path) == []


def test_every_truncation_is_found(tmp_path):
  path = tmp_path / 'a'
  checkpoints.write(path, _state(), {'round': 3})
  content = path.read_bytes()
  for length in range(len(content)):
    path.write_bytes(content[:length])
    with pytest.raises(checkpoints.DamagedError):
      checkpoints.read(path)


def test_every_flipped_byte_is_found(tmp_path):
  path = tmp_path / 'a'
  checkpoints.write(path, _state(), {'round': 3})
  content = path.read_bytes()
  for i in range(len(content)):
    path.write_bytes(content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :])
    with pytest.raises(checkpoints.DamagedError):
      checkpoints.read(path)


def _save(store: checkpoints.Store, round_num: int, best_round: int) -> None:
  store.save(round_num, {'x': np.array(round_num)}, {'round': round_num}, best_round)


def test_the_last_two_and_the_best_are_kept(tmp_path):
  store = checkpoints.Store(tmp_path / 'c')
  for round_num, best_round in ((1, 1), (2, 2), (3, 2), (4, 2), (5, 2), (10, 2)):
    _save(store, round_num, best_round)
  assert sorted(os.listdir(tmp_path / 'c')) == [
    'round_00000002.ckpt',
    'round_00000005.ckpt',
    'round_00000010.ckpt',
  ]
  assert [c.record['round'] for c in store.newest_first()] == [10, 5, 2]
  assert store.read(2).arrays['x'] == 2


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_is_taken(tmp_path, caplog):
  store = checkpoints.Store(tmp_path)
  _save(store, 1, 1)
  _save(store, 2, 2)
  with open(tmp_path / 'round_00000002.ckpt', 'r+b') as file:
    file.truncate(50)
  with caplog.at_level(logging.WARNING, 'training_loops'):
    assert next(store.newest_first()).record['round'] == 1
  assert 'round_00000002.ckpt is damaged' in caplog.text


def test_what_lies_after_the_round_continued_from_is_removed(tmp_path):
  store = checkpoints.Store(tmp_path)
  _save(store, 1, 1)
  _save(store, 2, 1)
  store.remove_after(1)
  assert os.listdir(tmp_path) == ['round_00000001.ckpt']


def test_a_directory_that_is_not_there_has_no_checkpoints(tmp_path):
  assert list(checkpoints.Store(tmp_path / 'c').newest_first()) == []
  assert not (tmp_path / 'c').exists()
