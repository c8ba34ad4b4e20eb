"""Streams: a client whose rows pass in parts does what it does with them in memory."""

import collections
import os
import pathlib

from hypothesis import given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow as tf

from tests.oracles import fed_avg as oracle
from tests.oracles import numpy_optimizers
from tests.tff_algorithms import algorithms, problems
from tff_algorithms import client_inputs, local_loop, models, oracles, structures
from tff_algorithms.example_transfer import build_example_transfer
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.one_way_gradient_transfer import build_one_way_gradient_transfer
from tff_algorithms.selection import Selection
from training_loops import runtimes

_SEED = tf.constant([3, 5], tf.int64)
_SPEC = problems.logistic().model.input_spec


def _stream(rows, rows_at_a_time, batch_size=3, spec=_SPEC):
  load = client_inputs.from_stream(spec, rows_at_a_time).load
  return load(problems.dataset(rows, batch_size)).rows


def _with_dropout():
  problem = problems.logistic()

  def predict(w, x, seed):
    if seed is not None:
      x = tf.nn.experimental.stateless_dropout(x, 0.5, seed)
    return problem.model.predict(w, x, None)

  return models.Model(
    problem.model.input_spec,
    problem.model.initialize,
    predict,
    problem.model.loss,
    problem.model.metrics,
    problem.model.finalize_metrics,
  )


_MODEL = _with_dropout()
_X = _MODEL.initialize(_SEED)


def _loop(rows, batch_size, num_steps, shuffle):
  """Momentum, whose state goes from part to part, in a rate that falls with t."""

  def update(t, s, y, g):
    s = structures.add(structures.scale(0.9, s), g)
    rate = 0.1 / (1 + tf.cast(t, tf.float32))
    return s, structures.subtract(y, structures.scale(rate, s))

  return local_loop.local_loop(
    oracles.ModelLoss(_MODEL),
    _X,
    rows,
    num_steps=num_steps,
    batch_size=batch_size,
    seed=_SEED,
    shuffle=shuffle,
    update=update,
    s=structures.zeros_like(_X.trainable),
    sum_gradients=True,
  )


def _assert_equal(actual, expected):
  leaves = zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True)
  for a, b in leaves:
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@settings(max_examples=25)
@given(
  n=st.integers(0, 23),
  batch_size=st.integers(1, 5),
  batches_at_a_time=st.integers(1, 4),
  epochs=st.integers(1, 3),
  max_steps=st.one_of(st.none(), st.integers(0, 12)),
)
def test_steps_are_those_of_rows_in_memory(
  n, batch_size, batches_at_a_time, epochs, max_steps
):
  rows = problems.classification_rows(n)
  stream = _stream(rows, batch_size * batches_at_a_time)
  outcomes = []
  for given_rows in (stream, rows):
    k = local_loop.num_local_steps(given_rows, batch_size, epochs, max_steps)
    outcomes.append(_loop(given_rows, batch_size, k, shuffle=False))
  _assert_equal(*outcomes)


@settings(max_examples=10)
@given(n=st.integers(0, 12), num_steps=st.integers(0, 9))
def test_a_stream_of_one_part_is_shuffled_as_rows_in_memory(n, num_steps):
  rows = problems.classification_rows(n)
  num_steps = min(n, num_steps)
  stream = _stream(rows, 12)
  _assert_equal(_loop(stream, 4, num_steps, True), _loop(rows, 4, num_steps, True))


def _shown(num_steps, n, rows_at_a_time, batch_size):
  """[step, row]: whether the step was shown the row, in shuffled parts."""
  spec = collections.OrderedDict(
    x=tf.TensorSpec([None, n]), y=tf.TensorSpec([None], tf.int32)
  )
  # A model whose gradient is the sum of the rows that it is shown.
  model = models.Model(
    input_spec=spec,
    initialize=None,
    predict=lambda w, x, seed: tf.linalg.matvec(x, w.trainable['w']),
    loss=lambda y, outputs: tf.reduce_sum(outputs),
    metrics=lambda y, outputs: collections.OrderedDict(),
    finalize_metrics=lambda sums: collections.OrderedDict(),
  )
  rows = collections.OrderedDict(x=np.eye(n, dtype=np.float32), y=np.zeros(n, np.int32))
  outcome = local_loop.local_loop(
    oracles.ModelLoss(model),
    models.ModelWeights(collections.OrderedDict(w=tf.zeros([n])), ()),
    _stream(rows, rows_at_a_time, spec=spec),
    num_steps=num_steps,
    batch_size=batch_size,
    seed=_SEED,
    shuffle=True,
    update=lambda t, s, y, g: (
      tf.tensor_scatter_nd_update(s, [[t]], g['w'][tf.newaxis]),
      y,
    ),
    s=tf.zeros([num_steps, n]),
  )
  return outcome.s.numpy()


