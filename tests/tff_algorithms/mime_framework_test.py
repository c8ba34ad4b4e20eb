"""The algorithms of the Mime paper against their numpy oracle, and what they share."""

import dataclasses
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.oracles import mime as oracle
from tests.oracles import numpy_models, numpy_optimizers
from tests.tff_algorithms import algorithms, problems
from tff_algorithms import (
  base_optimizers,
  client_inputs,
  models,
  oracles,
  schedules,
)
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.fed_prox import Proximal
from tff_algorithms.loc_mime import build_loc_mime
from tff_algorithms.mime import build_mime
from tff_algorithms.mime_lite import build_mime_lite
from tff_algorithms.mime_mvr import build_mime_mvr
from tff_algorithms.phases import Upload
from tff_algorithms.terms import Term

pytestmark = [pytest.mark.usefixtures('runtime'), pytest.mark.slow]

# Unequal clients, an empty one and ones of a single example among them.
COHORTS = [
  [problems.classification_rows(n, seed=t + 5 * n) for n in sizes]
  for t, sizes in enumerate([(9, 4, 1), (7, 0, 6), (5, 12), (8, 1, 3), (10, 3)])
]
ETA = 0.05

PAIRS = {
  'sgd': (base_optimizers.sgd(), numpy_optimizers.Sgd()),
  'momentum': (base_optimizers.momentum(0.8), numpy_optimizers.Momentum(0.8)),
  'adagrad': (base_optimizers.adagrad(), numpy_optimizers.AdaGrad(1e-7, 0.1)),
  'adam': (
    base_optimizers.adam(0.8, 0.9, 1e-2, 0.01),
    numpy_optimizers.Adam(0.8, 0.9, 1e-2, 0.01),
  ),
  'adam, bias corrected': (
    base_optimizers.adam(0.8, 0.9, 1e-1, bias_correction=True),
    numpy_optimizers.Adam(0.8, 0.9, 1e-1, bias_correction=True),
  ),
}
# Name -> how it is built, and the oracle's arguments.
ALGORITHMS = {
  'mime': (build_mime, dict(control_variate='current'), {}),
  'mime, previous': (build_mime, dict(control_variate='previous'), {}),
  'mime_lite': (build_mime_lite, {}, dict(corrected=False)),
  'loc_mime': (build_loc_mime, {}, dict(updates_locally=True)),
}
every_algorithm = pytest.mark.parametrize('algorithm', ALGORITHMS)
one_and_two_phases = pytest.mark.parametrize('algorithm', ['mime', 'mime_lite'])


def process_of(algorithm, model, base=None, eta=ETA, **arguments):
  """The process of an algorithm, with momentum by default."""
  build, own, _ = ALGORITHMS[algorithm]
  optimizer = base_optimizers.as_tff_optimizer(base or PAIRS['momentum'][0], eta)
  defaults = dict(base_optimizer=optimizer, batch_size=4, epochs=2, shuffle=False)
  return build(model, **(defaults | own | arguments))


def expected_of(algorithm, problem, cohorts, base=None, eta=ETA, **arguments):
  """The oracle's weights and metrics of every round."""
  _, own, theirs = ALGORITHMS[algorithm]
  defaults = dict(batch_size=4, epochs=2)
  return oracle.mime(
    problem.oracle.loss_and_gradient,
    problem.weights,
    cohorts,
    base=base or PAIRS['momentum'][1],
    learning_rate=eta,
    **(defaults | own | theirs | arguments),
  )


def assert_all_close(weights, expected):
  for ours, theirs in zip(weights, expected, strict=True):
    problems.assert_close(ours, theirs)


def assert_metrics_agree(metrics, expected):
  for ours, theirs in zip(metrics, expected, strict=True):
    for name in ('drift', 'gradient_norm'):
      found = ours[f'client_{name}' if name == 'drift' else name]
      np.testing.assert_allclose(found, theirs[name], rtol=1e-3, atol=1e-6)
    # Its square is a difference of two squares of the drift's size, in float32.
    np.testing.assert_allclose(
      ours['client_spread'] ** 2,
      theirs['spread'] ** 2,
      rtol=2e-3,
      atol=1e-6 * theirs['drift'] ** 2 + 1e-12,
    )
    assert ours['num_clients'] == theirs['num_clients']


@pytest.mark.parametrize('pair', PAIRS)
@every_algorithm
def test_agrees_with_the_oracle_over_five_rounds(algorithm, pair):
  problem, (base, numpy_base) = problems.mlp(), PAIRS[pair]
  weights, metrics = problems.run(process_of(algorithm, problem.model, base), COHORTS)
  expected, expected_metrics = expected_of(algorithm, problem, COHORTS, numpy_base)
  assert_all_close(weights, expected)
  assert_metrics_agree(metrics, expected_metrics)


