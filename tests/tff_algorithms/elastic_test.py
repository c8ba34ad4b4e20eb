"""Elastic aggregation against its numpy version, and what follows from its formula."""

import collections
import dataclasses
import functools
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.oracles import elastic as numpy_elastic
from tests.oracles import numpy_optimizers
from tests.tff_algorithms import algorithms, mixed_problems, problems, stateful
from tff_algorithms import (
  base_optimizers,
  client_inputs,
  elastic,
  models,
  oracles,
  process,
)
from tff_algorithms.elastic import build_elastic
from tff_algorithms.example_transfer import build_example_transfer
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.fed_dyn import build_fed_dyn
from tff_algorithms.fed_prox import build_fed_prox
from tff_algorithms.mime_lite import build_mime_lite
from tff_algorithms.one_way_gradient_transfer import build_one_way_gradient_transfer
from tff_algorithms.parallel_training import build_parallel_training
from tff_algorithms.scaffold import build_scaffold
from tff_algorithms.terms import Client
from tff_algorithms.two_way_gradient_transfer import build_two_way_gradient_transfer

pytestmark = pytest.mark.usefixtures('runtime')

_MLP = problems.mlp(dtype=np.float64)
_SEED = 3
_FRACTION = 0.3
# With batches of 4 these hold back 12, 6, 0 (2 would be less than a batch), 0, 9, 0.
_SIZES = (40, 23, 9, 0, 31, 1)
_ROUNDS = stateful.sampled_rounds(6, _SIZES, 4, dtype=np.float64)
_STEPS = dict(learning_rate=0.2, batch_size=5, epochs=2)
_OURS = dict(batch_size=5, epochs=2)
_RATE: dict[str, Any] = dict(client_learning_rate=0.2)
_N = 10


def _momentum(beta, rate):
  optimizer = base_optimizers.as_tff_optimizer(base_optimizers.momentum(beta), rate)
  return optimizer, numpy_optimizers.BaseServer(numpy_optimizers.Momentum(beta), rate)


_SERVER, _NUMPY_SERVER = _momentum(0.8, 0.75)
_PLAIN = numpy_optimizers.BaseServer(numpy_optimizers.Sgd(), 1.0)


def _steps(rho=0.0):
  return numpy_elastic.LocalSteps(_MLP.oracle.loss_and_gradient, rho=rho, **_STEPS)


# Name -> our builder with its arguments, and the same in numpy.
_ALGORITHMS = {
  'fed_avg': (
    functools.partial(build_fed_avg, **_RATE),
    lambda: numpy_elastic.FedAvg(_steps(), _PLAIN),
  ),
  'fed_avg_m': (
    functools.partial(build_fed_avg, server_optimizer=_SERVER, **_RATE),
    lambda: numpy_elastic.FedAvg(_steps(), _NUMPY_SERVER),
  ),
  'fed_prox': (
    functools.partial(build_fed_prox, rho=0.4, **_RATE),
    lambda: numpy_elastic.FedAvg(_steps(0.4), _PLAIN),
  ),
  'scaffold_1': (
    functools.partial(build_scaffold, num_clients=_N, option=1, **_RATE),
    lambda: numpy_elastic.Scaffold(_steps(), _PLAIN, option=1, num_clients=_N),
  ),
  'scaffold_2': (
    functools.partial(
      build_scaffold, num_clients=_N, option=2, server_optimizer=_SERVER, **_RATE
    ),
    lambda: numpy_elastic.Scaffold(_steps(), _NUMPY_SERVER, option=2, num_clients=_N),
  ),
  'mime_lite': (
    functools.partial(
      build_mime_lite,
      base_optimizer=base_optimizers.as_tff_optimizer(
        base_optimizers.momentum(0.8), 0.2
      ),
      server_learning_rate=0.75,
    ),
    lambda: numpy_elastic.MimeLite(_steps(), numpy_optimizers.Momentum(0.8), 0.75),
  ),
}
_CENTRAL: dict[str, Any] = dict(
  central_batch_size=3, central_steps=2, central_learning_rate=0.1
)
# The same without a numpy version: the server has rows too.
_MIXED = {
  'parallel_training': functools.partial(build_parallel_training, **_CENTRAL, **_RATE),
  'one_way_gradient_transfer': functools.partial(
    build_one_way_gradient_transfer, **_RATE
  ),
  # With an optimizer given, clients upload their gradients also without other terms.
  'two_way_gradient_transfer': functools.partial(
    build_two_way_gradient_transfer,
    client_optimizer=base_optimizers.sgd(),
    **_CENTRAL,
    **_RATE,
  ),
  'example_transfer': functools.partial(build_example_transfer, num_sent=4, **_RATE),
}
_METRICS = {
  'num_sensitivities': 'num_sensitivities',
  'boosted_share': 'boosted',
  'zeta_min': 'least_zeta',
  'zeta_mean': 'mean_zeta',
  'zeta_max': 'largest_zeta',
  'num_clients_left_out': 'num_left_out',
  'num_clients': 'num_clients',
  'num_examples': 'num_examples',
  'loss': 'loss',
  'client_drift': 'drift',
  'update_norm': 'update_norm',
}


