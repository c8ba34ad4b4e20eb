"""Identities of the Mime family as properties, in plain TensorFlow and float64.

The phases are those that the public builders make, run here without a runtime; that
the process around them does the same is what the tests against the oracle show.
"""

import collections
import functools
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests.oracles import numpy_models
from tests.tff_algorithms import problems
from tff_algorithms import base_optimizers, process, structures
from tff_algorithms.client_inputs import ClientRows
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.fed_prox import Proximal
from tff_algorithms.loc_mime import build_loc_mime
from tff_algorithms.mime import build_mime
from tff_algorithms.mime_lite import build_mime_lite
from tff_algorithms.mime_mvr import build_mime_mvr
from tff_algorithms.server_only import build_server_only

pytestmark = pytest.mark.slow

RATE = 0.25
PAIRS = {
  'sgd': base_optimizers.sgd(),
  'momentum': base_optimizers.momentum(0.8),
  'adagrad': base_optimizers.adagrad(),
  'adam': base_optimizers.adam(0.8, 0.9, 1e-2, 0.01),
  'adam, bias corrected': base_optimizers.adam(0.8, 0.9, 1e-1, bias_correction=True),
}
every_pair = pytest.mark.parametrize('pair', PAIRS)


def _optimizer(pair, rate):
  pair = PAIRS[pair] if isinstance(pair, str) else pair
  return base_optimizers.as_tff_optimizer(pair, rate)


def fed_avg(model, rate=RATE, **arguments):
  server_optimizer = _optimizer('sgd', 1.0)  # TFF's own does not take float64.
  return build_fed_avg(
    model, client_learning_rate=rate, server_optimizer=server_optimizer, **arguments
  )


def server_only(model, pair='sgd', rate=RATE, **arguments):
  return build_server_only(model, optimizer=_optimizer(pair, rate), **arguments)


def mime(model, pair='sgd', rate=RATE, build=build_mime, **arguments):
  return build(model, base_optimizer=_optimizer(pair, rate), **arguments)


mime_previous = functools.partial(mime, control_variate='previous')
mime_lite = functools.partial(mime, build=build_mime_lite)
loc_mime = functools.partial(mime, build=build_loc_mime)


def mime_mvr(model, a=0.3, rate=RATE, **arguments):
  return build_mime_mvr(model, a=a, learning_rate=rate, **arguments)


mime_lite_mvr = functools.partial(mime_mvr, lite=True)


def every_of(*names):
  return pytest.mark.parametrize('build', [globals()[n] for n in names], ids=names)


def run(build, problem, cohorts, *, only_gradient=None, weights=None, **arguments):
  """The server's state after every round; uploads are averaged in numpy.

  Args:
    build: One of the builders above.
    problem: The `problems.Problem`.
    cohorts: For each round, the rows of its clients.
    only_gradient: In a split cohort, whether each client sends a gradient alone.
    weights: The weights to start from, if not the problem's.
    **arguments: The builder's.
  """
  with mock.patch.object(
    process, 'build_learning_process', lambda init, phases, *_, **__: (init, phases)
  ):
    init, phases = build(problem.model, **arguments)
  server, servers = init(), []
  if weights is not None:
    weights = tf.nest.map_structure(tf.constant, weights)
    server = server._replace(weights=server.weights._replace(trainable=weights))
  works = [_compiled_work(phase, server, only_gradient is not None) for phase in phases]
  for cohort in cohorts:
    halves = [()] * len(cohort) if only_gradient is None else zip(only_gradient)
    clients = list(zip(range(len(cohort)), cohort, halves, strict=True))
    for phase, work in zip(phases, works, strict=True):
      message = phase.message(server)
      results = [work(message, key, rows, *half) for key, rows, half in clients]
      means = {name: _mean(results, name) for name in phase.aggregators}
      server = phase.finish(server, means)
    server = server._replace(round_num=server.round_num + 1)
    servers.append(server)
  return servers


def _compiled_work(phase, server, is_split):
  """A phase's work, traced once for clients of any size."""

  def work(message, key, rows, only_gradient=None):
    return phase.work(message, ClientRows(key, rows, only_gradient=only_gradient))

  message, key = phase.message(server), tf.TensorSpec([], tf.int64)
  specs = [structures.tensor_specs(message), key, phase.oracle.batch_spec]
  half = [tf.TensorSpec([], tf.bool)] if is_split else []
  return tf.function(work, input_signature=specs + half)


def _mean(results, name):
  kept = [r.uploads[name] for r in results if r.uploads[name].weight > 0]
  mean = numpy_models.weighted_mean(
    [upload.value for upload in kept], [float(upload.weight) for upload in kept]
  )
  return collections.OrderedDict(mean)


def x_of(server):
  """The weights of a server as numpy arrays."""
  return {name: value.numpy() for name, value in server.weights.trainable.items()}


