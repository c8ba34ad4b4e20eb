"""What the mixed algorithms share: their parts, how they relate, where they converge.

Identities are properties in plain TensorFlow and float64, of the phases that the public
builders make, run without a runtime; that the process around them does the same is what
the tests against the oracle show.
"""

import collections
import functools
import logging
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.oracles import fed_avg as fed_avg_oracle
from tests.oracles import mixed as oracle
from tests.oracles import numpy_models
from tests.tff_algorithms import algorithms, mixed_problems, problems
from tests.tff_algorithms.mixed_problems import CENTRALS, COHORTS
from tff_algorithms import (
  base_optimizers,
  client_inputs,
  dissimilarity,
  merge,
  mixed,
  oracles,
  process,
  structures,
)
from tff_algorithms.client_inputs import ClientRows
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.mime import build_mime
from tff_algorithms.models import ModelWeights
from tff_algorithms.one_way_gradient_transfer import (
  CentralGradient,
  build_one_way_gradient_transfer,
)
from tff_algorithms.parallel_training import build_parallel_training
from tff_algorithms.server_state import ServerState
from tff_algorithms.two_way_gradient_transfer import (
  Transferred,
  build_two_way_gradient_transfer,
)

every_mixed = pytest.mark.parametrize('algorithm', mixed_problems.ALGORITHMS)


# The weights of the two losses.


def _warnings(caplog, *weights):
  with caplog.at_level(logging.WARNING, logger='tff_algorithms.mixed'):
    mixed.weighted_losses(problems.logistic().model, None, *weights)
  return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
  ('weights', 'total'), [((0.5, 0.4), '0.9'), ((1.0, 1.0), '2'), ((1.0, 0.5), '1.5')]
)
def test_weights_that_do_not_add_up_to_one_are_warned_of(caplog, weights, total):
  (message,) = _warnings(caplog, *weights)
  assert f'add up to {total}, not to 1' in message


@pytest.mark.parametrize('weights', [(0.75, 0.25), (0.9, 0.1), (1.0, 0.0), (0.3, 0.7)])
def test_weights_that_add_up_to_one_are_not_warned_of(caplog, weights):
  assert not _warnings(caplog, *weights)


@pytest.mark.parametrize(
  ('weights', 'name'),
  [
    ((0.0, 1.0), 'federated_weight'),
    ((-0.5, 1.5), 'federated_weight'),
    ((1.5, -0.5), 'central_weight'),
    ((0.5, float('nan')), 'central_weight'),
    ((float('inf'), 0.5), 'federated_weight'),
  ],
)
def test_a_weight_that_cannot_be_is_refused_by_name(weights, name):
  with pytest.raises(ValueError, match=name):
    mixed.weighted_losses(problems.logistic().model, None, *weights)


def test_the_losses_are_weighted_and_the_central_one_is_the_model_by_default():
  problem, rows = problems.logistic(), COHORTS[0][0]
  weights = oracles.as_oracle(problem.model).initial_weights([0, 0])
  _, g = problem.oracle.loss_and_gradient(problem.weights, rows)
  both = mixed.weighted_losses(problem.model, None, 0.75, 0.25)
  for w, weighted in zip((0.75, 0.25), both, strict=True):
    found = weighted.evaluate(weights, rows, None).gradient
    problems.assert_close(found, numpy_models.map_weights(lambda g, w=w: w * g, g))


def test_a_central_model_of_its_own_is_the_central_loss():
  loss = oracles.WeightLoss(problems.half_square)
  _, central = mixed.weighted_losses(problems.logistic().model, loss, 0.5, 0.5)
  assert central.batch_spec == ()
  assert mixed.central_input_for(central, None) is None


def test_the_servers_argument_is_a_data_set_unless_given_otherwise():
  oracle_ = oracles.as_oracle(problems.logistic().model)
  default = mixed.central_input_for(oracle_, None)
  assert default.type == client_inputs.from_dataset(oracle_.batch_spec).type
  by_id = client_inputs.from_id(lambda name: ())
  assert mixed.central_input_for(oracle_, by_id) is by_id