def _held_back(model, rows, batch_size, fraction=_FRACTION, seed=_SEED):
  """The numbers of the rows that a client holds back."""
  client_input = client_inputs.holding_back(
    client_inputs.from_dataset(model.input_spec), fraction, batch_size, seed
  )
  given = client_input.load(problems.dataset(rows))
  places = {x.tobytes(): i for i, x in enumerate(rows['x'])}
  held = [places[x.tobytes()] for x in given.held_back['x'].numpy()]
  assert len(held) == numpy_elastic.num_held_back(len(rows['y']), fraction, batch_size)
  return held


def _run(process_, rounds):
  """The weights and the metrics of every round, of rows by client id."""
  if isinstance(process_, process.StatefulProcess):
    all_weights, *_, all_metrics = stateful.run(process_, rounds)
    return all_weights, all_metrics
  cohorts = [[rows for _, rows in cohort] for cohort in rounds]
  if isinstance(process_, process.MixedProcess):
    centrals = [_signs(7, 100 + t) for t in range(len(rounds))]
    outputs = mixed_problems.outputs_of(process_, cohorts, centrals)
    return (
      [output.state.server.weights.trainable for output in outputs],
      [output.metrics['client_work']['train'] for output in outputs],
    )
  return problems.run(process_, cohorts)


def _assert_agree(name, rounds=_ROUNDS, weighting='examples', tolerance=1e-11, **how):
  settings = dict(tau=0.5, mu=0.7, sensitivity='momentum', sensitivity_batch_size=4)
  settings |= how
  build, numpy_algorithm = _ALGORITHMS[name]
  process_ = build_elastic(
    build,
    _MLP.model,
    fraction=_FRACTION,
    weighting=weighting,
    shuffle=False,
    seed=_SEED,
    **_OURS,
    **settings,
  )
  all_weights, all_metrics = _run(process_, rounds)
  size = settings['sensitivity_batch_size']
  split = [
    [
      numpy_elastic.split(c, rows, _held_back(_MLP.model, rows, size))
      for c, rows in cohort
    ]
    for cohort in rounds
  ]
  expected = numpy_elastic.elastic(
    numpy_algorithm(),
    numpy_elastic.mlp_norm_gradient,
    _MLP.weights,
    split,
    numpy_elastic.Elastic(**settings),
    weighting=weighting,
  )
  for weights, metrics, wanted in zip(all_weights, all_metrics, expected, strict=True):
    problems.assert_close(weights, wanted.weights, tolerance)
    for ours, theirs in _METRICS.items():
      np.testing.assert_allclose(
        metrics[ours], wanted.metrics[theirs], rtol=1e-6, err_msg=ours
      )
  return expected


@pytest.mark.slow
@pytest.mark.parametrize('name', _ALGORITHMS)
def test_equals_the_supplement_with_unequal_clients_and_epochs(name):
  expected = _assert_agree(name)
  # Some clients of a round had no Omega_k, and some coordinates were boosted.
  assert any(
    0 < e.metrics['num_sensitivities'] < e.metrics['num_clients'] for e in expected
  )
  assert any(0 < e.metrics['boosted'] < 1 for e in expected)


