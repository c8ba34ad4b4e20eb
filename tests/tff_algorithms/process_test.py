"""The process around the phases: guards, hyperparameters, aggregators, TFF's tools."""

import asyncio
import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_algorithms import problems
from tff_algorithms import base_optimizers, process
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.fed_prox import build_fed_prox
from tff_algorithms.server_only import build_server_only

pytestmark = [pytest.mark.usefixtures('runtime'), pytest.mark.slow]

_rows = problems.classification_rows
_COHORT = [_rows(9, seed=1), _rows(4, seed=2), _rows(5, seed=3)]


def _fed_avg(**arguments):
  defaults = dict(client_learning_rate=0.1, batch_size=4)
  return build_fed_avg(problems.logistic().model, **(defaults | arguments))


def _fed_prox(**arguments):
  defaults = dict(client_learning_rate=0.1, batch_size=4, rho=0.1)
  return build_fed_prox(problems.logistic().model, **(defaults | arguments))


def _server_only(**arguments):
  optimizer = base_optimizers.as_tff_optimizer(base_optimizers.momentum(), 0.1)
  return build_server_only(problems.logistic().model, optimizer=optimizer, **arguments)


BUILDERS = {'fed_avg': _fed_avg, 'fed_prox': _fed_prox, 'server_only': _server_only}
every_algorithm = pytest.mark.parametrize('build', BUILDERS.values(), ids=BUILDERS)


def _next(learning_process, state, cohort):
  return learning_process.next(state, [problems.dataset(rows) for rows in cohort])


