"""Tests of the oracles themselves: finite differences, TFF, closed forms."""

import math
from typing import Any

import numpy as np
import pytest

from tests.oracles import numpy_models, numpy_optimizers
from tests.oracles.fed_avg import fed_avg
from tests.oracles.server_only import server_only

QUADRATIC = numpy_models.Quadratic.loss_and_gradient
NAN = float('nan')


def _classifier_batch(rng: np.random.Generator):
  return {'x': rng.normal(size=(7, 4)), 'y': rng.integers(3, size=7)}


def _problems():
  """name -> (model, float64 weights, batch)."""
  rng = np.random.default_rng(1)
  linear = {'kernel': rng.normal(size=(4, 2)), 'bias': rng.normal(size=2)}
  logistic = {'kernel': rng.normal(size=(4, 3)), 'bias': rng.normal(size=3)}
  mlp = {
    'kernel_1': rng.normal(size=(4, 5)),
    'bias_1': rng.normal(size=5),
    'kernel_2': rng.normal(size=(5, 3)),
    'bias_2': rng.normal(size=3),
  }
  return {
    'linear': (
      numpy_models.LinearRegression,
      linear,
      {'x': rng.normal(size=(7, 4)), 'y': rng.normal(size=(7, 2))},
    ),
    'logistic': (numpy_models.LogisticRegression, logistic, _classifier_batch(rng)),
    'mlp': (numpy_models.Mlp, mlp, _classifier_batch(rng)),
    'quadratic': (
      numpy_models.Quadratic,
      {'w': rng.normal(size=3)},
      {'a': rng.normal(size=(4, 3, 3)), 'b': rng.normal(size=(4, 3))},
    ),
  }


def _client(a, b):
  """Rows of the one-dimensional quadratic 0.5 a (w - b)^2."""
  b = np.asarray(b, np.float64)
  return {'a': np.broadcast_to(a, b.shape)[:, None, None], 'b': b[:, None]}


def _w(value: float):
  return {'w': np.array([value])}


def _sgd_server(rate: float = 1.0):
  return numpy_optimizers.BaseServer(numpy_optimizers.Sgd(), rate)


def _values(all_weights):
  return [float(weights['w'][0]) for weights in all_weights]


# Models.


