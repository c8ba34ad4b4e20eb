"""Saddle-point problems on both sides, as objectives and in numpy, and how to run them.

A process runs whole, in a runtime; or its phases alone run, which are pure functions,
where the guards around them do not matter: that takes a tenth of the time.
"""

import collections
from collections.abc import Callable
import functools
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import tensorflow as tf

from tests.oracles import saddle_point as oracle
from tests.tff_algorithms import problems
from tff_algorithms import models, process, saddle_point, structures, synchronization
from tff_algorithms.client_inputs import ClientRows
from tff_algorithms.process_types import model_weights
from tff_algorithms.saddle_point import SaddlePoint


class Problem(NamedTuple):
  """A saddle-point problem on both sides.

  Attributes:
    objective: Its gradient mapping, in TensorFlow.
    mapping: The same in numpy, for the oracle.
    z0: Where both start, as the oracle has it.
  """

  objective: saddle_point.GradientMapping
  mapping: oracle.Mapping
  z0: oracle.Z


def z_of(trainable) -> oracle.Z:
  """A `SaddlePoint` as the oracle has it."""
  x, y = ([np.asarray(t) for t in tf.nest.flatten(part)] for part in trainable)
  return x, y


def vector(z) -> np.ndarray:
  """A `SaddlePoint`, or what the oracle has for one, as a vector."""
  return np.concatenate([np.ravel(t) for t in tf.nest.flatten(z)])


def assert_close(actual, expected, tolerance=1e-5):
  """Each tensor of z agrees to `tolerance` relative to its norm."""
  for ours, theirs in zip(
    tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True
  ):
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.dtype == theirs.dtype
    difference = np.linalg.norm(ours.astype(np.float64) - theirs)
    scale = np.linalg.norm(theirs.astype(np.float64))
    assert difference <= tolerance * scale, f'{difference} against {scale}'


# Linear regression against a shift v of the features:
#
#   f(w, b, v) = mean of (w'(x + v) + b - t)^2 / 2 + (||w||^2 + b^2) / 4 - 2 ||v||^2
#
# strongly convex in x = (w, b) and, as long as ||w|| < 2, strongly concave in y = v.

NUM_FEATURES = 3


def regression_rows(n, seed=0, dtype=np.float32):
  """A client's rows; clients differ in where their features lie."""
  rng = np.random.default_rng([seed, n])
  x = rng.normal(size=NUM_FEATURES) / 2 + rng.normal(size=(n, NUM_FEATURES))
  t = x @ [0.5, -1.0, 0.25] + 0.5 + rng.normal(size=n) / 2
  return collections.OrderedDict(x=x.astype(dtype), y=t.astype(dtype))


def regression_values(z: SaddlePoint, batch) -> tf.Tensor:
  """f of each row."""
  w, b, v = z.min['w'], z.min['b'], z.max
  error = tf.linalg.matvec(batch['x'] + v, w) + b - batch['y']
  of_x = tf.reduce_sum(w**2) + tf.reduce_sum(b**2)
  return error**2 / 2 + of_x / 4 - 2 * tf.reduce_sum(v**2)


def regression_value(z: oracle.Z, batch) -> float:
  """f in numpy."""
  (b, w), (v,) = z
  error = (batch['x'] + v) @ w + b - batch['y']
  return float(np.mean(error**2) / 2 + (w @ w + b @ b) / 4 - 2 * v @ v)


def _regression_mapping(z: oracle.Z, batch) -> tuple[float, oracle.Z]:
  """Derived by hand: e (x + v) + w / 2, mean e + b / 2, and -(mean e w - 4 v)."""
  (b, w), (v,) = z
  x, t = batch['x'].astype(w.dtype), batch['y'].astype(w.dtype)
  e = (x + v) @ w + b - t
  mean = np.mean(e, dtype=w.dtype)
  of_w = e @ (x + v) / w.dtype.type(len(x)) + w / 2
  return regression_value(z, batch), ([mean + b / 2, of_w], [4 * v - mean * w])


