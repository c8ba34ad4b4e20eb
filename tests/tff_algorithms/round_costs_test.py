"""What a round costs, counted: bytes, messages, graphs, traces. Nothing is timed."""

import collections
from collections.abc import Sequence
import dataclasses
import os
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks import client_files
from tasks.federated_data import FederatedData
from tests.tff_algorithms import problems
from tff_algorithms import base_optimizers, client_inputs
from tff_algorithms.client_states import ClientState
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.mime import build_mime
from tff_algorithms.process import StatefulProcess
from tff_algorithms.scaffold import build_scaffold

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures('runtime')]

# A model of 4 kB: sent once more it would be noticed.
_NUM_FEATURES, _NUM_CLASSES = 100, 10
_BYTES_OF_A_ROW = 4 * _NUM_FEATURES + 4
_CLIENT_IDS = [f'client {i}' for i in range(9)]


def _fed_avg(model, **arguments):
  return build_fed_avg(model, client_learning_rate=0.1, batch_size=4, **arguments)


def _mime(model, **arguments):
  optimizer = base_optimizers.as_tff_optimizer(base_optimizers.momentum(), 0.1)
  return build_mime(model, base_optimizer=optimizer, batch_size=4, **arguments)


def _scaffold(model, **arguments):
  return build_scaffold(
    model,
    num_clients=len(_CLIENT_IDS),
    client_learning_rate=0.1,
    batch_size=4,
    client_states_by_file=True,
    **arguments,
  )


_BUILDERS = {'fed_avg': _fed_avg, 'mime': _mime, 'scaffold': _scaffold}
_every_algorithm = pytest.mark.parametrize('build', _BUILDERS.values(), ids=_BUILDERS)


def _model():
  return problems.logistic(_NUM_FEATURES, _NUM_CLASSES).model


def _rows(num_rows):
  """All clients' rows, a few more in each."""
  return {
    client_id: problems.classification_rows(
      num_rows + i, _NUM_FEATURES, _NUM_CLASSES, seed=i
    )
    for i, client_id in enumerate(_CLIENT_IDS)
  }


class _Training:
  """A process in training, on clients by id or on data sets."""

  def __init__(self, build, directory, *, num_rows=5, by_id=True, model=None):
    directory.mkdir()
    self._directory = directory
    rows = _rows(num_rows)
    client_input = None
    self._arguments = {c: problems.dataset(own) for c, own in rows.items()}
    if by_id:
      files = client_files.write(FederatedData.from_clients(rows), directory / 'rows')
      client_input = client_inputs.from_id(files.load)
      self._arguments = {client_id: client_id for client_id in rows}
    self.process = build(model or _model(), client_input=client_input)
    self.state = self.process.initialize()

  def arguments(self, cohort: Sequence[str]) -> list[list[Any]]:
    clients = [self._arguments[client_id] for client_id in cohort]
    if not isinstance(self.process, StatefulProcess):
      return [clients]
    return [clients, [self._kept(client_id) for client_id in cohort]]

  def round(self, cohort: Sequence[str]) -> None:
    self.state = self.process.next(self.state, *self.arguments(cohort)).state

  def _kept(self, client_id: str) -> ClientState:
    """A client's state as a file: always the first one, which is zero."""
    path = self._directory / f'{client_id}.state'
    path.write_bytes(bytes(4 * (_NUM_FEATURES + 1) * _NUM_CLASSES))
    return ClientState(client_id, os.fspath(path))


@pytest.fixture
def sent(monkeypatch):
  """Grows by (method, request) with every message to the worker."""
  messages = []
  stub_class = tff.framework.RemoteExecutorGrpcStub

  def record(name):
    method = getattr(stub_class, name)

    def call(self, request):
      messages.append((name, request))
      return method(self, request)

    monkeypatch.setattr(stub_class, name, call)

  for name in vars(stub_class):
    if not name.startswith('_'):
      record(name)
  return messages


def _messages_of_a_steady_round(training, cohort, sent):
  training.round(cohort)
  sent.clear()
  training.round(cohort)
  # What is disposed of is so behind one's back, at no time that is certain.
  return [(name, request) for name, request in sent if name != 'dispose']


def _bytes_of_a_steady_round(training, cohort, sent) -> int:
  messages = _messages_of_a_steady_round(training, cohort, sent)
  return sum(request.ByteSize() for _, request in messages)


def _num_shipped(messages) -> int:
  """How many computations were sent."""
  return sum(
    name == 'create_value' and request.value.HasField('computation')
    for name, request in messages
  )


# Bytes.


@_every_algorithm
@pytest.mark.parametrize('num_clients', [1, 9])
def test_a_round_sends_the_state_the_ids_and_next_to_nothing_else(
  build, num_clients, sent, tmp_path
):
  training = _Training(build, tmp_path / 'run')
  cohort = _CLIENT_IDS[:num_clients]
  size = _bytes_of_a_steady_round(training, cohort, sent)
  state_size = sum(np.asarray(leaf).nbytes for leaf in tf.nest.flatten(training.state))
  # The ids and, of SCAFFOLD, the paths of what the clients keep.
  ids_size = sum(len(text) for text in tf.nest.flatten(training.arguments(cohort)))
  assert size < state_size + ids_size + 100 * num_clients + 1_500


@_every_algorithm
def test_what_a_round_sends_does_not_depend_on_how_many_rows_clients_by_id_have(
  build, sent, tmp_path
):
  few, many = (
    _bytes_of_a_steady_round(
      _Training(build, tmp_path / f'{n:03}', num_rows=n), _CLIENT_IDS, sent
    )
    for n in (5, 500)
  )
  assert abs(many - few) < _BYTES_OF_A_ROW  # A number that is zero takes no bytes.


