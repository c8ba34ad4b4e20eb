"""Mixed federated learning on both sides: the processes, and their numpy oracle."""

import collections
import functools

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.oracles import mixed as oracle
from tests.oracles import numpy_optimizers
from tests.tff_algorithms import algorithms, problems
from tff_algorithms import base_optimizers, oracles
from tff_algorithms.one_way_gradient_transfer import build_one_way_gradient_transfer
from tff_algorithms.parallel_training import build_parallel_training
from tff_algorithms.two_way_gradient_transfer import build_two_way_gradient_transfer

# Unequal clients, partial batches, a client without rows and one with a NaN.
COHORTS = [
  [problems.classification_rows(n, seed=10 * t + i) for i, n in enumerate(sizes)]
  for t, sizes in enumerate([(9, 4, 1), (7, 0, 6), (5, 12), (3, 8, 2), (0,), (10, 1)])
]
COHORTS[2].append(algorithms.poisoned(np.nan))
# More and fewer rows than the central steps take.
CENTRALS = [
  problems.classification_rows(n, seed=100 + t)
  for t, n in enumerate((14, 3, 7, 9, 5, 6))
]
# No client of the fifth round is usable, and the server's rows of the fourth are not.
COHORTS[4].append(algorithms.poisoned(np.inf))
CENTRALS[3]['x'][2, 1] = np.nan

# Name -> how it is built, and its oracle.
ALGORITHMS = {
  'parallel_training': (build_parallel_training, oracle.parallel_training),
  'one_way_gradient_transfer': (build_one_way_gradient_transfer, oracle.one_way),
  'two_way_gradient_transfer': (build_two_way_gradient_transfer, oracle.two_way),
}
DEFAULTS = dict(
  client_learning_rate=0.1,
  batch_size=4,
  epochs=2,
  federated_weight=0.75,
  central_weight=0.25,
)
CENTRAL_STEPS = dict(central_batch_size=4, central_steps=3)

_optimizers = tff.learning.optimizers
_pair = base_optimizers.as_tff_optimizer
SERVER_OPTIMIZERS = {
  'sgd': (_optimizers.build_sgdm(0.7), numpy_optimizers.TffSgd(0.7)),
  'momentum': (_optimizers.build_sgdm(0.7, 0.9), numpy_optimizers.TffSgd(0.7, 0.9)),
  'adam': (_optimizers.build_adam(0.05), numpy_optimizers.TffAdam(0.05)),
  'base_momentum': (
    _pair(base_optimizers.momentum(0.8), 0.5),
    numpy_optimizers.BaseServer(numpy_optimizers.Momentum(0.8), 0.5),
  ),
}
PAIRS = {
  'momentum': (base_optimizers.momentum(0.8), numpy_optimizers.Momentum(0.8)),
  'adam': (
    base_optimizers.adam(0.8, 0.9, 1e-2, 0.1),
    numpy_optimizers.Adam(0.8, 0.9, 1e-2, 0.1),
  ),
}
# On the two sides: server, merge, central and client optimizers.
OPTIMIZERS = [
  ('momentum', 'adam', 'adam', 'momentum'),
  ('adam', 'base_momentum', 'momentum', 'adam'),
]


def optimizers_of(server, merge=None, central=None, client=None):
  """The arguments of both sides: ours, and the oracle's."""
  chosen = {
    'server': SERVER_OPTIMIZERS[server],
    'merge': merge and SERVER_OPTIMIZERS[merge],
    'central': central and PAIRS[central],
    'client': client and PAIRS[client],
  }
  chosen = {name: both for name, both in chosen.items() if both}
  ours = {f'{name}_optimizer': both[0] for name, both in chosen.items()}
  return ours, {name: both[1] for name, both in chosen.items()}


# Central losses of other forms.


def numpy_half_square(weights, batch):
  assert batch is None
  return 0.5 * sum(np.sum(w**2) for w in weights.values()), weights


class SquaredOutputs(oracles.Oracle):
  """The mean of 0.5 ||z kernel + bias||^2 over rows z, by the weights of `logistic`."""

  @property
  def batch_spec(self):
    return collections.OrderedDict(z=tf.TensorSpec([None, 5], tf.float32))

  def initial_weights(self, seed):
    raise AssertionError('The weights to start from are those of the model.')

  def evaluate(self, weights, batch, seed):
    w, z = weights.trainable, batch['z']
    n = tf.cast(tf.shape(z)[0], tf.float32)
    outputs = z @ w['kernel'] + w['bias']
    gradient = collections.OrderedDict(
      kernel=tf.transpose(z) @ outputs / n, bias=tf.reduce_sum(outputs, axis=0) / n
    )
    loss = 0.5 * tf.reduce_sum(tf.square(outputs)) / n
    return oracles.Evaluation(loss, gradient, collections.OrderedDict())

  def finalize_metrics(self, sums):
    return sums