@pytest.mark.parametrize(
  'changed',
  [
    dict(weighting='uniform', server_learning_rate=0.5),
    dict(epochs=3, max_steps=4),
    dict(batch_size=100),
  ],
  ids=str,
)
@every_algorithm
def test_agrees_with_the_oracle_for_other_arguments(algorithm, changed):
  problem = problems.mlp()
  weights, metrics = problems.run(
    process_of(algorithm, problem.model, **changed), COHORTS
  )
  expected, expected_metrics = expected_of(algorithm, problem, COHORTS, **changed)
  assert_all_close(weights, expected)
  assert_metrics_agree(metrics, expected_metrics)


@every_algorithm
def test_the_proximal_term_is_added_as_in_the_oracle(algorithm):
  problem = problems.mlp()
  process = process_of(algorithm, problem.model, terms=[Proximal(0.7)])
  weights, _ = problems.run(process, COHORTS)
  expected, _ = expected_of(algorithm, problem, COHORTS, rho=0.7)
  assert_all_close(weights, expected)
  without, _ = expected_of(algorithm, problem, COHORTS)
  with pytest.raises(AssertionError):  # The term is large enough to be seen.
    problems.assert_close(weights[-1], without[-1])


@every_algorithm
def test_float64_agrees_to_float64(algorithm):
  """The rates and betas are exact in float32, as they travel."""
  problem = problems.mlp(dtype=np.float64)
  cohorts = [
    [problems.classification_rows(n, seed=n + t, dtype=np.float64) for n in (9, 4, 1)]
    for t in range(3)
  ]
  base, numpy_base = base_optimizers.momentum(0.5), numpy_optimizers.Momentum(0.5)
  process = process_of(algorithm, problem.model, base, eta=0.125)
  weights, _ = problems.run(process, cohorts)
  expected, _ = expected_of(algorithm, problem, cohorts, numpy_base, eta=0.125)
  problems.assert_close(weights[-1], expected[-1], 1e-12)


# A cohort in halves.


def run_in_halves(process, cohorts):
  """As `problems.run`, every second client for the gradient; all outputs."""
  state, outputs = process.initialize(), []
  for cohort in cohorts:
    clients = [problems.dataset(rows) for rows in cohort]
    outputs.append(process.next(state, client_inputs.in_halves(clients)))
    state = outputs[-1].state
  return outputs


@pytest.mark.parametrize('weighting', ['examples', 'uniform'])
@every_algorithm
def test_a_split_cohort_agrees_with_the_oracle(algorithm, weighting):
  """In the second round the only client for the gradient has no examples."""
  problem = problems.mlp()
  arguments = dict(weighting=weighting)
  process = process_of(algorithm, problem.model, split_cohort=True, **arguments)
  outputs = run_in_halves(process, COHORTS)
  reordered = [cohort[1::2] + cohort[0::2] for cohort in COHORTS]
  expected, expected_metrics = expected_of(
    algorithm, problem, reordered, split=True, **arguments
  )
  weights = [output.state.server.weights.trainable for output in outputs]
  assert_all_close(weights, expected)
  assert [m['num_gradients'] for m in expected_metrics] == [1, 0, 1, 1, 1]
  gathered = [t for t, m in enumerate(expected_metrics) if m['num_gradients']]
  metrics = [output.metrics['client_work']['train'] for output in outputs]
  assert_metrics_agree(
    [metrics[t] for t in gathered], [expected_metrics[t] for t in gathered]
  )
  assert metrics[1]['update_norm'] == 0


@every_algorithm
def test_without_a_gradient_a_round_changes_nothing_but_its_number(algorithm):
  """Also where there are updates: those of the other half."""
  process = process_of(algorithm, problems.logistic().model, split_cohort=True)
  (first,) = run_in_halves(process, [COHORTS[0]])
  poisoned = algorithms.poisoned(np.nan)
  clients = [problems.dataset(rows) for rows in (COHORTS[2][0], poisoned)]
  output = process.next(first.state, client_inputs.in_halves(clients))
  expected = first.state._replace(server=first.state.server._replace(round_num=2))
  algorithms.assert_states_close(output.state, expected, rtol=0)
  metrics = output.metrics['client_work']['train']
  assert metrics['update_norm'] == 0
  assert metrics['num_clients_left_out'] == 1
  after = process.next(
    output.state,
    client_inputs.in_halves([problems.dataset(rows) for rows in COHORTS[2]]),
  )
  assert after.metrics['client_work']['train']['update_norm'] > 0


