"""Tests of the oracles themselves: finite differences, TFF, closed forms."""

import math
from typing import Any

import numpy as np
import pytest

from tests.oracles import numpy_models, numpy_optimizers
from tests.oracles.fed_avg import fed_avg
from tests.oracles.mime import mime, mime_mvr, server_only_mvr
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


# Mime.

BASES = [
  numpy_optimizers.Sgd(),
  numpy_optimizers.Momentum(0.5),
  numpy_optimizers.AdaGrad(),
  numpy_optimizers.Adam(epsilon=0.1),
  numpy_optimizers.Adam(epsilon=0.1, bias_correction=True),
]
# The forms of Mime with one trip a round, and the one with two.
ONE_TRIP: list[dict[str, Any]] = [
  {'control_variate': 'previous'},
  {'corrected': False},
]
TWO_TRIPS: dict[str, Any] = {}


def _mlp_cohorts(rounds: int = 3):
  """An Mlp's gradient, weights, and cohorts of clients with 4, 1, 0 and 7 rows."""
  model, weights, _ = _problems()['mlp']
  rng = np.random.default_rng(3)
  cohorts = []
  for _ in range(rounds):
    cohort = [_classifier_batch(rng) for _ in range(4)]
    cohorts.append(
      [
        {k: v[:n] for k, v in client.items()}
        for client, n in zip(cohort, [4, 1, 0, 7], strict=True)
      ]
    )
  return model.loss_and_gradient, weights, cohorts


def _assert_same(got, want, rtol=1e-12):
  assert len(got) == len(want)
  for a, b in zip(got, want, strict=True):
    assert a.keys() == b.keys()
    for key in a:
      np.testing.assert_allclose(a[key], b[key], rtol=rtol, atol=1e-13)


def _means(cohort, x, weighting):
  """(p, a, mean gradient) of clients (a, b, rows) at x."""
  p = [rows if weighting == 'examples' else 1 for _, _, rows in cohort]
  a = [a for a, _, _ in cohort]
  return p, a, float(np.average([a * (x - b) for a, b, _ in cohort], weights=p))


# (a, b, rows) of the clients of three rounds.
SCALAR_COHORTS = [
  [(1.0, 2.0, 4), (3.0, -1.0, 3)],
  [(0.5, 4.0, 3), (2.0, 1.0, 4), (1.0, -3.0, 4)],
  [(3.0, -1.0, 3), (0.5, 4.0, 4)],
]


def _scalar_clients():
  """As rows: two steps of batches of two each."""
  return [[_client(a, [b] * rows) for a, b, rows in c] for c in SCALAR_COHORTS]


def _two_steps(eta, slope, q):
  """z of z <- z - eta (slope z + q), twice, from 0."""
  return -eta * q * (2 - eta * slope)


def test_adam_bias_correction_by_hand():
  adam = numpy_optimizers.Adam(0.75, 0.5, epsilon=0.5, bias_correction=True)
  s = adam.init(_w(1.0))
  assert s['t'] == 1
  # 1 - 0.75 and 1 - 0.5.
  assert adam.U(_w(2.0), s)['w'] == pytest.approx(0.5 / (0.5 * 0.25))
  s = adam.V(_w(2.0), s)
  assert s['m']['w'] == pytest.approx(0.5 / 0.25)
  assert s['v']['w'] == pytest.approx(2 / 0.5)
  assert s['t'] == 2
  # 1 - 0.75^2 and 1 - 0.5^2, from m = 2, v = 4.
  assert adam.U(_w(1.0), s)['w'] == pytest.approx(1.75 / ((2 + 0.5) * 0.4375))
  s = adam.V(_w(1.0), s)
  assert s['m']['w'] == pytest.approx(1.75 / 0.4375)
  assert s['v']['w'] == pytest.approx((0.5 * 1 + 0.5 * 4) / 0.75)
  assert s['t'] == 3
  assert 't' not in numpy_optimizers.Adam().init(_w(1.0))