@pytest.mark.slow
@pytest.mark.parametrize('size', [4, 1], ids=['by batch', 'by example'])
@pytest.mark.parametrize('name', ['fed_avg_m', 'scaffold_1'])
def test_equals_the_supplement_with_the_average(name, size):
  _assert_agree(name, sensitivity='average', sensitivity_batch_size=size)


@pytest.mark.slow
@pytest.mark.parametrize('name', ['fed_prox', 'mime_lite'])
def test_equals_the_supplement_with_clients_that_count_alike(name):
  _assert_agree(name, _ROUNDS[:3], weighting='uniform')


@pytest.mark.slow
@pytest.mark.parametrize('tau', [0.0, 2.0])
def test_equals_the_supplement_with_another_tau(tau):
  _assert_agree('fed_avg_m', tau=tau, mu=0.95)


# Whose Omega_k, and whose update, count.


def _poisoned(rows, place, value=np.nan):
  rows = collections.OrderedDict((name, part.copy()) for name, part in rows.items())
  rows['x'][place, 1] = value
  return rows


def _rows(n, seed):
  return problems.classification_rows(n, seed=seed, dtype=np.float64)


@pytest.mark.slow
@pytest.mark.parametrize('value', [np.nan, np.inf, 1e200], ids=str)
@pytest.mark.parametrize('name', ['fed_avg', 'scaffold_1'])
def test_a_client_whose_omega_is_not_finite_counts_with_its_update(name, value):
  good, half_good = _rows(20, 1), _rows(20, 2)
  # Not the first row: what it holds back depends on that one.
  place = max(_held_back(_MLP.model, half_good, 4))
  rounds = [[('a', good), ('b', _poisoned(half_good, place, value))]] * 2
  # tanh takes what is large for what is 1.
  expected = _assert_agree(name, rounds, weighting='uniform')
  if not np.isfinite(value):
    assert [e.metrics['num_sensitivities'] for e in expected] == [1, 1]
  assert [e.metrics['num_clients'] for e in expected] == [2, 2]


@pytest.mark.slow
@pytest.mark.parametrize('name', ['fed_avg_m', 'scaffold_2', 'mime_lite'])
def test_a_client_that_is_left_out_is_left_out_with_its_omega(name):
  good, bad = _rows(20, 1), _rows(20, 2)
  trained = set(range(1, 20)) - set(_held_back(_MLP.model, bad, 4))
  rounds = [[('a', good), ('b', _poisoned(bad, min(trained)))]] * 2
  expected = _assert_agree(name, rounds)
  for e in expected:
    assert e.metrics['num_left_out'] == e.metrics['num_sensitivities'] == 1


def test_without_any_omega_all_is_boosted():
  """Clients too small, one without rows; and one whose Omega_k is no number."""
  small, nothing, bad = _rows(9, 1), _rows(0, 2), _rows(20, 3)
  bad = _poisoned(bad, max(_held_back(_MLP.model, bad, 4)))
  expected = _assert_agree(
    'fed_avg', [[('a', small), ('b', nothing)], [('a', small), ('c', bad)]]
  )
  for e in expected:
    assert e.metrics['least_zeta'] == e.metrics['largest_zeta'] == 1.5
    assert e.metrics['boosted'] == 1


def _of_algorithm(build, **arguments):
  """One of `algorithms` on the logistic problem, elastic or only holding back."""
  model = problems.logistic().model
  made = elastic.elastic_arguments(
    model,
    client_inputs.from_dataset(model.input_spec),
    batch_size=1,
    weighting='examples',
    seed=0,
    fraction=_FRACTION,
  )
  return build(seed=0, **(made | arguments))


def _relabelled(rows, places):
  labels = rows['y'].copy()
  labels[places] = (labels[places] + 1) % 3
  return collections.OrderedDict(x=rows['x'], y=labels)