def test_each_part_is_shuffled_by_itself_and_anew_in_every_pass():
  shown = _shown(num_steps=10, n=40, rows_at_a_time=16, batch_size=8)
  for one_pass in (shown[:5], shown[5:]):
    np.testing.assert_array_equal(one_pass[:2].sum(axis=0), np.repeat([1, 0], [16, 24]))
    np.testing.assert_array_equal(
      one_pass[2:4].sum(axis=0), np.repeat([0, 1, 0], [16, 16, 8])
    )
    np.testing.assert_array_equal(one_pass[4], np.repeat([0, 1], [32, 8]))
  chosen = [shown[0, :16], shown[2, 16:32], shown[5, :16], shown[7, 16:32]]
  assert len({tuple(rows) for rows in chosen}) == 4


@settings(max_examples=15)
@given(
  n=st.integers(0, 23),
  batch_size=st.integers(1, 5),
  batches_at_a_time=st.integers(1, 4),
  seed=st.sampled_from([None, _SEED]),
)
def test_the_full_gradient_is_that_of_rows_in_memory(
  n, batch_size, batches_at_a_time, seed
):
  rows = problems.classification_rows(n)
  stream = _stream(rows, batch_size * batches_at_a_time)
  outcomes = [
    local_loop.full_gradient(
      oracles.ModelLoss(_MODEL), _X, given_rows, batch_size, seed
    )
    for given_rows in (stream, rows)
  ]
  _assert_equal(*outcomes)


@pytest.mark.parametrize('n', [0, 5])
def test_the_mean_gradient_of_steps_is_that_of_rows_in_memory(n):
  rows = problems.classification_rows(n)
  how = dict(num_steps=2, batch_size=2, seed=_SEED, shuffle=False)
  gradients = [
    local_loop.mean_gradient(oracles.ModelLoss(_MODEL), _X, given_rows, **how)
    for given_rows in (_stream(rows, 4), rows)
  ]
  _assert_equal(*gradients)