@every_algorithm
def test_a_cohort_in_both_halves_is_the_cohort_unsplit(algorithm):
  model = problems.mlp().model
  split = process_of(algorithm, model, split_cohort=True, shuffle=True)
  plain = process_of(algorithm, model, shuffle=True)
  twice = [[rows for rows in cohort for _ in range(2)] for cohort in COHORTS[:3]]
  outputs = run_in_halves(split, twice)
  weights, metrics = problems.run(plain, COHORTS[:3])
  for output, ours, theirs in zip(outputs, weights, metrics, strict=True):
    problems.assert_close(output.state.server.weights.trainable, ours, 1e-6)
    train = output.metrics['client_work']['train']
    for name in ('loss', 'num_examples', 'num_clients', 'client_drift'):
      np.testing.assert_allclose(train[name], theirs[name], rtol=1e-4, err_msg=name)


# TFF's optimizers as base optimizers.


class FrozenTff:
  """A TFF optimizer in numpy as a pair: y - U(g, s) is its step, from s each time."""

  def __init__(self, optimizer):
    self._optimizer = optimizer

  def init(self, weights):
    return self._optimizer.init(weights)

  def U(self, g, s):
    zero = numpy_models.map_weights(np.zeros_like, g)
    _, stepped = self._optimizer.next(s, zero, g)
    return numpy_models.map_weights(np.negative, stepped)

  def V(self, g, s):
    return self._optimizer.next(s, g, g)[0]


_optimizers = tff.learning.optimizers
TFF_OPTIMIZERS = {
  'sgdm': (_optimizers.build_sgdm(ETA, 0.9), numpy_optimizers.TffSgd(ETA, 0.9)),
  'adam': (_optimizers.build_adam(ETA), numpy_optimizers.TffAdam(ETA)),
  'adagrad': (_optimizers.build_adagrad(ETA), numpy_optimizers.TffAdagrad(ETA)),
  'yogi': (_optimizers.build_yogi(ETA), numpy_optimizers.TffYogi(ETA)),
  'rmsprop': (_optimizers.build_rmsprop(ETA), numpy_optimizers.TffRmsprop(ETA)),
}


@pytest.mark.parametrize('name', TFF_OPTIMIZERS)
@every_algorithm
def test_any_optimizer_of_tff_can_be_the_base_optimizer(algorithm, name):
  problem, (optimizer, numpy_optimizer) = problems.mlp(), TFF_OPTIMIZERS[name]
  process = process_of(algorithm, problem.model, base_optimizer=optimizer)
  weights, _ = problems.run(process, COHORTS[:3])
  expected, _ = expected_of(
    algorithm, problem, COHORTS[:3], FrozenTff(numpy_optimizer), eta=1.0
  )
  assert_all_close(weights, expected)


# Aggregators.


def norm(structure):
  return np.sqrt(sum(np.sum(np.square(t)) for t in tf.nest.flatten(structure)))


def moved(process, state):
  """How far x and s (which is 0 at first) went in one round with three clients."""
  after = algorithms.next_round(process, state, algorithms.COHORT).state.server
  x = state.server.weights.trainable
  delta = tf.nest.map_structure(np.subtract, after.weights.trainable, x)
  return delta, after.optimizer['statistics']


CLIP = 1e-2
CLIPPING = {
  'clipped mean': tff.aggregators.clipping_factory(
    CLIP, tff.aggregators.UnweightedMeanFactory()
  ),
  'differential privacy': (
    tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(0.0, 3, CLIP)
  ),
}


@pytest.mark.parametrize('name', CLIPPING)
@one_and_two_phases
def test_an_aggregator_for_the_updates_leaves_the_gradients_alone(algorithm, name):
  model = problems.logistic().model
  plain = process_of(algorithm, model, weighting='uniform')
  clipped = process_of(algorithm, model, weighting='uniform', aggregator=CLIPPING[name])
  state = plain.initialize()
  plain_delta, plain_s = moved(plain, state)
  delta, s = moved(clipped, clipped.initialize())
  problems.assert_close(s, plain_s, 1e-6)
  assert norm(plain_delta) > 2 * CLIP
  assert 0 < norm(delta) <= CLIP * (1 + 1e-5)