@pytest.mark.parametrize('weighting', ['examples', 'uniform'])
@pytest.mark.parametrize('updates_locally', [False, True])
def test_mime_lite_with_sgd_is_fed_avg(weighting, updates_locally):
  gradient, weights, cohorts = _mlp_cohorts()
  rng = np.random.default_rng(4)
  orders = {
    (t, i, epoch): rng.permutation(n)
    for t in range(3)
    for i, n in enumerate([4, 1, 0, 7])
    for epoch in range(3)
  }
  arguments: dict[str, Any] = {
    'batch_size': 2,
    'epochs': 3,
    'max_steps': 8,
    'weighting': weighting,
    'rho': 0.3,
    'order': lambda t, i, epoch, n: orders[t, i, epoch],
  }
  want, want_metrics = fed_avg(
    gradient,
    weights,
    cohorts,
    client_learning_rate=0.2,
    server_optimizer=_sgd_server(0.7),
    **arguments,
  )
  got, metrics = mime(
    gradient,
    weights,
    cohorts,
    base=numpy_optimizers.Sgd(),
    learning_rate=0.2,
    server_learning_rate=0.7,
    corrected=False,
    updates_locally=updates_locally,
    **arguments,
  )
  _assert_same(got, want)
  keys = ['drift', 'spread', 'update_norm', 'num_clients', 'num_left_out']
  for a, b in zip(metrics, want_metrics, strict=True):
    assert [a[k] for k in keys] == pytest.approx([b[k] for k in keys])


@pytest.mark.parametrize('base', BASES)
@pytest.mark.parametrize('weighting', ['examples', 'uniform'])
@pytest.mark.parametrize('updates_locally', [False, True])
def test_one_step_of_mime_is_server_only(base, weighting, updates_locally):
  """For any minibatch: the gradients on it cancel."""
  gradient, weights, cohorts = _mlp_cohorts(4)
  want, want_metrics = server_only(
    gradient,
    weights,
    cohorts,
    weighting=weighting,
    optimizer=numpy_optimizers.BaseServer(base, 0.2 * 0.5),
  )
  got, metrics = mime(
    gradient,
    weights,
    cohorts,
    base=base,
    learning_rate=0.2,
    server_learning_rate=0.5,
    batch_size=2,
    max_steps=1,
    weighting=weighting,
    updates_locally=updates_locally,
    rho=0.7,
  )
  _assert_same(got, want, rtol=1e-9)
  for a, b in zip(metrics, want_metrics, strict=True):
    assert a['spread'] == pytest.approx(0, abs=1e-12)
    assert a['num_clients'] == a['num_gradients'] == b['num_clients'] == 3
    assert 0.5 * a['drift'] == pytest.approx(b['update_norm'])


@pytest.mark.parametrize('rho', [0.0, 0.7])
@pytest.mark.parametrize('weighting', ['examples', 'uniform'])
@pytest.mark.parametrize('control_variate', ['current', 'previous'])
def test_mime_with_momentum_closed_form(control_variate, weighting, rho):
  """A step is z <- z - eta ((1 - beta) (a + rho) z + (1 - beta) c + beta m)."""
  eta, beta, server_rate = 0.2, 0.6, 0.8
  got, metrics = mime(
    QUADRATIC,
    _w(5.0),
    _scalar_clients(),
    base=numpy_optimizers.Momentum(beta),
    learning_rate=eta,
    server_learning_rate=server_rate,
    batch_size=2,
    weighting=weighting,
    control_variate=control_variate,
    rho=rho,
  )
  x, m, c_before, want = 5.0, 0.0, 0.0, []
  for t, cohort in enumerate(SCALAR_COHORTS):
    p, slopes, c = _means(cohort, x, weighting)
    used = c if control_variate == 'current' else c_before
    q = (1 - beta) * used + beta * m
    zs = np.array([_two_steps(eta, (1 - beta) * (a + rho), q) for a in slopes])
    z = np.average(zs, weights=p)
    x += server_rate * z
    m = (1 - beta) * c + beta * m
    c_before = c
    want.append(x)
    assert metrics[t]['s']['m']['w'] == pytest.approx(m)
    assert metrics[t]['c']['w'] == pytest.approx(c)
    assert metrics[t]['gradient_norm'] == pytest.approx(abs(c))
    assert metrics[t]['drift'] == pytest.approx(np.mean(np.abs(zs)))
    spread = math.sqrt(np.average((zs - z) ** 2, weights=p))
    assert metrics[t]['spread'] == pytest.approx(spread)
    assert metrics[t]['update_norm'] == pytest.approx(abs(server_rate * z))
  np.testing.assert_allclose(_values(got), want, rtol=1e-12)