# The central loss.


class _RowMean(oracles.Oracle):
  """A gradient that is the mean of the batch's rows, wherever the weights are."""

  batch_spec = tf.TensorSpec([None], tf.float64)

  def initial_weights(self, seed):
    return ModelWeights(collections.OrderedDict(w=tf.zeros([1], tf.float64)), ())

  def evaluate(self, weights, batch, seed):
    gradient = collections.OrderedDict(w=tf.reshape(tf.reduce_mean(batch), [1]))
    return oracles.Evaluation(tf.zeros([]), gradient, collections.OrderedDict())

  def finalize_metrics(self, sums):
    return sums


def _server(weights, rows=None, **fields):
  server = ServerState(
    round_num=tf.constant(0),
    weights=ModelWeights(tf.nest.map_structure(tf.convert_to_tensor, weights), ()),
    optimizer=(),
    terms=(),
    hparams=collections.OrderedDict(),
    central=() if rows is None else lambda: tf.nest.map_structure(tf.constant, rows),
  )
  return server._replace(**fields)


def _central_loss(oracle_, batch_size=4, clip_norm=None):
  return mixed.CentralLoss(oracle_, batch_size, clip_norm, seed=0)


@settings(max_examples=15)
@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 12))
def test_central_steps_take_the_rows_in_order_and_from_the_beginning_again(
  n, batch_size, num_steps
):
  rows = np.random.default_rng(n).normal(size=n)
  loss = _central_loss(_RowMean(), batch_size)
  seen = []

  def update(s, y, g):
    seen.append(float(g['w'][0]))
    return s, y

  server = _server(_RowMean().initial_weights(None).trainable, rows)
  outcome = loss.train(server, num_steps, update, ())
  batches = fed_avg_oracle.batches({'rows': rows}, batch_size, num_steps, num_steps)
  expected = [batch['rows'].mean() for batch in batches]
  np.testing.assert_allclose(seen, expected, rtol=1e-12)
  np.testing.assert_allclose(outcome.gradient_sum['w'][0], sum(expected), rtol=1e-9)
  assert outcome.num_steps == num_steps


@settings(max_examples=8)
@given(st.integers(1, 9), st.integers(1, 12), st.floats(0.01, 10.0))
def test_the_central_gradient_is_of_all_rows_however_many_at_a_time(
  n, batch_size, norm
):
  problem = problems.logistic(dtype=np.float64)
  rows = problems.classification_rows(n, dtype=np.float64)
  _, expected = problem.oracle.loss_and_gradient(problem.weights, rows)
  server = _server(problem.weights, rows)
  model = oracles.as_oracle(problem.model)
  problems.assert_close(
    _central_loss(model, batch_size).gradient(server), expected, 1e-12
  )
  loss = _central_loss(model, batch_size, norm)
  problems.assert_close(loss.gradient(server, clipped=False), expected, 1e-12)
  factor = min(1.0, norm / numpy_models.norm(expected))
  clipped = numpy_models.map_weights(lambda g: factor * g, expected)
  problems.assert_close(loss.gradient(server), clipped, 1e-6)


def test_the_first_central_gradient_is_of_the_first_batch_and_not_clipped():
  problem, rows = problems.logistic(), problems.classification_rows(9)
  loss = _central_loss(oracles.as_oracle(problem.model), 4, 1e-3)
  found = loss.first_gradient(_server(problem.weights, rows))
  first = {name: column[:4] for name, column in rows.items()}
  _, expected = problem.oracle.loss_and_gradient(problem.weights, first)
  problems.assert_close(found, expected)


def test_a_central_loss_without_rows_is_taken_once_a_step():
  """On 0.5 ||w||^2, K steps of size eta shrink w by (1 - eta)^K."""
  w = collections.OrderedDict(w=tf.constant([1.0, -2.0], tf.float64))
  loss = _central_loss(oracles.WeightLoss(problems.half_square))

  def update(s, y, g):
    return s, structures.subtract(y, structures.scale(0.25, g))

  outcome = loss.train(_server(w), 3, update, ())
  problems.assert_close(outcome.weights, {'w': 0.75**3 * w['w'].numpy()}, 1e-12)
  problems.assert_close(loss.gradient(_server(w)), {'w': w['w'].numpy()}, 1e-12)