def test_what_a_round_sends_grows_with_the_rows_of_data_sets(sent, tmp_path):
  few, many = (
    _bytes_of_a_steady_round(
      _Training(_fed_avg, tmp_path / str(n), num_rows=n, by_id=False),
      _CLIENT_IDS,
      sent,
    )
    for n in (5, 500)
  )
  assert many - few > 9 * 495 * _BYTES_OF_A_ROW


@_every_algorithm
def test_the_computation_is_sent_in_the_first_round_and_never_again(
  build, sent, tmp_path
):
  training = _Training(build, tmp_path / 'run')
  sent.clear()
  training.round(_CLIENT_IDS)
  assert _num_shipped(sent) == 1
  for _ in range(3):
    training.round(_CLIENT_IDS)
  assert _num_shipped(sent) == 1


# Messages.


@_every_algorithm
@pytest.mark.parametrize('num_clients', [1, 9])
def test_a_round_takes_four_messages_whatever_the_number_of_clients(
  build, num_clients, sent, tmp_path
):
  training = _Training(build, tmp_path / 'run')
  training.round(_CLIENT_IDS[:num_clients])
  sent.clear()
  for _ in range(3):
    training.round(_CLIENT_IDS[:num_clients])
  names = [name for name, _ in sent]
  # Nobody waits for the last one, so that here it may not have come yet; and that of
  # the round before may have come only after `clear`.
  rounds = names[names.index('create_value') :]
  if rounds[-1] != 'dispose':
    rounds.append('dispose')
  assert rounds == 3 * ['create_value', 'create_call', 'compute', 'dispose']


# Graphs.


@dataclasses.dataclass(frozen=True)
class _Graphs:
  """What `next` is compiled to.

  Attributes:
    intrinsics: How often each of TFF's intrinsics is called.
    client_ops: For each TensorFlow computation that clients do as a step of its own,
      how often each operation stands in it.
  """

  intrinsics: collections.Counter
  client_ops: list[collections.Counter]


def _compiled(build, directory, by_id=True) -> _Graphs:
  process = _Training(build, directory, by_id=by_id).process
  block = tff.backends.native.desugar_and_transform_to_native(process.next)
  graphs = _Graphs(collections.Counter(), [])

  def visit(part):
    if isinstance(part, tff.framework.Call):
      function = part.function
      if isinstance(function, tff.framework.Intrinsic):
        graphs.intrinsics[function.uri] += 1
        if _is_map_of_tensorflow(part):
          graphs.client_ops.append(_ops(part.argument[0]))
    return part, False

  tff.framework.transform_postorder(block.to_building_block(), visit)
  return graphs


def _is_map_of_tensorflow(call) -> bool:
  return (
    call.function.uri == 'federated_map'
    and call.type_signature.placement is tff.CLIENTS
    and isinstance(call.argument[0], tff.framework.CompiledComputation)
  )


def _ops(computation) -> collections.Counter:
  graph = tf.compat.v1.GraphDef()
  computation.proto.tensorflow.graph_def.Unpack(graph)
  nodes = [*graph.node]
  for function in graph.library.function:
    nodes += function.node_def
  return collections.Counter(node.op for node in nodes)


@pytest.mark.parametrize(('build', 'num_phases'), [(_fed_avg, 1), (_mime, 2)])
def test_a_phase_is_one_broadcast_one_map_and_one_sum(build, num_phases, tmp_path):
  graphs = _compiled(build, tmp_path / 'run')
  assert graphs.intrinsics['federated_broadcast'] == num_phases
  assert graphs.intrinsics['federated_aggregate'] == num_phases
  assert len(graphs.client_ops) == num_phases


@pytest.mark.parametrize(
  ('build', 'products'),
  # A gradient is two products of matrices: the model's outputs, and the kernel's.
  [(_fed_avg, [2]), (_mime, [2, 4]), (_scaffold, [2])],
)
def test_a_step_calls_the_model_once_for_each_of_its_gradients(
  build, products, tmp_path
):
  graphs = _compiled(build, tmp_path / 'run')
  assert [ops['MatMul'] for ops in graphs.client_ops] == products
  assert [ops['LoopCond'] for ops in graphs.client_ops] == [1] * len(products)


@_every_algorithm
@pytest.mark.parametrize('by_id', [True, False])
def test_only_a_client_that_is_a_data_set_has_data_sets_in_its_graph(
  build, by_id, tmp_path
):
  for ops in _compiled(build, tmp_path / 'run', by_id).client_ops:
    assert any('Dataset' in op for op in ops) == (not by_id)
    assert 'ReduceDataset' not in ops


# Traces.


@_every_algorithm
def test_after_the_first_round_nothing_is_traced_again(build, sent, tmp_path):
  num_traces = 0
  model = _model()

  def predict(weights, x, seed):
    nonlocal num_traces
    num_traces += 1
    return model.predict(weights, x, seed)

  counting = dataclasses.replace(model, predict=predict)
  training = _Training(build, tmp_path / 'run', model=counting)
  training.round(_CLIENT_IDS[:3])
  traced = num_traces
  assert traced > 0
  sent.clear()
  # Clients of other sizes, and cohorts of others too.
  for cohort in (_CLIENT_IDS[3:6], _CLIENT_IDS[6:], _CLIENT_IDS[:3]):
    training.round(cohort)
  assert _num_shipped(sent) == 0
  for num_clients in (1, 5, 9, 5, 1, 3):
    training.round(_CLIENT_IDS[:num_clients])
  assert num_traces == traced
  assert _num_shipped(sent) == 3  # Once for each other number of clients.