@pytest.mark.parametrize('name', ['linear', 'logistic', 'mlp', 'quadratic'])
def test_gradient_agrees_with_finite_differences(name):
  model, weights, batch = _problems()[name]
  _, gradient = model.loss_and_gradient(weights, batch)
  assert gradient.keys() == weights.keys()
  h = 1e-6
  for key, value in weights.items():
    numeric = np.zeros_like(value)
    for index in np.ndindex(value.shape):
      losses = []
      for sign in (1, -1):
        moved = {k: v.copy() for k, v in weights.items()}
        moved[key][index] += sign * h
        losses.append(model.loss_and_gradient(moved, batch)[0])
      numeric[index] = (losses[0] - losses[1]) / (2 * h)
    np.testing.assert_allclose(gradient[key], numeric, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize('name', ['linear', 'logistic', 'mlp', 'quadratic'])
def test_gradient_has_the_dtype_of_the_weights(name):
  model, weights, batch = _problems()[name]
  loss64, gradient64 = model.loss_and_gradient(weights, batch)
  weights32 = {k: v.astype(np.float32) for k, v in weights.items()}
  loss32, gradient32 = model.loss_and_gradient(weights32, batch)
  assert loss32 == pytest.approx(loss64, rel=1e-5)
  for key, value in gradient32.items():
    assert value.dtype == np.float32
    np.testing.assert_allclose(value, gradient64[key], rtol=1e-4, atol=1e-5)


def test_losses_by_hand():
  one = np.ones((1, 1))
  linear = {'kernel': 2 * one, 'bias': np.ones(1)}
  loss, _ = numpy_models.LinearRegression.loss_and_gradient(
    linear, {'x': np.array([[1.0], [2.0]]), 'y': np.array([[1.0], [1.0]])}
  )
  assert loss == pytest.approx((0.5 * 2**2 + 0.5 * 4**2) / 2)
  batch = {'x': np.array([[1.0], [-1.0]]), 'y': np.array([1, 1])}
  logistic = {'kernel': np.array([[0.0, math.log(3)]]), 'bias': np.zeros(2)}
  loss, _ = numpy_models.LogisticRegression.loss_and_gradient(logistic, batch)
  assert loss == pytest.approx(-(math.log(3 / 4) + math.log(1 / 4)) / 2)
  assert numpy_models.LogisticRegression.num_correct(logistic, batch) == 1
  mlp = {
    'kernel_1': one,
    'bias_1': np.zeros(1),
    'kernel_2': np.array([[0.0, math.log(3) / math.tanh(1)]]),
    'bias_2': np.zeros(2),
  }
  loss, _ = numpy_models.Mlp.loss_and_gradient(mlp, batch)
  assert loss == pytest.approx(-(math.log(3 / 4) + math.log(1 / 4)) / 2)
  assert numpy_models.Mlp.num_correct(mlp, batch) == 1
  assert QUADRATIC(_w(3.0), _client(2.0, [1.0, 2.0]))[0] == pytest.approx(2.5)


# Optimizers.


def test_replicas_agree_with_tff_optimizers():
  import tensorflow as tf
  import tensorflow_federated as tff

  ours, theirs = numpy_optimizers, tff.learning.optimizers
  both = (np.float32, np.float64)
  # TFF's momentum and RMSprop multiply a float32 state with the weights and so
  # cannot have float64 weights.
  cases: list[tuple[Any, Any, tuple, list]] = [
    (ours.TffSgd(), theirs.build_sgdm(), both, []),
    (ours.TffSgd(0.3), theirs.build_sgdm(0.3), both, []),
    (ours.TffSgd(0.3, 0.0), theirs.build_sgdm(0.3, 0.0), both, []),
    (
      ours.TffSgd(0.3, 0.9),
      theirs.build_sgdm(0.3, 0.9),
      (np.float32,),
      [('v', 'accumulator')],
    ),
    (
      ours.TffRmsprop(0.3),
      theirs.build_rmsprop(0.3),
      (np.float32,),
      [('v', 'preconditioner')],
    ),
    (
      ours.TffRmsprop(0.3, 0.7, 0.1),
      theirs.build_rmsprop(0.3, 0.7, 0.1),
      (np.float32,),
      [('v', 'preconditioner')],
    ),
  ]
  moments = [('m', 'accumulator'), ('v', 'preconditioner'), ('step', 'step')]
  for args in [(0.3,), (0.3, 0.2, 0.01)]:
    cases.append(
      (
        ours.TffAdagrad(*args),
        theirs.build_adagrad(*args),
        both,
        [('v', 'preconditioner')],
      )
    )
  for args in [(0.3,), (0.3, 0.8, 0.9, 0.01)]:
    cases.append((ours.TffAdam(*args), theirs.build_adam(*args), both, moments))
  for args in [(0.3,), (0.3, 0.8, 0.9, 0.01, 0.2)]:
    cases.append((ours.TffYogi(*args), theirs.build_yogi(*args), both, moments))

  rng = np.random.default_rng(2)
  for our, their, dtypes, state_keys in cases:
    for dtype in dtypes:
      weights = {
        'kernel': rng.normal(size=(3, 2)).astype(dtype),
        'bias': rng.normal(size=2).astype(dtype),
      }
      state = our.init(weights)
      specs = {k: tf.TensorSpec(v.shape, v.dtype) for k, v in weights.items()}
      # A state that passes through a computation has tensors, not floats.
      their_state = tf.nest.map_structure(tf.convert_to_tensor, their.initialize(specs))
      their_weights = tf.nest.map_structure(tf.constant, weights)
      for _ in range(4):
        gradient = {
          k: rng.normal(size=v.shape).astype(dtype) for k, v in weights.items()
        }
        state, weights = our.next(state, weights, gradient)
        their_state, their_weights = their.next(
          their_state,
          their_weights,
          tf.nest.map_structure(tf.constant, gradient),
        )
        # float32 also bounds float64: TFF's bias correction is in float32.
        for key, value in weights.items():
          assert value.dtype == dtype
          np.testing.assert_allclose(
            value, their_weights[key].numpy(), rtol=2e-6, atol=1e-6
          )
        for our_key, their_key in state_keys:
          tf.nest.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b.numpy(), rtol=1e-6, atol=1e-9),
            state[our_key],
            their_state[their_key],
          )