@pytest.mark.slow
@pytest.mark.parametrize(
  'build',
  [
    algorithms.fed_avg,
    algorithms.fed_prox,
    functools.partial(algorithms.scaffold, option=1, weighting='examples'),
    functools.partial(algorithms.scaffold, option=2, weighting='examples'),
    *algorithms.MIME_FAMILY.values(),
    algorithms.one_way_gradient_transfer,
    algorithms.two_way_gradient_transfer,
  ],
  ids=[
    *('fed_avg', 'fed_prox', 'scaffold_1', 'scaffold_2'),
    *algorithms.MIME_FAMILY,
    *('one_way_gradient_transfer', 'two_way_gradient_transfer'),
  ],
)
def test_rows_that_are_held_back_are_not_trained_on(build):
  """Neither by steps nor by full gradients: their labels do not matter."""
  process_, model = _of_algorithm(build), problems.logistic().model
  rows = [problems.classification_rows(n, seed=n) for n in (12, 9)]
  # Not the first row: what a client holds back depends on it.
  held = [[i for i in _held_back(model, r, 1, seed=0) if i > 0] for r in rows]
  trained = [
    [i for i in range(1, len(r['y'])) if i not in h]
    for r, h in zip(rows, held, strict=True)
  ]
  found = []
  for places in ([[], []], held, trained):
    cohort = [_relabelled(r, p) for r, p in zip(rows, places, strict=True)]
    weights, _ = _run(process_, [list(zip('ab', cohort, strict=True))] * 3)
    found.append(weights[-1]['kernel'])
  assert len(held[0]) >= 2
  np.testing.assert_array_equal(found[1], found[0])
  assert np.abs(found[2] - found[0]).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize('build', [algorithms.mime, algorithms.mime_lite])
def test_of_a_split_cohort_only_those_that_send_updates_send_an_omega(build):
  process_ = _of_algorithm(build, split_cohort=True)
  update, gradient = (problems.classification_rows(12, seed=n) for n in (1, 2))
  held = [i for i in _held_back(problems.logistic().model, gradient, 1, seed=0) if i]
  assert held
  states = []
  for other in (gradient, _poisoned(gradient, held, 7.0)):
    clients = [problems.dataset(rows) for rows in (update, other)]
    output = process_.next(process_.initialize(), client_inputs.in_halves(clients))
    states.append(output.state)
  train = output.metrics['client_work']['train']
  assert (train['zeta_min'], train['num_sensitivities']) == (0.5, 1)
  algorithms.assert_states_close(states[1], states[0], rtol=0)


# What follows from the formula.


def _term(tau=0.5, **changed):
  model = problems.mlp(dtype=np.float64).model
  (term,) = elastic.elastic_arguments(
    model,
    client_inputs.from_dataset(model.input_spec),
    batch_size=1,
    weighting='examples',
    seed=0,
    tau=tau,
  )['terms']
  return dataclasses.replace(term, **changed)


@pytest.mark.parametrize('sensitivity', elastic.SENSITIVITIES)
def test_omega_k_is_that_of_the_supplement_in_size_too(sensitivity):
  """In zeta a factor that all Omega_k have cancels."""
  settings = numpy_elastic.Elastic(0.5, 0.7, sensitivity, 4)
  held_back = _rows(10, 1)  # Of which the last batch is a shorter one.
  term = _term(mu=0.7 if sensitivity == 'momentum' else None, batch_size=4)
  client = Client(
    weights=_MLP.model.initialize(tf.constant([0, 0], tf.int64)),
    rows=(),
    num_examples=tf.constant(0.0, tf.float64),
    seed=tf.constant([0, 0], tf.int64),
    full_gradient=lambda weights, dropout: (),
    first_gradient=lambda: (),
    held_back=tf.nest.map_structure(tf.constant, held_back),
  )
  expected = numpy_elastic.client_omega(
    numpy_elastic.mlp_norm_gradient, _MLP.weights, held_back, settings
  )
  problems.assert_close(term.prepare((), client), expected, 1e-12)


def _zeta(omega, tau=0.5):
  return np.concatenate([np.ravel(z) for z in tf.nest.flatten(_term(tau).zeta(omega))])


_omegas = st.lists(
  st.lists(st.floats(0, 1e6, allow_subnormal=False), min_size=1, max_size=6),
  min_size=1,
  max_size=3,
).map(lambda parts: tuple(tf.constant(part, tf.float64) for part in parts))
_taus = st.floats(0, 4)


@hypothesis.given(_omegas, _taus)
def test_zeta_lies_between_tau_and_1_plus_tau(omega, tau):
  zeta = _zeta(omega, tau)
  assert (zeta >= 1 + tau - 1).all()
  assert (zeta <= 1 + tau).all()
  flat = np.concatenate([np.ravel(o) for o in omega])
  if flat.max() > 0:
    assert zeta[flat.argmax()] == 1 + tau - 1