def distance(server, weights):
  """The norm of x - weights."""
  return numpy_models.norm(numpy_models.map_weights(np.subtract, x_of(server), weights))


def statistics(server):
  """The s of a pair, as {number: array}."""
  s = tf.nest.flatten(server.optimizer['statistics'])
  return {i: np.atleast_1d(value) for i, value in enumerate(s)}


def _assert_same_rounds(ours, theirs, tolerance):
  for a, b in zip(ours, theirs, strict=True):
    problems.assert_close(x_of(a), x_of(b), tolerance)


shapes = st.tuples(st.integers(1, 5), st.integers(2, 4))  # features, classes
# An empty client and one with a single example are always there.
sizes = st.lists(st.integers(2, 9), min_size=1, max_size=3).flatmap(
  lambda more: st.permutations([0, 1, *more])
)
batch_sizes = st.integers(1, 6)
epochs = st.integers(1, 3)


def _problem_and_cohorts(shape, client_sizes, num_rounds):
  problem = problems.logistic(*shape, dtype=np.float64)
  cohorts = [
    [
      problems.classification_rows(n, *shape, seed=10 * t + i, dtype=np.float64)
      for i, n in enumerate(client_sizes)
    ]
    for t in range(num_rounds)
  ]
  return problem, cohorts


@settings(max_examples=5)
@given(shapes, sizes, batch_sizes, epochs, st.sampled_from(['examples', 'uniform']))
def test_mime_lite_with_sgd_is_fed_avg(
  shape, client_sizes, batch_size, epochs, weighting
):
  problem, cohorts = _problem_and_cohorts(shape, client_sizes, 2)
  common = dict(batch_size=batch_size, epochs=epochs, weighting=weighting)
  _assert_same_rounds(
    run(mime_lite, problem, cohorts, **common),
    run(fed_avg, problem, cohorts, **common),
    1e-13,
  )


@every_pair
@settings(max_examples=2)
@given(shapes, sizes, batch_sizes, st.sampled_from(['examples', 'uniform']))
def test_mime_with_one_local_step_is_server_only(
  pair, shape, client_sizes, batch_size, weighting
):
  """g - g + c = c on every batch. In three rounds, so that s counts."""
  problem, cohorts = _problem_and_cohorts(shape, client_sizes, 3)
  common = dict(pair=pair, weighting=weighting)
  expected = run(server_only, problem, cohorts, **common)
  one_step = run(mime, problem, cohorts, batch_size=batch_size, max_steps=1, **common)
  full_batch = run(mime, problem, cohorts, batch_size=max(client_sizes), **common)
  _assert_same_rounds(one_step, expected, 1e-12)
  _assert_same_rounds(full_batch, expected, 1e-12)
  for ours, theirs in zip(one_step, expected, strict=True):
    problems.assert_close(statistics(ours), statistics(theirs), 1e-12)


def quadratics_at_optimum(d, client_sizes, weighting, seed):
  """Clients whose rows all have Hessians of their own; the start is the optimum."""
  rng = np.random.default_rng(seed)
  cohort, hessians, slopes = [], [], []
  for n in client_sizes:
    root = rng.normal(size=(n, d, d))
    square = root @ root.transpose(0, 2, 1)
    scale = rng.uniform(0.2, 2, n) / np.trace(square, axis1=1, axis2=2)
    a = 0.5 * np.eye(d) + scale[:, None, None] * square
    b = rng.normal(size=(n, d))
    cohort.append(problems.quadratic_rows(a, b, np.float64))
    weight = 1 / max(n, 1) if weighting == 'uniform' else 1
    hessians.append(weight * a.sum(axis=0))
    slopes.append(weight * np.einsum('kij,kj->i', a, b))
  optimum = np.linalg.solve(sum(hessians), sum(slopes))
  return problems.quadratic(optimum, np.float64), cohort


@every_pair
@settings(max_examples=3)
@given(
  st.integers(1, 4),
  sizes,
  batch_sizes,
  st.sampled_from(['examples', 'uniform']),
  st.integers(0, 1000),
)
def test_mime_stays_at_the_optimum_where_fed_avg_moves_away(
  pair, d, client_sizes, batch_size, weighting, seed
):
  """c = 0, so y = x gives g - g + c = 0 on every batch, whatever its Hessian."""
  problem, cohort = quadratics_at_optimum(d, client_sizes, weighting, seed)
  common = dict(batch_size=batch_size, epochs=2, rate=0.125, weighting=weighting)
  *_, stays = run(mime, problem, [cohort] * 2, pair=pair, **common)
  *_, moves = run(fed_avg, problem, [cohort] * 2, **common)
  assert distance(stays, problem.weights) < 1e-12
  assert distance(moves, problem.weights) > 1e-4