@pytest.mark.parametrize('name', CLIPPING)
def test_an_aggregator_for_the_gradients_leaves_the_updates_alone(name):
  """In the first round of MimeLite no step depends on the gradients' mean."""
  model = problems.logistic().model
  plain = process_of('mime_lite', model, weighting='uniform')
  clipped = process_of(
    'mime_lite', model, weighting='uniform', gradient_aggregator=CLIPPING[name]
  )
  plain_delta, plain_s = moved(plain, plain.initialize())
  delta, s = moved(clipped, clipped.initialize())
  problems.assert_close(delta, plain_delta, 1e-6)
  share = 1 - 0.8  # The new gradient's share in the momentum.
  assert norm(plain_s) > 2 * share * CLIP
  assert 0 < norm(s) <= share * CLIP * (1 + 1e-5)


def test_an_aggregator_for_the_gradients_makes_the_c_of_mime():
  model = problems.logistic().model
  gradient_aggregator = CLIPPING['clipped mean']
  process = process_of(
    'mime', model, weighting='uniform', gradient_aggregator=gradient_aggregator
  )
  output = algorithms.next_round(process, process.initialize(), algorithms.COHORT)
  c = output.state.server.terms[0].c
  assert 0 < norm(c) <= CLIP * (1 + 1e-5)
  metrics = output.metrics['client_work']['train']
  np.testing.assert_allclose(metrics['gradient_norm'], norm(c), rtol=1e-5)


COMPRESSED = tff.aggregators.MeanFactory(
  tff.aggregators.EncodedSumFactory.quantize_above_threshold(4, threshold=1)
)


@pytest.mark.parametrize('which', ['aggregator', 'gradient_aggregator'])
def test_either_upload_can_be_compressed_alone(which):
  """To 4 bits, which is off by more than a rounding and less than the value."""
  model = problems.logistic().model
  plain = process_of('mime_lite', model)
  compressed = process_of('mime_lite', model, **{which: COMPRESSED})
  plain_delta, plain_s = moved(plain, plain.initialize())
  delta, s = moved(compressed, compressed.initialize())
  untouched, touched = (s, plain_s), (delta, plain_delta)
  if which == 'gradient_aggregator':
    untouched, touched = touched, untouched
  problems.assert_close(*untouched, 1e-6)
  error = norm(tf.nest.map_structure(np.subtract, *touched)) / norm(touched[1])
  assert 1e-4 < error < 0.5


def test_compression_of_tff_trains_with_both_uploads():
  process = process_of(
    'mime',
    problems.logistic().model,
    aggregator=tff.learning.compression_aggregator(),
    gradient_aggregator=tff.learning.compression_aggregator(),
  )
  weights, _ = problems.run(process, [algorithms.COHORT] * 2)
  assert np.isfinite(weights[-1]['kernel']).all()
  assert np.abs(weights[-1]['kernel'] - weights[0]['kernel']).max() > 1e-4


@pytest.mark.parametrize('which', ['aggregator', 'gradient_aggregator'])
@one_and_two_phases
def test_either_upload_can_be_summed_securely_alone(algorithm, which):
  secure = tff.learning.secure_aggregator(clipping=False, zeroing=False)
  metrics = tff.aggregators.SecureSumFactory(1e3, -1e3)
  model = problems.logistic().model
  one = process_of(algorithm, model, metrics_aggregator=metrics, **{which: secure})
  tff.test.assert_contains_secure_aggregation(one.next)
  with pytest.raises(AssertionError):
    tff.test.assert_not_contains_unsecure_aggregation(one.next)
  both = process_of(
    algorithm,
    model,
    metrics_aggregator=metrics,
    aggregator=secure,
    gradient_aggregator=secure,
  )
  tff.test.assert_not_contains_unsecure_aggregation(both.next)


# Guards.


@pytest.mark.parametrize(
  'build', algorithms.MIME_FAMILY.values(), ids=algorithms.MIME_FAMILY
)
def test_goes_on_learning_with_a_bad_client_in_every_round(build):
  process = build()
  bad = [algorithms.poisoned(value) for value in (np.nan, np.inf)]
  cohorts = [[bad[t % 2], *algorithms.COHORT] for t in range(8)]
  cohorts[3] = [bad[0]]
  _, metrics = problems.run(process, cohorts)
  losses = [m['loss'] for t, m in enumerate(metrics) if t != 3]
  assert np.isfinite(losses).all()
  assert losses[-1] < losses[1] - 0.01


