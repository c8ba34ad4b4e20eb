"""Tests of the mixed oracle: closed forms, and the other oracles."""

import math
from typing import Any

import numpy as np
import pytest

from tests.oracles import numpy_models, numpy_optimizers
from tests.oracles.fed_avg import fed_avg
from tests.oracles.mixed import (
  dissimilarity,
  one_way,
  only_central,
  parallel_training,
  populations,
  transfer_learning,
  two_way,
)

QUADRATIC = numpy_models.Quadratic.loss_and_gradient
LOGISTIC = numpy_models.LogisticRegression.loss_and_gradient
NAN = float('nan')
MOMENTUM = numpy_optimizers.Momentum(0.5)
ALGORITHMS = [parallel_training, two_way, one_way]


def _client(a, b):
  """Rows of the one-dimensional quadratic 0.5 a (w - b)^2."""
  b = np.asarray(b, np.float64)
  return {'a': np.broadcast_to(a, b.shape)[:, None, None], 'b': b[:, None]}


def _w(value):
  return {'w': np.array([value])}


def _values(all_weights):
  return [float(weights['w'][0]) for weights in all_weights]


def _classifier(rng, rows):
  return {'x': rng.normal(size=(rows, 4)), 'y': rng.integers(3, size=rows)}


def _problem(rounds=3, sizes=(4, 1, 7), central_rows=6, seed=0):
  """Weights, cohorts and central rows of a logistic regression."""
  rng = np.random.default_rng(seed)
  weights = {'kernel': rng.normal(size=(4, 3)), 'bias': rng.normal(size=3)}
  cohorts = [[_classifier(rng, n) for n in sizes] for _ in range(rounds)]
  centrals = [_classifier(rng, central_rows) for _ in range(rounds)]
  return weights, cohorts, centrals


def _zero_loss(weights, batch):
  del batch
  return 0.0, {k: np.zeros_like(v) for k, v in weights.items()}


def _assert_close(got, want, **tolerance):
  assert got.keys() == want.keys()
  for key, value in want.items():
    np.testing.assert_allclose(got[key], value, **({'rtol': 1e-10} | tolerance))


def _assert_all_close(got, want):
  assert len(got) == len(want)
  for a, b in zip(got, want, strict=True):
    _assert_close(a, b)


def _central_of(algorithm, batch_size, steps):
  """The arguments of the central steps, which 1-way transfer does not have."""
  if algorithm is one_way:
    return {}
  return {'central_batch_size': batch_size, 'central_steps': steps}


# Appendix A.3: K = 1.


@pytest.mark.parametrize('weighting', ['examples', 'uniform'])
@pytest.mark.parametrize('clip', [None, 0.05])
def test_with_one_step_parallel_training_is_one_way_transfer(weighting, clip):
  weights, cohorts, centrals = _problem(rounds=4)
  shared: dict[str, Any] = {
    'learning_rate': 0.3,
    'batch_size': 7,
    'server_learning_rate': 0.7,
    'federated_weight': 0.75,
    'central_weight': 0.25,
    'weighting': weighting,
    'clip_central_norm': clip,
  }
  arguments = LOGISTIC, LOGISTIC, weights, cohorts, centrals
  steps = {'central_batch_size': 6, 'central_steps': 1}
  parallel, parallel_metrics = parallel_training(*arguments, **shared, **steps)
  one, one_metrics = one_way(*arguments, **shared)
  two, _ = two_way(*arguments, **shared, **steps)
  _assert_all_close(one, parallel)
  _assert_close(two[0], parallel[0])
  assert two[1]['bias'] != pytest.approx(parallel[1]['bias'])
  for a, b in zip(one_metrics, parallel_metrics, strict=True):
    for name in ['loss', 'central_loss', 'g_tilde_square', 'b_tilde_square']:
      assert a[name] == pytest.approx(b[name])


def _one_step_gradients(x, cohort, central, p):
  """The weighted mean of the client gradients, the uniform one, the central one."""
  gradients = [LOGISTIC(x, rows)[1] for rows in cohort]
  means = [
    {k: np.average([g[k] for g in gradients], axis=0, weights=q) for k in x}
    for q in (p, None)
  ]
  return *means, LOGISTIC(x, central)[1]


def test_with_one_step_two_way_transfer_adds_the_gradients_of_the_last_round():
  weights, cohorts, centrals = _problem(rounds=3)
  eta, eta_s, w_f, w_c = 0.3, 0.7, 0.6, 0.4
  got, metrics = two_way(
    LOGISTIC,
    LOGISTIC,
    weights,
    cohorts,
    centrals,
    learning_rate=eta,
    server_learning_rate=eta_s,
    batch_size=7,
    central_batch_size=6,
    central_steps=1,
    federated_weight=w_f,
    central_weight=w_c,
  )
  x = weights
  g_c = g_f = {k: np.zeros_like(v) for k, v in weights.items()}
  for t in range(3):
    mean, uniform, central = _one_step_gradients(x, cohorts[t], centrals[t], [4, 1, 7])
    x = {
      k: x[k] - eta * eta_s * (w_f * mean[k] + w_c * central[k] + g_c[k] + g_f[k])
      for k in x
    }
    g_c = {k: w_c * g for k, g in central.items()}
    g_f = {k: w_f * g for k, g in uniform.items()}  # K_i = 1 for all
    _assert_close(got[t], x)
    _assert_close(metrics[t]['g_tilde_c'], g_c)
    _assert_close(metrics[t]['g_tilde_f'], g_f)