def test_dropout_of_the_central_gradient_is_another_one_in_another_round():
  problem = problems.logistic()

  class Dropping(oracles.ModelLoss):
    def evaluate(self, weights, batch, seed):
      seed = [0, 0] if seed is None else seed
      x = tf.nn.experimental.stateless_dropout(batch['x'], rate=0.5, seed=seed)
      return super().evaluate(weights, collections.OrderedDict(batch, x=x), None)

  loss = _central_loss(Dropping(problem.model))
  server = _server(problem.weights, problems.classification_rows(9))
  later = server._replace(round_num=tf.constant(1))
  kernels = [loss.gradient(s)['kernel'] for s in (server, server, later)]
  np.testing.assert_array_equal(kernels[0], kernels[1])
  assert np.abs(kernels[0] - kernels[2]).max() > 1e-3


# Equation 7.

_vectors = st.lists(st.floats(-10, 10), min_size=3, max_size=3).map(np.asarray)


def _dissimilarity(f_f, f_c, w_f, w_c):
  named = [collections.OrderedDict(w=tf.constant(v)) for v in (f_f, f_c)]
  term = dissimilarity.Dissimilarity(w_f, w_c, lambda server: named[1])
  told = term.metrics((), {'gradient': named[0]}, None)
  return float(told['g_tilde_square']), float(told['b_tilde_square'])


@given(_vectors, _vectors, st.floats(0.05, 0.95))
def test_g_tilde_is_how_far_the_gradients_differ_when_each_is_freed_of_its_weight(
  f_f, f_c, w_f
):
  """G~^2 = w_f w_c ||f_f / w_f - f_c / w_c||^2, and G~^2 = (B~^2 - 1) ||f||^2."""
  w_c = 1 - w_f
  scale = 1e-5 * (f_f @ f_f / w_f + f_c @ f_c / w_c) + 1e-12
  g_square, b_square = _dissimilarity(f_f, f_c, w_f, w_c)
  difference = f_f / w_f - f_c / w_c
  assert abs(g_square - w_f * w_c * difference @ difference) <= scale
  f_square = (f_f + f_c) @ (f_f + f_c)
  if f_square > 1e-6:
    assert abs(g_square - (b_square - 1) * f_square) <= scale
    assert b_square >= 1 - 1e-5


@given(_vectors, st.floats(0.05, 0.95))
def test_alike_losses_have_g_tilde_zero_and_b_tilde_one(g, w_f):
  g = g + 11  # Not zero.
  g_square, b_square = _dissimilarity(w_f * g, (1 - w_f) * g, w_f, 1 - w_f)
  assert abs(g_square) <= 1e-5 * g @ g
  np.testing.assert_allclose(b_square, 1, rtol=1e-5)


def test_a_central_loss_of_weight_zero_counts_for_nothing():
  """||f_c||^2 / w_c = w_c ||f_c / w_c||^2 has the limit 0, as in the oracle."""
  f_f, f_c = np.asarray([3.0, 4.0]), np.zeros(2)
  found = _dissimilarity(f_f, f_c, 1.0, 0.0)
  expected = oracle.dissimilarity({'w': f_f}, {'w': f_c}, 1.0, 0.0)
  np.testing.assert_allclose(found, expected, atol=1e-6)


# Merging.

_X = collections.OrderedDict(w=tf.constant([1.0, -2.0, 3.0]))
_specs = structures.tensor_specs(_X)


def _merge(**servers):
  momentum = tff.learning.optimizers.build_sgdm(0.5, 0.9)
  return merge.Merge(
    servers or {'server': momentum}, tff.learning.optimizers.build_adam(0.25)
  )


def _assert_same(a, b):
  for s, t in zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True):
    np.testing.assert_allclose(s, t, rtol=1e-7)


