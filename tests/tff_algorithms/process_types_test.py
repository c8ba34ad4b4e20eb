"""Processes whose clients keep something, from a term that anyone could write.

The term is written here and not taken from the package: it adds nothing to a gradient,
and goes with whatever algorithm takes terms.
"""

import collections
import dataclasses
import functools
import random

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_algorithms import algorithms, problems
from tff_algorithms import (
  base_optimizers,
  client_inputs,
  client_states,
  oracles,
  process,
  process_types,
  structures,
)
from tff_algorithms.client_states import ClientState
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.fed_dyn import build_fed_dyn
from tff_algorithms.fed_prox import build_fed_prox
from tff_algorithms.mime import build_mime
from tff_algorithms.mixed import CentralLoss
from tff_algorithms.one_way_gradient_transfer import CentralGradient
from tff_algorithms.scaffold import build_scaffold
from tff_algorithms.server_steps import initial_state
from tff_algorithms.terms import Term

pytestmark = pytest.mark.usefixtures('runtime')

_FIRST = 5  # Not 0, to show that what a client starts with is honoured.


@dataclasses.dataclass(frozen=True)
class RoundsSeen(Term):
  """Counts on each client the rounds that it took part in; adds nothing to a step."""

  name = 'rounds_seen'

  def client_init(self, weights):
    return tf.constant(_FIRST)

  def next_client_state(self, client, prepared, outcome):
    return client.state + 1


@dataclasses.dataclass(frozen=True)
class LastUpdate(Term):
  """Keeps a structure on each client: its last update, and all its local steps."""

  name = 'last_update'

  def client_init(self, weights):
    return collections.OrderedDict(
      update=structures.zeros_like(weights.trainable), steps=tf.constant(0.0)
    )

  def next_client_state(self, client, prepared, outcome):
    return collections.OrderedDict(
      update=structures.subtract(outcome.weights, client.weights.trainable),
      steps=client.state['steps'] + tf.cast(outcome.num_steps, tf.float32),
    )


_LOCAL = dict(client_learning_rate=0.1, batch_size=4, epochs=2)


def _model():
  return problems.logistic().model


def _fed_avg(**arguments):
  return build_fed_avg(_model(), **_LOCAL, **arguments)


def _fed_prox(**arguments):
  return build_fed_prox(_model(), rho=0.3, **_LOCAL, **arguments)


def _mime(**arguments):
  """With two phases: full gradients, and then local steps, whose clients keep."""
  optimizer = base_optimizers.as_tff_optimizer(base_optimizers.sgd(), 0.1)
  return build_mime(
    _model(), base_optimizer=optimizer, batch_size=4, epochs=2, **arguments
  )


# One of each for all tests: building takes longer than running.
@functools.cache
def _counting(build):
  return build(terms=[RoundsSeen()])


@functools.cache
def _plain(build):
  return build()


@functools.cache
def _with_central_rows(build, *terms):
  """1-way gradient transfer on top of an algorithm, from rows of the server's."""
  oracle = oracles.as_oracle(_model())
  loss = CentralLoss(oracle, batch_size=4, clip_norm=None, seed=0)
  return build(
    terms=[CentralGradient(loss), *terms],
    central_input=client_inputs.from_dataset(oracle.batch_spec),
  )


_every_algorithm = pytest.mark.parametrize('build', [_fed_avg, _fed_prox, _mime])
_CLIENTS = {
  'a': problems.classification_rows(9, seed=1),
  'b': problems.classification_rows(4, seed=2),
  'c': problems.classification_rows(5, seed=3),
  'bad': algorithms.poisoned(np.nan),
  'empty': problems.classification_rows(0),
}
_KEPT = '<client_id=str,value=<rounds_seen=int32>>'
_CENTRAL = problems.classification_rows(7, seed=4)


def _datasets(ids):
  return [problems.dataset(_CLIENTS[client_id]) for client_id in ids]


def _counts(kept):
  """What clients keep of `RoundsSeen`, by id."""
  return {state.client_id.decode(): state.value['rounds_seen'] for state in kept}