def test_base_optimizers_by_hand():
  g, x = _w(2.0), _w(1.0)

  momentum = numpy_optimizers.Momentum(0.75)
  s = {'m': _w(4.0)}
  assert momentum.U(g, s)['w'] == pytest.approx(0.25 * 2 + 0.75 * 4)
  assert momentum.V(g, s)['m']['w'] == pytest.approx(3.5)

  adagrad = numpy_optimizers.AdaGrad(epsilon=0.5, initial_accumulator=9.0)
  s = adagrad.init(x)
  assert adagrad.U(g, s)['w'] == pytest.approx(2 / 3.5)
  assert adagrad.V(g, s)['v']['w'] == pytest.approx(13)
  assert numpy_optimizers.AdaGrad().init(x)['v']['w'] == pytest.approx(0.1)

  adam = numpy_optimizers.Adam(0.75, 0.5, epsilon=0.5)
  s = {'m': _w(4.0), 'v': _w(16.0)}
  assert adam.U(g, s)['w'] == pytest.approx(3.5 / 4.5)
  assert adam.V(g, s)['m']['w'] == pytest.approx(3.5)
  assert adam.V(g, s)['v']['w'] == pytest.approx(10)
  # The first step divides by epsilon alone.
  adam = numpy_optimizers.Adam()
  assert adam.U(g, adam.init(x))['w'] == pytest.approx(0.1 * 2 / 1e-3)

  # The server takes U with the old state, and its rate times the factor.
  server = numpy_optimizers.BaseServer(
    numpy_optimizers.AdaGrad(epsilon=0.5, initial_accumulator=9.0), 7.0
  )
  s, x = server.next(server.init(x), x, g, factor=0.5)
  assert x['w'] == pytest.approx(1 - 3.5 * 2 / 3.5)
  assert s['v']['w'] == pytest.approx(13)


@pytest.mark.parametrize(
  'optimizer',
  [
    numpy_optimizers.TffSgd(0.25),
    numpy_optimizers.TffSgd(0.25, 0.5),
    numpy_optimizers.TffAdagrad(0.25),
    numpy_optimizers.TffRmsprop(0.25),
    numpy_optimizers.TffAdam(0.25),
    numpy_optimizers.TffYogi(0.25),
    numpy_optimizers.BaseServer(numpy_optimizers.Adam(), 0.25),
  ],
)
def test_factor_scales_the_step_and_not_the_state(optimizer):
  x = g = _w(3.0)
  state, whole = optimizer.next(optimizer.init(x), x, g)
  state_half, half = optimizer.next(optimizer.init(x), x, g, factor=0.5)
  assert whole['w'] != x['w']
  assert x['w'] - half['w'] == pytest.approx(0.5 * (x['w'] - whole['w']))
  assert state == state_half


# FedAvg.


@pytest.mark.parametrize('rho', [0.0, 0.7])
@pytest.mark.parametrize('weighting', ['examples', 'uniform'])
def test_fed_avg_closed_form(rho, weighting):
  """K steps contract by (1 - eta (a + rho))^K to (a b + rho x) / (a + rho)."""
  eta, server_rate = 0.1, 0.8
  # (a, b, rows): 2 epochs of batches of 2 are K = 4, 6, 2 steps.
  clients = [(1.0, 2.0, 4), (3.0, -1.0, 5), (0.5, 4.0, 1)]
  steps = [4, 6, 2]
  cohort = [_client(a, [b] * rows) for a, b, rows in clients]
  got, metrics = fed_avg(
    QUADRATIC,
    _w(5.0),
    [cohort] * 3,
    client_learning_rate=eta,
    server_optimizer=_sgd_server(server_rate),
    batch_size=2,
    epochs=2,
    weighting=weighting,
    rho=rho,
  )
  x, want = 5.0, []
  for t in range(3):
    ys = []
    for (a, b, _), k in zip(clients, steps, strict=True):
      limit = (a * b + rho * x) / (a + rho)
      ys.append(limit + (1 - eta * (a + rho)) ** k * (x - limit))
    p = [4, 5, 1] if weighting == 'examples' else [1, 1, 1]
    mean = float(np.average(ys, weights=p))
    new_x = x + server_rate * (mean - x)
    assert metrics[t]['drift'] == pytest.approx(np.mean(np.abs(np.subtract(ys, x))))
    spread = math.sqrt(np.average((np.array(ys) - mean) ** 2, weights=p))
    assert metrics[t]['spread'] == pytest.approx(spread)
    assert metrics[t]['update_norm'] == pytest.approx(abs(new_x - x))
    assert metrics[t]['num_examples'] == 10
    assert metrics[t]['num_clients'] == 3
    assert metrics[t]['num_left_out'] == 0
    x = new_x
    want.append(x)
  np.testing.assert_allclose(_values(got), want, rtol=1e-12)