@hypothesis.given(_omegas, _taus)
def test_tau_shifts_zeta(omega, tau):
  np.testing.assert_allclose(_zeta(omega, tau), _zeta(omega, 0) + tau, atol=1e-12)


@hypothesis.given(_omegas, st.floats(1e-6, 1e6))
def test_the_scale_of_omega_does_not_matter(omega, factor):
  scaled = tuple(factor * o for o in omega)
  np.testing.assert_allclose(_zeta(scaled), _zeta(omega), atol=1e-12)


@hypothesis.given(_omegas)
def test_there_is_one_maximum_over_all_coordinates(omega):
  """However they are dealt out over the tensors of the model."""
  np.testing.assert_array_equal(_zeta(omega), _zeta((tf.concat(omega, axis=0),)))


@hypothesis.given(_omegas)
def test_the_less_sensitive_of_two_coordinates_is_boosted_no_less(omega):
  flat = np.concatenate([np.ravel(o) for o in omega])
  in_order = _zeta(omega)[np.argsort(flat, kind='stable')]
  assert (np.diff(in_order) <= 0).all()


@hypothesis.given(st.integers(1, 5), st.floats(1e-300, 1e300))
def test_a_uniform_omega_and_tau_1_give_1_exactly(size, value):
  omega = tuple(tf.fill([n], tf.constant(value, tf.float64)) for n in (size, 1))
  np.testing.assert_array_equal(_zeta(omega, 1), 1.0)


@pytest.mark.parametrize('value', [0.0, np.nan, np.inf, -1.0])
def test_an_omega_of_nothing_gives_1_plus_tau(value):
  """All zero, of no client at all (a mean of nothing), or nothing but noise."""
  omega = (tf.zeros([2], tf.float64), tf.fill([3], tf.constant(value, tf.float64)))
  np.testing.assert_array_equal(_zeta(omega, 0.25), 1.25)


def test_what_noise_makes_negative_is_boosted_no_more_than_what_is_0():
  omega = (tf.constant([2.0, -1.0], tf.float64), tf.constant([0.0], tf.float64))
  np.testing.assert_array_equal(_zeta(omega, 0.25), [0.25, 1.25, 1.25])


def _sum_of_signs():
  """F = x w, whose |gradient| is alike in all coordinates where |x| is."""

  def predict(w, x, seed):
    return tf.linalg.matvec(x, w.trainable['w'])

  return models.Model(
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None, 4], tf.float64), y=tf.TensorSpec([None], tf.float64)
    ),
    initialize=lambda seed: models.ModelWeights(
      collections.OrderedDict(w=tf.constant([0.3, -1.0, 0.7, 2.0], tf.float64)), ()
    ),
    predict=predict,
    loss=lambda y, outputs: tf.reduce_mean(tf.square(outputs - y)),
    metrics=lambda y, outputs: collections.OrderedDict(),
    finalize_metrics=lambda sums: collections.OrderedDict(),
  )


def _signs(n, seed):
  rng = np.random.default_rng([seed, n])
  return collections.OrderedDict(
    x=rng.choice([-1.0, 1.0], (n, 4)), y=rng.normal(size=n)
  )


@functools.cache
def _with_and_without(name, sensitivity='momentum', tau=1.0, **without):
  """An algorithm with elastic aggregation, and without, both holding back."""
  model = _sum_of_signs()
  build = _MIXED[name] if name in _MIXED else _ALGORITHMS[name][0]
  common = dict(weighting='examples', batch_size=5, seed=_SEED)
  ours = build_elastic(
    build,
    model,
    tau=tau,
    sensitivity=sensitivity,
    fraction=_FRACTION,
    sensitivity_batch_size=1,
    **common,
  )
  client_input = client_inputs.holding_back(
    client_inputs.from_dataset(model.input_spec), _FRACTION, 1, _SEED
  )
  return ours, build(model, client_input=client_input, **common, **without)


def _assert_with_is_without(name, rounds, **how):
  ours, theirs = _with_and_without(name, **how)
  found, metrics = _run(ours, rounds)
  expected, _ = _run(theirs, rounds)
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_array_equal(a['w'], b['w'])
  return metrics