def test_with_one_step_two_way_transfer_goes_twice_as_far_from_the_second_round():
  weights, cohorts, centrals = _problem(rounds=1, sizes=(5, 5))
  arguments = LOGISTIC, LOGISTIC, weights, cohorts * 4, centrals * 4
  settings = {'learning_rate': 1e-4, 'batch_size': 5}
  steps = {'central_batch_size': 6, 'central_steps': 1}
  _, one = one_way(*arguments, **settings)
  _, two = two_way(*arguments, **settings, **steps)
  ratios = [a['update_norm'] / b['update_norm'] for a, b in zip(two, one, strict=True)]
  assert ratios == pytest.approx([1, 2, 2, 2], rel=1e-3)


# Appendix A.2: equation 10.


@pytest.mark.parametrize('epochs', [1, 3])
@pytest.mark.parametrize('weighting', ['examples', 'uniform'])
@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_equation_10_is_the_mean_of_the_gradients_really_used(
  algorithm, weighting, epochs
):
  weights, cohorts, centrals = _problem()
  w_f, seen = 0.7, []

  def recording(x, batch):
    loss, gradient = LOGISTIC(x, batch)
    seen.append(gradient)
    return loss, gradient

  _, metrics = algorithm(
    recording,
    LOGISTIC,
    weights,
    cohorts,
    centrals,
    learning_rate=0.2,
    server_learning_rate=0.9,
    batch_size=2,
    epochs=epochs,
    federated_weight=w_f,
    central_weight=0.3,
    weighting=weighting,
    **_central_of(algorithm, 4, 3),
  )
  # 4, 1 and 7 rows in batches of 2 are 2, 1 and 4 steps.
  steps = 7 * epochs
  assert len(seen) == 3 * steps
  for t in range(3):
    of_round = seen[t * steps : (t + 1) * steps]
    mean = {k: w_f * np.mean([g[k] for g in of_round], axis=0) for k in weights}
    _assert_close(metrics[t]['federated_gradient'], mean)
    _assert_close(metrics[t]['recovered_gradient'], mean, atol=1e-13)
    if algorithm is two_way:
      _assert_close(metrics[t]['g_tilde_f'], mean)


def test_the_federated_gradient_is_without_the_proximal_part():
  """Closed form of two steps on 0.5 (w - b)^2 from w = 2, b = 0."""
  eta, rho = 0.1, 3.0
  _, metrics = two_way(
    QUADRATIC,
    _zero_loss,
    _w(2.0),
    [[_client(1.0, [0.0, 0.0])]],
    [None],
    learning_rate=eta,
    batch_size=1,
    central_batch_size=1,
    central_steps=1,
    rho=rho,
  )
  y = 2 - eta * 2
  assert metrics[0]['g_tilde_f']['w'] == pytest.approx((2 + y) / 2)
  # Equation 10 does not know of it.
  assert metrics[0]['recovered_gradient']['w'] == pytest.approx(
    (2 + y + rho * (y - 2)) / 2
  )


# Without a central loss all are FedAvg.


@pytest.mark.parametrize('weighting', ['examples', 'uniform'])
@pytest.mark.parametrize('algorithm', [*ALGORITHMS, transfer_learning])
def test_without_a_central_part_it_is_fed_avg(algorithm, weighting):
  weights, cohorts, centrals = _problem()
  shared: dict[str, Any] = {
    'batch_size': 2,
    'epochs': 2,
    'max_steps': 5,
    'weighting': weighting,
    'rho': 0.4,
    'order': lambda t, i, epoch, n: np.roll(np.arange(n)[::-1], t + i + epoch),
  }
  want, want_metrics = fed_avg(
    LOGISTIC,
    weights,
    cohorts,
    client_learning_rate=0.3,
    client_optimizer=MOMENTUM,
    server_optimizer=numpy_optimizers.TffAdam(0.2),
    **shared,
  )
  arguments: dict[str, Any] = _central_of(algorithm, 2, 3)
  central_loss = _zero_loss
  if algorithm is two_way:
    # Its central steps follow g~_f even so.
    arguments['central_learning_rate'] = 0.0
  if algorithm is transfer_learning:
    central_loss = LOGISTIC
    arguments |= {'switch_round': 0}
  got, metrics = algorithm(
    LOGISTIC,
    central_loss,
    weights,
    cohorts,
    centrals,
    learning_rate=0.3,
    server_learning_rate=0.5,
    client=MOMENTUM,
    server=numpy_optimizers.TffAdam(0.4),
    **shared,
    **arguments,
  )
  _assert_all_close(got, want)
  for a, b in zip(metrics, want_metrics, strict=True):
    for name in ['loss', 'num_examples', 'num_clients', 'num_left_out', 'update_norm']:
      assert a[name] == pytest.approx(b[name])