def test_the_hyperparameters_of_a_merge_are_read_and_set_by_name():
  optimizer = _merge()
  state, _ = optimizer.next(optimizer.initialize(_specs), _X, _X)
  hparams = optimizer.get_hparams(state)
  assert list(hparams) == ['server', 'merge']
  np.testing.assert_allclose(hparams['server']['momentum'], 0.9)
  np.testing.assert_allclose(hparams['merge']['learning_rate'], 0.25)
  _assert_same(optimizer.set_hparams(state, hparams), state)
  hparams['server']['learning_rate'] = tf.constant(0.125)
  changed = optimizer.set_hparams(state, hparams)
  _assert_same(optimizer.get_hparams(changed), hparams)
  _assert_same(changed['merge'], state['merge'])


@given(_vectors, _vectors, _vectors, st.floats(0.1, 2), st.floats(0.1, 2))
def test_with_sgd_a_merge_adds_up_the_deltas(x, update, delta_c, eta_s, eta_m):
  """x <- x + eta_m (Delta_c - eta_s update)."""
  build_sgd = tff.learning.optimizers.build_sgdm
  optimizer = merge.Merge({'server': build_sgd(eta_s)}, build_sgd(eta_m))
  x_, update_, delta_ = (
    collections.OrderedDict(w=tf.constant(v, tf.float32)) for v in (x, update, delta_c)
  )
  state = optimizer.initialize(structures.tensor_specs(x_))
  _, found = optimizer.step(state, x_, {'server': update_}, [delta_])
  expected = x + eta_m * (delta_c - eta_s * update)
  np.testing.assert_allclose(found['w'], expected, rtol=1e-4, atol=1e-4)
  _, halved = optimizer.step(state, x_, {'server': update_}, [delta_], 0.5)
  expected = x + eta_m * (delta_c - 0.5 * eta_s * update)
  np.testing.assert_allclose(halved['w'], expected, rtol=1e-4, atol=1e-4)


def test_without_an_update_the_servers_optimizer_does_not_step():
  momentum = tff.learning.optimizers.build_sgdm(0.5, 0.9)
  sgd = tff.learning.optimizers.build_sgdm(1.0)
  both = merge.Merge({'a': momentum, 'b': momentum}, sgd)
  state = both.initialize(_specs)
  updates = {'a': _X, 'b': structures.scale(float('nan'), _X)}
  present = {'a': tf.constant(True), 'b': tf.constant(False)}
  new, x = both.step(state, _X, updates, is_present=present)
  alone = merge.Merge({'a': momentum}, sgd)
  expected, expected_x = alone.step(alone.initialize(_specs), _X, {'a': _X})
  _assert_same(
    (new['a'], new['merge'], x), (expected['a'], expected['merge'], expected_x)
  )
  _assert_same(new['b'], state['b'])


# Identities.


class _Run:
  """An algorithm's phase without a runtime, traced once for rows of any number."""

  def __init__(self, build, *models, **arguments):
    with mock.patch.object(
      process, 'build_learning_process', lambda init, phases, *_, **__: (init, phases)
    ):
      init, (phase,) = build(*models, **arguments)
    self.start = init()
    self._phase = phase

    def with_rows(server, central):
      return server._replace(central=lambda: central)

    server = structures.tensor_specs(self.start)
    rows, key = phase.oracle.batch_spec, tf.TensorSpec([], tf.int64)
    self._message = tf.function(
      lambda server, central: phase.message(with_rows(server, central)),
      input_signature=[server, rows],
    )
    message = self._message.get_concrete_function().structured_outputs
    self._work = tf.function(
      lambda message, key, rows: phase.work(message, ClientRows(key, rows)),
      input_signature=[structures.tensor_specs(message), key, rows],
    )

    @tf.function(reduce_retracing=True)
    def finish(server, central, means):
      finished = phase.finish(with_rows(server, central), means)
      return finished._replace(central=(), round_num=server.round_num + 1)

    self._finish = finish

  def rounds(self, cohorts, centrals, server=None):
    """The server after every round, by default from its first state on."""
    server, servers = server or self.start, []
    for cohort, central in zip(cohorts, centrals, strict=True):
      message = self._message(server, central)
      uploads = [
        self._work(message, key, rows).uploads for key, rows in enumerate(cohort)
      ]
      means = {
        name: _mean(uploads, name, self._phase.shared.get(name, name), factory)
        for name, factory in self._phase.aggregators.items()
      }
      server = self._finish(server, central, means)
      servers.append(server)
    return servers