@pytest.mark.parametrize(('n', 'batch_size'), [(0, 3), (7, 1), (7, 3), (7, 100)])
def test_a_stream_has_the_key_and_the_number_of_rows_of_the_data_set(n, batch_size):
  dataset = problems.dataset(problems.classification_rows(n), batch_size)
  stream = client_inputs.from_stream(_SPEC, 4).load(dataset)
  plain = client_inputs.from_dataset(_SPEC).load(dataset)
  assert stream.key == plain.key
  assert stream.rows.num_rows == n
  sizes = [len(part['y']) for part in stream.rows.parts]
  assert sizes == [4] * (n // 4) + [n % 4] * (n % 4 > 0)


_POISONED = algorithms.poisoned(np.nan)
_COHORTS = [
  [problems.classification_rows(n, seed=n + t) for n in sizes]
  for t, sizes in enumerate([(19, 4, 0, 8), (9, 1, 16)])
]
_COHORTS[1].append(_POISONED)


def _rounds(built):
  """The states and the metrics of rounds; clients that keep something keep it."""
  state, all_rounds = built.initialize(), []
  for cohort in _COHORTS:
    output = algorithms.next_round(built, state, cohort)
    state = output.state
    all_rounds.append((state, output.metrics))
  return all_rounds


@pytest.mark.parametrize('build', algorithms.ELASTIC.values(), ids=algorithms.ELASTIC)
def test_elastic_aggregation_does_not_go_with_streams(build):
  with pytest.raises(ValueError, match='Of a stream nothing can be held back'):
    build(client_input=client_inputs.from_stream(_SPEC, 8))


@pytest.mark.slow
@algorithms.every_algorithm_that_takes_streams
def test_every_algorithm_does_with_streams_what_it_does_with_data_sets(build, runtime):
  """Partial batches and parts, an empty client, one with a NaN, a cut within a part."""
  local = dict(shuffle=False, epochs=2, max_steps=7)
  if build in algorithms.SADDLE.values():
    local = dict(shuffle=False, local_steps=7)
  if build in algorithms.SERVER_STEPS_ONLY:
    local = {}  # A full gradient does not depend on its batches, nor on parts.
  stream = client_inputs.from_stream(_SPEC, 8)
  streamed = _rounds(build(client_input=stream, **local))
  in_memory = _rounds(build(**local))
  _assert_equal(streamed, in_memory)


@pytest.mark.slow
def test_streams_agree_with_the_oracle(runtime):
  problem = problems.logistic()
  arguments = dict(client_learning_rate=0.1, batch_size=4, epochs=3)
  built = build_fed_avg(
    problem.model,
    client_input=client_inputs.from_stream(_SPEC, 8),
    shuffle=False,
    **arguments,
  )
  expected, metrics = oracle.fed_avg(
    problem.oracle.loss_and_gradient,
    problem.weights,
    _COHORTS,
    server_optimizer=numpy_optimizers.TffSgd(1.0),
    **arguments,
  )
  weights, train = problems.run(built, _COHORTS)
  for t in range(len(_COHORTS)):
    problems.assert_close(weights[t], expected[t])
    assert train[t]['num_clients_left_out'] == metrics[t]['num_left_out'] == t
    assert train[t]['num_examples'] == metrics[t]['num_examples']
    np.testing.assert_allclose(train[t]['loss'], metrics[t]['loss'], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize('build', [algorithms.mime, algorithms.mime_lite])
def test_streams_go_with_a_split_cohort(build, runtime):
  def states(client_input):
    built = build(client_input=client_input, split_cohort=True, shuffle=False, epochs=2)
    clients = client_inputs.in_halves([problems.dataset(rows) for rows in _COHORTS[0]])
    return built.next(built.initialize(), clients)

  streamed = states(client_inputs.from_stream(_SPEC, 8))
  _assert_equal(tuple(streamed), tuple(states(None)))


def test_parts_that_batches_do_not_fill_are_refused():
  with pytest.raises(
    ValueError, match='rows_at_a_time=10 must be a multiple of batch_size=4, say 12'
  ):
    algorithms.fed_avg(client_input=client_inputs.from_stream(_SPEC, 10))


_ARGUMENTS = dict(client_learning_rate=0.1, batch_size=4)


@pytest.mark.parametrize('is_simulated', [False, True])
def test_a_selection_refuses_streams(is_simulated):
  selection = Selection((5, 3), 2, None, None, is_simulated)
  with pytest.raises(ValueError, match='A selection needs all rows in memory'):
    build_fed_avg(
      problems.logistic().model,
      selection=selection,
      client_input=client_inputs.from_stream(_SPEC, 8),
      **_ARGUMENTS,
    )


def test_example_transfer_refuses_streams():
  with pytest.raises(ValueError, match='Example transfer needs all rows in memory'):
    build_example_transfer(
      problems.logistic().model,
      num_sent=2,
      client_input=client_inputs.from_stream(_SPEC, 8),
      **_ARGUMENTS,
    )


def test_the_server_refuses_streams():
  with pytest.raises(ValueError, match='The server needs all rows in memory'):
    build_one_way_gradient_transfer(
      problems.logistic().model,
      None,
      central_batch_size=4,
      central_input=client_inputs.from_stream(_SPEC, 8),
      **_ARGUMENTS,
    )


def test_rows_of_no_fixed_shape_are_refused():
  with pytest.raises(ValueError, match='All rows must be of one shape'):
    client_inputs.from_stream((tf.TensorSpec([None, None]), tf.TensorSpec([None])), 8)


@pytest.fixture(params=['local', 'in_process'])
def own_pid(request, runtime):
  """Where clients are computed, on a runtime that has done nothing yet."""
  with runtimes.create(request.param, num_threads=1) as own:
    yield own.worker_pid if request.param == 'local' else os.getpid()
  runtime.start()


def _megabytes(pid, name):
  (line,) = (
    line
    for line in pathlib.Path(f'/proc/{pid}/status').read_text().splitlines()
    if line.startswith(name)
  )
  return int(line.split()[1]) / 1024


@pytest.mark.long
def test_a_stream_takes_the_memory_of_a_part_and_not_of_all_rows(own_pid):
  """400 MB in all, 1 MB at a time."""
  problem = problems.logistic(num_features=25_000)
  spec = problem.model.input_spec

  def batch(i):
    x = tf.random.stateless_uniform([10, 25_000], tf.stack([i, 0]))
    return collections.OrderedDict(x=x, y=tf.zeros([10], tf.int32))

  def growth(client_input):
    built = build_fed_avg(
      problem.model,
      client_input=client_input,
      client_learning_rate=0.1,
      batch_size=5,
      epochs=2,
    )
    state = built.initialize()
    built.next(state, [tf.data.Dataset.range(2).map(batch)])
    pathlib.Path(f'/proc/{own_pid}/clear_refs').write_text('5')  # The peak so far.
    before = _megabytes(own_pid, 'VmRSS:')
    output = built.next(state, [tf.data.Dataset.range(400).map(batch)])
    assert output.metrics['client_work']['train']['num_examples'] == 4000
    return _megabytes(own_pid, 'VmHWM:') - before

  assert growth(client_inputs.from_stream(spec, 10)) < 50
  assert growth(client_inputs.from_dataset(spec)) > 400