# Fixed points. f_f = 0.5 (w - 1)^2 and f_c = 1.5 (w - 5)^2: f has its optimum in 4.


ALIKE = [_client(1.0, [1.0] * 3), _client(1.0, [1.0] * 3)]
CENTRAL = _client(3.0, [5.0])
FIXED: dict[str, Any] = {
  'learning_rate': 0.05,
  'batch_size': 1,
  'central_batch_size': 1,
  'central_steps': 3,
}


def test_the_gradient_transfers_stay_at_the_optimum():
  arguments = QUADRATIC, QUADRATIC, _w(4.0), [ALIKE] * 3, [CENTRAL] * 3
  got, metrics = two_way(*arguments, initial_gradients=(_w(-3.0), _w(3.0)), **FIXED)
  assert _values(got) == pytest.approx([4, 4, 4], rel=1e-14)
  assert metrics[-1]['g_tilde_c']['w'] == pytest.approx(-3)
  assert metrics[-1]['g_tilde_f']['w'] == pytest.approx(3)
  got, _ = one_way(*arguments, learning_rate=0.05, batch_size=1)
  assert _values(got) == pytest.approx([4, 4, 4], rel=1e-14)


def test_parallel_training_leaves_the_optimum_with_more_than_one_step():
  arguments = QUADRATIC, QUADRATIC, _w(4.0), [ALIKE], [CENTRAL]
  settings = FIXED | {'max_steps': 1, 'central_steps': 1}
  got, _ = parallel_training(*arguments, **settings)
  assert _values(got) == pytest.approx([4], rel=1e-14)
  for k in [2, 3]:
    settings = FIXED | {'max_steps': k, 'central_steps': k}
    got, _ = parallel_training(*arguments, **settings)
    # K steps go from x to b + (1 - eta a)^K (x - b).
    moved = -3 * (1 - 0.95**k) + (1 - 0.85**k)
    assert abs(moved) > 0.01
    assert _values(got) == pytest.approx([4 + moved])


def test_two_way_transfer_converges_to_the_optimum_and_parallel_training_does_not():
  arguments = QUADRATIC, QUADRATIC, _w(-2.0), [ALIKE] * 300, [CENTRAL] * 300
  two, _ = two_way(*arguments, **FIXED)
  assert _values(two)[-1] == pytest.approx(4, rel=1e-10)
  parallel, _ = parallel_training(*arguments, **FIXED)
  f, c = 1 - 0.95**3, 1 - 0.85**3
  limit = (f * 1 + c * 5) / (f + c)
  assert abs(limit - 4) > 0.05
  assert _values(parallel)[-1] == pytest.approx(limit, rel=1e-10)


# Several steps, with everything.


@pytest.mark.parametrize('eta_c', [None, 0.15])
@pytest.mark.parametrize('weighting', ['examples', 'uniform'])
@pytest.mark.parametrize('transfers', [False, True])
def test_algorithm_1_closed_form(transfers, weighting, eta_c):
  """A step y <- y - eta (w a (y - b) + g + rho (y - x)) contracts to its limit."""
  eta, eta_s, eta_m, w_f, w_c, rho = 0.1, 0.8, 0.9, 0.6, 0.3, 0.2
  clients = [(1.0, 2.0, 4), (3.0, -1.0, 5), (0.5, 4.0, 1)]
  a_c, b_c, k_c = 2.0, 6.0, 3
  got, metrics = (two_way if transfers else parallel_training)(
    QUADRATIC,
    QUADRATIC,
    _w(5.0),
    [[_client(a, [b] * n) for a, b, n in clients]] * 4,
    [_client(a_c, [b_c])] * 4,
    learning_rate=eta,
    batch_size=2,
    epochs=2,
    central_batch_size=3,
    central_steps=k_c,
    central_learning_rate=eta_c,
    server_learning_rate=eta_s,
    merge_learning_rate=eta_m,
    federated_weight=w_f,
    central_weight=w_c,
    weighting=weighting,
    rho=rho,
  )
  eta_c = eta * eta_s if eta_c is None else eta_c

  def trajectory(x, rate, steps, slope, constant):
    """The last y, and the sum of the others: y <- y - rate (slope y + constant)."""
    limit, shrink = -constant / slope, 1 - rate * slope
    ys = [limit + shrink**k * (x - limit) for k in range(steps + 1)]
    return ys[-1], sum(ys[:-1])

  x, g_c, g_f = 5.0, 0.0, 0.0
  for t in range(4):
    x_c, total = trajectory(x, eta_c, k_c, w_c * a_c, g_f - w_c * a_c * b_c)
    new_g_c = w_c * a_c * (total / k_c - b_c)
    ys, gradients = [], 0.0
    for (a, b, _), k in zip(clients, [4, 6, 2], strict=True):
      constant = g_c - w_f * a * b - rho * x
      y, total = trajectory(x, eta, k, w_f * a + rho, constant)
      ys.append(y)
      gradients += w_f * a * (total - k * b)
    p = [4, 5, 1] if weighting == 'examples' else None
    x_f = x + eta_s * (np.average(ys, weights=p) - x)
    x += eta_m * ((x_c - x) + (x_f - x))
    if transfers:
      g_c, g_f = new_g_c, gradients / 12
    assert _values(got)[t] == pytest.approx(x, rel=1e-12)
    assert metrics[t]['g_tilde_c']['w'] == pytest.approx(g_c)
    assert metrics[t]['g_tilde_f']['w'] == pytest.approx(g_f)
    assert metrics[t]['federated_gradient']['w'] == pytest.approx(gradients / 12)