@every_pair
@settings(max_examples=2)
@given(shapes, sizes, batch_sizes)
def test_mime_with_the_previous_c_moves_nothing_in_its_first_round(
  pair, shape, client_sizes, batch_size
):
  problem, cohorts = _problem_and_cohorts(shape, client_sizes, 2)
  common = dict(pair=pair, batch_size=batch_size, epochs=2)
  first, second = run(mime_previous, problem, cohorts, **common)
  assert distance(first, problem.weights) == 0
  assert distance(second, problem.weights) > 1e-3


@settings(max_examples=4)
@given(shapes, sizes, batch_sizes, st.floats(0.01, 1.0))
def test_mime_mvr_moves_nothing_in_its_first_round_and_mime_lite_mvr_does(
  shape, client_sizes, batch_size, a
):
  """The first step of MimeLiteMVR is along a g, with m = 0."""
  problem, cohorts = _problem_and_cohorts(shape, client_sizes, 2)
  common = dict(batch_size=batch_size, epochs=2)
  first, second = run(mime_mvr, problem, cohorts, a=a, **common)
  assert distance(first, problem.weights) == 0
  assert distance(second, problem.weights) > 1e-4
  full_batch = dict(batch_size=max(client_sizes))
  _assert_same_rounds(
    run(mime_lite_mvr, problem, cohorts[:1], a=a, **full_batch),
    run(fed_avg, problem, cohorts[:1], rate=RATE * a, **full_batch),
    1e-7,  # The product of the rates is rounded to float32.
  )


@settings(max_examples=5)
@given(shapes, sizes, batch_sizes, epochs)
def test_mime_mvr_with_a_one_is_mime_with_sgd_and_the_previous_c(
  shape, client_sizes, batch_size, epochs
):
  problem, cohorts = _problem_and_cohorts(shape, client_sizes, 3)
  common = dict(batch_size=batch_size, epochs=epochs)
  _assert_same_rounds(
    run(mime_mvr, problem, cohorts, a=1.0, **common),
    run(mime_previous, problem, cohorts, **common),
    1e-13,
  )


@settings(max_examples=5)
@given(shapes, sizes, batch_sizes, epochs)
def test_mime_lite_mvr_with_a_one_is_fed_avg(shape, client_sizes, batch_size, epochs):
  problem, cohorts = _problem_and_cohorts(shape, client_sizes, 3)
  common = dict(batch_size=batch_size, epochs=epochs)
  _assert_same_rounds(
    run(mime_lite_mvr, problem, cohorts, a=1.0, **common),
    run(fed_avg, problem, cohorts, **common),
    1e-13,
  )


@settings(max_examples=5)
@given(shapes, sizes)
def test_server_only_mvr_with_a_one_is_server_only_sgd(shape, client_sizes):
  problem, cohorts = _problem_and_cohorts(shape, client_sizes, 3)
  _assert_same_rounds(
    run(server_only, problem, cohorts, mvr_a=1.0),
    run(server_only, problem, cohorts),
    1e-13,
  )


@settings(max_examples=5)
@given(shapes, sizes, batch_sizes, epochs, st.sampled_from(['current', 'previous']))
def test_loc_mime_with_sgd_is_mime(
  shape, client_sizes, batch_size, epochs, control_variate
):
  problem, cohorts = _problem_and_cohorts(shape, client_sizes, 2)
  common = dict(batch_size=batch_size, epochs=epochs, control_variate=control_variate)
  _assert_same_rounds(
    run(loc_mime, problem, cohorts, **common),
    run(mime, problem, cohorts, **common),
    1e-13,
  )


@every_pair
@settings(max_examples=2)
@given(shapes, sizes, batch_sizes)
def test_loc_mime_with_one_local_step_is_mime_and_with_two_only_if_stateless(
  pair, shape, client_sizes, batch_size
):
  problem, cohorts = _problem_and_cohorts(shape, client_sizes, 3)
  common = dict(pair=pair, batch_size=batch_size, epochs=2)
  one = run(loc_mime, problem, cohorts, max_steps=1, **common)
  _assert_same_rounds(one, run(mime, problem, cohorts, max_steps=1, **common), 1e-13)
  two = run(loc_mime, problem, cohorts[:1], max_steps=2, **common)
  (mime_two,) = run(mime, problem, cohorts[:1], max_steps=2, **common)
  assert (distance(two[0], x_of(mime_two)) > 1e-6) == (pair != 'sgd')