def test_mime_lite_with_momentum_closed_form():
  """As Mime, with the client's own gradient in place of c; s has the mean."""
  eta, beta = 0.2, 0.6
  got, metrics = mime(
    QUADRATIC,
    _w(5.0),
    _scalar_clients(),
    base=numpy_optimizers.Momentum(beta),
    learning_rate=eta,
    batch_size=2,
    corrected=False,
  )
  x, m, want = 5.0, 0.0, []
  for t, cohort in enumerate(SCALAR_COHORTS):
    p, _, c = _means(cohort, x, 'examples')
    zs = [
      _two_steps(eta, (1 - beta) * a, (1 - beta) * a * (x - b) + beta * m)
      for a, b, _ in cohort
    ]
    x += float(np.average(zs, weights=p))
    m = (1 - beta) * c + beta * m
    want.append(x)
    assert metrics[t]['s']['m']['w'] == pytest.approx(m)
  np.testing.assert_allclose(_values(got), want, rtol=1e-12)


@pytest.mark.parametrize('base', BASES)
def test_mime_with_the_previous_c_first_moves_nothing(base):
  gradient, weights, cohorts = _mlp_cohorts(2)
  got, metrics = mime(
    gradient,
    weights,
    cohorts,
    base=base,
    learning_rate=0.2,
    batch_size=2,
    control_variate='previous',
  )
  _assert_same(got[:1], [weights])
  assert metrics[0]['drift'] == 0
  assert metrics[0]['gradient_norm'] > 0
  assert metrics[1]['update_norm'] > 0


def test_mime_stays_at_the_optimum_and_mime_lite_does_not():
  # The gradients at 1 are 3 and -3.
  cohort = [_client(1.0, [-4.0, 0.0]), _client(3.0, [2.0, 2.0])]
  arguments: dict[str, Any] = {
    'base': numpy_optimizers.Momentum(),
    'learning_rate': 0.1,
    'batch_size': 1,
  }
  got, _ = mime(QUADRATIC, _w(1.0), [cohort] * 3, **arguments)
  assert _values(got) == pytest.approx([1, 1, 1])
  # y = 1 - 0.01 * 5 - 0.01 * 0.95, and 1 + 0.01 * 3 + 0.01 * 2.91.
  got, _ = mime(QUADRATIC, _w(1.0), [cohort], corrected=False, **arguments)
  assert _values(got) == pytest.approx([(0.9405 + 1.0591) / 2])


@pytest.mark.parametrize('form', [TWO_TRIPS, *ONE_TRIP, {'updates_locally': True}])
def test_the_statistics_see_each_row_once(form):
  """m = (1 - beta) mean gradient, whatever the local steps are."""
  client = _client(1.0, [1.0, 2.0, 9.0])
  for epochs, max_steps in [(1, None), (5, None), (3, 1)]:
    _, metrics = mime(
      QUADRATIC,
      _w(1.0),
      [[client]],
      base=numpy_optimizers.Momentum(0.75),
      learning_rate=0.1,
      batch_size=2,
      epochs=epochs,
      max_steps=max_steps,
      **form,
    )
    assert metrics[0]['s']['m']['w'] == pytest.approx(0.25 * -3)


def test_loc_mime_by_hand():
  """Two clients with the same Hessian: both walk as one with b = 0 would."""
  cohort = [_client(1.0, [1.0]), _client(1.0, [-1.0])]
  arguments: dict[str, Any] = {
    'base': numpy_optimizers.Momentum(0.5),
    'learning_rate': 1.0,
    'batch_size': 1,
    'updates_locally': True,
  }
  got, metrics = mime(QUADRATIC, _w(1.0), [cohort] * 2, epochs=2, **arguments)
  # x = c = 1, m = 0: g = 1, y = 0.5, m_i = 0.5; g = 0.5, u = 0.5, y = 0.
  # x = c = 0, m = 0.5: g = 0, y = -0.25, m_i = 0.25; g = -0.25, u = 0.
  assert _values(got) == pytest.approx([0.0, -0.25])
  # The clients' statistics are thrown away.
  assert [m['s']['m']['w'][0] for m in metrics] == pytest.approx([0.5, 0.25])

  # rho = 2, three steps: g = 1, y = 0.5, m_i = 0.5; g = 0.5 - 1, u = m_i = 0;
  # g = -0.5, u = -0.25.
  got, _ = mime(QUADRATIC, _w(1.0), [cohort], epochs=3, rho=2.0, **arguments)
  assert _values(got) == pytest.approx([0.75])