def _mean(uploads, name, source, factory):
  """The weighted mean, or the uniform one over all where the factory is of such."""
  values = [upload[source].value for upload in uploads]
  weights = [upload[name if name in upload else source].weight for upload in uploads]
  if isinstance(factory, tff.aggregators.UnweightedAggregationFactory):
    weights = [tf.ones_like(weight) for weight in weights]
  total = structures.add(
    *(structures.scale(w, value) for w, value in zip(weights, values, strict=True))
  )
  return structures.scale(1 / tf.add_n(weights), total)


def _sgd(rate):
  return base_optimizers.as_tff_optimizer(base_optimizers.sgd(), rate)


_ETA, _ETA_S = 0.125, 0.5  # Exact in float32, as they travel.
_WEIGHTS = dict(federated_weight=0.75, central_weight=0.25)


@functools.cache
def _on(model, build, *central, **arguments):
  """The run of an algorithm with SGD everywhere, full batches and K_c = 1."""
  common = dict(
    client_learning_rate=_ETA, server_optimizer=_sgd(_ETA_S), batch_size=100
  )
  if build is not build_fed_avg:
    common |= _WEIGHTS
  if build in (build_parallel_training, build_two_way_gradient_transfer):
    common |= dict(central_batch_size=100, central_steps=1, merge_optimizer=_sgd(1.0))
  return _Run(build, model, *central, **(common | arguments))


def _x(server):
  return {name: value.numpy() for name, value in server.weights.trainable.items()}


def _assert_same_rounds(ours, theirs, tolerance=1e-12):
  for a, b in zip(ours, theirs, strict=True):
    problems.assert_close(_x(a), _x(b), tolerance)


_PROBLEM = problems.logistic(3, 2, dtype=np.float64)


def _rows(client_sizes, central_size, num_rounds):
  """Cohorts and central rows of the problem."""

  def rows(n, seed):
    return problems.classification_rows(n, 3, 2, seed=seed, dtype=np.float64)

  cohorts = [
    [rows(n, 10 * t + i) for i, n in enumerate(client_sizes)] for t in range(num_rounds)
  ]
  centrals = [rows(central_size, 100 + t) for t in range(num_rounds)]
  return cohorts, centrals


_ORACLE = oracles.as_oracle(_PROBLEM.model)
_WEIGHTED = oracles.Weighted(0.75, _ORACLE)
_NO_LOSS = oracles.WeightLoss(lambda w: 0.0 * problems.half_square(w))
_sizes = st.lists(st.integers(1, 6), min_size=1, max_size=2)
_weightings = st.sampled_from(['examples', 'uniform'])


@pytest.mark.slow
@settings(max_examples=8)
@given(_sizes, st.integers(1, 7), _weightings)
def test_with_one_step_parallel_training_is_one_way_transfer(
  client_sizes, central_size, weighting
):
  """Appendix A.3, with eta_c = eta eta_s, in every round."""
  rounds = _rows(client_sizes, central_size, 3)
  parallel, one_way = (
    _on(_ORACLE, build, weighting=weighting).rounds(*rounds)
    for build in (build_parallel_training, build_one_way_gradient_transfer)
  )
  _assert_same_rounds(parallel, one_way)