def test_one_way_closed_form():
  eta, eta_s, w_f, w_c = 0.1, 0.8, 0.6, 0.3
  got, metrics = one_way(
    QUADRATIC,
    QUADRATIC,
    _w(5.0),
    [[_client(1.0, [2.0] * 4), _client(3.0, [-1.0])]] * 3,
    [_client(2.0, [6.0, 8.0, 1.0])] * 3,
    learning_rate=eta,
    server_learning_rate=eta_s,
    batch_size=2,
    federated_weight=w_f,
    central_weight=w_c,
  )
  x = 5.0
  for t in range(3):
    g_c = w_c * 2 * (x - 5)
    y = x
    for _ in range(2):
      y -= eta * (w_f * (y - 2) + g_c)
    z = x - eta * (w_f * 3 * (x + 1) + g_c)
    x += eta_s * ((4 * y + z) / 5 - x)
    assert _values(got)[t] == pytest.approx(x)
    assert metrics[t]['g_tilde_c']['w'] == pytest.approx(g_c)


# The central steps.


@pytest.mark.parametrize(
  ('steps', 'last_mean'), [(1, 1.5), (2, 3.5), (3, 9.0), (4, 1.5), (8, 3.5)]
)
def test_central_batches_come_in_order_and_start_over(steps, last_mean):
  """With a = eta = 1 a step goes to the mean of its batch's b."""
  central = _client(1.0, [1.0, 2.0, 3.0, 4.0, 9.0])
  settings = {
    'central_batch_size': 2,
    'central_steps': steps,
    'central_learning_rate': 1.0,
  }
  got, _ = only_central(QUADRATIC, _w(0.0), [central], **settings)
  assert _values(got) == pytest.approx([last_mean])
  # Every round starts at the first row. The client has no say, its b is x.
  got, _ = parallel_training(
    QUADRATIC,
    QUADRATIC,
    _w(last_mean),
    [[_client(1.0, [last_mean])]] * 2,
    [central] * 2,
    learning_rate=0.3,
    batch_size=1,
    **settings,
  )
  assert _values(got) == pytest.approx([last_mean] * 2)


def test_losses_are_taken_before_each_step_and_without_the_weights():
  # With a = eta = w = 1 / 0.5: losses at 0, then at 1.5 (the first batch's mean).
  rows = _client(1.0, [1.0, 2.0, 4.0])
  _, metrics = parallel_training(
    QUADRATIC,
    QUADRATIC,
    _w(0.0),
    [[rows, _client(1.0, [2.0])]],
    [rows],
    learning_rate=2.0,
    batch_size=2,
    central_batch_size=2,
    central_steps=2,
    federated_weight=0.5,
    central_weight=0.5,
  )
  total = (0.5 + 2.0) + 0.5 * 2.5**2
  assert metrics[0]['central_loss'] == pytest.approx(total / 3)
  assert metrics[0]['loss'] == pytest.approx((total + 2.0) / 4)
  assert metrics[0]['num_clients'] == 2
  assert metrics[0]['num_examples'] == 4


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_a_central_loss_without_data(algorithm):
  """f_c = 0.5 w^2 with no data is f_c with a row of b = 0."""
  settings = {'learning_rate': 0.1, 'batch_size': 2, **_central_of(algorithm, 5, 4)}
  cohorts = [[_client(2.0, [1.0, 5.0, 3.0])]] * 3

  def central_loss(weights, batch):
    assert batch is None
    return 0.5 * float(weights['w'] @ weights['w']), weights

  got, metrics = algorithm(
    QUADRATIC, central_loss, _w(2.0), cohorts, [None] * 3, **settings
  )
  want, want_metrics = algorithm(
    QUADRATIC, QUADRATIC, _w(2.0), cohorts, [_client(1.0, [0.0])] * 3, **settings
  )
  _assert_all_close(got, want)
  for a, b in zip(metrics, want_metrics, strict=True):
    assert a['central_loss'] == pytest.approx(b['central_loss'])