def test_loc_mime_takes_u_before_v():
  """AdaGrad divides by sqrt(v) = 3, then by sqrt(9 + 16) = 5."""
  got, metrics = mime(
    QUADRATIC,
    _w(4.0),
    [[_client(1.0, [0.0])]],
    base=numpy_optimizers.AdaGrad(epsilon=0.0, initial_accumulator=9.0),
    learning_rate=0.75,
    batch_size=1,
    epochs=2,
    updates_locally=True,
  )
  # y: 4 -> 4 - 0.75 * 4 / 3 = 3 -> 3 - 0.75 * 3 / 5.
  assert _values(got) == pytest.approx([2.55])
  assert metrics[0]['s']['v']['w'] == pytest.approx(25)


def test_the_split_by_hand():
  """Of five clients two send gradients and three updates."""
  cohort = [
    _client(1.0, [1.0]),  # gradient 1 at x = 2
    _client(2.0, [0.0] * 3),  # gradient 4, so c = 13 / 4
    _client(1.0, [7.0]),  # z = -0.5 c (2 - 0.5 a) = -0.75 c
    _client(2.0, [-7.0] * 2),  # z = -0.5 c
    _client(4.0, [9.0]),  # z = 0
  ]
  arguments: dict[str, Any] = {
    'learning_rate': 0.5,
    'batch_size': 3,
    'epochs': 2,
    'split': True,
  }
  for weighting, c, z in [('examples', 3.25, -1.75 / 4), ('uniform', 2.5, -1.25 / 3)]:
    got, metrics = mime(
      QUADRATIC,
      _w(2.0),
      [cohort],
      base=numpy_optimizers.Sgd(),
      weighting=weighting,
      **arguments,
    )
    assert _values(got) == pytest.approx([2 + z * c])
    assert metrics[0]['gradient_norm'] == pytest.approx(c)
    assert metrics[0]['drift'] == pytest.approx(1.25 / 3 * c)
    assert metrics[0]['num_gradients'] == 2
    assert metrics[0]['num_clients'] == 3

  # The others have one trip: the updates do not see this round's gradients, but
  # s and the next c do.
  got, metrics = mime(
    QUADRATIC,
    _w(2.0),
    [cohort, cohort],
    base=numpy_optimizers.Sgd(),
    control_variate='previous',
    **arguments,
  )
  assert _values(got) == pytest.approx([2, 2 - 1.75 / 4 * 3.25])
  got, metrics = mime(
    QUADRATIC,
    _w(2.0),
    [cohort],
    base=numpy_optimizers.Momentum(0.5),
    corrected=False,
    max_steps=1,
    **arguments,
  )
  # Their gradients at 2 are -5, 18 (two rows) and -28.
  assert _values(got) == pytest.approx([2 - 0.5 * 0.5 * (-5 + 2 * 18 - 28) / 4])
  assert metrics[0]['s']['m']['w'] == pytest.approx(0.5 * 3.25)


def _diverging(x: float):
  """Its full gradient at x is 0, but its steps overflow."""
  return _client(1e300, [x - 1, x + 1])


@pytest.mark.parametrize('form', [TWO_TRIPS, *ONE_TRIP, {'updates_locally': True}])
@pytest.mark.parametrize('weighting', ['examples', 'uniform'])
def test_mime_without_the_left_out_and_empty_clients(form, weighting):
  good = [_client(1.0, [1.0, 1.0]), _client(2.0, [3.0])]
  bad = [_client(1.0, [1.0, NAN]), _client(1.0, []), _client(1.0, [float('inf')])]
  arguments: dict[str, Any] = {
    'base': numpy_optimizers.Adam(epsilon=1.0, bias_correction=True),
    'learning_rate': 0.5,
    'batch_size': 1,
    'weighting': weighting,
    **form,
  }
  want, want_metrics = mime(QUADRATIC, _w(5.0), [good] * 3, **arguments)
  cohorts = [bad + good, bad, [], good, good[:1] + bad + good[1:]]
  got, metrics = mime(QUADRATIC, _w(5.0), cohorts, **arguments)
  # Rounds without anybody change nothing.
  kept = [0, 3, 4]
  _assert_same([got[t] for t in kept], want)
  assert got[0] == got[1] == got[2]
  assert metrics[0]['s'] == metrics[1]['s'] == metrics[2]['s']
  assert [metrics[t]['s'] for t in kept] == [m['s'] for m in want_metrics]
  assert [m['num_left_out'] for m in metrics] == [2, 2, 0, 0, 2]
  assert [m['num_clients'] for m in metrics] == [2, 0, 0, 2, 2]
  assert math.isnan(metrics[1]['drift'])
  assert math.isnan(metrics[1]['gradient_norm'])