@pytest.mark.slow
@pytest.mark.parametrize('name', _ALGORITHMS)
def test_with_a_uniform_omega_and_tau_1_it_is_the_algorithm_without(name):
  rounds = [[(c, _signs(n, i)) for i, (c, n) in enumerate([('a', 9), ('b', 14)])]] * 3
  metrics = _assert_with_is_without(name, rounds)
  assert {m['zeta_min'] for m in metrics} == {m['zeta_max'] for m in metrics} == {1.0}
  assert {m['boosted_share'] for m in metrics} == {0.0}


@pytest.mark.slow
@hypothesis.settings(max_examples=10)
@hypothesis.given(
  sizes=st.lists(st.integers(4, 12), min_size=1, max_size=4),
  sensitivity=st.sampled_from(elastic.SENSITIVITIES),
)
def test_with_a_uniform_omega_and_tau_1_it_is_fed_avg(sizes, sensitivity):
  rounds = [[(f'c{i}', _signs(n, i)) for i, n in enumerate(sizes)]] * 2
  _assert_with_is_without('fed_avg_m', rounds, sensitivity=sensitivity)


@pytest.mark.slow
@pytest.mark.parametrize('name', _MIXED)
def test_of_mixed_learning_it_scales_the_update_of_the_clients_alone(name):
  """With a uniform Omega tau is the rate of ServerOptimizer, before the merge."""
  rounds = [[(c, _signs(n, i)) for i, (c, n) in enumerate([('a', 9), ('b', 14)])]] * 3
  twice = tff.learning.optimizers.build_sgdm(2.0)
  metrics = _assert_with_is_without(name, rounds, tau=2.0, server_optimizer=twice)
  assert {m['zeta_min'] for m in metrics} == {m['zeta_max'] for m in metrics} == {2.0}
  assert {m['num_sensitivities'] for m in metrics} == {2.0}


def test_with_clients_too_small_and_tau_0_it_is_the_algorithm_without():
  """Nobody sends an Omega_k, and 1 + tau is 1."""
  rounds = [[('a', _signs(3, 0)), ('b', _signs(2, 0))]] * 3
  _assert_with_is_without('scaffold_1', rounds, tau=0.0)


# Its upload.


def _one_round(process_, sizes=(20, 14)):
  clients = [problems.dataset(_rows(n, n)) for n in sizes]
  return process_.next(process_.initialize(), clients)


def _elastic_mlp(**arguments):
  defaults = dict(batch_size=5, fraction=_FRACTION, sensitivity_batch_size=4)
  defaults |= dict(model=_MLP.model, build=build_fed_avg, seed=_SEED)
  return build_elastic(**(defaults | _RATE | arguments))


def test_the_omegas_have_an_aggregator_of_their_own():
  """Clipped to one norm, they count alike whatever they are, but for the weights."""
  clipped = tff.aggregators.clipping_factory(1e-3, tff.aggregators.MeanFactory())
  output = _one_round(_elastic_mlp(sensitivity_aggregator=clipped))
  assert 'elastic_omega' in output.metrics['aggregator']
  omegas, weights = [], []
  for n in (20, 14):
    rows = _rows(n, n)
    held = _held_back(_MLP.model, rows, 4)
    client = numpy_elastic.split('', rows, held)
    omega = numpy_elastic.client_omega(
      numpy_elastic.mlp_norm_gradient,
      _MLP.weights,
      client.held_back,
      numpy_elastic.Elastic(0.5, 0.95, 'momentum', 4),
    )
    flat = np.concatenate([np.ravel(part) for part in omega.values()])
    omegas.append(flat / np.linalg.norm(flat))
    weights.append(n - len(held))
  omega = np.average(omegas, axis=0, weights=weights)
  mean = np.mean(1.5 - omega / omega.max())
  train = output.metrics['client_work']['train']
  np.testing.assert_allclose(train['zeta_mean'], mean, rtol=1e-5)
  plain = _one_round(_elastic_mlp()).metrics['client_work']['train']
  assert abs(plain['zeta_mean'] - mean) > 1e-4


