"""Tests of the oracles of SCAFFOLD and FedDyn: numbers by hand, invariants."""

import math
from typing import Any

import numpy as np
import pytest

from tests.oracles import numpy_models, numpy_optimizers
from tests.oracles.fed_avg import fed_avg
from tests.oracles.fed_dyn import fed_dyn
from tests.oracles.scaffold import scaffold

QUADRATIC = numpy_models.Quadratic.loss_and_gradient
LINEAR = numpy_models.LinearRegression.loss_and_gradient
LOGISTIC = numpy_models.LogisticRegression.loss_and_gradient
NAN = float('nan')


def _client(a, b):
  """Rows of the one-dimensional quadratic 0.5 a (w - b)^2."""
  b = np.asarray(b, np.float64)
  return {'a': np.broadcast_to(a, b.shape)[:, None, None], 'b': b[:, None]}


def _w(value):
  return {'w': np.array([value])}


def _sgd_server(rate=1.0):
  return numpy_optimizers.BaseServer(numpy_optimizers.Sgd(), rate)


def _values(trees):
  return [float(tree['w'][0]) for tree in trees]


def _states(all_states):
  return [
    {name: float(tree['w'][0]) for name, tree in states.items()}
    for states in all_states
  ]


# Gradients w - 2 and 2 (w + 1); the mean of both losses is least at 0.
A = ('A', _client(1.0, [2.0]))
B = ('B', _client(2.0, [-1.0]))


def _scaffold(rounds, *, start=0.0, **changes):
  arguments: dict[str, Any] = {
    'num_clients': 4,
    'client_learning_rate': 0.5,
    'server_optimizer': _sgd_server(),
    'option': 2,
    'batch_size': 8,
    'epochs': 2,
  }
  x, c, cs, metrics = scaffold(QUADRATIC, _w(start), rounds, **arguments | changes)
  return _values(x), _values(c), _states(cs), metrics


def _fed_dyn(rounds, *, start=0.0, **changes):
  arguments: dict[str, Any] = {
    'num_clients': 4,
    'alpha': 0.5,
    'client_learning_rate': 0.5,
    'batch_size': 8,
    'epochs': 2,
  }
  x, h, hs, metrics = fed_dyn(QUADRATIC, _w(start), rounds, **arguments | changes)
  return _values(x), _values(h), _states(hs), metrics


def _logistic(seed=0, dtype=np.float64):
  """Weights, and four cohorts of three of five clients of 1 to 9 rows."""
  rng = np.random.default_rng(seed)
  weights = {'kernel': rng.normal(size=(4, 3)), 'bias': rng.normal(size=3)}
  clients = [
    (f'c{i}', {'x': rng.normal(size=(n, 4)), 'y': rng.integers(3, size=n)})
    for i, n in enumerate([1, 4, 9, 2, 6])
  ]
  rounds = [
    [clients[i] for i in rng.choice(5, size=3, replace=False)] for _ in range(4)
  ]
  return {k: v.astype(dtype) for k, v in weights.items()}, rounds


def _assert_close(got, want, rtol=1e-10):
  assert got.keys() == want.keys()
  for key, value in want.items():
    np.testing.assert_allclose(got[key], value, rtol=rtol, atol=1e-13)


# SCAFFOLD.


def test_scaffold_option_2_by_hand():
  """A goes 0, 1, 1.5 and B 0, -1, -1; then A with -c_A + c = 1.375."""
  x, c, cs, metrics = _scaffold([[A, B], [A]])
  assert x == pytest.approx([0.25, 0.53125])
  assert c == pytest.approx([-0.5 / 4, -0.125 - 0.15625 / 4])
  assert cs[0] == pytest.approx({'A': -1.5, 'B': 1.0})
  assert cs[1] == pytest.approx({'A': -1.65625, 'B': 1.0})
  # Losses of A: 2 and 0.5, of B: 1 and 0.
  assert metrics[0]['loss'] == pytest.approx(3.5 / 4)
  assert metrics[0]['num_examples'] == metrics[0]['num_clients'] == 2
  assert metrics[0]['num_left_out'] == 0
  assert metrics[0]['drift'] == pytest.approx(1.25)
  assert metrics[0]['spread'] == pytest.approx(1.25)
  assert metrics[0]['update_norm'] == pytest.approx(0.25)
  assert metrics[1]['drift'] == metrics[1]['update_norm'] == pytest.approx(0.28125)
  assert metrics[1]['spread'] == 0


def test_scaffold_option_1_by_hand():
  x, c, cs, _ = _scaffold([[A, B], [A]], option=1)
  assert x == pytest.approx([0.25, 0.0625])
  assert c == pytest.approx([0.0, 0.25 / 4])
  assert cs[0] == pytest.approx({'A': -2.0, 'B': 2.0})
  assert cs[1] == pytest.approx({'A': -1.75, 'B': 2.0})