def _read_counts(states, ids=tuple(_CLIENTS)):
  return _counts(states.read(ids))


def _assert_same(actual, expected):
  tf.nest.map_structure(np.testing.assert_array_equal, actual, expected)


# Types.


@_every_algorithm
def test_a_term_whose_clients_keep_something_makes_the_process_stateful(build):
  process_ = _counting(build)
  assert isinstance(process_, process.StatefulProcess)
  assert isinstance(process_, tff.templates.IterativeProcess)
  assert not isinstance(process_, tff.learning.templates.LearningProcess)
  parameter = process_.next.type_signature.parameter
  assert tff.structure.name_list(parameter) == ['state', 'clients', 'client_states']
  assert str(parameter.client_states) == f'{{{_KEPT}}}@CLIENTS'
  result = process_.next.type_signature.result
  assert tff.structure.name_list(result) == [
    'state',
    'metrics',
    'proposed',
    'is_accepted',
  ]
  assert result.state == parameter.state == process_.initialize.type_signature.result
  assert str(result.proposed) == f'{{{_KEPT}}}@CLIENTS'
  assert str(result.is_accepted) == 'bool@SERVER'
  assert str(process_.initialize_client.type_signature) == '( -> <rounds_seen=int32>)'
  assert process_.initialize_client() == {'rounds_seen': _FIRST}


@_every_algorithm
def test_without_such_a_term_it_is_the_learning_process_that_it_was(build):
  process_ = _plain(build)
  assert isinstance(process_, tff.learning.templates.LearningProcess)
  assert not isinstance(process_, process.StatefulProcess)
  assert not hasattr(process_, 'initialize_client')
  signature = process_.next.type_signature
  assert tff.structure.name_list(signature.parameter) == ['state', 'clients']
  output = process_.next(process_.initialize(), _datasets('ab'))
  assert isinstance(output, tff.learning.templates.LearningProcessOutput)
  assert output._fields == ('state', 'metrics')


@pytest.mark.slow
@pytest.mark.parametrize('build', [_fed_avg, _mime])
def test_states_come_after_the_clients_and_before_the_servers_rows(build):
  process_ = _with_central_rows(build, RoundsSeen())
  assert isinstance(process_, process.StatefulProcess)
  parameter = process_.next.type_signature.parameter
  expected = ['state', 'clients', 'client_states', 'central']
  assert tff.structure.name_list(parameter) == expected
  assert parameter.central.placement is tff.SERVER
  plain = _with_central_rows(build)
  assert not isinstance(plain, process.StatefulProcess)
  names = tff.structure.name_list(plain.next.type_signature.parameter)
  assert names == ['state', 'clients', 'central']


@pytest.mark.parametrize(
  'first',
  [
    lambda: tf.constant([1.0, 2.0]),
    lambda: 5,
    lambda: np.float32(5),
    lambda: np.ones(3, np.float32),
    lambda: [tf.constant(1), tf.constant(2.0)],
  ],
  ids=['tensor', 'number', 'numpy scalar', 'numpy array', 'list'],
)
def test_a_client_can_start_with_whatever_tensorflow_takes(first):
  class Keeps(Term):
    name = 'keeps'

    def client_init(self, weights):
      return first()

  process_ = _fed_avg(terms=[Keeps()])
  assert isinstance(process_, process.StatefulProcess)
  found = process_.initialize_client()['keeps']
  for actual, expected in zip(
    tf.nest.flatten(found), tf.nest.flatten(first()), strict=True
  ):
    np.testing.assert_array_equal(actual, expected)


# Values.