@pytest.mark.parametrize(
  ('epochs', 'max_steps', 'order', 'last_mean'),
  [
    (1, None, None, 9.0),  # the last batch is shorter
    (1, 2, None, 3.5),
    (2, 4, None, 1.5),  # the second epoch starts at the first row
    (2, 99, None, 9.0),
    (1, None, lambda t, i, epoch, n: np.arange(n)[::-1], 1.0),
    (2, None, lambda t, i, epoch, n: np.roll(np.arange(n), epoch), 4.0),
    (1, None, lambda t, i, epoch, n: np.roll(np.arange(n), 2 * i + t), 3.0),
  ],
)
def test_batches_epochs_steps_and_order(epochs, max_steps, order, last_mean):
  """With a = eta = 1 a step goes to the mean of its batch's b."""
  empty = _client(1.0, [])
  client = _client(1.0, [1.0, 2.0, 3.0, 4.0, 9.0])
  # An empty client ahead, so that the client's index in the cohort is 1.
  got, _ = fed_avg(
    QUADRATIC,
    _w(0.0),
    [[empty, client]],
    client_learning_rate=1.0,
    server_optimizer=_sgd_server(),
    batch_size=2,
    epochs=epochs,
    max_steps=max_steps,
    order=order,
  )
  assert _values(got) == pytest.approx([last_mean])


def test_training_metrics_are_taken_before_each_step():
  # With a = eta = 1: losses at 0, then at 1.5 (the first batch's mean).
  client = _client(1.0, [1.0, 2.0, 4.0])
  other = _client(1.0, [2.0])
  _, metrics = fed_avg(
    QUADRATIC,
    _w(0.0),
    [[client, other]],
    client_learning_rate=1.0,
    server_optimizer=_sgd_server(),
    batch_size=2,
    num_correct=lambda w, batch: int(np.sum(batch['b'] > w['w'])),
  )
  total = (0.5 + 2.0) + 0.5 * 2.5**2 + 2.0
  assert metrics[0]['loss'] == pytest.approx(total / 4)
  assert metrics[0]['accuracy'] == 1.0
  # Two epochs, at w = 3, 1.5, 4, 1.5: b > w in 0 of 2, 1 of 1, 0 of 2, 1 of 1.
  _, metrics = fed_avg(
    QUADRATIC,
    _w(3.0),
    [[client]],
    client_learning_rate=1.0,
    server_optimizer=_sgd_server(),
    batch_size=2,
    epochs=2,
    num_correct=lambda w, batch: int(np.sum(batch['b'] > w['w'])),
  )
  assert metrics[0]['accuracy'] == pytest.approx(2 / 6)