def _poisoned(value, n=6):
  rows = _rows(n, seed=9)
  rows['x'][n // 2, 1] = value
  return rows


def _leaves(state):
  return [np.asarray(leaf) for leaf in tf.nest.flatten(state)]


# Guards.


@every_algorithm
@pytest.mark.parametrize('value', [np.nan, np.inf, -np.inf])
def test_a_client_with_bad_data_leaves_the_others_as_if_it_were_not_there(build, value):
  learning_process = build()
  state = learning_process.initialize()
  with_it = _next(learning_process, state, [*_COHORT, _poisoned(value)])
  without = _next(learning_process, state, _COHORT)
  for a, b in zip(_leaves(with_it.state), _leaves(without.state), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6)
  train = with_it.metrics['client_work']['train']
  assert train['num_clients'] == 3
  assert train['num_clients_left_out'] == 1
  assert np.isfinite(train['loss'])


def test_a_client_whose_update_overflows_is_left_out():
  learning_process = _fed_avg(epochs=3)
  huge = _rows(4, seed=5)
  huge['x'] *= 1e37
  output = _next(learning_process, learning_process.initialize(), [*_COHORT, huge])
  assert output.metrics['client_work']['train']['num_clients_left_out'] == 1
  assert np.isfinite(output.state.server.weights.trainable['kernel']).all()


def test_a_client_with_a_label_out_of_range_is_left_out():
  wrong = _rows(4, seed=5)
  wrong['y'][2] = 17
  learning_process = _fed_avg()
  output = _next(learning_process, learning_process.initialize(), [*_COHORT, wrong])
  assert output.metrics['client_work']['train']['num_clients_left_out'] == 1


@every_algorithm
def test_a_round_without_a_usable_client_changes_nothing_but_its_number(build):
  arguments = dict(
    aggregator=tff.learning.robust_aggregator(zeroing=True, clipping=True)
  )
  learning_process = build(**arguments)
  state = _next(learning_process, learning_process.initialize(), _COHORT).state
  output = _next(learning_process, state, [_poisoned(np.nan), _rows(0)])
  expected = state._replace(server=state.server._replace(round_num=2))
  for a, b in zip(_leaves(output.state), _leaves(expected), strict=True):
    np.testing.assert_array_equal(a, b)
  train = output.metrics['client_work']['train']
  assert (train['num_clients'], train['num_clients_left_out']) == (0, 1)
  assert train['update_norm'] == 0


def test_goes_on_learning_after_a_poisoned_round():
  learning_process = _fed_avg(server_optimizer=tff.learning.optimizers.build_adam(0.1))
  state = learning_process.initialize()
  losses = []
  for t in range(12):
    cohort = [_poisoned(np.nan)] if t % 3 == 1 else [*_COHORT, _poisoned(np.inf)]
    output = _next(learning_process, state, cohort)
    state = output.state
    losses.append(output.metrics['client_work']['train']['loss'])
  assert losses[-1] < losses[0]


@every_algorithm
def test_a_client_without_examples_counts_for_nothing(build):
  learning_process = build(weighting='uniform')
  state = learning_process.initialize()
  with_it = _next(learning_process, state, [*_COHORT, _rows(0), _rows(0)])
  without = _next(learning_process, state, _COHORT)
  for a, b in zip(_leaves(with_it.state), _leaves(without.state), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-6)
  train = with_it.metrics['client_work']['train']
  assert (train['num_clients'], train['num_clients_left_out']) == (3, 0)


@every_algorithm
def test_an_empty_cohort_is_a_clear_error(build):
  learning_process = build()
  with pytest.raises(Exception, match='Empty cohort'):
    learning_process.next(learning_process.initialize(), [])


# Randomness.


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others():
  def final(seed):
    learning_process = _fed_avg(epochs=2, seed=seed)
    weights, _ = problems.run(learning_process, [_COHORT] * 2)
    return weights[-1]['kernel']

  np.testing.assert_array_equal(final(1), final(1))
  assert np.abs(final(1) - final(2)).max() > 1e-6


def test_a_client_is_shuffled_alike_wherever_it_stands_in_the_cohort():
  learning_process = _fed_avg(epochs=2)
  state = learning_process.initialize()
  one = _next(learning_process, state, _COHORT).state.server.weights.trainable
  other = _next(learning_process, state, _COHORT[::-1]).state.server.weights.trainable
  problems.assert_close(one, other, 1e-6)


# Metrics.


def test_bytes_are_those_of_the_weights_and_what_goes_with_them():
  _, metrics = problems.run(_fed_avg(), [_COHORT])
  weights = 4 * (5 * 3 + 3)
  # Down: the round's number and the learning rate; up: the client's weight.
  assert metrics[0]['bytes_down'] == weights + 4 + 4
  assert metrics[0]['bytes_up'] == weights + 4
  unweighted = _fed_avg(
    aggregator=tff.aggregators.UnweightedMeanFactory(), weighting='uniform'
  )
  _, metrics = problems.run(unweighted, [_COHORT])
  assert metrics[0]['bytes_up'] == weights


# The learning process of TFF.


@every_algorithm
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
  learning_process = _fed_avg(
    server_optimizer=tff.learning.optimizers.build_sgdm(1.0, 0.9)
  )
  state = learning_process.initialize()
  hparams = learning_process.get_hparams(state)
  np.testing.assert_allclose(hparams['client_learning_rate'], 0.1)
  np.testing.assert_allclose(hparams['server_optimizer']['momentum'], 0.9)
  hparams['client_learning_rate'] = 0.2
  hparams['server_optimizer']['learning_rate'] = 0.5
  changed = learning_process.set_hparams(state, hparams)
  ours = _next(learning_process, changed, _COHORT).state.server.weights.trainable
  other = _fed_avg(
    client_learning_rate=0.2,
    server_optimizer=tff.learning.optimizers.build_sgdm(0.5, 0.9),
  )
  theirs = _next(other, other.initialize(), _COHORT).state.server.weights.trainable
  problems.assert_close(ours, theirs, 1e-6)


@every_algorithm
def test_compiles_to_map_reduce_form_and_distribute_aggregate_form(build):
  learning_process = build()
  form = tff.backends.mapreduce.get_map_reduce_form_for_computation(
    learning_process.next
  )
  assert isinstance(form, tff.backends.mapreduce.MapReduceForm)
  daf = tff.backends.mapreduce.get_distribute_aggregate_form_for_computation(
    learning_process.next
  )
  assert isinstance(daf, tff.backends.mapreduce.DistributeAggregateForm)


def test_runs_in_run_training_process():
  learning_process = _fed_avg()
  released = {}

  class Collect(tff.program.ReleaseManager):
    async def release(self, value, key):
      released[key] = value

  state = tff.simulation.run_training_process(
    learning_process,
    training_selection_fn=lambda t: [problems.dataset(rows) for rows in _COHORT],
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


@every_algorithm
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
    [problems.dataset(rows) for rows in _COHORT],
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


# Aggregators.

_UNIT = dict(clipping=True, zeroing=True)
_AGGREGATORS = {
  'robust': (tff.learning.robust_aggregator(**_UNIT), 'examples'),
  'compression': (tff.learning.compression_aggregator(), 'examples'),
  'dp': (
    tff.learning.dp_aggregator(noise_multiplier=1e-3, clients_per_round=3),
    'uniform',
  ),
  'clipped_mean': (
    tff.aggregators.clipping_factory(1e-3, tff.aggregators.MeanFactory()),
    'examples',
  ),
}


@every_algorithm
@pytest.mark.parametrize('name', _AGGREGATORS)
def test_trains_with_tffs_aggregators(build, name):
  aggregator, weighting = _AGGREGATORS[name]
  learning_process = build(aggregator=aggregator, weighting=weighting)
  state = learning_process.initialize()
  output = _next(learning_process, state, [*_COHORT, _poisoned(np.nan)])
  weights = output.state.server.weights.trainable
  assert np.isfinite(weights['kernel']).all()
  assert not np.array_equal(weights['kernel'], state.server.weights.trainable['kernel'])


def test_a_clipping_aggregator_bounds_the_update():
  learning_process = _fed_avg(aggregator=_AGGREGATORS['clipped_mean'][0])
  _, metrics = problems.run(learning_process, [_COHORT[:1]])
  assert metrics[0]['client_drift'] > 2e-3
  np.testing.assert_allclose(metrics[0]['update_norm'], 1e-3, rtol=1e-2)


@every_algorithm
def test_every_aggregation_can_be_secure(build):
  secure = tff.aggregators.SecureSumFactory(1e3, -1e3)
  learning_process = build(
    aggregator=tff.learning.secure_aggregator(**_UNIT),
    metrics_aggregator=secure,
  )
  tff.test.assert_contains_secure_aggregation(learning_process.next)
  tff.test.assert_not_contains_unsecure_aggregation(learning_process.next)


def test_metrics_are_summed_in_the_clear_unless_told_otherwise():
  learning_process = _fed_avg(aggregator=tff.learning.secure_aggregator(**_UNIT))
  with pytest.raises(AssertionError):
    tff.test.assert_not_contains_unsecure_aggregation(learning_process.next)


def test_what_an_aggregator_measures_is_among_the_metrics():
  learning_process = _fed_avg(aggregator=tff.learning.robust_aggregator(**_UNIT))
  output = _next(learning_process, learning_process.initialize(), _COHORT)
  assert isinstance(output.metrics['aggregator']['delta'], collections.OrderedDict)
  assert output.metrics['aggregator']['delta']