def test_the_central_gradient_is_clipped_before_the_augmenting_one_is_added():
  """The central gradient (3, 4) w_c has norm 10, and is clipped to 2."""

  def linear(weights, batch):
    del batch
    gradient = {'v': np.array([3.0]), 'w': np.array([4.0])}
    return float(3 * weights['v'][0] + 4 * weights['w'][0]), gradient

  x = {'v': np.zeros(1), 'w': np.zeros(1)}
  settings: dict[str, Any] = {
    'central_batch_size': 1,
    'central_steps': 2,
    'central_learning_rate': 0.1,
    'central_weight': 2.0,
  }
  for clip, factor in [(2.0, 0.4), (10.1, 2.0), (None, 2.0)]:
    got, _ = only_central(linear, x, [None], clip_central_norm=clip, **settings)
    want = {'v': -0.2 * factor * np.array([3.0]), 'w': -0.2 * factor * np.array([4.0])}
    _assert_close(got[0], want)
  g_f = {'v': np.array([100.0]), 'w': np.array([-50.0])}
  got, metrics = two_way(
    _zero_loss,
    linear,
    x,
    [[_client(1.0, [1.0])]],
    [None],
    initial_gradients=({k: np.zeros(1) for k in x}, g_f),
    learning_rate=1.0,
    batch_size=1,
    clip_central_norm=2.0,
    **settings,
  )
  _assert_close(metrics[0]['g_tilde_c'], {'v': [1.2], 'w': [1.6]})
  _assert_close(got[0], {'v': [-0.2 * 101.2], 'w': [-0.2 * -48.4]})
  # Equation 7 takes the gradient as it is; that of the clients is 0.
  assert metrics[0]['g_tilde_square'] == pytest.approx(10**2 / 2 - 10**2)
  got, metrics = one_way(
    _zero_loss,
    linear,
    x,
    [[_client(1.0, [1.0])]],
    [None],
    learning_rate=0.1,
    batch_size=1,
    clip_central_norm=2.0,
    central_weight=2.0,
  )
  _assert_close(got[0], {'v': [-0.12], 'w': [-0.16]})
  assert metrics[0]['b_tilde_square'] == pytest.approx(0.5)


# The states of the optimizers.


def test_only_central_keeps_the_state_over_rounds_and_parallel_training_does_not():
  settings = {'central_batch_size': 1, 'central_learning_rate': 0.2}
  central = _client(1.0, [0.0])
  whole, _ = only_central(
    QUADRATIC, _w(1.0), [central], central_steps=6, central=MOMENTUM, **settings
  )
  got, _ = only_central(
    QUADRATIC, _w(1.0), [central] * 3, central_steps=2, central=MOMENTUM, **settings
  )
  _assert_close(got[-1], whole[-1])
  # Fresh momentum: two steps have the factor (1 - 0.1) (1 - 0.1) - 0.2 * 0.25.
  got, _ = parallel_training(
    _zero_loss,
    QUADRATIC,
    _w(1.0),
    [[_client(1.0, [1.0])]] * 3,
    [central] * 3,
    learning_rate=1.0,
    batch_size=1,
    central_steps=2,
    central=MOMENTUM,
    **settings,
  )
  y_1 = 1 - 0.2 * 0.5
  y_2 = y_1 - 0.2 * (0.5 * y_1 + 0.5 * 0.5)
  assert _values(got) == pytest.approx([y_2, y_2**2, y_2**3])
  # The same in the central stage of transfer learning, unless it is to be kept.
  for keep, want in [(False, y_2**3), (True, _values(whole)[0])]:
    got, _ = transfer_learning(
      QUADRATIC,
      QUADRATIC,
      _w(1.0),
      [[]] * 3,
      [central] * 3,
      learning_rate=1.0,
      batch_size=1,
      central_steps=2,
      central=MOMENTUM,
      switch_round=3,
      keep_central_state=keep,
      **settings,
    )
    assert _values(got)[-1] == pytest.approx(want)


@pytest.mark.parametrize('algorithm', [parallel_training, two_way])
def test_the_server_and_merge_states_are_kept_over_rounds(algorithm):
  """With linear losses: both have momentum, m <- 0.5 (m + g)."""

  def linear(slope):
    return lambda weights, batch: (0.0, {'w': np.full_like(weights['w'], slope)})

  got, _ = algorithm(
    linear(2.0),
    linear(3.0),
    _w(0.0),
    [[_client(1.0, [1.0])]] * 3,
    [None] * 3,
    learning_rate=0.1,
    batch_size=1,
    central_batch_size=1,
    central_steps=1,
    server=MOMENTUM,
    merge=MOMENTUM,
  )
  x, m_s, m_m, want = 0.0, 0.0, 0.0, []
  for t in range(3):
    transfers = algorithm is two_way and t > 0
    m_s = 0.5 * (m_s + 0.1 * (2 + 3 * transfers))
    m_m = 0.5 * (m_m + m_s + 0.1 * (3 + 2 * transfers))
    x -= m_m
    want.append(x)
  assert _values(got) == pytest.approx(want)


