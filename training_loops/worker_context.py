"""TFF contexts for `runtimes`: one that executes on a worker, one that refuses to.

Apart from `runtimes` because importing it imports TFF.
"""

from collections.abc import Callable
from typing import Any

import grpc
import tensorflow_federated as tff

# More than a program calls in turn; TFF's own cache of compiled ones has 128.
_MAX_KEPT_COMPUTATIONS = 32


def create(
  channel: grpc.Channel, failure: Callable[[str], Exception]
) -> tff.framework.SyncContext:
  """A context that executes on the worker at the other end of a channel.

  Args:
    channel: A gRPC channel to the worker.
    failure: What happened -> the error to raise when the worker fails.
  """
  stub = _FailingStub(tff.framework.RemoteExecutorGrpcStub(channel), failure)

  def create_executor(cardinalities):
    cardinalities.setdefault(tff.CLIENTS, 0)
    executor = _Executor(stub)
    executor.set_cardinalities(cardinalities)
    return executor

  return tff.framework.SyncExecutionContext(
    executor_fn=tff.framework.ResourceManagingExecutorFactory(create_executor),
    compiler_fn=tff.backends.native.desugar_and_transform_to_native,
    transform_args=tff.tensorflow.transform_args,
    transform_result=tff.tensorflow.transform_result,
  )


class FailedContext(tff.framework.SyncContext):
  """A context in which every computation raises the same error."""

  def __init__(self, error: Exception):
    self._error = error

  def invoke(self, comp: Any, arg: Any) -> Any:
    """Raises the error."""
    raise self._error


class _Executor(tff.framework.RemoteExecutor):
  """An executor that ships a computation once, and not in every round.

  For FedAvg with a small model that is a sixth of the time of a round.
  """

  def __init__(self, stub: Any):
    super().__init__(stub)
    # By identity: hashing a computation takes as long as shipping it.
    self._kept: dict[int, tuple[Any, Any]] = {}

  def close(self) -> None:
    self._kept.clear()
    super().close()

  async def create_value(self, value: Any, type_spec: Any = None) -> Any:
    if not isinstance(value, tff.framework.ConcreteComputation):
      return await super().create_value(value, type_spec)
    if id(value) not in self._kept:
      while len(self._kept) >= _MAX_KEPT_COMPUTATIONS:
        del self._kept[next(iter(self._kept))]
      # Beside its remote copy the computation itself is kept, and thereby its id.
      self._kept[id(value)] = (value, await super().create_value(value, type_spec))
    return self._kept[id(value)][1]


class _FailingStub:
  """An executor's stub whose errors are final.

  After the gRPC statuses UNAVAILABLE (the worker is dead) and FAILED_PRECONDITION (it
  has forgotten the executor) TFF itself would repeat the call for ever. Disposing of
  what has died with the worker succeeds: Python's finalizers do so at exit.
  """

  def __init__(self, stub: Any, failure: Callable[[str], Exception]):
    self._stub = stub
    self._failure = failure

  def __getattr__(self, name: str) -> Callable[[Any], Any]:
    method = getattr(self._stub, name)

    def call(request):
      try:
        return method(request)
      except grpc.RpcError as error:
        final = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION)
        if error.code() not in final:
          raise
        if name in ('dispose', 'dispose_executor'):
          return None
        raise self._failure(f'{name} failed: {error.details()}.') from error

    return call