def test_guards_leave_out_clients_and_keep_the_state():
  good = [_client(1.0, [1.0, 1.0]), _client(2.0, [3.0])]
  bad = [
    _client(1.0, [1.0, NAN]),  # the NaN is in a row that is never reached
    _client(1.0, [float('inf')]),
    _client(1e300, [1.0] * 8),  # finite data, but the steps overflow
    _client(1.0, []),
  ]
  arguments: dict[str, Any] = {
    'client_learning_rate': 0.5,
    'batch_size': 1,
    'epochs': 3,
    'max_steps': 1,
  }
  server = numpy_optimizers.BaseServer(numpy_optimizers.Momentum(0.5))
  want, _ = fed_avg(
    QUADRATIC, _w(2.0), [good] * 3, server_optimizer=server, **arguments
  )
  # Rounds without a kept client between the good ones change nothing.
  got, metrics = fed_avg(
    QUADRATIC,
    _w(2.0),
    [good, bad[:2], bad[3:], [], good, good],
    server_optimizer=server,
    **arguments,
  )
  got = _values(got)
  assert got[1] == got[2] == got[3] == got[0]
  np.testing.assert_array_equal([got[0], got[4], got[5]], _values(want))
  assert [m['num_left_out'] for m in metrics] == [0, 2, 0, 0, 0, 0]
  assert [m['num_clients'] for m in metrics] == [2, 0, 0, 0, 2, 2]
  assert [m['update_norm'] for m in metrics][1:4] == [0, 0, 0]
  assert all(math.isnan(m['loss']) for m in metrics[1:4])
  # Good and bad clients together are the good ones alone; more steps, so that
  # the third bad client overflows.
  arguments['max_steps'] = None
  for weighting in ['examples', 'uniform']:
    alone, alone_metrics = fed_avg(
      QUADRATIC,
      _w(2.0),
      [good] * 2,
      server_optimizer=server,
      weighting=weighting,
      **arguments,
    )
    mixed, mixed_metrics = fed_avg(
      QUADRATIC,
      _w(2.0),
      [bad + good, good + bad],
      server_optimizer=server,
      weighting=weighting,
      **arguments,
    )
    np.testing.assert_array_equal(_values(mixed), _values(alone))
    for a, b in zip(mixed_metrics, alone_metrics, strict=True):
      assert a.pop('num_left_out') == 3
      assert b.pop('num_left_out') == 0
      assert a == b


def test_server_step_that_is_not_finite_is_not_taken():
  client = _client(1.0, [1.0])
  got, metrics = fed_avg(
    QUADRATIC,
    _w(2.0),
    [[client]] * 3,
    client_learning_rate=0.5,
    server_optimizer=_sgd_server(1e300),
    batch_size=1,
    server_schedule=lambda t: 1e300 if t == 1 else 1e-300,
  )
  assert _values(got) == pytest.approx([1.5, 1.5, 1.25])
  assert metrics[1]['update_norm'] == 0


def test_schedules_count_rounds_from_zero():
  # a = 1, b = 0: each round multiplies x by 1 - eta * factor.
  client = _client(1.0, [0.0])
  got, _ = fed_avg(
    QUADRATIC,
    _w(1.0),
    [[client], [], [client]],
    client_learning_rate=lambda t: [0.5, 0.1, 0.25][t],
    server_optimizer=_sgd_server(2.0),
    batch_size=1,
    server_schedule=lambda t: [0.5, 9.0, 0.25][t],
  )
  assert _values(got) == pytest.approx([0.5, 0.5, 0.5 * (1 - 0.25 * 0.5)])


def test_client_optimizer_starts_afresh():
  """y: 1 -> 0.75 (m = 0.5) -> 0.4375, and the same factor every round."""
  client = _client(1.0, [0.0])
  got, _ = fed_avg(
    QUADRATIC,
    _w(1.0),
    [[client, client]] * 2,
    client_learning_rate=0.5,
    server_optimizer=_sgd_server(),
    batch_size=1,
    epochs=2,
    client_optimizer=numpy_optimizers.Momentum(0.5),
  )
  assert _values(got) == pytest.approx([0.4375, 0.4375**2])


def test_client_optimizer_is_fed_the_proximal_term():
  """rho = 2: d = y + 2 (y - 1) at y = 1, 0.75, 0.5625, with m = 0, 0.5, 0.375."""
  got, _ = fed_avg(
    QUADRATIC,
    _w(1.0),
    [[_client(1.0, [0.0])]],
    client_learning_rate=0.5,
    server_optimizer=_sgd_server(),
    batch_size=1,
    epochs=3,
    rho=2.0,
    client_optimizer=numpy_optimizers.Momentum(0.5),
  )
  assert _values(got) == pytest.approx([0.5625 - 0.5 * (0.5 * -0.3125 + 0.5 * 0.375)])