# Equation 7.


def test_dissimilarity_by_hand():
  f = {'a': np.array([3.0]), 'b': np.array([0.0])}
  c = {'a': np.array([0.0]), 'b': np.array([4.0])}
  assert dissimilarity(f, c, 0.5, 0.5) == pytest.approx((50 - 25, 2))
  assert dissimilarity(f, c, 0.75, 0.25) == pytest.approx((12 + 64 - 25, 76 / 25))
  assert dissimilarity(f, c, 1.0, 1.0) == pytest.approx((0, 1))
  # Alike but for the weights: the least there can be.
  for w in [0.5, 0.2]:
    both = ({k: q * v for k, v in f.items()} for q in (w, 1 - w))
    assert dissimilarity(*both, w, 1 - w) == pytest.approx((0, 1), abs=1e-14)
  zero = {k: 0 * v for k, v in f.items()}
  assert dissimilarity(f, zero, 1.0, 0.0) == pytest.approx((0, 1))
  minus = {k: -v for k, v in f.items()}
  assert dissimilarity(f, minus, 0.5, 0.5) == (36, math.inf)
  g, b = dissimilarity(zero, zero, 0.5, 0.5)
  assert g == 0
  assert math.isnan(b)


@pytest.mark.parametrize('weighting', ['examples', 'uniform'])
@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_dissimilarity_takes_the_first_batches_at_x_and_a_uniform_mean(
  algorithm, weighting
):
  weights, cohorts, centrals = _problem()
  order = np.roll
  got, metrics = algorithm(
    LOGISTIC,
    LOGISTIC,
    weights,
    [[*cohort, _classifier(np.random.default_rng(9), 0)] for cohort in cohorts],
    centrals,
    learning_rate=0.3,
    batch_size=2,
    federated_weight=0.7,
    central_weight=0.3,
    weighting=weighting,
    order=lambda t, i, epoch, n: order(np.arange(n), t + i),
    **_central_of(algorithm, 2, 5),
  )
  for t, x in enumerate([weights, *got[:-1]]):
    firsts = []
    for i, rows in enumerate(cohorts[t]):
      first = order(np.arange(len(rows['y'])), t + i)[:2]
      firsts.append(LOGISTIC(x, {k: v[first] for k, v in rows.items()})[1])
    f = {k: 0.7 * np.mean([g[k] for g in firsts], axis=0) for k in x}
    rows = centrals[t]
    if algorithm is not one_way:
      rows = {k: v[:2] for k, v in rows.items()}
    c = {k: 0.3 * v for k, v in LOGISTIC(x, rows)[1].items()}
    f, c = (np.concatenate([v.ravel() for v in g.values()]) for g in (f, c))
    terms, square = f @ f / 0.7 + c @ c / 0.3, (f + c) @ (f + c)
    assert metrics[t]['g_tilde_square'] == pytest.approx(terms - square)
    assert metrics[t]['b_tilde_square'] == pytest.approx(terms / square)


# Transfer learning.


@pytest.mark.parametrize('switch_round', [0, 1, 2, 4])
@pytest.mark.parametrize('first', ['central', 'federated'])
def test_transfer_learning_is_one_stage_after_the_other(first, switch_round):
  weights, cohorts, centrals = _problem(rounds=4)
  got, metrics = transfer_learning(
    LOGISTIC,
    LOGISTIC,
    weights,
    cohorts,
    centrals,
    learning_rate=0.3,
    server_learning_rate=0.6,
    batch_size=2,
    central_batch_size=4,
    central_steps=3,
    order_of_stages=f'{first}_first',
    switch_round=switch_round,
    server=MOMENTUM,
    clip_central_norm=0.2,
  )

  def stage(kind, x, part):
    if kind == 'central':
      return only_central(
        LOGISTIC,
        x,
        centrals[part],
        central_batch_size=4,
        central_steps=3,
        central_learning_rate=0.3 * 0.6,
        clip_central_norm=0.2,
      )
    return fed_avg(
      LOGISTIC,
      x,
      cohorts[part],
      client_learning_rate=0.3,
      server_optimizer=numpy_optimizers.BaseServer(MOMENTUM, 0.6),
      batch_size=2,
    )

  second = {'central': 'federated', 'federated': 'central'}[first]
  want, _ = stage(first, weights, slice(switch_round))
  want += stage(second, [weights, *want][-1], slice(switch_round, None))[0]
  _assert_all_close(got, want)
  central = [(t < switch_round) == (first == 'central') for t in range(4)]
  assert [m['num_clients'] == 0 for m in metrics] == central
  assert [math.isnan(m['loss']) for m in metrics] == central
  assert [not math.isnan(m['central_loss']) for m in metrics] == central


# Populations.