@pytest.mark.slow
@_every_algorithm
def test_counts_the_rounds_of_each_client_and_trains_as_without_it(build):
  process_, plain = _counting(build), _plain(build)
  states = client_states.InMemoryClientStates(process_)
  state, plain_state = process_.initialize(), plain.initialize()
  for ids in ('ab', 'a', 'ca'):
    output = process_.next(state, _datasets(ids), states.read(ids))
    assert output.is_accepted
    assert output.client_states == output.proposed
    assert {kept.client_id for kept in output.proposed} == {c.encode() for c in ids}
    states.write(output.client_states)
    plain_output = plain.next(plain_state, _datasets(ids))
    _assert_same(
      process_.get_model_weights(output.state).trainable,
      plain.get_model_weights(plain_output.state).trainable,
    )
    # What clients keep does not travel in what is counted: it never leaves them.
    train, plain_train = (
      each.metrics['client_work']['train'] for each in (output, plain_output)
    )
    assert set(train) == set(plain_train)
    for name in ('bytes_up', 'bytes_down', 'loss', 'num_clients'):
      assert train[name] == plain_train[name]
    state, plain_state = output.state, plain_output.state
  counts = {'a': 8, 'b': 6, 'c': 6, 'bad': 5, 'empty': 5}
  assert _read_counts(states) == counts
  assert state.server.round_num == 3


@_every_algorithm
def test_a_client_that_is_left_out_keeps_its_state(build):
  process_ = _counting(build)
  ids = ['a', 'bad', 'empty', 'b']
  given = [ClientState(c.encode(), {'rounds_seen': 10 + i}) for i, c in enumerate(ids)]
  output = process_.next(process_.initialize(), _datasets(ids), given)
  assert output.is_accepted
  assert _counts(output.proposed) == {'a': 11, 'bad': 11, 'empty': 12, 'b': 14}
  train = output.metrics['client_work']['train']
  assert (train['num_clients'], train['num_clients_left_out']) == (2, 1)


@_every_algorithm
def test_a_round_without_a_usable_client_is_not_accepted(build):
  process_ = _counting(build)
  states = client_states.InMemoryClientStates(process_)
  ids = ['bad', 'empty']
  output = process_.next(process_.initialize(), _datasets(ids), states.read(ids))
  assert not output.is_accepted
  assert output.client_states == ()
  assert _counts(output.proposed) == {'bad': _FIRST, 'empty': _FIRST}
  states.write(output.client_states)
  assert _read_counts(states)['bad'] == _FIRST


def test_states_are_kept_in_the_state_of_no_server():
  process_, plain = _counting(_fed_avg), _plain(_fed_avg)
  assert process_.initialize().server.terms == ((),)
  sizes = [len(tf.nest.flatten(each.initialize().server)) for each in (process_, plain)]
  assert sizes[0] == sizes[1]


def test_results_in_another_order_find_their_clients():
  """Every client has a number of its own, so that any mistake shows."""
  process_ = _counting(_fed_avg)
  states = client_states.InMemoryClientStates(process_)
  ids = ['a', 'b', 'c', 'bad', 'empty']
  states.write(
    [
      ClientState(c.encode(), {'rounds_seen': np.int32(100 * i)})
      for i, c in enumerate(ids)
    ]
  )
  order, state = random.Random(0), process_.initialize()
  for _ in range(3):
    order.shuffle(ids)
    output = process_.next(state, _datasets(ids), states.read(ids))
    state, returned = output.state, list(output.client_states)
    order.shuffle(returned)
    states.write(returned)
  counts = {'a': 3, 'b': 103, 'c': 203, 'bad': 300, 'empty': 400}
  assert _read_counts(states) == counts