def test_goes_on_learning_where_tffs_mime_lite_stops_for_good():
  cohorts = [[*algorithms.COHORT, algorithms.poisoned(np.nan)]]
  cohorts += [algorithms.COHORT] * 4
  problem = problems.logistic()
  optimizer = _optimizers.build_sgdm(0.1, 0.9)

  theirs = tff.learning.algorithms.build_weighted_mime_lite(
    models.as_functional_model(problem.model), base_optimizer=optimizer
  )

  def weights_of_theirs(cohorts):
    state, found = theirs.initialize(), []
    for cohort in cohorts:
      state = theirs.next(state, [problems.dataset(rows) for rows in cohort]).state
      found.append(theirs.get_model_weights(state).trainable[0])
    return found

  first, *later = weights_of_theirs(cohorts)
  for weights in later:  # As they were, or not numbers.
    np.testing.assert_array_equal(weights, first)
  clean = weights_of_theirs([algorithms.COHORT] * 2)
  assert np.abs(clean[1] - clean[0]).max() > 1e-4

  ours = build_mime_lite(
    problem.model, base_optimizer=optimizer, batch_size=3, shuffle=False
  )
  weights, metrics = problems.run(ours, cohorts)
  for before, after in itertools.pairwise(weights):
    assert np.abs(after['bias'] - before['bias']).max() > 1e-4
  assert metrics[-1]['loss'] < metrics[0]['loss']


def quadratic_cohort():
  """One client whose steps converge at rate 1, and one whose steps overflow."""
  return [
    problems.quadratic_rows([[[0.5]]], [[1.0]]),
    problems.quadratic_rows([[[1e4]]], [[0.0]]),
  ]


@every_algorithm
def test_a_client_whose_steps_overflow_counts_with_its_gradient_if_sent_apart(
  algorithm,
):
  """Two phases: its gradient is kept and its update is not. One: neither is."""
  problem, cohort = problems.quadratic([2.0]), quadratic_cohort()
  arguments = dict(eta=1.0, epochs=15, batch_size=1)
  process = process_of(algorithm, problem.model, **arguments)
  # A round without it, for the previous c not to be 0.
  state = algorithms.next_round(process, process.initialize(), cohort[:1]).state
  output = algorithms.next_round(process, state, cohort)
  flat = [dict(a=rows['x']['a'], b=rows['x']['b']) for rows in cohort]
  expected, expected_metrics = expected_of(
    algorithm, problem, [flat[:1], flat], **arguments
  )
  train, server = output.metrics['client_work']['train'], output.state.server
  assert train['num_clients'] == expected_metrics[1]['num_clients'] == 1
  assert train['num_clients_left_out'] == 1
  problems.assert_close(server.weights.trainable, expected[1])
  x = state.server.weights.trainable['w']
  m = state.server.optimizer['statistics']['w']
  apart = algorithm in ('mime', 'loc_mime')
  c = (0.5 * (x - 1) + 1e4 * x) / 2 if apart else 0.5 * (x - 1)
  m = (1 - 0.8) * c + 0.8 * m
  np.testing.assert_allclose(server.optimizer['statistics']['w'], m, rtol=1e-5)


# Bytes.


@pytest.mark.parametrize(
  ('algorithm', 'pair', 'models_moved', 'cohort'),
  [
    ('mime_lite', 'momentum', 5, 8),
    ('mime_lite', 'adagrad', 5, 8),
    ('mime_lite', 'adam', 6, 6),
    ('mime', 'momentum', 6, 6),
    ('mime', 'adagrad', 6, 6),
    ('mime', 'adam', 7, 5),
    ('mime, previous', 'momentum', 6, 6),
    ('mime, previous', 'adagrad', 6, 6),
    ('mime, previous', 'adam', 7, 5),
  ],
)
def test_a_pair_of_a_split_cohort_moves_so_many_models(
  algorithm, pair, models_moved, cohort
):
  """Table 4: within the 40 models that 20 clients of FedAvg move, so many pairs."""
  problem = problems.logistic(num_features=100, num_classes=10)
  process = process_of(algorithm, problem.model, PAIRS[pair][0], split_cohort=True)
  clients = [problems.classification_rows(3, 100, 10, seed=i) for i in range(2)]
  (output,) = run_in_halves(process, [clients])
  moved_models = bytes_in_models(output.metrics['client_work']['train'], problem)
  assert abs(moved_models - models_moved) < 0.05
  assert int(40 / round(moved_models)) == cohort


def bytes_in_models(metrics, problem):
  size = sum(weight.nbytes for weight in problem.weights.values())
  return (metrics['bytes_down'] + metrics['bytes_up']) / size


def test_a_client_of_fed_avg_moves_two_models():
  problem = problems.logistic(num_features=100, num_classes=10)
  process = build_fed_avg(problem.model, client_learning_rate=0.1, batch_size=4)
  _, (metrics,) = problems.run(process, [[problems.classification_rows(3, 100, 10)]])
  assert abs(bytes_in_models(metrics, problem) - 2) < 0.05