def test_one_population_is_fed_avg():
  weights, cohorts, _ = _problem()
  shared: dict[str, Any] = {
    'batch_size': 2,
    'epochs': 2,
    'weighting': 'uniform',
    'order': lambda t, i, epoch, n: np.roll(np.arange(n), t + i + epoch),
  }
  want, want_metrics = fed_avg(
    LOGISTIC,
    weights,
    cohorts,
    client_learning_rate=0.3,
    server_optimizer=numpy_optimizers.BaseServer(MOMENTUM, 0.6),
    **shared,
  )
  got, metrics = populations(
    [LOGISTIC],
    weights,
    [[(0, rows) for rows in cohort] for cohort in cohorts],
    learning_rate=0.3,
    population_weights=[1.0],
    server_learning_rates=[0.6],
    servers=[MOMENTUM],
    **shared,
  )
  _assert_all_close(got, want)
  for a, b in zip(metrics, want_metrics, strict=True):
    for name in ['loss', 'num_examples', 'num_clients', 'update_norm']:
      assert a[name] == pytest.approx(b[name])


def test_a_population_of_one_client_is_like_a_centre():
  weights, cohorts, centrals = _problem(central_rows=6)
  shared: dict[str, Any] = {
    'learning_rate': 0.3,
    'batch_size': 2,
    'merge_learning_rate': 0.9,
    'merge': MOMENTUM,
  }
  want, want_metrics = parallel_training(
    LOGISTIC,
    LOGISTIC,
    weights,
    cohorts,
    centrals,
    central_batch_size=2,
    central_steps=3,
    server_learning_rate=0.6,
    central_learning_rate=0.3,
    federated_weight=0.7,
    central_weight=0.2,
    **shared,
  )
  mixed = [
    [(1, central), *((0, rows) for rows in cohort)]
    for cohort, central in zip(cohorts, centrals, strict=True)
  ]
  got, metrics = populations(
    [LOGISTIC, LOGISTIC],
    weights,
    mixed,
    population_weights=[0.7, 0.2],
    server_learning_rates=[0.6, 1.0],
    **shared,
  )
  _assert_all_close(got, want)
  for a, b in zip(metrics, want_metrics, strict=True):
    of_population = [m['loss'] for m in a['population_metrics']]
    assert of_population == pytest.approx([b['loss'], b['central_loss']])
    assert a['num_clients'] == 4
    assert a['loss'] == pytest.approx((12 * b['loss'] + 6 * b['central_loss']) / 18)


def test_a_population_without_usable_clients_contributes_nothing():
  """With a = eta = 1 the clients go to their b; both servers have momentum."""
  first, second = (0, _client(1.0, [2.0])), (1, _client(1.0, [-4.0]))
  bad = (1, _client(1.0, [NAN]))
  got, metrics = populations(
    [QUADRATIC, QUADRATIC],
    _w(0.0),
    [[first, second], [first, bad], [bad], [], [second, first]],
    learning_rate=1.0,
    batch_size=1,
    population_weights=[1.0, 1.0],
    server_learning_rates=[1.0, 0.5],
    servers=[MOMENTUM, MOMENTUM],
  )
  x, m, want = 0.0, [0.0, 0.0], []
  for present in [(0, 1), (0,), (), (), (0, 1)]:
    new = x
    for p in present:
      m[p] = 0.5 * m[p] + 0.5 * (x - [2.0, -4.0][p])
      new -= [1.0, 0.5][p] * m[p]
    x = new
    want.append(x)
  assert _values(got) == pytest.approx(want)
  assert [m['num_clients'] for m in metrics] == [2, 1, 0, 0, 2]
  assert [m['num_left_out'] for m in metrics] == [0, 1, 1, 0, 0]


# Guards.