def test_scaffold_option_1_takes_all_rows():
  """One step on the first batch, but the gradient over 1, 3 and 8."""
  client = ('A', _client(1.0, [1.0, 3.0, 8.0]))
  x, c, cs, _ = _scaffold([[client]], option=1, batch_size=2, max_steps=1)
  assert x == pytest.approx([1.0])
  assert cs[0] == pytest.approx({'A': -4.0})
  assert c == pytest.approx([-1.0])


def test_scaffold_counts_the_steps_taken():
  """Three batches an epoch, the last of one row; five steps are allowed."""
  client = ('A', _client(1.0, [1.0, 1.0, 2.0, 2.0, 3.0]))
  x, _, cs, _ = _scaffold(
    [[client]], client_learning_rate=1.0, batch_size=2, max_steps=5
  )
  # y: 1, 2, 3, 1, 2. Gradients -1, -1, -1, 2, -1.
  assert x == pytest.approx([2.0])
  assert cs[0] == pytest.approx({'A': -2 / 5})


def test_scaffold_does_not_weight_control_variates():
  many = ('A', _client(1.0, [2.0] * 3))
  x, c, cs, metrics = _scaffold(
    [[many, B]], weighting='examples', server_optimizer=_sgd_server(2.0)
  )
  assert x == pytest.approx([2 * (3 * 1.5 - 1) / 4])
  assert c == pytest.approx([-0.125])
  assert cs[0] == pytest.approx({'A': -1.5, 'B': 1.0})
  assert metrics[0]['num_examples'] == 4


def test_scaffold_with_a_proximal_term():
  """y: 0, 1, 1, and c_A is without the term: the mean of -2 and -1."""
  x, c, cs, _ = _scaffold([[A]], rho=1.0)
  assert x == pytest.approx([1.0])
  assert c == pytest.approx([-1.5 / 4])
  assert cs[0] == pytest.approx({'A': -1.5})
  # c_A of option 1 is -2, so from x = 1 on: 1 + 2 - 0.5 = 0.5 more than g.
  x, c, cs, _ = _scaffold([[A], [A]], rho=1.0, option=1)
  assert c == pytest.approx([-0.5, -0.25])
  # y = 1 - 0.5 (-1 + 2 - 0.5) = 0.75, then g = -1.25 and y - x = -0.25.
  assert x == pytest.approx([1.0, 0.75])
  assert cs[1] == pytest.approx({'A': -1.0})


def test_scaffold_with_clipping():
  """g = -2 is cut to -1.5, so y = 0.75, where g = -1.25 is not cut."""
  x, _, cs, _ = _scaffold([[A]], clip_norm=1.5)
  assert x == pytest.approx([1.375])
  assert cs[0] == pytest.approx({'A': -1.375})
  # The norm is that of all arrays: (3, 4) is cut to a half.
  weights = {'kernel': np.zeros((1, 1)), 'bias': np.zeros(1)}
  rows = {'x': np.array([[0.75]]), 'y': np.array([[-4.0]])}
  got, c, _, _ = scaffold(
    LINEAR,
    weights,
    [[('A', rows)]],
    num_clients=1,
    client_learning_rate=1.0,
    server_optimizer=_sgd_server(),
    option=2,
    batch_size=1,
    clip_norm=2.5,
  )
  _assert_close(got[0], {'kernel': np.array([[-1.5]]), 'bias': np.array([-2.0])})
  _assert_close(c[0], {'kernel': np.array([[1.5]]), 'bias': np.array([2.0])})


def test_scaffold_refuses():
  with pytest.raises(ValueError, match='option'):
    _scaffold([], option=3)
  with pytest.raises(ValueError, match='clip_norm'):
    _scaffold([], option=1, clip_norm=1.0)
  with pytest.raises(ValueError, match='twice'):
    _scaffold([[A, A]])
  with pytest.raises(ValueError, match='weighting'):
    _scaffold([[A]], weighting='rows')


@pytest.mark.parametrize('option', [1, 2])
def test_scaffold_with_one_step_of_everybody_is_fed_avg(option):
  """The corrections then cancel in the mean."""
  rounds = [[A, B]] * 4
  x, _, _, _ = _scaffold(rounds, num_clients=2, option=option, epochs=1)
  want, _ = fed_avg(
    QUADRATIC,
    _w(0.0),
    [[rows for _, rows in cohort] for cohort in rounds],
    client_learning_rate=0.5,
    server_optimizer=_sgd_server(),
    batch_size=8,
    weighting='uniform',
  )
  assert x == pytest.approx(_values(want))