# Hyperparameters and schedules.


@every_algorithm
def test_both_rates_can_be_read_and_set(algorithm):
  problem = problems.mlp()
  process = process_of(algorithm, problem.model)
  state = process.initialize()
  hparams = process.get_hparams(state)
  np.testing.assert_allclose(hparams['base_optimizer']['learning_rate'], ETA)
  np.testing.assert_allclose(hparams['server_learning_rate'], 1.0)
  hparams['base_optimizer']['learning_rate'] = 0.2
  hparams['server_learning_rate'] = 0.5
  state = process.set_hparams(state, hparams)
  after = algorithms.next_round(process, state, COHORTS[0]).state
  (expected,), _ = expected_of(
    algorithm, problem, COHORTS[:1], eta=0.2, server_learning_rate=0.5
  )
  problems.assert_close(after.server.weights.trainable, expected)


@one_and_two_phases
def test_schedules_scale_both_rates_and_leave_the_hyperparameters(algorithm):
  """As if the hyperparameters were set anew before every round."""
  model = problems.mlp().model
  scheduled = process_of(
    algorithm,
    model,
    client_schedule=schedules.exponential(1),
    server_schedule=schedules.linear_warmup(4),
  )
  plain = process_of(algorithm, model)
  weights, _ = problems.run(scheduled, COHORTS[:3])
  state = plain.initialize()
  for t, cohort in enumerate(COHORTS[:3]):
    hparams = plain.get_hparams(state)
    hparams['base_optimizer']['learning_rate'] = ETA * 2.0**-t
    hparams['server_learning_rate'] = (t + 1) / 4
    state = plain.set_hparams(state, hparams)
    state = algorithms.next_round(plain, state, cohort).state
    problems.assert_close(weights[t], state.server.weights.trainable, 1e-6)
  state = scheduled.initialize()
  after = algorithms.next_round(scheduled, state, COHORTS[0]).state
  hparams = scheduled.get_hparams(after)
  np.testing.assert_allclose(hparams['base_optimizer']['learning_rate'], ETA)


# What is refused.


class OfShape(base_optimizers.BaseOptimizer):
  """Momentum whose first statistics have a shape of their own."""

  def __init__(self, shape):
    self._shape, self._momentum = shape, base_optimizers.momentum()

  def init(self, specs):
    return tf.nest.map_structure(lambda spec: tf.zeros(self._shape), specs)

  def U(self, g, s):
    return self._momentum.U(g, s)

  def V(self, g, s):
    return self._momentum.V(g, s)


@pytest.mark.parametrize('shape', [[], [7], [1]], ids=str)
def test_a_base_optimizer_that_does_not_fit_the_weights_is_refused_by_name(shape):
  with pytest.raises(ValueError, match='base_optimizer does not fit the weights'):
    process_of('mime_lite', problems.logistic().model, OfShape(shape))


@pytest.mark.parametrize(
  'bad',
  [
    dict(server_learning_rate=-1.0),
    dict(server_learning_rate=0.0),
    dict(batch_size=0),
    dict(epochs=0),
    dict(max_steps=0),
    dict(weighting='by size'),
    dict(control_variate='next'),
  ],
  ids=str,
)
def test_a_bad_argument_is_refused_by_name(bad):
  with pytest.raises(ValueError, match=next(iter(bad))):
    process_of('mime', problems.logistic().model, **bad)


def test_a_negative_rate_of_the_base_optimizer_is_refused():
  with pytest.raises(ValueError, match='learning_rate'):
    process_of('mime', problems.logistic().model, eta=-0.1)


@pytest.mark.parametrize('which', ['aggregator', 'gradient_aggregator'])
@every_algorithm
def test_a_split_cohort_needs_aggregators_that_weight(algorithm, which):
  arguments = {which: tff.aggregators.UnweightedMeanFactory()}
  model = problems.logistic().model
  with pytest.raises(ValueError, match=rf'{which} \(Unweighted.*split_cohort'):
    process_of(algorithm, model, weighting='uniform', split_cohort=True, **arguments)


def functional_model_with_dropout():
  """A user's model, whose dropout cannot be seeded."""

  @tf.function
  def predict_on_batch(weights, x, training):
    (kernel,), _ = weights
    return (tf.nn.dropout(x, 0.5) if training else x) @ kernel

  return tff.learning.models.FunctionalModel(
    initial_weights=((np.ones([5, 3], np.float32),), ()),
    predict_on_batch_fn=predict_on_batch,
    loss_fn=lambda output, label, sample_weight=None: models.cross_entropy(
      label, output
    ),
    input_spec=problems.logistic().model.input_spec,
  )