def numpy_squared_outputs(weights, batch):
  z = batch['z']
  outputs = z @ weights['kernel'] + weights['bias']
  gradient = {'kernel': z.T @ outputs / len(z), 'bias': outputs.mean(axis=0)}
  return 0.5 * np.sum(outputs**2) / len(z), gradient


OUTPUT_ROWS = [
  {'z': np.random.default_rng(n).normal(size=(n, 5)).astype(np.float32)}
  for n in (14, 3, 7)
]


# Running.


def process_of(algorithm, model, *central_model, **arguments):
  """The process, with the defaults here and without shuffling."""
  build, _ = ALGORITHMS[algorithm]
  if algorithm == 'one_way_gradient_transfer':
    defaults = dict(DEFAULTS, central_batch_size=4)
  else:
    defaults = DEFAULTS | CENTRAL_STEPS
  return build(model, *central_model, **(defaults | dict(shuffle=False) | arguments))


def outputs_of(process, cohorts, centrals):
  """What `next` gave in every round; a round's central is None where it takes none."""
  state, outputs = process.initialize(), []
  for cohort, central in zip(cohorts, centrals, strict=True):
    outputs.append(next_round(process, state, cohort, central))
    state = outputs[-1].state
  return outputs


def next_round(process, state, cohort, central=None):
  own = [] if central is None else [problems.dataset(central)]
  return process.next(state, [problems.dataset(rows) for rows in cohort], *own)


def weights_of(outputs):
  return [output.state.server.weights.trainable for output in outputs]


_NAMES = {
  'client_learning_rate': 'learning_rate',
  'central_clip_norm': 'clip_central_norm',
}


def expected_of(
  algorithm, problem, cohorts, centrals, *, central=None, theirs=None, **arguments
):
  """The oracle's weights and metrics of every round.

  Args:
    algorithm: One of `ALGORITHMS`.
    problem: The `problems.Problem`.
    cohorts: The clients' rows in every round.
    centrals: The server's.
    central: The central loss, if it is another one.
    theirs: Arguments of the oracle's own.
    **arguments: Those that differ from the defaults, by our names.
  """
  _, run = ALGORITHMS[algorithm]
  own = {} if run is oracle.one_way else CENTRAL_STEPS
  arguments = DEFAULTS | own | arguments
  return run(
    problem.oracle.loss_and_gradient,
    central or problem.oracle.loss_and_gradient,
    problem.weights,
    cohorts,
    centrals,
    **{_NAMES.get(name, name): value for name, value in arguments.items()},
    **(theirs or {}),
  )


_METRICS = {  # the oracle's names for ours
  'loss': 'loss',
  'num_examples': 'num_examples',
  'num_clients': 'num_clients',
  'num_clients_left_out': 'num_left_out',
  'update_norm': 'update_norm',
  'g_tilde_square': 'g_tilde_square',
  'b_tilde_square': 'b_tilde_square',
}


def assert_agrees(
  algorithm,
  cohorts=COHORTS[:3],
  centrals=CENTRALS[:3],
  *,
  problem=None,
  central_models=(),
  numpy_central=None,
  tolerance=1e-5,
  ours=None,
  theirs=None,
  **common,
):
  """Runs both sides and compares weights, metrics and what is transferred.

  Args:
    algorithm: One of `ALGORITHMS`.
    cohorts: The clients' rows in every round.
    centrals: The server's.
    problem: The `problems.Problem`, logistic regression by default.
    central_models: Our central model, if it is another one, in a sequence.
    numpy_central: The oracle's.
    tolerance: For `problems.assert_close`.
    ours: Arguments of our builder alone.
    theirs: Those of the oracle alone.
    **common: Those of both, by our names, where they differ from the defaults.

  Returns:
    Our outputs and the oracle's metrics of every round.
  """
  problem = problem or problems.logistic()
  process = process_of(
    algorithm, problem.model, *central_models, **common, **(ours or {})
  )
  outputs = outputs_of(process, cohorts, centrals)
  expected, metrics = expected_of(
    algorithm,
    problem,
    cohorts,
    centrals,
    central=numpy_central,
    theirs=theirs,
    **common,
  )
  close = functools.partial(problems.assert_close, tolerance=tolerance)
  for output, x, told in zip(outputs, expected, metrics, strict=True):
    server, train = output.state.server, output.metrics['client_work']['train']
    close(server.weights.trainable, x)
    if algorithm == 'two_way_gradient_transfer':
      close(server.terms[0].g_c, told['g_tilde_c'])
      close(server.terms[0].g_f, told['g_tilde_f'])
    for name in _METRICS.keys() & train.keys():
      np.testing.assert_allclose(
        train[name], told[_METRICS[name]], rtol=1e-4, err_msg=name
      )
  return outputs, metrics