@pytest.mark.parametrize(
  ('option', 'rho', 'clip_norm'),
  [(1, 0.0, None), (2, 0.0, None), (1, 0.3, None), (2, 0.3, None), (2, 0.3, 0.5)],
)
def test_scaffold_c_is_the_mean_of_all_c_i(option, rho, clip_norm):
  weights, rounds = _logistic()
  _, all_c, all_cs, _ = scaffold(
    LOGISTIC,
    weights,
    rounds,
    num_clients=7,
    client_learning_rate=0.1,
    server_optimizer=numpy_optimizers.BaseServer(numpy_optimizers.Momentum(0.5)),
    option=option,
    batch_size=2,
    epochs=2,
    weighting='examples',
    rho=rho,
    clip_norm=clip_norm,
  )
  for c, cs in zip(all_c, all_cs, strict=True):
    for key, value in c.items():
      np.testing.assert_allclose(value, sum(c_i[key] for c_i in cs.values()) / 7)


def test_scaffold_both_forms_of_option_2_agree():
  weights, rounds = _logistic(1)
  # A norm that no gradient has.
  (x, c, cs, _), (x_mean, c_mean, cs_mean, _) = (
    scaffold(
      LOGISTIC,
      weights,
      rounds,
      num_clients=5,
      client_learning_rate=0.1,
      server_optimizer=_sgd_server(),
      option=2,
      batch_size=2,
      epochs=2,
      order=lambda t, i, epoch, n: np.roll(np.arange(n), t + i + epoch),
      clip_norm=clip_norm,
    )
    for clip_norm in (None, 1e6)
  )
  for t in range(len(rounds)):
    _assert_close(x[t], x_mean[t])
    _assert_close(c[t], c_mean[t])
    assert cs[t].keys() == cs_mean[t].keys()
    for name, c_i in cs[t].items():
      _assert_close(c_i, cs_mean[t][name])


# FedDyn.


def test_fed_dyn_by_hand():
  """A goes 0, 1, 1.25 and B 0, -1, -0.75; then A 0.375, 0.875, 1."""
  x, h, hs, metrics = _fed_dyn([[A, B], [A]])
  assert h == pytest.approx([-0.0625, -0.140625])
  assert x == pytest.approx([0.25 + 0.125, 1 + 0.28125])
  assert hs[0] == pytest.approx({'A': -0.625, 'B': 0.375})
  assert hs[1] == pytest.approx({'A': -0.9375, 'B': 0.375})
  assert metrics[0]['loss'] == pytest.approx(3.5 / 4)
  assert metrics[0]['num_examples'] == metrics[0]['num_clients'] == 2
  assert metrics[0]['drift'] == pytest.approx(1.0)
  assert metrics[0]['spread'] == pytest.approx(1.0)
  assert metrics[0]['update_norm'] == pytest.approx(0.375)
  assert metrics[1]['drift'] == pytest.approx(0.625)


def test_fed_dyn_weighting_and_server_optimizer():
  many = ('A', _client(1.0, [2.0] * 3))
  x, h, _, _ = _fed_dyn([[many, B]], weighting='examples')
  assert h == pytest.approx([-0.0625])
  assert x == pytest.approx([(3 * 1.25 - 0.75) / 4 + 0.125])
  x, h, _, _ = _fed_dyn([[A, B]], start=0.0, server_optimizer=_sgd_server(0.5))
  assert h == pytest.approx([-0.0625])
  assert x == pytest.approx([0.1875])
  rounds = [[A, B], [B], [A]]
  with_rate_1, _, _, _ = _fed_dyn(rounds, server_optimizer=_sgd_server())
  assert with_rate_1 == pytest.approx(_fed_dyn(rounds)[0])


def test_fed_dyn_h_is_the_mean_of_all_h_i():
  weights, rounds = _logistic()
  _, all_h, all_hs, _ = fed_dyn(
    LOGISTIC,
    weights,
    rounds,
    num_clients=7,
    alpha=0.3,
    client_learning_rate=0.1,
    batch_size=2,
    epochs=2,
    weighting='examples',
  )
  for h, hs in zip(all_h, all_hs, strict=True):
    for key, value in h.items():
      np.testing.assert_allclose(value, sum(h_i[key] for h_i in hs.values()) / 7)


def test_fed_dyn_refuses():
  with pytest.raises(ValueError, match='alpha'):
    _fed_dyn([], alpha=0.0)
  with pytest.raises(ValueError, match='twice'):
    _fed_dyn([[A, A]])


# Both.


@pytest.mark.parametrize('run', [_scaffold, _fed_dyn])
def test_both_go_to_the_minimum_of_the_mean(run):
  """In rounds of everybody and of one client; FedAvg ends at 0.02 / 0.55."""
  changes = {'num_clients': 2, 'client_learning_rate': 0.1, 'start': 3.0}
  x, shared, states, _ = run([[A, B]] * 400, **changes)
  assert x[-1] == pytest.approx(0, abs=1e-9)
  assert shared[-1] == pytest.approx(0, abs=1e-9)
  assert states[-1] == pytest.approx({'A': -2.0, 'B': 2.0})
  x, shared, states, _ = run([[A], [B]] * 400, **changes)
  assert x[-1] == pytest.approx(0, abs=1e-9)
  assert shared[-1] == pytest.approx(0, abs=1e-9)
  assert states[-1] == pytest.approx({'A': -2.0, 'B': 2.0})


