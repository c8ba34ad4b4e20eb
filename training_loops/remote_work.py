"""What clients do, as a computation of TFF's that workers on other machines run.

Apart from `runtimes` because importing it imports TFF.
"""

from collections.abc import Callable, Sequence
import contextlib
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from training_loops import plan_values
from training_loops.plan_values import Values
from training_loops.round_plan import Tensor, UnsupportedError
from training_loops.worker_context import Executor, deserialize
from training_loops.worker_link import Session, WorkerLost

# Of a worker, for different numbers of clients: a pass has two at the most.
_MAX_EXECUTORS = 16


class RemoteWork:
  """The clients' part of a pass, for a number of clients at a time.

  Attributes:
    inputs: What it takes.
    outputs: What it makes of that, for each client.
    shared: Those of the inputs that all clients are sent.
    own: Those that each client has of its own.
    shared_type: Their type, at the server.
    own_type: Theirs, at the clients.
    computation: Takes both, returns the outputs at the clients, without names.
  """

  def __init__(
    self,
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    build: Callable[..., Sequence[tf.Tensor]],
  ):
    """Traces and compiles it.

    Args:
      inputs: What it takes.
      outputs: What it makes of that.
      build: Makes the outputs of the inputs, in a graph.

    Raises:
      UnsupportedError: If a data set would have to come back.
    """
    if any(isinstance(tensor.type, tff.SequenceType) for tensor in outputs):
      raise UnsupportedError('A client makes a data set that is needed elsewhere.')
    self.inputs, self.outputs = inputs, outputs
    self.shared = [tensor for tensor in inputs if not tensor.is_clients]
    self.own = [tensor for tensor in inputs if tensor.is_clients]
    self.shared_type = tff.FederatedType(_struct_type(self.shared), tff.SERVER)
    self.own_type = tff.FederatedType(_struct_type(self.own), tff.CLIENTS)

    @tff.tensorflow.computation(self.shared_type.member, self.own_type.member)
    def work(shared, own):
      parts = [*tff.structure.from_container(shared)]
      parts += tff.structure.from_container(own)
      names = [*self.shared, *self.own]
      known = dict(zip(names, map(_to_tensor, parts), strict=True))
      return tuple(build(*(known[tensor] for tensor in inputs)))

    @tff.federated_computation(self.shared_type, self.own_type)
    def mapped(shared, own):
      return tff.federated_map(work, (tff.federated_broadcast(shared), own))

    self.result_type = mapped.type_signature.result
    self.computation = tff.backends.native.desugar_and_transform_to_native(mapped)

  @property
  def bytes_of_a_client(self) -> int:
    """What a client sends back, about."""
    specs = [tensor.spec for tensor in self.outputs]
    return sum(s.dtype.size * (s.shape.num_elements() or 1) for s in specs)


class RemoteClients:
  """The clients of a pass, some of which a worker computes when it is asked to.

  What they share is sent to a worker once.
  """

  def __init__(self, work: RemoteWork, values: Values, clients: Sequence[Values]):
    """Initializes them.

    Args:
      work: What they do.
      values: What there is at the server.
      clients: What each client has.
    """
    self._work = work
    self._shared = _to_python(work.shared, values)
    self._clients = clients
    self._sent: dict[tuple[Session, int], tuple[Executor, Any]] = {}

  def compute(self, session: Session, which: range) -> list[Values]:
    """What some of the clients make; may be called by several threads at once.

    Raises:
      WorkerLost: If the worker is lost meanwhile.
    """
    with session.lock:
      executor, shared = self._prepared(session, len(which))
      function = executor.shipped(self._work.computation)
    own = [_to_python(self._work.own, self._clients[i]) for i in which]
    refs = [executor.create(own, self._work.own_type)]
    refs.append(executor.structure([shared, *refs]))
    with session.computing(len(which)):
      message, ref = executor.compute(function, refs[1])
    executor.dispose_of([*refs, ref])
    return self._made(message, len(which))

  def _made(self, message: Any, num_clients: int) -> list[Values]:
    """What clients have made, from what a worker says; it may say anything."""
    outputs = self._work.outputs
    try:
      made: list[Values] = [
        dict(zip(outputs, map(plan_values.constant, parts), strict=True))
        for parts in deserialize(message, self._work.result_type)
      ]
    except Exception as error:  # Of whatever reads it.
      raise WorkerLost('what it returned cannot be read') from error
    is_as_asked = len(made) == num_clients and all(
      tensor.spec.is_compatible_with(own[tensor]) for own in made for tensor in outputs
    )
    if not is_as_asked:
      raise WorkerLost('it returned something else than it was asked for')
    return made

  def close(self) -> None:
    """Has the workers forget what the clients shared."""
    for executor, shared in self._sent.values():
      with contextlib.suppress(WorkerLost):
        executor.dispose_of([shared])

  def _prepared(self, session: Session, num_clients: int) -> tuple[Executor, Any]:
    """The worker's executor, and there what the clients share."""
    key = (session, num_clients)
    if key not in self._sent:
      executors = session.executors
      executor = executors.pop(num_clients, None)
      if executor is None:
        while len(executors) >= _MAX_EXECUTORS:
          executors.pop(next(iter(executors))).dispose()
        executor = Executor(session, num_clients)
      executors[num_clients] = executor
      shared = executor.create(self._shared, self._work.shared_type)
      self._sent[key] = (executor, shared)
    return self._sent[key]


def _struct_type(tensors: Sequence[Tensor]) -> tff.StructType:
  return tff.StructType([(None, tensor.type) for tensor in tensors])


def _to_tensor(value: Any) -> tf.Tensor:
  is_dataset = isinstance(value, tf.data.Dataset)
  return tf.data.experimental.to_variant(value) if is_dataset else value


def _to_python(tensors: Sequence[Tensor], values: Values) -> list[Any]:
  return [plan_values.to_python(values[tensor], tensor.type) for tensor in tensors]
