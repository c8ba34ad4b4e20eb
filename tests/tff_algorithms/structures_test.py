"""Arithmetic on structures of tensors."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import structures

_A = collections.OrderedDict(w=tf.constant([3.0, 0.0]), b=tf.constant([[4.0]]))
_B = collections.OrderedDict(w=tf.constant([1.0, 2.0]), b=tf.constant([[-1.0]]))


def test_adds_subtracts_and_scales_leaf_by_leaf():
  np.testing.assert_array_equal(structures.add(_A, _B, _B)['w'], [5, 4])
  np.testing.assert_array_equal(structures.subtract(_A, _B)['b'], [[5]])
  np.testing.assert_array_equal(structures.scale(2, _A)['w'], [6, 0])


def test_scaling_keeps_each_tensors_dtype():
  mixed = (tf.constant(1.0, tf.float64), tf.constant(1.0, tf.float32))
  dtypes = [t.dtype for t in structures.scale(tf.constant(0.5), mixed)]
  assert dtypes == [tf.float64, tf.float32]


def test_the_norm_is_that_of_all_tensors_as_one_vector():
  assert structures.global_norm(_A) == 5


def test_zeros_are_zeros_even_of_nan():
  zeros = structures.zeros_like((tf.constant([np.nan, np.inf]),))
  np.testing.assert_array_equal(zeros[0], [0, 0])


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('dtype', [tf.float32, tf.float64, tf.bfloat16])
def test_one_bad_number_anywhere_is_found(bad, dtype):
  good = (tf.constant([1, 2]), tf.constant('text'), tf.constant([1.0], dtype))
  assert structures.all_finite(good)
  assert not structures.all_finite((good, tf.constant([[1.0, bad]], dtype)))


def test_numbers_whose_sum_overflows_are_finite():
  huge = np.full([8], 3e38, np.float32)
  assert np.isinf(np.sum(huge))
  assert structures.all_finite((huge, -huge))
  huge[3] = np.nan
  assert not structures.all_finite((tf.constant([1.0]), huge))


def test_select_takes_one_side_whole_and_nothing_of_the_other():
  nan = tf.nest.map_structure(lambda t: t * np.nan, _A)
  chosen = structures.select(tf.constant(True), _A, nan)
  np.testing.assert_array_equal(chosen['w'], _A['w'])
  assert np.isnan(structures.select(tf.constant(False), _A, nan)['b']).all()


def test_a_structure_survives_the_way_through_a_vector():
  mixed = collections.OrderedDict(
    w=tf.constant([[1.0, 2.0], [3.0, 4.0]]),
    n=tf.constant(7, tf.int64),
    nothing=(),
    b=(tf.constant([0.5], tf.float64),),
  )
  vector = structures.as_vector(mixed)
  assert (vector.dtype, vector.shape) == (tf.float32, [6])
  back = structures.from_vector(vector, structures.tensor_specs(mixed))
  tf.nest.assert_same_structure(back, mixed)
  for a, b in zip(tf.nest.flatten(back), tf.nest.flatten(mixed), strict=True):
    assert a.dtype == b.dtype
    np.testing.assert_array_equal(a, b)


def test_bytes_are_those_of_all_tensors():
  value_type = tff.types.to_type(
    collections.OrderedDict(w=(np.float32, [3, 2]), n=np.int64, nothing=())
  )
  assert structures.size_in_bytes(value_type) == 3 * 2 * 4 + 8


def test_only_tensors_have_a_size():
  with pytest.raises(TypeError, match='tensors only'):
    structures.size_in_bytes(tff.SequenceType(np.float32))


def test_weights_of_clients_have_the_precision_of_the_model_but_float32_at_least():
  for dtype, expected in (
    (tf.float16, tf.float32),
    (tf.bfloat16, tf.float32),
    (tf.float32, tf.float32),
    (tf.float64, tf.float64),
  ):
    assert structures.weight_dtype((tf.zeros([2], dtype),)) == expected
