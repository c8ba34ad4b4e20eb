"""Tests of the contexts behind the runtimes."""

import collections
from typing import NamedTuple
from unittest import mock

import grpc
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from training_loops import worker_context

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('runtime')]


@pytest.fixture
def shipped(monkeypatch):
  """Grows by an item with every computation that is sent to the worker."""
  requests = []
  stub_class = tff.framework.RemoteExecutorGrpcStub
  create_value = stub_class.create_value

  def record(self, request):
    if request.value.HasField('computation'):
      requests.append(request)
    return create_value(self, request)

  monkeypatch.setattr(stub_class, 'create_value', record)
  return requests


def _plus(summand):
  @tff.tensorflow.computation(np.int32)
  def plus(number):
    check = tf.debugging.assert_non_negative(number, message='too low')
    with tf.control_dependencies([check]):
      return number + summand

  @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
  def total(numbers):
    return tff.federated_sum(tff.federated_map(plus, numbers))

  return total


def test_computation_is_shipped_once_for_each_number_of_clients(shipped):
  total = _plus(100)
  for _ in range(3):
    assert total([1, 2]) == 203
    assert total([1, 2, 3]) == 306
  assert len(shipped) == 2


def test_computation_works_again_after_an_error_in_it(shipped):
  total = _plus(200)
  assert total([1, 2]) == 403
  with pytest.raises(Exception, match='too low'):
    total([1, -2])
  assert total([1, 2]) == 403
  assert len(shipped) == 2  # The error ended the executor, and with it what it kept.


def test_failed_context_raises_its_error():
  context = worker_context.FailedContext(KeyError('planned'))
  with pytest.raises(KeyError, match='planned'):
    context.invoke(_plus(1), [1])


class _Refusal(grpc.RpcError):
  def __init__(self, code):
    self._code = code

  def code(self):
    return self._code

  def details(self):
    return 'refused'


@pytest.mark.parametrize(
  'code', [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION]
)
def test_errors_that_tff_would_retry_are_final(code):
  stub = mock.Mock()
  stub.compute.side_effect = _Refusal(code)
  with pytest.raises(KeyError, match='compute failed: refused'):
    worker_context._FailingStub(stub, failure=KeyError).compute(None)


def test_other_errors_stay_as_they_are():
  stub = mock.Mock()
  stub.compute.side_effect = _Refusal(grpc.StatusCode.INTERNAL)
  with pytest.raises(_Refusal):
    worker_context._FailingStub(stub, failure=KeyError).compute(None)


def test_what_died_with_the_worker_is_disposed_of_without_an_error():
  stub = mock.Mock()
  stub.dispose.side_effect = _Refusal(grpc.StatusCode.UNAVAILABLE)
  worker_context._FailingStub(stub, failure=KeyError).dispose(None)
  stub.dispose.assert_called_once_with(None)


@tff.tensorflow.computation
def _all_kinds():
  return collections.OrderedDict(
    flag=True,
    flags=[True, False],
    small=tf.constant(7, tf.int8),
    number=tf.constant(-(2**40), tf.int64),
    half=tf.constant([0.5, -2.0], tf.bfloat16),
    real=tf.constant(1e-300, tf.float64),
    matrix=tf.reshape(tf.range(6, dtype=tf.float32), [2, 3]),
    none=tf.zeros([0, 3], tf.int32),
    text='Zoë',
    complex=tf.constant(1 + 2j, tf.complex64),
    nothing=(),
  )


def test_values_of_every_kind_come_back_as_they_were_sent():
  there = _all_kinds()
  back = tff.tensorflow.computation(
    lambda value: tf.nest.map_structure(tf.identity, value),
    _all_kinds.type_signature.result,
  )(there)
  assert list(back) == list(there)
  for name, value in there.items():
    sent, got = np.asarray(value), np.asarray(back[name])
    assert (got.dtype, got.shape) == (sent.dtype, sent.shape), name
    np.testing.assert_array_equal(got, sent)
  assert back['matrix'].tolist() == [[0, 1, 2], [3, 4, 5]]
  assert back['text'] == 'Zoë'.encode()


class _Point(NamedTuple):
  x: np.float32
  y: collections.OrderedDict


def test_structures_come_back_in_their_containers():
  value_type = tff.types.to_type(
    _Point(np.float32, collections.OrderedDict(z=[np.int32]))
  )

  @tff.federated_computation(tff.FederatedType(value_type, tff.SERVER))
  def same(value):
    return value

  value = _Point(np.float32(1), collections.OrderedDict(z=[np.int32(2)]))
  back = same(value)
  assert back == value
  assert isinstance(back, _Point)
  assert isinstance(back.y['z'], list)


def test_arguments_of_another_shape_or_number_are_refused_before_they_are_sent():
  @tff.federated_computation(
    tff.FederatedType(np.int32, tff.CLIENTS), tff.FederatedType(np.int32, tff.CLIENTS)
  )
  def both(a, b):
    return tff.federated_sum(a), tff.federated_sum(b)

  assert both([1, 2], [3, 4]) == (3, 7)
  with pytest.raises(ValueError, match='Conflicting numbers of clients: \\[1, 2\\]'):
    both([1, 2], [3])
  with pytest.raises(TypeError, match='a list with a value a client'):
    both(1, 2)
  with pytest.raises(TypeError):
    both([1.5, 2], [3, 4])
