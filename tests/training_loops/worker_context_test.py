"""Tests of the contexts behind the runtimes."""

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


def test_kept_computations_are_not_mixed_up(shipped, monkeypatch):
  monkeypatch.setattr(worker_context, '_MAX_SHIPPED', 2)
  totals = [_plus(i) for i in range(4)]
  for _ in range(3):
    for i, total in enumerate(totals):
      assert total([10, 20, 30]) == 60 + 3 * i
  # Called in turn, each has been given up for the others when its turn comes again.
  assert len(shipped) == 12


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
