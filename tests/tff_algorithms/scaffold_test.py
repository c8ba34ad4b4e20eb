"""SCAFFOLD against its numpy version, written from the paper, and what follows."""

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.oracles import numpy_optimizers
from tests.oracles.scaffold import scaffold
from tests.tff_algorithms import problems, stateful
from tff_algorithms import base_optimizers, client_states, oracles, process
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.fed_prox import Proximal
from tff_algorithms.mime_lite import build_mime_lite
from tff_algorithms.scaffold import ControlVariates, build_scaffold

pytestmark = pytest.mark.usefixtures('each_runtime')

_N = 10  # Three of them are never sampled, one has no rows.
_ROUNDS = stateful.sampled_rounds(8, (9, 4, 0, 7, 13, 1, 6), 4, dtype=np.float64)
_SERVERS = {
  'sgd': (
    base_optimizers.as_tff_optimizer(base_optimizers.sgd(), 0.75),
    numpy_optimizers.BaseServer(numpy_optimizers.Sgd(), 0.75),
  ),
  'momentum': (
    base_optimizers.as_tff_optimizer(base_optimizers.momentum(0.8), 0.75),
    numpy_optimizers.BaseServer(numpy_optimizers.Momentum(0.8), 0.75),
  ),
  'adam': (
    base_optimizers.as_tff_optimizer(base_optimizers.adam(0.8, 0.9, 1e-2, 0.1), 0.125),
    numpy_optimizers.BaseServer(numpy_optimizers.Adam(0.8, 0.9, 1e-2, 0.1), 0.125),
  ),
}
_LOGISTIC = problems.logistic(dtype=np.float64)
_both_options = pytest.mark.parametrize('option', [1, 2])


def _assert_agree(
  rounds, ours=None, theirs=None, *, server='sgd', tolerance=1e-11, **shared
):
  """Compares x, c, every c_i and the metrics after every round."""
  shared = dict(num_clients=_N, batch_size=4, client_learning_rate=0.25) | shared
  ours = {'model': _LOGISTIC.model} | (ours or {})
  optimizer, numpy_optimizer = _SERVERS[server]
  found = stateful.run(
    build_scaffold(shuffle=False, server_optimizer=optimizer, **shared, **ours), rounds
  )
  expected = scaffold(
    _LOGISTIC.oracle.loss_and_gradient,
    _LOGISTIC.weights,
    rounds,
    server_optimizer=numpy_optimizer,
    **shared,
    **(theirs or {}),
  )
  for t in range(len(rounds)):
    x, c, of_clients, metrics = (of_all[t] for of_all in found)
    wanted_x, wanted_c, wanted_of_clients, wanted_metrics = (e[t] for e in expected)
    problems.assert_close(x, wanted_x, tolerance)
    problems.assert_close(c, wanted_c, tolerance)
    for client_id, c_i in of_clients.items():
      zeros = {name: np.zeros_like(value) for name, value in c_i.items()}
      problems.assert_close(c_i, wanted_of_clients.get(client_id, zeros), tolerance)
    for name, other in (('num_clients_left_out', 'num_left_out'), ('loss', 'loss')):
      np.testing.assert_allclose(metrics[name], wanted_metrics[other], rtol=1e-6)
  return found


@_both_options
@pytest.mark.parametrize('weighting', ['uniform', 'examples'])
def test_equals_the_paper_with_sampling_unequal_clients_and_epochs(option, weighting):
  found = _assert_agree(_ROUNDS, option=option, weighting=weighting, epochs=3)
  last = found[2][-1]
  changed = [c for c in last if any(value.any() for value in last[c].values())]
  assert len(changed) >= 5  # And some came back with an old one:
  assert sum(len(cohort) for cohort in _ROUNDS) > 3 * len(changed)


@_both_options
@pytest.mark.parametrize('server', ['momentum', 'adam'])
def test_equals_the_paper_with_another_server_optimizer(option, server):
  _assert_agree(_ROUNDS, option=option, server=server, epochs=2)