def test_two_terms_keep_theirs_side_by_side():
  process_ = _fed_avg(terms=[RoundsSeen(), LastUpdate()])
  weights = '<kernel=float32[5,3],bias=float32[3]>'
  kept = f'<rounds_seen=int32,last_update=<update={weights},steps=float32>>'
  assert str(process_.initialize_client.type_signature) == f'( -> {kept})'
  states = client_states.InMemoryClientStates(process_)
  first = process_.initialize()
  state = process_.next(first, _datasets('b'), states.read('b'))
  states.write(state.client_states)
  output = process_.next(state.state, _datasets('ab'), states.read('ab'))
  states.write(output.client_states)
  (_, of_a), (_, of_b) = states.read('ab')
  assert (of_a['rounds_seen'], of_b['rounds_seen']) == (6, 7)
  # 9 and 4 rows in batches of 4, twice over; b was there twice.
  assert (of_a['last_update']['steps'], of_b['last_update']['steps']) == (6, 4)
  # 9 and 4 rows are their weights in the mean.
  for name, x in state.state.server.weights.trainable.items():
    of_both = (of_a['last_update']['update'][name], of_b['last_update']['update'][name])
    mean = np.average(of_both, axis=0, weights=[9, 4])
    moved = output.state.server.weights.trainable[name] - x
    np.testing.assert_allclose(moved, mean, rtol=1e-5, atol=1e-6)
    assert np.abs(moved).max() > 1e-3


def test_the_order_of_terms_does_not_matter_to_what_each_keeps():
  both = [RoundsSeen(), LastUpdate()]
  kept = []
  for terms in (both, both[::-1]):
    process_ = _fed_avg(terms=terms)
    states = client_states.InMemoryClientStates(process_)
    output = process_.next(process_.initialize(), _datasets('ab'), states.read('ab'))
    states.write(output.client_states)
    kept.append([dict(state.value) for state in states.read('ab')])
  _assert_same(*kept)


# Phases.


@pytest.mark.slow
def test_of_two_phases_only_one_takes_states_and_both_are_next():
  process_ = _counting(_mime)
  gradients, training = process_.phases
  names = tff.structure.name_list(gradients.type_signature.parameter)
  assert names == ['state', 'clients']
  assert tff.structure.name_list(gradients.type_signature.result) == [
    'state',
    'metrics',
  ]
  names = tff.structure.name_list(training.type_signature.parameter)
  assert names == ['state', 'clients', 'client_states']
  states = client_states.InMemoryClientStates(process_)
  state = expected = process_.initialize()
  for ids in ('ab', 'bc'):
    clients, kept = _datasets(ids), states.read(ids)
    wanted = process_.next(expected, clients, kept)
    expected = wanted.state
    found = training(gradients(state, clients).state, clients, kept)
    state = found.state
    _assert_same(state, expected)
    assert found.is_accepted
    assert wanted.is_accepted
    assert _counts(found.proposed) == _counts(wanted.proposed)
    states.write(found.client_states)
  assert expected.server.round_num == 2
  assert _read_counts(states, 'abc') == {'a': 6, 'b': 7, 'c': 6}


def test_local_steps_without_their_gradients_are_not_accepted():
  """Mime's second phase out of turn: clients train, but the server takes nothing."""
  process_ = _counting(_mime)
  states = client_states.InMemoryClientStates(process_)
  state = process_.initialize()
  output = process_.phases[1](state, _datasets('ab'), states.read('ab'))
  assert not output.is_accepted
  assert output.client_states == ()
  assert _counts(output.proposed) == {'a': 6, 'b': 6}
  _assert_same(output.state.server.weights, state.server.weights)


def test_states_in_two_phases_are_refused():
  phases = []
  original = process.build_learning_process
  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
      process,
      'build_learning_process',
      lambda _, given, *__, **___: phases.extend(given),
    )
    _fed_avg(terms=[RoundsSeen()])
  oracle = oracles.as_oracle(_model())
  optimizer = tff.learning.optimizers.build_sgdm(1.0)
  init = initial_state(
    oracle,
    optimizer,
    seed=0,
    terms=[RoundsSeen()],
    hparams={'client_learning_rate': 0.1},
  )
  with pytest.raises(ValueError, match='from one phase of a round, not more'):
    original(
      init,
      phases * 2,
      client_inputs.from_dataset(oracle.batch_spec),
      server_optimizer=optimizer,
    )


# Rows at the server.