def test_runs_keep_float32():
  model, weights, batch = _problems()['mlp']
  weights = {k: v.astype(np.float32) for k, v in weights.items()}
  start = {k: v.copy() for k, v in weights.items()}
  for optimizer in [
    numpy_optimizers.TffAdam(0.1),
    numpy_optimizers.TffYogi(0.1),
    numpy_optimizers.BaseServer(numpy_optimizers.Adam(), 0.1),
  ]:
    runs = [
      fed_avg(
        model.loss_and_gradient,
        weights,
        [[batch, batch]] * 2,
        client_learning_rate=0.1,
        batch_size=2,
        server_optimizer=optimizer,
        rho=0.1,
        num_correct=model.num_correct,
        client_optimizer=numpy_optimizers.AdaGrad(),
      ),
      server_only(
        model.loss_and_gradient,
        weights,
        [[batch, batch]] * 2,
        optimizer=optimizer,
        num_correct=model.num_correct,
      ),
    ]
    for all_weights, metrics in runs:
      assert all(v.dtype == np.float32 for v in all_weights[-1].values())
      assert 0 <= metrics[-1]['accuracy'] <= 1
  for key, value in start.items():
    np.testing.assert_array_equal(weights[key], value)


# Server-only.


@pytest.mark.parametrize('weighting', ['examples', 'uniform'])
def test_server_only_closed_form(weighting):
  """SGD contracts by (1 - eta abar)^t to the weighted optimum."""
  eta, rounds = 0.2, 4
  clients = [(1.0, [1.0, 3.0, 5.0]), (3.0, [-1.0])]
  cohort = [_client(a, b) for a, b in clients]
  bad = [_client(1.0, []), _client(1.0, [NAN, 1.0])]
  got, metrics = server_only(
    QUADRATIC,
    _w(7.0),
    [cohort + bad, [], bad + cohort] + [cohort] * 2,
    optimizer=_sgd_server(eta),
    weighting=weighting,
  )
  got = _values(got)
  assert got[1] == got[0]
  p = [0.75, 0.25] if weighting == 'examples' else [0.5, 0.5]
  abar = p[0] * 1 + p[1] * 3
  optimum = (p[0] * 1 * 3 + p[1] * 3 * -1) / abar
  want = [optimum + (1 - eta * abar) ** t * (7 - optimum) for t in range(rounds + 1)]
  np.testing.assert_allclose([got[0]] + got[2:], want[1:], rtol=1e-12)
  losses = 0.5 * (6**2 + 4**2 + 2**2) + 0.5 * 3 * 8**2
  assert metrics[0]['loss'] == pytest.approx(losses / 4)
  assert metrics[0]['num_examples'] == 4
  assert metrics[0]['num_clients'] == 2
  assert metrics[0]['update_norm'] == pytest.approx(abs(want[1] - 7))
  assert [m['num_left_out'] for m in metrics] == [1, 0, 1, 0, 0]
  assert math.isnan(metrics[1]['loss'])


@pytest.mark.parametrize(
  'base', [numpy_optimizers.Momentum(), numpy_optimizers.Adam(epsilon=1.0)]
)
def test_one_full_batch_step_of_fed_avg_is_server_only(base):
  """With eta = 1 the pseudo-gradient is the gradient."""
  cohort = [_client(1.0, [1.0, 3.0]), _client(3.0, [-1.0])]
  want, _ = server_only(
    QUADRATIC,
    _w(2.0),
    [cohort] * 4,
    weighting='uniform',
    optimizer=numpy_optimizers.BaseServer(base, 0.3),
  )
  got, _ = fed_avg(
    QUADRATIC,
    _w(2.0),
    [cohort] * 4,
    weighting='uniform',
    batch_size=2,
    client_learning_rate=1.0,
    server_optimizer=numpy_optimizers.BaseServer(base, 0.3),
  )
  np.testing.assert_allclose(_values(got), _values(want), rtol=1e-12)