@pytest.mark.parametrize('max_steps', [1, 3])
def test_option_2_divides_by_the_steps_that_a_client_really_took(max_steps):
  _assert_agree(_ROUNDS, option=2, epochs=5, max_steps=max_steps)


@_both_options
def test_equals_the_paper_with_the_term_of_fed_prox(option):
  ours, theirs = {'terms': [Proximal(0.3)]}, {'rho': 0.3}
  _assert_agree(_ROUNDS, ours, theirs, option=option, epochs=3)


def test_three_summands_give_the_same_bits_every_time():
  """TensorFlow's own sum of several begins with whichever one's memory is free."""
  process_ = build_scaffold(
    problems.mlp(num_features=64, num_hidden=64).model,
    num_clients=2,
    client_learning_rate=0.2,
    batch_size=7,
    terms=[Proximal(0.7)],
  )
  rounds = [[('a', problems.classification_rows(40, num_features=64))]] * 2
  first, *again = (stateful.run(process_, rounds)[0][-1] for _ in range(12))
  for weights in again:
    problems.assert_close(weights, first, 0)


def test_equals_the_paper_with_clipped_gradients():
  clipped = oracles.Clipped(0.5, oracles.as_oracle(_LOGISTIC.model))
  ours, theirs = {'model': clipped}, {'clip_norm': 0.5}
  # A clipping norm is a float32.
  _assert_agree(_ROUNDS, ours, theirs, option=2, epochs=3, tolerance=1e-6)


@_both_options
def test_a_client_with_a_bad_number_is_left_out_and_keeps_its_c_i(option):
  good = problems.classification_rows(5, seed=1, dtype=np.float64)
  bad = problems.classification_rows(5, seed=2, dtype=np.float64)
  bad['x'][2, 1] = np.nan
  once_good = problems.classification_rows(4, seed=3, dtype=np.float64)
  rounds = [
    [('a', good), ('b', once_good)],
    [('a', good), ('b', bad)],
    [('b', bad)],
    [('a', good), ('b', once_good)],
  ]
  found = _assert_agree(rounds, option=option, epochs=2)
  of_clients = found[2]
  assert of_clients[0]['b']['kernel'].any()
  for t in (1, 2):
    np.testing.assert_array_equal(
      of_clients[t]['b']['kernel'], of_clients[0]['b']['kernel']
    )
  assert [m['num_clients_left_out'] for m in found[3]] == [0, 1, 1, 0]


def test_a_client_without_rows_keeps_its_c_i():
  rows = problems.classification_rows(6, seed=1, dtype=np.float64)
  nothing = problems.classification_rows(0, dtype=np.float64)
  found = _assert_agree(
    [[('a', rows), ('b', rows)], [('a', nothing), ('b', rows)]], option=2, epochs=2
  )
  before, after = (found[2][t]['a']['kernel'] for t in (0, 1))
  assert before.any()
  np.testing.assert_array_equal(before, after)


@_both_options
def test_a_round_that_the_server_rejects_changes_no_c_i(option):
  # x overflows at the server, though every client is finite.
  huge = base_optimizers.as_tff_optimizer(base_optimizers.sgd(), 1e30)
  process_ = build_scaffold(
    problems.quadratic([1e10]).model,
    num_clients=3,
    option=option,
    client_learning_rate=0.1,
    batch_size=2,
    server_optimizer=huge,
  )
  states = client_states.InMemoryClientStates(process_)
  state = process_.initialize()
  rows = problems.quadratic_rows([np.eye(1)] * 2, [[0.0], [1.0]])
  output = process_.next(state, [problems.dataset(rows)], states.read(['a']))
  assert not output.is_accepted
  assert output.client_states == ()
  # It was no bad client: it would have kept something.
  (proposed,) = output.proposed
  assert np.isfinite(proposed.value['control_variates']['w']).all()
  assert proposed.value['control_variates']['w'].any()
  np.testing.assert_array_equal(output.state.server.terms[0]['w'], [0.0])


_BAD = problems.classification_rows(4, seed=77)
_BAD['x'][1, 2] = np.inf