@pytest.mark.slow
@pytest.mark.parametrize('build', [_fed_avg, _mime])
def test_states_go_with_rows_at_the_server(build):
  process_, plain = (
    _with_central_rows(build, RoundsSeen()),
    _with_central_rows(build),
  )
  states = client_states.InMemoryClientStates(process_)
  central = problems.dataset(_CENTRAL)
  state, expected = process_.initialize(), plain.initialize()
  for ids in (['a', 'b'], ['b', 'bad']):
    clients, kept = _datasets(ids), states.read(ids)
    expected = plain.next(expected, clients, central).state
    by_phases = state
    for phase in process_.phases:
      names = tff.structure.name_list(phase.type_signature.parameter)
      own = [kept] if 'client_states' in names else []
      by_phases = phase(by_phases, clients, *own, central).state
    output = process_.next(state, clients, kept, central)
    state = output.state
    states.write(output.client_states)
    _assert_same(state, by_phases)
    _assert_same(state.server.weights, expected.server.weights)
  assert _read_counts(states, ['a', 'b', 'bad']) == {'a': 6, 'b': 7, 'bad': 5}


# What is kept follows what is accepted.


@pytest.mark.parametrize('is_accepted', [True, False, np.True_, np.False_])
def test_what_clients_keep_is_what_they_proposed_if_that_is_accepted(is_accepted):
  proposed = [ClientState(b'a', {'rounds_seen': 6})]
  output = process_types.StatefulOutput('state', 'metrics', proposed, is_accepted)
  assert output.client_states == (proposed if is_accepted else ())


# TFF's own tools.


def _scaffold(**arguments):
  return build_scaffold(_model(), num_clients=3, **_LOCAL, **arguments)


def _fed_dyn(**arguments):
  return build_fed_dyn(_model(), num_clients=3, alpha=0.1, **_LOCAL, **arguments)


@pytest.mark.slow
def test_a_round_is_one_aggregation_which_can_be_merged_from_parts_of_the_cohort():
  """As a fleet in several data centres is run: each has a part of the clients."""
  process_ = _scaffold()
  form = tff.backends.native.compile_to_mergeable_comp_form(process_.next)
  states = client_states.InMemoryClientStates(process_)
  state = process_.initialize()
  for _ in range(2):  # In the second, clients come with c_i that are not 0.
    expected = process_.next(state, _datasets('abc'), states.read('abc'))
    parts = [(state, _datasets(ids), states.read(ids)) for ids in ('ab', 'c')]
    merged = form.merge(*(form.up_to_merge(*part) for part in parts))
    outputs = [form.after_merge(part, merged) for part in parts]
    kept = [each for output in outputs for each in output.client_states]
    assert {each.client_id for each in kept} == {b'a', b'b', b'c'}
    for output in outputs:
      for actual, wanted in zip(
        tf.nest.flatten(output.state), tf.nest.flatten(expected.state), strict=True
      ):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=1e-7)
    by_id = {each.client_id: each.value for each in expected.proposed}
    for each in kept:
      _assert_same(each.value, by_id[each.client_id])
    state = expected.state
    states.write(kept)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('build', 'aggregator_of_sum'),
  [(_scaffold, 'control_variate_aggregator'), (_fed_dyn, 'sum_aggregator')],
)
def test_every_aggregation_can_be_secure(build, aggregator_of_sum):
  secure = tff.aggregators.SecureSumFactory(1e3, -1e3)
  arguments = {
    'aggregator': tff.learning.secure_aggregator(clipping=True, zeroing=True),
    'metrics_aggregator': secure,
    aggregator_of_sum: secure,
  }
  process_ = build(**arguments)
  tff.test.assert_contains_secure_aggregation(process_.next)
  tff.test.assert_not_contains_unsecure_aggregation(process_.next)
  # Without that of the sum it would not be.
  del arguments[aggregator_of_sum]
  with pytest.raises(AssertionError):
    tff.test.assert_not_contains_unsecure_aggregation(build(**arguments).next)


def test_text_is_nothing_that_a_client_keeps():
  class KeepsText(Term):
    name = 'text'

    def client_init(self, weights):
      return tf.constant('a')

  with pytest.raises(ValueError, match='What clients keep are numbers, found text'):
    _fed_avg(terms=[KeepsText()])
