"""The aggregators of a phase: any for any upload, an upload for several of them."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.oracles import numpy_models
from tests.tff_algorithms import algorithms, problems
from tff_algorithms import structures
from tff_algorithms.local_training import DELTA
from tff_algorithms.phases import Upload
from tff_algorithms.terms import Term

pytestmark = [pytest.mark.usefixtures('runtime'), pytest.mark.slow]

# Uploads that are aggregated twice.


class _Again(Term):
  """Aggregates the update of the phase once more; the mean becomes its state.

  Attributes:
    factory: The aggregator.
    weight: The weight of a client that has one of its own, or None.
  """

  name = 'again'

  def __init__(self, factory, weight=None):
    self._factory, self._weight = factory, weight

  @property
  def aggregators(self):
    return {'mean': self._factory}

  @property
  def shared(self):
    return {'mean': DELTA}

  def init(self, weights):
    return structures.zeros_like(weights.trainable)

  def uploads(self, client, prepared, outcome):
    if self._weight is None:
      return {}
    return {'mean': Upload((), tf.constant(self._weight) / client.num_examples)}

  def absorb(self, state, means, server):
    return means['mean']


def _updates_and_mean(term):
  """x - y_i of the clients alone, the mean of the term, and the train metrics."""
  learning_process = algorithms.fed_avg(terms=[term])
  state = learning_process.initialize()
  x = state.server.weights.trainable

  def after(cohort):
    output = algorithms.next_round(learning_process, state, cohort)
    trained = output.state.server.weights.trainable
    return numpy_models.map_weights(np.subtract, x, trained), output

  updates = [after([rows])[0] for rows in algorithms.COHORT]
  _, output = after(algorithms.COHORT)
  mean = output.state.server.terms[0]
  return updates, mean, output.metrics['client_work']['train']


_SIZES = [len(rows['y']) for rows in algorithms.COHORT]


@pytest.mark.parametrize(
  ('term', 'weights', 'more_bytes'),
  [
    (_Again(tff.aggregators.UnweightedMeanFactory()), [1, 1, 1], 0),
    (_Again(tff.aggregators.MeanFactory()), _SIZES, 0),
    (_Again(tff.aggregators.MeanFactory(), 36.0), [36 / n for n in _SIZES], 4),
  ],
  ids=['unweighted', 'weighted as the upload', 'with weights of its own'],
)
def test_an_upload_that_is_aggregated_twice_is_sent_once(term, weights, more_bytes):
  updates, mean, train = _updates_and_mean(term)
  expected = numpy_models.weighted_mean(updates, weights)
  problems.assert_close(mean, expected)
  # x - y_i and its weight, and what more the term weights it with.
  assert train['bytes_up'] == 4 * (5 * 3 + 3) + 4 + more_bytes


def test_an_aggregator_without_an_upload_is_named():
  class Alone(_Again):
    shared = {}  # noqa: RUF012

  with pytest.raises(ValueError, match="aggregator 'again_mean' has no upload among"):
    algorithms.fed_avg(terms=[Alone(tff.aggregators.MeanFactory())])


def test_an_aggregator_that_shares_what_is_not_uploaded_is_named():
  class Unknown(_Again):
    shared = {'mean': 'gradient'}  # noqa: RUF012

  with pytest.raises(ValueError, match="aggregator 'again_mean' has no upload among"):
    algorithms.fed_avg(terms=[Unknown(tff.aggregators.MeanFactory())])


def test_an_upload_without_an_aggregator_is_named():
  class Forgotten(_Again):
    aggregators = {}  # noqa: RUF012
    shared = {}  # noqa: RUF012

  with pytest.raises(ValueError, match="upload 'again_mean' has no aggregator among"):
    algorithms.fed_avg(terms=[Forgotten(None, 1.0)])


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


@algorithms.every_algorithm
@pytest.mark.parametrize('name', _AGGREGATORS)
def test_trains_with_tffs_aggregators(build, name):
  aggregator, weighting = _AGGREGATORS[name]
  learning_process = build(aggregator=aggregator, weighting=weighting)
  # Two rounds: with c of the round before, which is 0 at first, one moves nothing.
  cohort = [*algorithms.COHORT, algorithms.poisoned(np.nan)]
  first = learning_process.initialize().server.weights.trainable
  weights, _ = problems.run(learning_process, [cohort] * 2)
  trained, first = tf.nest.flatten(weights[-1]), tf.nest.flatten(first)
  assert all(np.isfinite(part).all() for part in trained)
  pairs = zip(trained, first, strict=True)
  assert not all(np.array_equal(a, b) for a, b in pairs)


def test_a_clipping_aggregator_bounds_the_update():
  learning_process = algorithms.fed_avg(aggregator=_AGGREGATORS['clipped_mean'][0])
  _, metrics = problems.run(learning_process, [algorithms.COHORT[:1]])
  assert metrics[0]['client_drift'] > 2e-3
  np.testing.assert_allclose(metrics[0]['update_norm'], 1e-3, rtol=1e-2)


@algorithms.every_algorithm
def test_every_aggregation_can_be_secure(build):
  secure = tff.aggregators.SecureSumFactory(1e3, -1e3)
  learning_process = build(
    aggregator=tff.learning.secure_aggregator(**_UNIT),
    metrics_aggregator=secure,
  )
  tff.test.assert_contains_secure_aggregation(learning_process.next)
  tff.test.assert_not_contains_unsecure_aggregation(learning_process.next)


def test_metrics_are_summed_in_the_clear_unless_told_otherwise():
  learning_process = algorithms.fed_avg(
    aggregator=tff.learning.secure_aggregator(**_UNIT)
  )
  with pytest.raises(AssertionError):
    tff.test.assert_not_contains_unsecure_aggregation(learning_process.next)


def test_what_an_aggregator_measures_is_among_the_metrics():
  learning_process = algorithms.fed_avg(
    aggregator=tff.learning.robust_aggregator(**_UNIT)
  )
  output = algorithms.next_round(
    learning_process, learning_process.initialize(), algorithms.COHORT
  )
  assert isinstance(output.metrics['aggregator']['delta'], collections.OrderedDict)
  assert output.metrics['aggregator']['delta']


def test_a_metrics_aggregator_that_is_no_sum_is_refused():
  noisy = tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(1.0, 1, 1.0)
  with pytest.raises(ValueError, match='metrics_aggregator must be'):
    algorithms.fed_avg(metrics_aggregator=noisy)