def regression_spec(dtype=np.float32):
  return collections.OrderedDict(
    x=tf.TensorSpec([None, NUM_FEATURES], tf.as_dtype(dtype)),
    y=tf.TensorSpec([None], tf.as_dtype(dtype)),
  )


def regression_start(dtype=np.float32) -> SaddlePoint:
  return SaddlePoint(
    collections.OrderedDict(
      w=np.array([0.7, 0.2, -0.4], dtype), b=np.array([0.9], dtype)
    ),
    np.array([0.5, -0.25, 0.4], dtype),
  )


@functools.cache
def regression(dtype=np.float32) -> Problem:
  """The regression as a pure function."""
  start = regression_start(dtype)
  objective = saddle_point.saddle_objective(
    lambda x, y, batch, seed: tf.reduce_mean(
      regression_values(SaddlePoint(x, y), batch)
    ),
    initialize=lambda seed: tf.nest.map_structure(tf.constant, start),
    batch_spec=regression_spec(dtype),
  )
  return Problem(objective, _regression_mapping, z_of(start))


def regression_model(dtype=np.float32) -> models.Model:
  """The regression as a model, which tells the mean target too."""
  start = regression_start(dtype)
  return models.Model(
    input_spec=regression_spec(dtype),
    initialize=lambda seed: models.ModelWeights(
      tf.nest.map_structure(tf.constant, start), ()
    ),
    predict=lambda weights, x, seed: (weights.trainable, x),
    loss=lambda y, outputs: tf.reduce_mean(
      regression_values(outputs[0], {'x': outputs[1], 'y': y})
    ),
    metrics=lambda y, outputs: collections.OrderedDict(
      sum=tf.reduce_sum(y), n=tf.cast(tf.size(y), y.dtype)
    ),
    finalize_metrics=lambda sums: collections.OrderedDict(
      mean_target=sums['sum'] / sums['n']
    ),
  )


def regression_cohorts(dtype=np.float32, num_rounds=22, with_bad=True):
  """Unequal clients, partial batches, an empty client, and a round without any.

  Args:
    dtype: That of the rows.
    num_rounds: How many rounds.
    with_bad: Whether some clients have a NaN or an infinity.
  """
  sizes = [(9, 4, 1), (7, 0, 6), (5, 12), (8, 2, 3, 5)]
  cohorts = [
    [
      regression_rows(n, seed=10 * (t % 6) + i, dtype=dtype)
      for i, n in enumerate(sizes[t % 4])
    ]
    for t in range(num_rounds)
  ]
  if with_bad:
    for t, value in ((2, np.nan), (9, np.inf), (13, np.nan)):
      bad = regression_rows(6, seed=t, dtype=dtype)
      bad['x'][4, 1] = value
      cohorts[t].insert(1, bad)
    cohorts[6] = [cohorts[2][1], regression_rows(0, dtype=dtype)]
  return cohorts


def named(cohorts):
  """Cohorts as the oracle takes them."""
  return [list(enumerate(cohort)) for cohort in cohorts]


# The quadratic game of the oracle, whose mapping is linear.


@functools.cache
def quadratic_game(h=1.0, lam=0.75, d=2, dtype=np.float64):
  """The game as an objective that does not know its clients, from 1, 1, ..., 1."""
  spec = tf.TensorSpec([None, d], tf.as_dtype(dtype))

  def function(x, y, batch, seed):
    del seed
    a, b = batch['a'], batch['b']
    coupled = tf.linalg.matvec(b - a * x, y)
    squares = lam / 2 * tf.reduce_sum(x**2) - tf.reduce_sum(y**2) / 2
    return tf.reduce_mean(h * coupled) + squares

  ones = np.ones(d, dtype)
  return saddle_point.saddle_objective(
    function,
    initialize=lambda seed: SaddlePoint(tf.constant(ones), tf.constant(ones)),
    batch_spec=collections.OrderedDict(a=spec, b=spec),
  )