@pytest.mark.parametrize('form', [TWO_TRIPS, *ONE_TRIP])
def test_a_gradient_is_used_without_its_update_only_if_sent_before(form):
  """The diverging client's gradient is 0, which halves the mean."""
  good = _client(1.0, [1.0, 1.0])
  arguments: dict[str, Any] = {
    'base': numpy_optimizers.Momentum(0.5),
    'learning_rate': 0.5,
    'batch_size': 1,
    'epochs': 3,
    **form,
  }
  # With a previous c the first round moves nothing, not even the diverging client.
  x = 2.0
  _, metrics = mime(QUADRATIC, _w(x), [[good]] * 2, **arguments)
  cohorts = [[good], [_diverging(x), good]]
  if form != {'control_variate': 'previous'}:
    cohorts, metrics = cohorts[1:], metrics[:1]
  _, got = mime(QUADRATIC, _w(x), cohorts, **arguments)
  assert got[-1]['num_left_out'] == got[-1]['num_clients'] == 1
  if form == TWO_TRIPS:
    assert got[-1]['num_gradients'] == 2
    assert got[-1]['gradient_norm'] == pytest.approx(0.5)
    assert got[-1]['s']['m']['w'] == pytest.approx(0.25)
    assert got[-1]['drift'] == pytest.approx(0.5 * metrics[-1]['drift'])
  else:
    assert got[-1]['num_gradients'] == 1
    assert got[-1]['s'] == metrics[-1]['s']
    assert got[-1]['drift'] == metrics[-1]['drift']


@pytest.mark.parametrize('form', [TWO_TRIPS, *ONE_TRIP])
def test_a_split_round_without_gradients_or_without_updates(form):
  good, bad = _client(1.0, [1.0]), _client(1.0, [NAN])
  got, metrics = mime(
    QUADRATIC,
    _w(2.0),
    [[good, good], [bad, good], [good, bad], [good], [bad, bad]],
    base=numpy_optimizers.Momentum(0.5),
    learning_rate=0.5,
    batch_size=1,
    split=True,
    **form,
  )
  x = _values(got)
  m = [metrics['s']['m']['w'][0] for metrics in metrics]
  assert m[0] == 0.5
  # Nothing changes. A cohort of one has no gradients.
  assert len(set(x)) == len(set(m)) == 1
  assert all(of_round['c'] == metrics[0]['c'] for of_round in metrics)
  asked = form != TWO_TRIPS
  assert [m['num_clients'] for m in metrics] == [1, asked, 0, asked, 0]
  assert [m['num_gradients'] for m in metrics] == [1, 0, 1, 0, 0]
  assert [m['num_left_out'] for m in metrics] == [0, 1, 1, 0, 1 + asked]


def test_a_round_of_mime_to_something_not_finite_is_not_taken():
  """In float32 a gradient of -1e30 is finite, and so is y, but not its square."""
  good, large = _client(1.0, [1.0]), _client(1.0, [1e30])
  got, metrics = mime(
    QUADRATIC,
    {'w': np.array([2.0], np.float32)},
    [[good], [large], [good]],
    base=numpy_optimizers.AdaGrad(epsilon=0.0, initial_accumulator=3.0),
    learning_rate=0.5,
    batch_size=1,
  )
  x = 2 - 0.5 / math.sqrt(3)
  assert _values(got) == pytest.approx([x, x, x - 0.5 * (x - 1) / 2])
  assert metrics[1]['num_clients'] == 1
  assert metrics[1]['s'] == metrics[0]['s']
  assert metrics[1]['c'] == metrics[0]['c']
  assert metrics[1]['update_norm'] == 0