@pytest.mark.slow
@settings(max_examples=8)
@given(_sizes, st.integers(1, 7), st.sampled_from([0.125, 0.25]))
def test_with_one_step_two_way_transfer_adds_the_gradients_of_the_round_before(
  client_sizes, central_size, eta_c
):
  """Its second step is -(eta eta_s (g_f + g~_c) + eta_c (g_c + g~_f))."""
  cohorts, centrals = _rows(client_sizes, central_size, 2)
  common = dict(weighting='uniform', central_learning_rate=eta_c)
  parallel, two_way = (
    _on(_ORACLE, build, **common).rounds(cohorts, centrals)
    for build in (build_parallel_training, build_two_way_gradient_transfer)
  )
  _assert_same_rounds(parallel[:1], two_way[:1])
  gradient = _PROBLEM.oracle.loss_and_gradient

  def gradients(t, x):
    clients = [gradient(x, rows)[1] for rows in cohorts[t]]
    f_f = numpy_models.weighted_mean(clients, [1] * len(clients))
    f_c = gradient(x, centrals[t])[1]
    return {k: 0.75 * f_f[k] for k in x}, {k: 0.25 * f_c[k] for k in x}

  before_f, before_c = gradients(0, _PROBLEM.weights)
  transferred = two_way[0].terms[0]
  problems.assert_close(transferred.g_f, before_f, 1e-11)
  problems.assert_close(transferred.g_c, before_c, 1e-12)
  x = _x(two_way[0])
  g_f, g_c = gradients(1, x)
  expected = {
    name: x[name]
    - _ETA * _ETA_S * (g_f[name] + before_c[name])
    - eta_c * (g_c[name] + before_f[name])
    for name in x
  }
  problems.assert_close(_x(two_way[1]), expected, 1e-12)


@pytest.mark.slow
def test_from_the_second_round_two_way_transfer_with_one_step_goes_twice_as_far():
  """On one slope everywhere, f_f = f_c = a w, all the gradients are a / 2."""
  a = 0.5

  class Slope(_RowMean):
    def evaluate(self, weights, batch, seed):
      gradient = collections.OrderedDict(w=tf.constant([a], tf.float64))
      return oracles.Evaluation(tf.zeros([]), gradient, collections.OrderedDict())

  def steps(build):
    arguments = dict(
      server_optimizer=_sgd(1.0), federated_weight=0.5, central_weight=0.5
    )
    rows = np.ones([2])
    servers = _on(Slope(), build, **arguments).rounds([[rows]] * 3, [rows] * 3)
    return np.diff([0.0, *(float(_x(server)['w'][0]) for server in servers)])

  np.testing.assert_allclose(steps(build_parallel_training), [-_ETA * a] * 3)
  np.testing.assert_allclose(
    steps(build_two_way_gradient_transfer), [-_ETA * a, -2 * _ETA * a, -2 * _ETA * a]
  )


@pytest.mark.slow
@settings(max_examples=6)
@given(_sizes, _weightings)
def test_without_a_central_part_they_are_fed_avg_with_the_weight_of_the_clients(
  client_sizes, weighting
):
  """The central weight is 0, or the central loss; 2-way transfer while g~_f is 0."""
  rounds = _rows(client_sizes, 3, 2)
  common = dict(batch_size=2, epochs=2, shuffle=False, weighting=weighting)
  expected = _on(_WEIGHTED, build_fed_avg, **common).rounds(*rounds)
  without = dict(central_weight=0.0, **common)
  parallel = _on(_ORACLE, build_parallel_training, **without)
  _assert_same_rounds(parallel.rounds(*rounds), expected)
  one_way = _on(_ORACLE, build_one_way_gradient_transfer, _NO_LOSS, **common)
  _assert_same_rounds(one_way.rounds(*rounds), expected)
  two_way = _on(_ORACLE, build_two_way_gradient_transfer, **without)
  _assert_same_rounds(two_way.rounds(*rounds)[:1], expected[:1])


# Quadratics: f_f = 0.5 (w - b)^T A (w - b) on all clients, f_c with other A and b.


def _quadratics(seed=0):
  """Rows of one client, of the server, and the optimum of 0.75 f_f + 0.25 f_c."""
  rng = np.random.default_rng(seed)
  a = rng.uniform(0.5, 2.0, size=(2, 3))
  b = rng.normal(size=(2, 3))
  weights = np.asarray([[0.75], [0.25]])
  optimum = (weights * a * b).sum(axis=0) / (weights * a).sum(axis=0)
  rows = [
    problems.quadratic_rows([np.diag(a[i])] * 2, [b[i]] * 2, np.float64) for i in (0, 1)
  ]
  gradients = [w * a[i] * (optimum - b[i]) for i, w in enumerate((0.75, 0.25))]
  return (*rows, optimum, gradients)