TWO_GRADIENTS = {
  'mime': lambda model: process_of('mime', model),
  'mime, previous': lambda model: process_of('mime, previous', model),
  'loc_mime': lambda model: process_of('loc_mime', model),
  'mime_mvr': lambda model: build_mime_mvr(
    model, a=0.5, learning_rate=0.1, batch_size=4
  ),
  'mime_lite_mvr': lambda model: build_mime_mvr(
    model, a=0.5, learning_rate=0.1, batch_size=4, lite=True
  ),
}


@pytest.mark.parametrize('build', TWO_GRADIENTS.values(), ids=TWO_GRADIENTS)
def test_dropout_without_a_seed_is_refused_where_two_gradients_are_compared(build):
  model = functional_model_with_dropout()
  with pytest.raises(ValueError, match=r'oracles\.without_dropout'):
    build(model)
  process = build(oracles.without_dropout(model))
  output = algorithms.next_round(process, process.initialize(), algorithms.COHORT)
  assert np.isfinite(output.metrics['client_work']['train']['loss'])


def test_dropout_without_a_seed_is_accepted_where_one_gradient_is_taken():
  process = process_of('mime_lite', functional_model_with_dropout())
  output = algorithms.next_round(process, process.initialize(), algorithms.COHORT)
  assert output.metrics['client_work']['train']['update_norm'] > 0


# Other terms, and what V is fed.


class AtX(Term):
  """a = -g_i(x; batch)."""

  name = 'at_x'

  def value(self, step, message, prepared):
    gradient = step.evaluate(step.x).gradient
    return tf.nest.map_structure(tf.negative, gradient)


STATEFUL = {
  'momentum': base_optimizers.as_tff_optimizer(base_optimizers.momentum(), ETA),
  'adam': base_optimizers.as_tff_optimizer(base_optimizers.adam(), ETA),
  'sgdm': _optimizers.build_sgdm(ETA, 0.9),
}
STATELESS = {
  'sgd': base_optimizers.as_tff_optimizer(base_optimizers.sgd(), ETA),
  'tff_sgd': _optimizers.build_sgdm(ETA),
}


@pytest.mark.parametrize('name', STATEFUL)
def test_a_term_that_needs_a_batch_at_x_is_refused_with_a_state_to_track(name):
  with pytest.raises(ValueError, match="'at_x' needs what only a client has"):
    process_of(
      'mime_lite',
      problems.logistic().model,
      terms=[AtX()],
      base_optimizer=STATEFUL[name],
    )


@pytest.mark.parametrize('name', STATELESS)
def test_a_term_that_needs_a_batch_at_x_goes_with_sgd(name):
  """g - g_i(x; b) is 0 at the first step, so that nothing ever moves."""
  process = process_of(
    'mime_lite',
    problems.logistic().model,
    terms=[AtX()],
    base_optimizer=STATELESS[name],
  )
  _, (metrics,) = problems.run(process, [algorithms.COHORT])
  assert metrics['client_drift'] < 1e-6


@dataclasses.dataclass(frozen=True)
class Constant(Term):
  """A vector of the server's, the same at every step."""

  number: float
  name = 'constant'

  def message(self, state, server):
    return tf.nest.map_structure(
      lambda w: tf.fill(w.shape, self.number), server.weights.trainable
    )

  def value(self, step, message, prepared):
    return message


@pytest.mark.parametrize('pair', ['momentum', 'adam'])
@every_algorithm
def test_v_is_fed_c_plus_the_value_of_the_other_terms_at_x(algorithm, pair):
  """A constant term is a linear part of the loss, the same on every client."""
  problem, (base, numpy_base) = problems.mlp(), PAIRS[pair]
  terms = [Constant(0.25), Proximal(0.0)]
  weights, _ = problems.run(
    process_of(algorithm, problem.model, base, terms=terms), COHORTS
  )
  expected, _ = linear_mime(algorithm, problem, numpy_base, 0.25)
  assert_all_close(weights, expected)
  without, _ = expected_of(algorithm, problem, COHORTS, numpy_base)
  with pytest.raises(AssertionError):
    problems.assert_close(weights[-1], without[-1])


def linear_mime(algorithm, problem, base, number):
  """The oracle with U and V of g + number; c is sent without it."""

  class Shifted:
    init = staticmethod(base.init)

    @staticmethod
    def U(g, s):
      return base.U({name: array + number for name, array in g.items()}, s)

    @staticmethod
    def V(g, s):
      return base.V({name: array + number for name, array in g.items()}, s)

  return expected_of(algorithm, problem, COHORTS, Shifted)