@hypothesis.given(
  cohorts=st.lists(
    st.lists(st.integers(0, 7), min_size=1, max_size=6, unique=True),
    min_size=3,
    max_size=6,
  ),
  bad=st.sets(st.tuples(st.integers(0, 5), st.integers(0, 7)), max_size=6),
  sizes=st.lists(st.integers(0, 9), min_size=8, max_size=8),
)
@hypothesis.settings(max_examples=15)
@_both_options
@pytest.mark.slow
def test_c_is_the_mean_of_all_c_i_after_every_round(option, cohorts, bad, sizes):
  clients = [problems.classification_rows(n, seed=i) for i, n in enumerate(sizes)]
  rounds = [
    [(f'c{i}', _BAD if (t, i) in bad else clients[i]) for i in cohort]
    for t, cohort in enumerate(cohorts)
  ]
  _, all_c, of_clients, _ = stateful.run(_weighted(option), rounds)
  scale = 1.0  # That of the gradients, all of which are about so large.
  for t in range(len(rounds)):
    mean = stateful.mean_of_all(of_clients[t], 12, all_c[t])
    for name, c in all_c[t].items():
      assert np.linalg.norm(c - mean[name]) <= 1e-6 * scale


_built: dict = {}


def _weighted(option):
  """One process for all examples: building takes longer than running."""
  if option not in _built:
    _built[option] = build_scaffold(
      problems.logistic().model,
      num_clients=12,
      option=option,
      weighting='examples',  # The dc_i are not weighted with it.
      client_learning_rate=0.3,
      batch_size=3,
      epochs=2,
    )
  return _built[option]


def test_with_a_clipping_aggregator_c_is_not_the_mean_of_the_c_i():
  clipping = tff.aggregators.clipping_factory(1e-3, tff.aggregators.SumFactory())
  process_ = build_scaffold(
    _LOGISTIC.model,
    num_clients=_N,
    control_variate_aggregator=clipping,
    client_learning_rate=0.2,
    batch_size=4,
  )
  _, all_c, of_clients, _ = stateful.run(process_, _ROUNDS[:2])
  mean = stateful.mean_of_all(of_clients[-1], _N, all_c[-1])
  assert np.linalg.norm(mean['kernel']) > 10 * np.linalg.norm(all_c[-1]['kernel'])


def test_a_mean_is_refused_where_dc_is_summed():
  for factory in (
    tff.aggregators.MeanFactory(),
    tff.aggregators.UnweightedMeanFactory(),
    tff.learning.robust_aggregator(),
    tff.learning.robust_aggregator(weighted=False),
    tff.learning.secure_aggregator(weighted=False),
    tff.learning.dp_aggregator(0.5, 10),
    tff.aggregators.clipping_factory(1.0, tff.aggregators.UnweightedMeanFactory()),
  ):
    with pytest.raises(ValueError, match='control_variate_aggregator must sum'):
      build_scaffold(
        _LOGISTIC.model,
        num_clients=3,
        control_variate_aggregator=factory,
        client_learning_rate=0.1,
        batch_size=4,
      )


def test_other_sums_are_taken():
  secure = tff.aggregators.SecureSumFactory(1.0, -1.0)
  clipped = tff.aggregators.clipping_factory(1.0, tff.aggregators.SumFactory())
  for factory in (tff.aggregators.SumFactory(), secure, clipped):
    build_scaffold(
      _LOGISTIC.model if factory is not secure else problems.logistic().model,
      num_clients=3,
      control_variate_aggregator=factory,
      client_learning_rate=0.1,
      batch_size=4,
    )


def test_any_aggregator_goes_on_the_updates():
  process_ = build_scaffold(
    problems.logistic().model,
    num_clients=7,
    aggregator=tff.learning.robust_aggregator(weighted=True),
    client_learning_rate=0.1,
    batch_size=4,
  )
  rounds = stateful.sampled_rounds(3, (5, 6, 7), 2)
  weights, *_ = stateful.run(process_, rounds)
  assert all(np.isfinite(weights[-1]['kernel']).ravel())