def _on_quadratics(build, start, **arguments):
  """K = 3 at the clients and at the server."""
  model = oracles.as_oracle(problems.quadratic(start, np.float64).model)
  common = dict(epochs=3, server_optimizer=_sgd(1.0))
  if build is not build_one_way_gradient_transfer:
    common |= dict(central_steps=3)
  return _on(model, build, **(common | arguments))


def _distance(server, optimum):
  return np.linalg.norm(server.weights.trainable['w'] - optimum)


@pytest.mark.slow
def test_the_transfers_stay_at_the_optimum_and_parallel_training_leaves_it():
  """There the gradients are opposite; transferred, each cancels the other."""
  client, central, optimum, (g_f, g_c) = _quadratics()
  assert np.linalg.norm(g_f) > 0.1
  cohorts, centrals = [[client, client]] * 2, [central] * 2
  two_way = _on_quadratics(build_two_way_gradient_transfer, optimum)
  warm = Transferred(*(collections.OrderedDict(w=tf.constant(g)) for g in (g_c, g_f)))
  start = two_way.start._replace(terms=(warm,))
  for server in two_way.rounds(cohorts, centrals, start):
    assert _distance(server, optimum) < 1e-13
  one_way = _on_quadratics(build_one_way_gradient_transfer, optimum)
  assert _distance(one_way.rounds(cohorts, centrals)[-1], optimum) < 1e-13
  parallel = _on_quadratics(build_parallel_training, optimum)
  assert _distance(parallel.rounds(cohorts, centrals)[-1], optimum) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(
  'build', [build_one_way_gradient_transfer, build_two_way_gradient_transfer]
)
def test_the_transfers_reach_the_optimum_of_the_mixed_loss(build):
  client, central, optimum, _ = _quadratics()
  run = _on_quadratics(build, [3.0, -2.0, 1.0])
  servers = run.rounds([[client, client]] * 50, [central] * 50)
  assert _distance(servers[-1], optimum) < 1e-6


@pytest.mark.slow
def test_parallel_training_stalls_at_a_distance_and_with_one_step_does_not():
  client, central, optimum, _ = _quadratics()

  def end(**arguments):
    run = _on_quadratics(build_parallel_training, [3.0, -2.0, 1.0], **arguments)
    *_, before, last = run.rounds([[client, client]] * 100, [central] * 100)
    moved = np.subtract(before.weights.trainable['w'], last.weights.trainable['w'])
    assert np.linalg.norm(moved) < 1e-5
    return _distance(last, optimum)

  assert end() > 1e-3
  assert end(epochs=1, central_steps=1) < 1e-4


# Mime with 1-way transfer on top.


@pytest.mark.slow
def test_mime_with_a_central_gradient_is_with_one_step_momentum_on_the_mixed_loss(
  runtime,
):
  """m <- (1 - beta) (w_f g_f + w_c g_c) + beta m, x <- x - eta m."""
  problem, beta, eta = problems.mlp(), 0.8, 0.2
  model = oracles.as_oracle(problem.model)
  loss = _central_loss(oracles.Weighted(0.25, model))
  mime = build_mime(
    oracles.Weighted(0.75, model),
    base_optimizer=base_optimizers.as_tff_optimizer(
      base_optimizers.momentum(beta), eta
    ),
    batch_size=4,
    max_steps=1,
    terms=[CentralGradient(loss)],
    central_input=client_inputs.from_dataset(model.batch_spec),
  )
  assert isinstance(mime, process.MixedProcess)
  outputs = mixed_problems.outputs_of(mime, COHORTS[:3], CENTRALS[:3])
  x, m = problem.weights, numpy_models.map_weights(np.zeros_like, problem.weights)
  gradient = problem.oracle.loss_and_gradient
  for output, cohort, central in zip(outputs, COHORTS, CENTRALS, strict=False):
    usable = [r for r in cohort if len(r['y']) and np.isfinite(r['x']).all()]
    g_f = numpy_models.weighted_mean(
      [gradient(x, rows)[1] for rows in usable], [len(rows['y']) for rows in usable]
    )
    _, g_c = gradient(x, central)
    m = numpy_models.map_weights(
      lambda f, c, m: (1 - beta) * (0.75 * f + 0.25 * c) + beta * m, g_f, g_c, m
    )
    x = numpy_models.map_weights(lambda x, m: x - eta * m, x, m)
    problems.assert_close(output.state.server.weights.trainable, x)
    problems.assert_close(output.state.server.optimizer['statistics'], m)