def game_clients(a, b, dtype=np.float64):
  """Clients of one row each, as cohorts have them."""
  return [
    collections.OrderedDict(a=np.array([a_i], dtype), b=np.array([b_i], dtype))
    for a_i, b_i in zip(a, b, strict=True)
  ]


# Running.


class Run(NamedTuple):
  """What all rounds gave.

  Attributes:
    z: z~ after each.
    outputs: The model that comes out after each: z~, or an average.
    metrics: The train metrics of each.
  """

  z: list[SaddlePoint]
  outputs: list[SaddlePoint]
  metrics: list[dict[str, Any]]


def run(process_, cohorts) -> Run:
  """Runs a process, in the runtime."""
  state = process_.initialize()
  found = Run([], [], [])
  for cohort in cohorts:
    output = process_.next(state, [problems.dataset(rows) for rows in cohort])
    state = output.state
    found.z.append(state.server.weights.trainable)
    found.outputs.append(model_weights(state).trainable)
    found.metrics.append(output.metrics['client_work']['train'])
  return found


# Ours for the oracle's names.
_METRICS = {
  'communication_rounds': 'communication_rounds',
  'num_clients': 'num_clients',
  'num_left_out': 'num_clients_left_out',
  'update_norm': 'update_norm',
  'gradient_norm': 'gradient_norm',
  'meta_iterations': 'meta_iterations',
  'inner_rounds': 'inner_rounds',
}


def assert_agrees(found: Run, expected, tolerance, **renamed):
  """Compares z, the average where there is one, and the metrics after every round.

  Args:
    found: What a process gave.
    expected: What the oracle did.
    tolerance: For z and the average.
    **renamed: The names of metrics that have another one here.
  """
  all_z, all_metrics = expected
  assert len(found.z) == len(all_z) >= 20
  for t, (z, metrics) in enumerate(zip(all_z, all_metrics, strict=True)):
    assert_close(found.z[t], z, tolerance)
    assert_close(found.outputs[t], metrics.get('average', z), tolerance)
    for name in set(_METRICS) & set(metrics):
      ours = found.metrics[t][renamed.get(name, _METRICS[name])]
      np.testing.assert_allclose(ours, metrics[name], rtol=1e-4, err_msg=name)


def assert_variant_agrees(
  build, numpy_version, dtype, ours, theirs, problem=None, cohorts=None
):
  """Compares z after 20 rounds of good clients, by the phases alone, in shuffled order.

  Args:
    build: The builder.
    numpy_version: The oracle.
    dtype: float32 is compared to 1e-5, float64 to 1e-10.
    ours: The builder's arguments.
    theirs: The oracle's.
    problem: The problem, the regression by default.
    cohorts: Its clients, for each round.

  Returns:
    The oracle's metrics.
  """
  problem = problem or regression(dtype)
  cohorts = cohorts or regression_cohorts(dtype, 20, with_bad=False)
  servers = Phases(build, problem.objective, **ours).run(cohorts)
  order = order_by(lambda t, i: tf.constant(i, tf.int64))
  expected, metrics = numpy_version(
    problem.mapping, problem.z0, named(cohorts), order=order, **theirs
  )
  tolerance = 1e-5 if dtype == np.float32 else 1e-10
  for server, z, told in zip(servers, expected, metrics, strict=True):
    assert_close(server.weights.trainable, z, tolerance)
    assert_close(server.output.trainable, told.get('average', z), tolerance)
  return metrics