def test_mime_keeps_float32_and_its_arguments():
  gradient, weights, cohorts = _mlp_cohorts(2)
  weights = {k: v.astype(np.float32) for k, v in weights.items()}
  start = {k: v.copy() for k, v in weights.items()}
  local: dict[str, Any] = {'learning_rate': 0.1, 'batch_size': 2}
  runs = [
    mime(gradient, weights, cohorts, base=base, updates_locally=True, rho=0.1, **local)
    for base in BASES
  ]
  runs.append(mime_mvr(gradient, weights, cohorts, a=0.3, **local))
  runs.append(mime_mvr(gradient, weights, cohorts, a=0.3, lite=True, **local))
  runs.append(server_only_mvr(gradient, weights, cohorts, a=0.3, learning_rate=0.1))
  for all_weights, metrics in runs:
    states = [v for k, v in metrics[-1].get('s', {}).items() if k != 't']
    states.extend(metrics[-1][k] for k in ('m', 'c') if k in metrics[-1])
    for tree in [all_weights[-1], *states]:
      assert all(v.dtype == np.float32 for v in tree.values())
  for key, value in start.items():
    np.testing.assert_array_equal(weights[key], value)


def test_mime_refuses_an_unknown_control_variate():
  with pytest.raises(ValueError, match='next'):
    mime(
      QUADRATIC,
      _w(1.0),
      [],
      base=numpy_optimizers.Sgd(),
      learning_rate=1.0,
      batch_size=1,
      control_variate='next',
    )


# Momentum-based variance reduction.


@pytest.mark.parametrize('weighting', ['examples', 'uniform'])
@pytest.mark.parametrize('lite', [False, True])
def test_mime_mvr_closed_form(lite, weighting):
  """A step is z <- z - eta (a_i z + q), q = a c + (1 - a) m.

  MimeLiteMVR has the client's own gradient in place of c (the batches are alike).
  """
  eta, a, server_rate = 0.2, 0.3, 0.8
  got, metrics = mime_mvr(
    QUADRATIC,
    _w(5.0),
    _scalar_clients(),
    a=a,
    learning_rate=eta,
    server_learning_rate=server_rate,
    batch_size=2,
    weighting=weighting,
    lite=lite,
  )
  x = x_before = 5.0
  m, c_before, want = 0.0, 0.0, []
  for t, cohort in enumerate(SCALAR_COHORTS):
    p, _, c = _means(cohort, x, weighting)
    # This cohort's mean gradient, at the x of the round before.
    _, _, c_tilde = _means(cohort, x_before, weighting)
    zs = []
    for a_i, b_i, _ in cohort:
      g = a_i * (x - b_i) if lite else c_before
      zs.append(_two_steps(eta, a_i, a * g + (1 - a) * m))
    m = a * c + (1 - a) * (m + c - c_tilde)
    x_before, x = x, x + server_rate * float(np.average(zs, weights=p))
    c_before = c
    want.append(x)
    assert metrics[t]['m']['w'] == pytest.approx(m)
    assert metrics[t]['c']['w'] == pytest.approx(c)
    assert metrics[t]['gradient_norm'] == pytest.approx(abs(c))
    assert metrics[t]['drift'] == pytest.approx(np.mean(np.abs(zs)))
  np.testing.assert_allclose(_values(got), want, rtol=1e-12)
  # The first round of MimeMVR moves nothing; MimeLiteMVR's does.
  assert (want[0] == 5.0) == (not lite)


def test_mime_mvr_first_moves_nothing():
  gradient, weights, cohorts = _mlp_cohorts(2)
  got, metrics = mime_mvr(
    gradient, weights, cohorts, a=0.3, learning_rate=0.2, batch_size=2
  )
  _assert_same(got[:1], [weights])
  # x^{-1} = x^0, so m = a c.
  for name, c in metrics[0]['c'].items():
    np.testing.assert_allclose(metrics[0]['m'][name], 0.3 * c)
  assert metrics[1]['update_norm'] > 0


def test_mime_mvr_with_a_one_is_mime_with_sgd():
  gradient, weights, cohorts = _mlp_cohorts()
  rng = np.random.default_rng(5)
  rows = {n: rng.permutation(n) for n in [4, 1, 7]}
  arguments: dict[str, Any] = {
    'learning_rate': 0.2,
    'batch_size': 2,
    'epochs': 2,
    'max_steps': 5,
    'weighting': 'uniform',
    'order': lambda t, i, epoch, n: np.roll(rows[n], t + i + epoch),
  }
  for lite in [False, True]:
    want, want_metrics = mime(
      gradient,
      weights,
      cohorts,
      base=numpy_optimizers.Sgd(),
      corrected=not lite,
      control_variate='previous',
      **arguments,
    )
    got, metrics = mime_mvr(gradient, weights, cohorts, a=1.0, lite=lite, **arguments)
    _assert_same(got, want)
    _assert_same([m['c'] for m in metrics], [m['c'] for m in want_metrics])
    _assert_same([m['m'] for m in metrics], [m['c'] for m in want_metrics])