# Guards.


@pytest.mark.slow
@every_mixed
def test_what_is_not_finite_changes_nothing_but_the_number_of_the_round(
  runtime, algorithm
):
  """Of a client: as if it were not there; of all clients, or of the server: nothing."""
  built = mixed_problems.process_of(algorithm, problems.logistic().model)
  # From a second round, so that something is transferred.
  first, rows = CENTRALS[0], CENTRALS[2]
  state = mixed_problems.next_round(built, built.initialize(), COHORTS[0], first).state

  def after(cohort, central):
    output = mixed_problems.next_round(built, state, cohort, central)
    return output.state, output.metrics['client_work']['train']

  without, _ = after(algorithms.COHORT, rows)
  with_it, train = after([*algorithms.COHORT, algorithms.poisoned(np.nan)], rows)
  algorithms.assert_states_close(with_it, without, rtol=1e-5)
  assert (train['num_clients'], train['num_clients_left_out']) == (3, 1)

  unchanged = state._replace(server=state.server._replace(round_num=2))
  nobody = [algorithms.poisoned(np.inf), problems.classification_rows(0)]
  found, train = after(nobody, rows)
  algorithms.assert_states_close(found, unchanged, rtol=0)
  assert (train['num_clients'], train['update_norm']) == (0, 0)

  for value in (np.nan, np.inf):
    bad = dict(rows, x=rows['x'].copy())
    bad['x'][0, 0] = value
    found, train = after(algorithms.COHORT, bad)
    algorithms.assert_states_close(found, unchanged, rtol=0)
    assert train['update_norm'] == 0


# Deployment and aggregators; those without rows at the server are in `algorithms`.


@pytest.mark.slow
def test_a_process_with_rows_at_the_server_has_no_map_reduce_form(runtime):
  """TFF's forms take a state and clients, nothing else."""
  model = problems.logistic().model
  built = mixed_problems.process_of('one_way_gradient_transfer', model)
  with pytest.raises(TypeError, match='two arguments'):
    tff.backends.mapreduce.get_map_reduce_form_for_computation(built.next)


_dp = tff.aggregators.DifferentiallyPrivateFactory
_AGGREGATORS = {
  'robust': (tff.learning.robust_aggregator(zeroing=True, clipping=True), 'examples'),
  'dp, fixed': (_dp.gaussian_fixed(1e-3, 3, 1.0), 'uniform'),
}


@pytest.mark.slow
@pytest.mark.parametrize('name', _AGGREGATORS)
@every_mixed
def test_trains_with_tffs_aggregators_and_an_adaptive_server(runtime, algorithm, name):
  aggregator, weighting = _AGGREGATORS[name]
  beside = {}
  if algorithm == 'two_way_gradient_transfer' and name.startswith('dp'):
    beside = dict(gradient_aggregator=aggregator)
  built = mixed_problems.process_of(
    algorithm,
    problems.logistic().model,
    aggregator=aggregator,
    weighting=weighting,
    server_optimizer=tff.learning.optimizers.build_adam(0.1),
    **beside,
  )
  cohort = [*algorithms.COHORT, algorithms.poisoned(np.nan)]
  outputs = mixed_problems.outputs_of(built, [cohort] * 3, CENTRALS[:3])
  for output in outputs:
    train = output.metrics['client_work']['train']
    assert np.isfinite(train['loss'])
    assert train['update_norm'] > 0