@_both_options
def test_the_first_round_is_that_of_fed_avg(option):
  arguments = dict(client_learning_rate=0.2, batch_size=4, epochs=3)
  ours, *_ = stateful.run(
    build_scaffold(_LOGISTIC.model, num_clients=_N, option=option, **arguments),
    _ROUNDS[:2],
  )
  fed_avg = build_fed_avg(_LOGISTIC.model, weighting='uniform', **arguments)
  theirs, _ = problems.run(fed_avg, [[rows for _, rows in c] for c in _ROUNDS[:2]])
  problems.assert_close(ours[0], theirs[0], 1e-12)
  difference = np.linalg.norm(ours[1]['kernel'] - theirs[1]['kernel'])
  assert difference > 1e-3  # From the second round on they differ.


@pytest.mark.parametrize('num_clients', [0, -1, 2.5])
def test_num_clients_is_a_count(num_clients):
  with pytest.raises(ValueError, match='num_clients'):
    build_scaffold(
      _LOGISTIC.model, num_clients=num_clients, client_learning_rate=0.1, batch_size=4
    )


@pytest.mark.parametrize('option', [0, 3, 'II'])
def test_there_are_two_options(option):
  with pytest.raises(ValueError, match='option must be one of 1, 2'):
    build_scaffold(
      _LOGISTIC.model,
      num_clients=4,
      option=option,
      client_learning_rate=0.1,
      batch_size=4,
    )


def test_more_clients_in_a_round_than_there_are_is_an_error():
  process_ = build_scaffold(
    _LOGISTIC.model, num_clients=2, client_learning_rate=0.1, batch_size=4
  )
  states = client_states.InMemoryClientStates(process_)
  rows = problems.classification_rows(4, dtype=np.float64)
  cohort = [problems.dataset(rows)] * 3
  with pytest.raises(
    ValueError, match=r'A round of 3 clients, .* num_clients=2 in all'
  ):
    states.read(['a', 'b', 'c'])
  # Whoever keeps states in another way has it from TFF's runtime, which wraps it.
  three = [*states.read(['a', 'b']), *states.read(['c'])]
  with pytest.raises(Exception, match='num_clients=2 is less than the clients'):
    process_.next(process_.initialize(), cohort, three)


def test_a_stateful_base_optimizer_on_clients_refuses_its_term():
  term = ControlVariates(3, 2, tff.aggregators.SumFactory())
  with pytest.raises(ValueError, match="the term 'control_variates' needs what only"):
    build_mime_lite(
      _LOGISTIC.model,
      base_optimizer=base_optimizers.as_tff_optimizer(base_optimizers.momentum(), 0.1),
      batch_size=4,
      terms=[term],
    )


def test_its_types_are_as_documented():
  process_ = build_scaffold(
    problems.logistic().model, num_clients=2, client_learning_rate=0.1, batch_size=4
  )
  assert isinstance(process_, process.StatefulProcess)
  assert isinstance(process_, tff.templates.IterativeProcess)
  parameter = process_.next.type_signature.parameter
  assert tff.structure.name_list(parameter) == ['state', 'clients', 'client_states']
  kept = '<control_variates=<kernel=float32[5,3],bias=float32[3]>>'
  placed = f'{{<client_id=str,value={kept}>}}@CLIENTS'
  assert str(parameter.client_states) == placed
  result = process_.next.type_signature.result
  assert str(result.proposed) == placed
  assert str(result.is_accepted) == 'bool@SERVER'
  assert str(process_.initialize_client.type_signature) == f'( -> {kept})'


def test_the_weights_and_the_rate_can_be_set():
  process_ = build_scaffold(
    problems.logistic().model, num_clients=2, client_learning_rate=0.1, batch_size=4
  )
  state = process_.initialize()
  hparams = process_.get_hparams(state)
  assert hparams['client_learning_rate'] == pytest.approx(0.1)
  hparams['client_learning_rate'] = np.float32(0.2)
  state = process_.set_hparams(state, hparams)
  weights = tf.nest.map_structure(np.ones_like, process_.get_model_weights(state))
  state = process_.set_model_weights(state, weights)
  assert process_.get_hparams(state)['client_learning_rate'] == pytest.approx(0.2)
  assert (state.server.weights.trainable['bias'] == 1).all()