class Phases:
  """The phases that a builder makes a process of, run one after the other."""

  def __init__(self, build: Callable, objective: Any, **arguments: Any):
    with mock.patch.object(
      process, 'build_learning_process', lambda init, phases, *_, **__: (init, phases)
    ):
      self._init, self._phases = build(objective, **arguments)
    self._works: dict = {}

  def start(self, z=None):
    """The first state of the server, from z if that is given, or from a vector."""
    server = self._init()
    if z is None:
      return server
    flat, left = [], vector(z)
    for like in tf.nest.flatten(server.weights.trainable):
      part, left = np.split(left, [like.shape.num_elements()])
      flat.append(tf.constant(part, like.dtype, like.shape))
    z = tf.nest.pack_sequence_as(server.weights.trainable, flat)
    return server._replace(weights=server.weights._replace(trainable=z))

  def next(self, server, cohort, max_steps=None):
    """The server's state after a round; uploads are averaged in numpy.

    Args:
      server: Its state before.
      cohort: The rows of the clients, whose keys are 0, 1, ...
      max_steps: Where each client's steps are cut, or None.
    """
    for i in range(len(self._phases)):
      server = self._run_phase(i, server, cohort, max_steps)
    return server._replace(round_num=server.round_num + 1)

  def run(self, cohorts, z=None) -> list:
    """The server's states after the rounds, from z if that is given."""
    server, servers = self.start(z), []
    for cohort in cohorts:
      server = self.next(server, cohort)
      servers.append(server)
    return servers

  def zs(self, cohorts, z=None) -> list[np.ndarray]:
    """z~ as a vector at first and after each round."""
    servers = [self.start(z), *self.run(cohorts, z)]
    return [vector(server.weights.trainable) for server in servers]

  def _run_phase(self, i, server, cohort, max_steps):
    phase = self._phases[i]
    message = phase.message(server)
    limits = [()] * len(cohort) if max_steps is None else list(zip(max_steps))
    work = self._work(i, message, max_steps is not None)
    results = [
      work(message, tf.constant(key, tf.int64), rows, *limit)
      for key, (rows, limit) in enumerate(zip(cohort, limits, strict=True))
    ]
    means = {name: _mean(results, name) for name in phase.aggregators}
    return phase.finish(server, means)

  def _work(self, i, message, has_limit):
    """A phase's work, traced once for clients of any size."""
    if (i, has_limit) not in self._works:
      phase = self._phases[i]

      def work(message, key, rows, max_steps=None):
        return phase.work(message, ClientRows(key, rows, max_steps)).uploads

      specs = [structures.tensor_specs(message), tf.TensorSpec([], tf.int64)]
      specs.append(phase.oracle.batch_spec)
      specs += [tf.TensorSpec([], tf.int32)] if has_limit else []
      self._works[i, has_limit] = tf.function(
        work, input_signature=specs, autograph=False
      )
    return self._works[i, has_limit]


def _mean(results, name):
  kept = [uploads[name] for uploads in results if uploads[name].weight > 0]
  weights = [float(upload.weight) for upload in kept]
  return tf.nest.map_structure(
    lambda *parts: tf.constant(
      np.average([part.numpy() for part in parts], axis=0, weights=weights).astype(
        parts[0].dtype.as_numpy_dtype
      )
    ),
    *(upload.value for upload in kept),
  )


# What only the code knows: the orders of rows, and the numbers of steps.

_fold_in = tf.random.experimental.stateless_fold_in


def order_by(keys, seed=0):
  """(round, index of the client, pass, n) -> the order of rows of a shuffled run.

  Args:
    keys: (round, index) -> the client's key.
    seed: The run's seed.
  """

  def order(t, i, pass_num, n):
    client = _fold_in(_fold_in(tf.constant([seed, 0], tf.int64), t), keys(t, i))
    return tf.random.experimental.stateless_shuffle(
      tf.range(n), _fold_in(_fold_in(client, 0), pass_num)
    ).numpy()

  return order


def order_of(cohorts, seed=0):
  """The same for clients that are data sets: a key is a hash of the first row."""

  @functools.cache
  def key(t, i):
    rows = cohorts[t][i]
    first = [tf.io.serialize_tensor(rows[name][0]) for name in sorted(rows)]
    return tf.strings.to_hash_bucket_fast(tf.strings.join(first), 2**63 - 1)

  return order_by(key, seed)


def drawn_steps(p, seed, num_rounds) -> list[int]:
  """The tau of every round with random synchronisation."""
  steps = synchronization.geometric(p, seed)
  return [int(steps(tf.constant(t))) for t in range(num_rounds)]