@pytest.mark.parametrize('run', [_scaffold, _fed_dyn])
def test_both_leave_out_clients(run):
  bad = [
    ('nan', _client(1.0, [1.0, NAN])),  # a row that is not reached
    ('inf', _client(1.0, [float('inf')])),
    ('overflow', _client(1e300, [1.0])),  # finite data, but the steps overflow
    ('empty', _client(1.0, [])),
  ]
  changes = {'batch_size': 1, 'epochs': 3}
  server = numpy_optimizers.BaseServer(numpy_optimizers.Momentum(0.5))
  x, shared, states, metrics = run([[A, B], [A]], server_optimizer=server, **changes)
  got_x, got_shared, got_states, got_metrics = run(
    [[*bad, A, B], bad, bad[3:], [], [A, *bad]], server_optimizer=server, **changes
  )
  np.testing.assert_array_equal(got_x, [x[0]] * 4 + [x[1]])
  np.testing.assert_array_equal(got_shared, [shared[0]] * 4 + [shared[1]])
  assert got_states == [states[0]] * 4 + [states[1]]
  assert [m.pop('num_left_out') for m in got_metrics] == [3, 3, 0, 0, 3]
  assert [m.pop('num_left_out') for m in metrics] == [0, 0]
  assert [got_metrics[0], got_metrics[4]] == metrics
  for m in got_metrics[1:4]:
    assert m['num_clients'] == m['num_examples'] == m['update_norm'] == 0
    assert all(math.isnan(m[key]) for key in ['loss', 'drift', 'spread'])
  # Without a step there is no client either.
  x, _, states, metrics = run([[A, bad[0]]], max_steps=0)
  assert (x, states) == ([0.0], [{}])
  assert (metrics[0]['num_clients'], metrics[0]['num_left_out']) == (0, 1)


@pytest.mark.parametrize('run', [_scaffold, _fed_dyn])
def test_both_reject_a_round_as_a_whole(run):
  big, tiny = ('A', _client(1.0, [2e10])), ('A', _client(1.0, [2e-300]))
  server = numpy_optimizers.BaseServer(numpy_optimizers.Momentum(0.0), 1e300)
  x, shared, states, metrics = run([[big, B], [tiny]], server_optimizer=server)
  want_x, want_shared, want_states, _ = run([[tiny]], server_optimizer=server)
  assert x == [0.0, *want_x]
  assert shared == [0.0, *want_shared]
  assert states == [{}, *want_states]
  assert want_x[0] > 0
  assert metrics[0]['num_clients'] == 2
  assert metrics[0]['num_left_out'] == metrics[0]['update_norm'] == 0


def test_scaffold_rejects_a_round_for_its_c():
  """Each c_i is 1.5e308, which is finite, but their sum is not."""
  clients = [(name, _client(1.0, [-1.5e308])) for name in 'AB']
  x, c, cs, metrics = _scaffold([clients], client_learning_rate=1e-300, epochs=1)
  assert (x, c, cs) == ([0.0], [0.0], [{}])
  assert metrics[0]['num_clients'] == 2
  x, c, cs, _ = _scaffold([clients[:1]], client_learning_rate=1e-300, epochs=1)
  assert x == pytest.approx([-1.5e8])
  assert c == pytest.approx([1.5e308 / 4])


def test_both_keep_float32_and_the_start():
  weights, rounds = _logistic(dtype=np.float32)
  start = {k: v.copy() for k, v in weights.items()}
  arguments: dict[str, Any] = {
    'num_clients': 5,
    'client_learning_rate': 0.1,
    'batch_size': 2,
    'server_optimizer': numpy_optimizers.TffAdam(0.1),
  }
  runs = [
    scaffold(LOGISTIC, weights, rounds, option=1, **arguments),
    scaffold(LOGISTIC, weights, rounds, option=2, **arguments),
    scaffold(LOGISTIC, weights, rounds, option=2, rho=0.1, clip_norm=0.5, **arguments),
    fed_dyn(LOGISTIC, weights, rounds, alpha=0.1, **arguments),
    fed_dyn(
      LOGISTIC, weights, rounds, alpha=0.1, **arguments | {'server_optimizer': None}
    ),
  ]
  for all_weights, all_shared, all_states, _ in runs:
    for tree in [all_weights[-1], all_shared[-1], *all_states[-1].values()]:
      assert all(v.dtype == np.float32 for v in tree.values())
  _assert_close(weights, start, rtol=0)
