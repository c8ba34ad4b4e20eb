"""FedDyn against its numpy version, written from the paper, and what follows of it."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.oracles import numpy_optimizers
from tests.oracles.fed_dyn import fed_dyn
from tests.tff_algorithms import problems, stateful
from tff_algorithms import base_optimizers, process, schedules
from tff_algorithms.fed_dyn import DynamicRegularizer, build_fed_dyn
from tff_algorithms.fed_prox import build_fed_prox
from tff_algorithms.mime_lite import build_mime_lite

pytestmark = pytest.mark.usefixtures('runtime')

_N = 10  # Three of them are never sampled, one has no rows.
_ROUNDS = stateful.sampled_rounds(8, (9, 4, 0, 7, 13, 1, 6), 4, dtype=np.float64)
_LOGISTIC = problems.logistic(dtype=np.float64)


def _assert_agree(rounds, ours=None, theirs=None, **shared):
  """Compares x, h and every h_i after every round."""
  defaults = dict(num_clients=_N, alpha=0.3, batch_size=4, client_learning_rate=0.25)
  shared = defaults | shared
  found = stateful.run(
    build_fed_dyn(_LOGISTIC.model, shuffle=False, **shared, **(ours or {})), rounds
  )
  expected = fed_dyn(
    _LOGISTIC.oracle.loss_and_gradient,
    _LOGISTIC.weights,
    rounds,
    **shared,
    **(theirs or {}),
  )
  for t in range(len(rounds)):
    for actual, wanted in zip(found[:2], expected[:2], strict=True):
      problems.assert_close(actual[t], wanted[t], 1e-11)
    for client_id, h_i in found[2][t].items():
      zeros = {name: np.zeros_like(value) for name, value in h_i.items()}
      problems.assert_close(h_i, expected[2][t].get(client_id, zeros), 1e-11)
  return found


@pytest.mark.parametrize('weighting', ['uniform', 'examples'])
@pytest.mark.parametrize('alpha', [0.05, 1.0])
def test_equals_the_paper_with_sampling_unequal_clients_and_epochs(alpha, weighting):
  _assert_agree(_ROUNDS, alpha=alpha, weighting=weighting, epochs=3)


def test_equals_the_paper_with_another_server_optimizer():
  pair = base_optimizers.as_tff_optimizer(base_optimizers.momentum(0.8), 0.75)
  numpy_pair = numpy_optimizers.BaseServer(numpy_optimizers.Momentum(0.8), 0.75)
  _assert_agree(_ROUNDS, {'server_optimizer': pair}, {'server_optimizer': numpy_pair})


def test_a_client_with_a_bad_number_is_left_out_and_keeps_its_h_i():
  good = problems.classification_rows(5, seed=1, dtype=np.float64)
  bad = problems.classification_rows(5, seed=2, dtype=np.float64)
  bad['x'][2, 1] = np.nan
  rounds = [
    [('a', good), ('b', good)],
    [('a', good), ('b', bad)],
    [('b', bad)],
    [('a', good), ('b', good)],
  ]
  found = _assert_agree(rounds, epochs=2)
  of_clients = found[2]
  assert of_clients[0]['b']['kernel'].any()
  np.testing.assert_array_equal(
    of_clients[2]['b']['kernel'], of_clients[0]['b']['kernel']
  )


@pytest.mark.parametrize('weighting', ['uniform', 'examples'])
def test_h_is_the_mean_of_all_h_i_after_every_round(weighting):
  arguments = dict(client_learning_rate=0.25, batch_size=4, epochs=2)
  process_ = build_fed_dyn(
    _LOGISTIC.model, num_clients=_N, alpha=0.2, weighting=weighting, **arguments
  )
  _, all_h, of_clients, _ = stateful.run(process_, _ROUNDS)
  for h, kept in zip(all_h, of_clients, strict=True):
    problems.assert_close(stateful.mean_of_all(kept, _N, h), h, 1e-12)


def test_the_clients_of_the_first_round_are_those_of_fed_prox():
  # Their mean moves by half as much again: h is not 0 any more when x is made.
  arguments = dict(client_learning_rate=0.25, batch_size=4, epochs=2)
  cohort = [(f'c{i}', rows) for i, (_, rows) in enumerate(_ROUNDS[0])]
  ours, *_ = stateful.run(
    build_fed_dyn(_LOGISTIC.model, num_clients=2 * len(cohort), alpha=0.3, **arguments),
    [cohort],
  )
  prox = build_fed_prox(_LOGISTIC.model, rho=0.3, weighting='uniform', **arguments)
  (theirs,), _ = problems.run(prox, [[rows for _, rows in cohort]])
  with_rows = sum(len(rows['y']) > 0 for _, rows in cohort)
  share = with_rows / (2 * len(cohort))
  for name, start in _LOGISTIC.weights.items():
    np.testing.assert_allclose(
      ours[0][name] - start, (1 + share) * (theirs[name] - start), rtol=1e-9
    )


@pytest.mark.slow
def test_reaches_the_optimum_of_unlike_clients_where_fed_prox_does_not():
  # f_i(w) = a_i (w - b_i)^2 / 2; their mean is least at sum a_i b_i / sum a_i.
  a, b = np.array([1.0, 3.0, 0.5]), np.array([2.0, -1.0, 0.5])
  optimum = (a * b).sum() / a.sum()
  cohort = [
    (f'c{i}', problems.quadratic_rows([[[a_i]]], [[b_i]], np.float64))
    for i, (a_i, b_i) in enumerate(zip(a, b, strict=True))
  ]
  model = problems.quadratic([5.0], np.float64).model
  arguments = dict(client_learning_rate=0.125, batch_size=1, epochs=40)
  weights, *_ = stateful.run(
    build_fed_dyn(model, num_clients=3, alpha=1.0, **arguments), [cohort] * 80
  )
  assert abs(weights[-1]['w'][0] - optimum) < 1e-7
  prox = build_fed_prox(model, rho=1.0, **arguments)
  theirs, _ = problems.run(prox, [[rows for _, rows in cohort]] * 80)
  assert abs(theirs[-1]['w'][0] - optimum) > 0.05


def test_its_types_are_as_documented():
  process_ = build_fed_dyn(
    problems.logistic().model,
    num_clients=2,
    alpha=0.1,
    client_learning_rate=0.1,
    batch_size=4,
    server_schedule=schedules.exponential(10),
  )
  assert isinstance(process_, process.StatefulProcess)
  kept = '<dynamic_regularizer=<kernel=float32[5,3],bias=float32[3]>>'
  assert str(process_.initialize_client.type_signature) == f'( -> {kept})'


def test_a_stateful_base_optimizer_on_clients_refuses_its_term():
  term = DynamicRegularizer(0.1, 3, tff.aggregators.SumFactory())
  pair = base_optimizers.as_tff_optimizer(base_optimizers.momentum(), 0.1)
  with pytest.raises(
    ValueError, match="the term 'dynamic_regularizer' needs what only"
  ):
    build_mime_lite(_LOGISTIC.model, base_optimizer=pair, batch_size=4, terms=[term])


@pytest.mark.parametrize(
  ('arguments', 'message'),
  [
    ({'alpha': 0}, 'alpha must be a positive number'),
    ({'num_clients': 0}, 'num_clients must be a whole number'),
    ({'sum_aggregator': tff.aggregators.MeanFactory()}, 'sum_aggregator must sum'),
  ],
)
def test_bad_arguments_are_named(arguments, message):
  defaults = dict(num_clients=3, alpha=0.1, client_learning_rate=0.1, batch_size=4)
  with pytest.raises(ValueError, match=message):
    build_fed_dyn(_LOGISTIC.model, **(defaults | arguments))
