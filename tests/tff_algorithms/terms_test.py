"""Terms carry state, messages and uploads of their own: Mime's control variate as one.

The control variate is written here and not taken from the package: it shows what a
user's own term can do with the hooks.
"""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.oracles import numpy_models
from tests.tff_algorithms import problems
from tff_algorithms import structures
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.fed_prox import Proximal
from tff_algorithms.phases import Upload
from tff_algorithms.terms import Term, value_at_x

pytestmark = [pytest.mark.usefixtures('runtime'), pytest.mark.slow]


@dataclasses.dataclass(frozen=True)
class PreviousControlVariate(Term):
  """a = c - g_i(x; batch), with c the mean full gradient of the round before."""

  name = 'control_variate'

  @property
  def aggregators(self):
    return {'gradient': tff.aggregators.MeanFactory()}

  def init(self, weights):
    return structures.zeros_like(weights.trainable)

  def message(self, state, server):
    return state

  def prepare(self, message, client):
    return client.full_gradient(client.weights, False).gradient

  def value(self, step, message, prepared):
    return structures.subtract(message, step.evaluate(step.x).gradient)

  def uploads(self, client, prepared, outcome):
    upload = Upload(prepared, client.num_examples)
    return collections.OrderedDict(gradient=upload)

  def absorb(self, state, means, server):
    return means['gradient']


_COHORTS = [
  [problems.classification_rows(n, seed=t + 5 * n) for n in sizes]
  for t, sizes in enumerate([(9, 4, 1), (7, 0, 6), (5, 12), (8, 2), (10, 3)])
]
_ARGUMENTS = dict(client_learning_rate=0.2, batch_size=4, epochs=2, shuffle=False)


def _expected(problem, cohorts, rho=0.0, eta=0.2, batch_size=4, epochs=2):
  """Mime with SGD and the previous round's c, plus FedProx's term, in plain loops."""
  gradient = problem.oracle.loss_and_gradient
  x, c = problem.weights, numpy_models.map_weights(np.zeros_like, problem.weights)
  history = []
  for cohort in cohorts:
    cohort = [rows for rows in cohort if len(rows['y'])]
    sizes = [len(rows['y']) for rows in cohort]
    ys = []
    for rows, n in zip(cohort, sizes, strict=True):
      y = x
      for _ in range(epochs):
        for start in range(0, n, batch_size):
          batch = {k: v[start : start + batch_size] for k, v in rows.items()}
          g_y, g_x = gradient(y, batch)[1], gradient(x, batch)[1]
          y = {
            k: y[k] - eta * (g_y[k] - g_x[k] + c[k] + rho * (y[k] - x[k])) for k in y
          }
      ys.append(y)
    c = numpy_models.weighted_mean([gradient(x, rows)[1] for rows in cohort], sizes)
    x = numpy_models.weighted_mean(ys, sizes)
    history.append(x)
  return history


@pytest.mark.parametrize('rho', [0.0, 0.5])
def test_a_term_with_state_agrees_with_plain_loops_alone_and_in_a_sum(rho):
  problem = problems.mlp()
  terms = [PreviousControlVariate(), Proximal(rho)]
  process = build_fed_avg(problem.model, terms=terms, **_ARGUMENTS)
  weights, metrics = problems.run(process, _COHORTS)
  for ours, theirs in zip(weights, _expected(problem, _COHORTS, rho), strict=True):
    problems.assert_close(ours, theirs)
  _, plain_metrics = problems.run(
    build_fed_avg(problem.model, **_ARGUMENTS), _COHORTS[:1]
  )
  # c travels down and the gradient, with its weight, up.
  size = sum(w.nbytes for w in problem.weights.values())
  assert metrics[0]['bytes_down'] == plain_metrics[0]['bytes_down'] + size
  assert metrics[0]['bytes_up'] == plain_metrics[0]['bytes_up'] + size + 4


def test_a_terms_upload_is_guarded_with_the_others():
  bad = problems.classification_rows(6)
  bad['x'][1, 1] = np.nan
  model = problems.mlp().model
  process = build_fed_avg(model, terms=[PreviousControlVariate()], **_ARGUMENTS)
  state = process.initialize()

  def next_state(cohort):
    return process.next(state, [problems.dataset(rows) for rows in cohort]).state

  with_it, without = next_state([*_COHORTS[0], bad]), next_state(_COHORTS[0])
  for a, b in zip(tf.nest.flatten(with_it), tf.nest.flatten(without), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5)


