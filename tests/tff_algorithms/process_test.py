"""The learning process: TFF's own tools take it as one of theirs."""

import asyncio

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_algorithms import algorithms, problems
from tff_algorithms import client_inputs, oracles, process
from tff_algorithms.mixed import CentralLoss
from tff_algorithms.one_way_gradient_transfer import CentralGradient

pytestmark = [pytest.mark.usefixtures('runtime'), pytest.mark.slow]


@algorithms.every_algorithm
def test_is_a_learning_process_with_settable_weights(build):
  learning_process = build()
  assert isinstance(learning_process, tff.learning.templates.LearningProcess)
  state = learning_process.initialize()
  assert isinstance(state, process.State)
  weights = learning_process.get_model_weights(state)
  assert isinstance(weights, tff.learning.models.ModelWeights)
  trainable = tf.nest.map_structure(lambda w: w + 1, weights.trainable)
  state = learning_process.set_model_weights(
    state, weights._replace(trainable=trainable)
  )
  problems.assert_close(
    learning_process.get_model_weights(state).trainable, trainable, 0
  )


def test_hparams_can_be_read_and_set():
  learning_process = algorithms.fed_avg(
    server_optimizer=tff.learning.optimizers.build_sgdm(1.0, 0.9)
  )
  state = learning_process.initialize()
  hparams = learning_process.get_hparams(state)
  np.testing.assert_allclose(hparams['client_learning_rate'], 0.1)
  np.testing.assert_allclose(hparams['server_optimizer']['momentum'], 0.9)
  hparams['client_learning_rate'] = 0.2
  hparams['server_optimizer']['learning_rate'] = 0.5
  changed = learning_process.set_hparams(state, hparams)
  ours = algorithms.next_round(
    learning_process, changed, algorithms.COHORT
  ).state.server.weights.trainable
  other = algorithms.fed_avg(
    client_learning_rate=0.2,
    server_optimizer=tff.learning.optimizers.build_sgdm(0.5, 0.9),
  )
  theirs = algorithms.next_round(
    other, other.initialize(), algorithms.COHORT
  ).state.server.weights.trainable
  problems.assert_close(ours, theirs, 1e-6)


@algorithms.every_algorithm
def test_compiles_to_map_reduce_form_and_distribute_aggregate_form(build):
  learning_process = build()
  # A round of several phases only compiles phase by phase: see mime_test.
  phases = learning_process.phases
  for computation in phases if len(phases) > 1 else [learning_process.next]:
    form = tff.backends.mapreduce.get_map_reduce_form_for_computation(computation)
    assert isinstance(form, tff.backends.mapreduce.MapReduceForm)
    daf = tff.backends.mapreduce.get_distribute_aggregate_form_for_computation(
      computation
    )
    assert isinstance(daf, tff.backends.mapreduce.DistributeAggregateForm)


def test_runs_in_run_training_process():
  learning_process = algorithms.fed_avg()
  released = {}

  class Collect(tff.program.ReleaseManager):
    async def release(self, value, key):
      released[key] = value

  state = tff.simulation.run_training_process(
    learning_process,
    training_selection_fn=lambda t: [
      problems.dataset(rows) for rows in algorithms.COHORT
    ],
    total_rounds=3,
    metrics_managers=[Collect()],
  )
  assert state.server.round_num == 3
  assert released[3]['client_work']['train']['num_clients'] == 3


class _Source(tff.program.FederatedDataSource):
  """Hands out the same cohort every round."""

  def __init__(self, clients, federated_type):
    self._clients, self._type = clients, federated_type

  federated_type = property(lambda self: self._type)
  capabilities = property(lambda self: [tff.program.Capability.SUPPORTS_REUSE])

  def iterator(self):
    return _Iterator(self._clients, self._type)


class _Iterator(tff.program.FederatedDataSourceIterator):
  def __init__(self, clients, federated_type):
    self._clients, self._type = clients, federated_type

  federated_type = property(lambda self: self._type)

  @classmethod
  def from_bytes(cls, buffer):
    raise NotImplementedError

  def to_bytes(self):
    return b''

  def __deepcopy__(self, memo):
    return self

  def select(self, k=None):
    return self._clients[:k]


class _ProgramContext(tff.program.FederatedContext):
  """The runtime's context as a program's."""

  def __init__(self, context):
    self._context = context

  def invoke(self, comp, arg):
    return self._context.invoke(comp, arg)


@algorithms.every_algorithm
def test_runs_in_train_model(build):
  learning_process = build()
  released = {}

  class Collect(tff.program.ReleaseManager):
    async def release(self, value, key):
      released[key] = value

  class Forget(tff.program.ProgramStateManager):
    async def get_versions(self):
      return None

    async def load(self, version, structure):
      raise NotImplementedError

    async def save(self, program_state, version):
      pass

    async def remove_all(self):
      pass

  source = _Source(
    [problems.dataset(rows) for rows in algorithms.COHORT],
    learning_process.next.type_signature.parameter[1],
  )

  async def train():
    contexts = tff.framework.get_context_stack()
    with contexts.install(_ProgramContext(contexts.current)):
      await tff.learning.programs.train_model(
        train_process=learning_process,
        train_data_source=source,
        train_per_round_clients=3,
        train_total_rounds=2,
        program_state_manager=Forget(),
        model_output_manager=Collect(),
        train_metrics_manager=Collect(),
        evaluation_manager=None,
        evaluation_periodicity=1,
      )

  asyncio.run(train())
  assert released[2]['model_metrics']['num_clients'] == 3


# Rows at the server.


def test_with_rows_at_the_server_each_phase_takes_them_and_all_of_them_are_next():
  """Mime, of two phases, with 1-way transfer of the server's gradient on top."""
  oracle = oracles.as_oracle(problems.logistic().model)
  loss = CentralLoss(oracle, batch_size=4, clip_norm=None, seed=0)
  learning_process = algorithms.mime(
    terms=[CentralGradient(loss)],
    central_input=client_inputs.from_dataset(oracle.batch_spec),
  )
  assert isinstance(learning_process, process.MixedProcess)
  assert not isinstance(learning_process, tff.learning.templates.LearningProcess)
  clients = [problems.dataset(rows) for rows in algorithms.COHORT]
  central = problems.dataset(problems.classification_rows(7))
  state = expected = learning_process.initialize()
  for _ in range(2):
    expected = learning_process.next(expected, clients, central).state
    for phase in learning_process.phases:
      state = phase(state, clients, central).state
  assert expected.server.round_num == 2
  for a, b in zip(tf.nest.flatten(state), tf.nest.flatten(expected), strict=True):
    np.testing.assert_array_equal(a, b)