class Nothing(Term):
  """A term that only has a name."""

  name = 'nothing'


def test_a_term_that_adds_nothing_changes_nothing():
  model = problems.mlp().model
  plain, _ = problems.run(process_of('mime', model), COHORTS[:2])
  process = process_of('mime', model, terms=[Nothing()])
  weights, _ = problems.run(process, COHORTS[:2])
  for ours, theirs in zip(weights, plain, strict=True):
    problems.assert_close(ours, theirs, 0)


def test_the_metrics_of_a_term_are_told():
  class Told(Nothing):
    def metrics(self, state, means, server):
      return {'told': tf.constant(7.0)}

  process = process_of('mime_lite', problems.logistic().model, terms=[Told()])
  _, (metrics,) = problems.run(process, [algorithms.COHORT])
  assert metrics['told'] == 7


@every_algorithm
def test_without_an_update_nothing_changes(algorithm):
  process = process_of(algorithm, problems.logistic().model, split_cohort=True)
  cohorts = [COHORTS[0], [algorithms.poisoned(np.nan), algorithms.COHORT[0]]]
  first, second = run_in_halves(process, cohorts)
  expected = first.state._replace(server=first.state.server._replace(round_num=2))
  algorithms.assert_states_close(second.state, expected, rtol=0)


@every_algorithm
def test_without_a_gradient_nothing_changes_where_the_mean_of_nobody_is_zero(algorithm):
  process = process_of(
    algorithm,
    problems.logistic().model,
    split_cohort=True,
    gradient_aggregator=tff.aggregators.MeanFactory(no_nan_division=True),
  )
  cohorts = [COHORTS[0], [COHORTS[2][0], algorithms.poisoned(np.nan)]]
  first, second = run_in_halves(process, cohorts)
  expected = first.state._replace(server=first.state.server._replace(round_num=2))
  algorithms.assert_states_close(second.state, expected, rtol=0)


class Clients(Nothing):
  """Counts the updates that there have been."""

  name = 'clients'

  @property
  def aggregators(self):
    return {'one': tff.aggregators.SumFactory()}

  def init(self, weights):
    return tf.zeros([])

  def uploads(self, client, prepared, outcome):
    return {'one': Upload(tf.ones([]), tf.ones([]))}

  def absorb(self, state, means, server):
    return state + means['one']


@pytest.mark.parametrize(
  'arguments',
  [
    dict(terms=[Clients()]),
    dict(aggregator=tff.learning.robust_aggregator(zeroing=True, clipping=True)),
  ],
  ids=['terms', 'aggregator'],
)
def test_without_a_gradient_other_terms_and_aggregators_stay_too(arguments):
  process = process_of(
    'mime', problems.logistic().model, split_cohort=True, **arguments
  )
  cohorts = [COHORTS[0], [COHORTS[2][0], algorithms.poisoned(np.nan)]]
  first, second = run_in_halves(process, cohorts)
  expected = first.state._replace(server=first.state.server._replace(round_num=2))
  algorithms.assert_states_close(second.state, expected, rtol=0)


class WithoutHyperparameters(tff.learning.optimizers.Optimizer):
  """Gradient descent with a fixed rate."""

  def initialize(self, specs):
    return ()

  def next(self, state, weights, gradients):
    stepped = tf.nest.map_structure(lambda w, g: w - ETA * g, weights, gradients)
    return state, stepped


@pytest.mark.parametrize(
  'optimizer',
  [
    WithoutHyperparameters(),
    _optimizers.schedule_learning_rate(_optimizers.build_sgdm(), lambda t: ETA),
  ],
  ids=['own', 'schedule_learning_rate'],
)
def test_without_a_schedule_the_base_optimizer_needs_no_hyperparameter(optimizer):
  problem = problems.mlp()
  process = process_of('mime', problem.model, base_optimizer=optimizer)
  weights, _ = problems.run(process, COHORTS[:1])
  expected, _ = expected_of('mime', problem, COHORTS[:1], numpy_optimizers.Sgd())
  problems.assert_close(weights[0], expected[0])


def test_a_gradient_aggregator_that_cannot_weight_is_refused_by_its_name():
  unweighted = tff.aggregators.UnweightedMeanFactory()
  with pytest.raises(ValueError, match=r'gradient_aggregator \(Unweighted'):
    process_of('mime', problems.mlp().model, gradient_aggregator=unweighted)