@every_pair
@settings(max_examples=2)
@given(shapes, sizes, batch_sizes, st.floats(0.1, 2.0))
def test_rho_counts_from_the_second_local_step(
  pair, shape, client_sizes, batch_size, rho
):
  """rho (y - x) = 0 in the first one, and where the server feeds it to V."""
  problem, cohorts = _problem_and_cohorts(shape, client_sizes, 2)
  common = dict(pair=pair, batch_size=batch_size, epochs=2)
  near = dict(terms=[Proximal(rho)])
  one = run(mime, problem, cohorts, max_steps=1, **near, **common)
  _assert_same_rounds(one, run(mime, problem, cohorts, max_steps=1, **common), 1e-13)
  (two,) = run(mime, problem, cohorts[:1], max_steps=2, **near, **common)
  (mime_two,) = run(mime, problem, cohorts[:1], max_steps=2, **common)
  assert distance(two, x_of(mime_two)) > 1e-6


@every_pair
@settings(max_examples=2)
@given(shapes, sizes, batch_sizes, epochs)
def test_mime_with_rho_zero_is_mime(pair, shape, client_sizes, batch_size, epochs):
  problem, cohorts = _problem_and_cohorts(shape, client_sizes, 2)
  common = dict(pair=pair, batch_size=batch_size, epochs=epochs)
  _assert_same_rounds(
    run(mime, problem, cohorts, terms=[Proximal(0.0)], **common),
    run(mime, problem, cohorts, **common),
    1e-13,
  )


@every_of('mime', 'mime_previous', 'mime_lite', 'loc_mime')
@settings(max_examples=3)
@given(
  shapes,
  sizes,
  st.sampled_from(list(PAIRS)[1:]),
  st.tuples(batch_sizes, epochs, st.booleans()),
)
def test_s_does_not_depend_on_the_local_steps(
  build, shape, client_sizes, pair, local_steps
):
  problem, cohorts = _problem_and_cohorts(shape, client_sizes, 1)
  batch_size, epochs, shuffle = local_steps
  (server,) = run(
    build,
    problem,
    cohorts,
    pair=pair,
    batch_size=batch_size,
    epochs=epochs,
    shuffle=shuffle,
  )
  (expected,) = run(server_only, problem, cohorts, pair=pair)
  problems.assert_close(statistics(server), statistics(expected), 1e-12)


@every_of('mime_mvr', 'mime_lite_mvr')
@settings(max_examples=3)
@given(shapes, sizes, batch_sizes, epochs, st.booleans())
def test_m_of_mvr_does_not_depend_on_the_local_steps(
  build, shape, client_sizes, batch_size, epochs, shuffle
):
  problem, cohorts = _problem_and_cohorts(shape, client_sizes, 1)
  local_steps = dict(batch_size=batch_size, epochs=epochs, shuffle=shuffle)
  (server,) = run(build, problem, cohorts, a=0.2, **local_steps)
  # After one round m = a c, as that of a momentum of 1 - a.
  (expected,) = run(server_only, problem, cohorts, pair='momentum')
  m = expected.optimizer['statistics']
  problems.assert_close(server.terms[0].m, m, 1e-12)


@every_of('mime', 'mime_previous', 'mime_lite', 'mime_mvr')
@settings(max_examples=3)
@given(
  shapes,
  st.integers(1, 9),
  st.lists(st.booleans(), min_size=2, max_size=5).filter(lambda h: 0 < sum(h) < len(h)),
  batch_sizes,
)
def test_a_split_of_clients_that_are_alike_changes_nothing(
  build, shape, n, halves, batch_size
):
  problem, cohorts = _problem_and_cohorts(shape, [n], 3)
  cohorts = [cohort * len(halves) for cohort in cohorts]
  # An order of their own would tell the clients apart.
  common = dict(batch_size=batch_size, epochs=2, shuffle=False)
  if build is not mime_mvr:
    common['pair'] = 'momentum'
  split = dict(only_gradient=halves, split_cohort=True)
  _assert_same_rounds(
    run(build, problem, cohorts, **split, **common),
    run(build, problem, cohorts, **common),
    1e-12,
  )


@every_of('mime', 'mime_previous', 'mime_lite')
@settings(max_examples=3)
@given(shapes, sizes, batch_sizes)
def test_in_a_split_cohort_s_is_of_one_half_and_the_update_of_the_other(
  build, shape, client_sizes, batch_size
):
  problem, ((*cohort, trainer),) = _problem_and_cohorts(shape, [*client_sizes, 4], 1)
  common = dict(pair='momentum', batch_size=batch_size, epochs=2, shuffle=False)
  (server,) = run(
    build,
    problem,
    [[*cohort, trainer]],
    only_gradient=[True] * len(cohort) + [False],
    split_cohort=True,
    **common,
  )
  (gradients,) = run(server_only, problem, [cohort], pair='momentum')
  problems.assert_close(statistics(server), statistics(gradients), 1e-12)
  if build is mime_lite:
    (update,) = run(mime_lite, problem, [[trainer]], **common)
    problems.assert_close(x_of(server), x_of(update), 1e-13)