def test_an_aggregator_that_cannot_weight_needs_clients_that_count_alike():
  unweighted = tff.aggregators.UnweightedMeanFactory()
  with pytest.raises(ValueError, match=r'sensitivity_aggregator .* cannot weight'):
    _elastic_mlp(sensitivity_aggregator=unweighted)
  ours = _elastic_mlp(sensitivity_aggregator=unweighted, weighting='uniform')
  theirs = _elastic_mlp(weighting='uniform')
  # Of a client without an Omega_k it is a mean with a zero more: zeta is the same.
  sizes = (20, 14, 5)
  found, expected = (
    _one_round(p, sizes).state.server.weights.trainable for p in (ours, theirs)
  )
  problems.assert_close(found, expected, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('build', 'own', 'plain', 'with_elastic'),
  [
    (build_fed_avg, {}, 2, 3),
    (build_fed_avg, {'server_optimizer': _SERVER}, 2, 3),
    (build_fed_prox, {'rho': 0.1}, 2, 3),
    (build_scaffold, {'num_clients': _N}, 4, 5),
  ],
  ids=['fed_avg', 'fed_avg_m', 'fed_prox', 'scaffold'],
)
def test_what_travels_in_units_of_the_model(build, own, plain, with_elastic):
  problem = problems.logistic(num_features=2000)
  model_bytes = 4 * (2000 * 3 + 3)
  rows = [('a', problems.classification_rows(20, num_features=2000))]
  arguments = dict(batch_size=5, **_RATE, **own)
  for process_, size in (
    (build(problem.model, **arguments), plain),
    (build_elastic(build, problem.model, **arguments), with_elastic),
  ):
    _, (metrics,) = _run(process_, [rows])
    total = metrics['bytes_down'] + metrics['bytes_up']
    # Beside it, weights in the means, the rate and the number of the round.
    assert size * model_bytes <= total <= size * model_bytes + 100


# What goes together.


@pytest.mark.parametrize(
  ('wrong', 'message'),
  [
    ({'tau': -0.1}, 'tau must be 0 or a positive number'),
    ({'tau': float('nan')}, 'tau must be 0 or'),
    ({'mu': 1.0}, r'mu must be in \[0, 1\)'),
    ({'mu': -0.1}, r'mu must be in \[0, 1\)'),
    ({'fraction': 0.0}, 'fraction must be between 0 and 1'),
    ({'fraction': 1.0}, 'fraction must be between 0 and 1'),
    ({'sensitivity': 'max'}, 'sensitivity must be one of momentum, average'),
    ({'sensitivity_batch_size': 0}, 'batch_size must be a whole number'),
    ({'weighting': 'size'}, 'weighting must be one of examples, uniform'),
  ],
)
def test_what_is_wrong_is_said(wrong, message):
  with pytest.raises(ValueError, match=message):
    _elastic_mlp(**wrong)


def test_its_term_alone_says_what_it_needs():
  with pytest.raises(ValueError, match=r'client_inputs\.holding_back'):
    build_fed_avg(_MLP.model, batch_size=5, terms=[_term()], **_RATE)


def test_what_has_no_outputs_is_refused():
  with pytest.raises(TypeError, match=r'model must be a tff_algorithms\.Model'):
    _elastic_mlp(model=oracles.as_oracle(_MLP.model))


def test_fed_dyn_is_refused_for_the_updates_in_its_h():
  own = dict(num_clients=_N, alpha=0.1)
  for build in (build_fed_dyn, functools.partial(build_fed_dyn, **own)):
    with pytest.raises(ValueError, match='not go with FedDyn, whose h has the updates'):
      _elastic_mlp(build=build, **own)


@pytest.mark.parametrize(
  'build',
  [
    algorithms.fed_avg_s,
    algorithms.extra_step_local_sgd,
    algorithms.scaffold_s,
    algorithms.scaffold_catalyst_s,
  ],
)
def test_saddle_points_are_refused(build):
  with pytest.raises(ValueError, match='outputs of a model: a saddle point has none'):
    _of_algorithm(build)


def test_its_types_are_as_documented():
  process_ = algorithms.elastic()
  assert isinstance(process_, tff.learning.templates.LearningProcess)
  (_, client_type) = process_.next.type_signature.parameter
  assert str(client_type) == '{<x=float32[?,5],y=int32[?]>*}@CLIENTS'
  assert isinstance(algorithms.scaffold_elastic(), process.StatefulProcess)