@dataclasses.dataclass(frozen=True)
class GradientSum(Term):
  """Adds nothing to a step; the sum of the loss gradients becomes its state."""

  name = 'gradient_sum'
  needs_gradient_sum = True

  @property
  def aggregators(self):
    return {'sum': tff.aggregators.SumFactory()}

  def init(self, weights):
    return structures.zeros_like(weights.trainable)

  def value(self, step, message, prepared):
    return structures.zeros_like(step.y)

  def uploads(self, client, prepared, outcome):
    return collections.OrderedDict(
      sum=Upload(outcome.gradient_sum, client.num_examples)
    )

  def absorb(self, state, means, server):
    return means['sum']


def test_a_term_can_have_the_sum_of_the_loss_gradients():
  """Of one client alone it is (x - y) / eta."""
  problem, rows = problems.logistic(), problems.classification_rows(9)
  process = build_fed_avg(problem.model, terms=[GradientSum()], **_ARGUMENTS)
  state = process.next(process.initialize(), [problems.dataset(rows)]).state
  x, y = problem.weights, state.server.weights.trainable
  for name, gradient_sum in state.server.terms[0].items():
    np.testing.assert_allclose(gradient_sum, (x[name] - y[name]) / 0.2, atol=1e-5)


def test_two_terms_of_one_name_are_refused():
  with pytest.raises(ValueError, match='proximal, proximal'):
    terms = [Proximal(0.1), Proximal(0.2)]
    build_fed_avg(problems.mlp().model, terms=terms, **_ARGUMENTS)


def test_an_upload_without_an_aggregator_is_named():
  class Forgotten(GradientSum):
    aggregators = {}  # noqa: RUF012

  with pytest.raises(ValueError, match='gradient_sum_sum'):
    build_fed_avg(problems.mlp().model, terms=[Forgotten()], **_ARGUMENTS)


class Nothing(Term):
  """All hooks as they are."""

  name = 'nothing'


def test_a_term_that_adds_nothing_changes_nothing():
  model = problems.mlp().model
  plain, _ = problems.run(build_fed_avg(model, **_ARGUMENTS), _COHORTS[:2])
  process = build_fed_avg(model, terms=[Nothing(), Proximal(0.0)], **_ARGUMENTS)
  weights, _ = problems.run(process, _COHORTS[:2])
  for ours, theirs in zip(weights, plain, strict=True):
    problems.assert_close(ours, theirs, 1e-7)


def test_a_terms_own_metrics_see_the_state_before_and_the_means_of_the_round():
  class Told(GradientSum):
    def metrics(self, state, means, server):
      return {
        'norm_before': structures.global_norm(state),
        'norm_of_sum': structures.global_norm(means['sum']),
      }

  process = build_fed_avg(problems.mlp().model, terms=[Told()], **_ARGUMENTS)
  _, metrics = problems.run(process, _COHORTS[:2])
  assert metrics[0]['norm_before'] == 0
  assert metrics[0]['norm_of_sum'] > 0
  np.testing.assert_allclose(metrics[1]['norm_before'], metrics[0]['norm_of_sum'])


# The value at y = x, where the server can tell it.

_X = collections.OrderedDict(w=tf.constant([1.0, 2.0]))


def test_the_value_at_x_follows_from_the_message():
  class Message(Term):
    name = 'message'

    def value(self, step, message, prepared):
      return structures.add(message, structures.scale(2.0, step.y))

  message = collections.OrderedDict(w=tf.constant([10.0, 20.0]))
  np.testing.assert_array_equal(value_at_x(Message(), message, _X)['w'], [12, 24])


def test_the_proximal_term_is_zero_at_x():
  np.testing.assert_array_equal(value_at_x(Proximal(0.5), (), _X)['w'], [0, 0])


def test_a_term_that_adds_nothing_adds_nothing_at_x():
  assert value_at_x(Nothing(), (), _X) == ()


def test_a_value_that_needs_a_batch_is_no_value_at_x():
  with pytest.raises(
    ValueError, match="'control_variate' needs what only a client has"
  ):
    value_at_x(PreviousControlVariate(), _X, _X)


@pytest.mark.parametrize(
  'use',
  [
    lambda prepared: prepared,
    lambda prepared: collections.OrderedDict(kernel=prepared),
    lambda prepared: prepared.gradient,
    lambda prepared: prepared['gradient'],
  ],
)
def test_a_value_that_needs_what_a_client_prepared_is_no_value_at_x(use):
  class Prepared(Term):
    name = 'prepared'

    def prepare(self, message, client):
      return client.full_gradient(client.weights, False).gradient

    def value(self, step, message, prepared):
      return use(prepared)

  with pytest.raises(ValueError, match="'prepared'"):
    value_at_x(Prepared(), (), _X)