@pytest.mark.parametrize('weighting', ['examples', 'uniform'])
@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_clients_are_left_out_of_everything(algorithm, weighting):
  good = [_client(1.0, [1.0, 1.0]), _client(2.0, [3.0])]
  bad = [
    _client(1.0, [1.0, NAN]),
    _client(1.0, [float('inf')]),
    _client(1e300, [1.0] * 8),  # finite data, but the steps overflow
    _client(1.0, []),
  ]
  central = _client(1.0, [3.0, 5.0])
  settings: dict[str, Any] = {
    'learning_rate': 0.2,
    'batch_size': 1,
    'epochs': 3,
    'weighting': weighting,
    'server': MOMENTUM,
    **_central_of(algorithm, 1, 2),
  }
  if algorithm is not one_way:
    settings['merge'] = MOMENTUM
  want, want_metrics = algorithm(
    QUADRATIC, QUADRATIC, _w(2.0), [good] * 3, [central] * 3, **settings
  )
  cohorts = [bad + good, bad, [], good, good + bad]
  got, metrics = algorithm(
    QUADRATIC, QUADRATIC, _w(2.0), cohorts, [central] * 5, **settings
  )
  # Rounds without a usable client change nothing, the optimizers' states neither.
  kept = [0, 3, 4]
  assert got[0] == got[1] == got[2]
  assert [got[t] for t in kept] == want
  for t, of_want in zip(kept, want_metrics, strict=True):
    left_out = metrics[t].pop('num_left_out')
    assert left_out == (0 if t == 3 else 3)
    assert of_want.pop('num_left_out') == 0
    assert metrics[t] == of_want
  for t in [1, 2]:
    for name in ['g_tilde_c', 'g_tilde_f']:
      assert metrics[t][name] == metrics[0][name]
    for name in ['loss', 'g_tilde_square', 'b_tilde_square']:
      assert math.isnan(metrics[t][name])
    assert metrics[t]['federated_gradient'] is None
    assert metrics[t]['num_clients'] == metrics[t]['update_norm'] == 0


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_a_client_is_left_out_for_a_row_that_no_step_sees(algorithm):
  got, metrics = algorithm(
    QUADRATIC,
    QUADRATIC,
    _w(2.0),
    [[_client(1.0, [1.0, NAN])]],
    [_client(1.0, [3.0])],
    learning_rate=0.2,
    batch_size=1,
    max_steps=1,
    **_central_of(algorithm, 1, 2),
  )
  assert _values(got) == [2.0]
  assert metrics[0]['num_left_out'] == 1


@pytest.mark.parametrize('algorithm', ALGORITHMS)
def test_a_round_to_something_not_finite_is_not_taken(algorithm):
  good = [_client(1.0, [1.0, 1.0]), _client(2.0, [3.0])]
  central, bad = _client(1.0, [3.0]), _client(1.0, [NAN])
  settings: dict[str, Any] = {
    'learning_rate': 0.2,
    'batch_size': 1,
    'server': MOMENTUM,
    **_central_of(algorithm, 1, 2),
  }
  want, want_metrics = algorithm(
    QUADRATIC, QUADRATIC, _w(2.0), [good] * 2, [central] * 2, **settings
  )
  got, metrics = algorithm(
    QUADRATIC, QUADRATIC, _w(2.0), [good] * 3, [central, bad, central], **settings
  )
  assert got == [want[0], want[0], want[1]]
  assert metrics[1]['update_norm'] == 0
  assert metrics[1]['g_tilde_c'] == metrics[0]['g_tilde_c']
  assert metrics[2] == want_metrics[1]
  # 1-way transfer has sent the NaN to all clients.
  assert metrics[1]['num_clients'] == (0 if algorithm is one_way else 2)


def test_only_central_does_not_take_a_round_to_something_not_finite():
  centrals = [_client(1.0, [b]) for b in (3.0, NAN, 3.0)]
  settings: dict[str, Any] = {
    'central_batch_size': 1,
    'central_steps': 2,
    'central_learning_rate': 0.2,
    'central': MOMENTUM,
  }
  want, _ = only_central(QUADRATIC, _w(1.0), centrals[::2], **settings)
  got, _ = only_central(QUADRATIC, _w(1.0), centrals, **settings)
  assert got == [want[0], want[0], want[1]]


def test_float32_and_the_arguments_are_kept():
  weights, cohorts, centrals = _problem()
  weights = {k: v.astype(np.float32) for k, v in weights.items()}
  start = {k: v.copy() for k, v in weights.items()}
  for algorithm in ALGORITHMS:
    got, metrics = algorithm(
      LOGISTIC,
      LOGISTIC,
      weights,
      cohorts,
      centrals,
      learning_rate=0.3,
      batch_size=2,
      federated_weight=0.7,
      central_weight=0.3,
      clip_central_norm=0.1,
      client=numpy_optimizers.TffSgd(1.0, 0.9),
      rho=0.1,
      **_central_of(algorithm, 2, 3),
    )
    names = ['federated_gradient', 'recovered_gradient', 'g_tilde_c', 'g_tilde_f']
    for tree in [got[-1], *(metrics[-1][name] for name in names)]:
      assert all(v.dtype == np.float32 for v in tree.values())
  for key, value in start.items():
    np.testing.assert_array_equal(weights[key], value)


def test_what_an_algorithm_does_not_have_is_refused():
  arguments = QUADRATIC, QUADRATIC, _w(1.0), [], []
  settings: dict[str, Any] = {'learning_rate': 0.1, 'batch_size': 1}
  for name in ['central_steps', 'merge_learning_rate', 'steps']:
    with pytest.raises(TypeError, match=name):
      one_way(*arguments, **settings, **{name: 1})
  with pytest.raises(TypeError, match='federated_weight'):
    transfer_learning(*arguments, switch_round=1, federated_weight=0.5, **settings)
  with pytest.raises(ValueError, match='mixed_first'):
    transfer_learning(
      *arguments, switch_round=1, order_of_stages='mixed_first', **settings
    )
  with pytest.raises(ValueError, match='no rows'):
    one_way(QUADRATIC, QUADRATIC, _w(1.0), [[]], [_client(1.0, [])], **settings)