@pytest.mark.parametrize('lite', [False, True])
def test_mime_mvr_leaves_clients_out_as_a_whole(lite):
  good = [_client(1.0, [1.0, 1.0]), _client(2.0, [3.0])]
  bad = [_client(1.0, [1.0, NAN]), _client(1.0, [])]
  arguments: dict[str, Any] = {
    'a': 0.5,
    'learning_rate': 0.5,
    'batch_size': 1,
    'epochs': 2,
    'lite': lite,
  }
  want, want_metrics = mime_mvr(QUADRATIC, _w(5.0), [good] * 4, **arguments)
  # The second round's diverging client moves, since its c is not 0 any more.
  diverging = _diverging(float(want[0]['w'][0]))
  got, metrics = mime_mvr(
    QUADRATIC,
    _w(5.0),
    [bad + good, good[:1] + [diverging] + good[1:], bad, [], good, good + bad],
    **arguments,
  )
  # Rounds without anybody keep x^{t-2}, m and c.
  kept = [0, 1, 4, 5]
  _assert_same([got[t] for t in kept], want)
  for name in ['m', 'c']:
    _assert_same([metrics[t][name] for t in kept], [m[name] for m in want_metrics])
    assert metrics[1][name] == metrics[2][name] == metrics[3][name]
  assert got[1] == got[2] == got[3]
  assert [m['num_left_out'] for m in metrics] == [1, 1, 1, 0, 0, 1]
  assert [m['num_clients'] for m in metrics] == [2, 2, 0, 0, 2, 2]


@pytest.mark.parametrize('weighting', ['examples', 'uniform'])
def test_server_only_mvr_with_a_one_is_server_only(weighting):
  gradient, weights, cohorts = _mlp_cohorts()
  want, want_metrics = server_only(
    gradient, weights, cohorts, optimizer=_sgd_server(0.3), weighting=weighting
  )
  got, metrics = server_only_mvr(
    gradient, weights, cohorts, a=1.0, learning_rate=0.3, weighting=weighting
  )
  _assert_same(got, want)
  for a, b in zip(metrics, want_metrics, strict=True):
    assert a['update_norm'] == pytest.approx(b['update_norm'])
    assert a['gradient_norm'] == pytest.approx(b['update_norm'] / 0.3)
    assert a['num_clients'] == b['num_clients'] == 3


def test_server_only_mvr_with_one_function_closed_form():
  """If every round has the same f, m = f'(x) - (1 - a)^t f'(x^0)."""
  a, eta, x = 0.3, 0.2, 7.0
  cohort = [_client(1.0, [1.0, 3.0, 5.0]), _client(3.0, [-1.0])]
  bad = [_client(1.0, []), _client(1.0, [NAN])]
  got, metrics = server_only_mvr(
    QUADRATIC,
    _w(x),
    [cohort, bad, cohort + bad, cohort],
    a=a,
    learning_rate=eta,
  )
  assert got[1] == got[0]
  assert metrics[1]['m'] == metrics[0]['m']
  assert [m['num_left_out'] for m in metrics] == [0, 1, 1, 0]
  first = None
  for t, index in enumerate([0, 2, 3], start=1):
    g = 0.75 * (x - 3) + 0.25 * 3 * (x + 1)
    first = g if first is None else first
    m = g - (1 - a) ** t * first
    assert metrics[index]['m']['w'] == pytest.approx(m)
    x -= eta * m
    assert _values(got)[index] == pytest.approx(x)


def test_server_only_mvr_takes_both_gradients_on_the_same_cohort():
  """f = w^2 / 2, then f = 3 (w - 1)^2 / 2, with a = 1/2 and eta = 1."""
  got, metrics = server_only_mvr(
    QUADRATIC,
    _w(2.0),
    [[_client(1.0, [0.0])], [_client(3.0, [1.0])]],
    a=0.5,
    learning_rate=1.0,
  )
  # m = 0.5 * 2, x = 1; then c = 0 and c~ = 3 (at x = 2): m = 0.5 * (1 - 3).
  assert [m['m']['w'][0] for m in metrics] == pytest.approx([1, -1])
  assert _values(got) == pytest.approx([1, 2])
