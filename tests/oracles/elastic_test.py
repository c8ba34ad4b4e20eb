"""Tests of the oracle of elastic aggregation: numbers by hand, other oracles."""

import math

import numpy as np
import pytest

from tests.oracles import elastic, numpy_models, numpy_optimizers
from tests.oracles.fed_avg import fed_avg
from tests.oracles.mime import mime
from tests.oracles.scaffold import scaffold

LINEAR = numpy_models.LinearRegression.loss_and_gradient
LOGISTIC = numpy_models.LogisticRegression.loss_and_gradient
MLP = numpy_models.Mlp.loss_and_gradient
NAN = float('nan')


def _rows(*pairs):
  """Rows of a regression with one input and one output."""
  table = np.array(pairs, np.float64).reshape(-1, 2)
  return {'x': table[:, :1], 'y': table[:, 1:]}


def _theta(w, b):
  return {'kernel': np.array([[w]]), 'bias': np.array([b])}


def _pair(tree):
  return [float(tree['kernel'][0, 0]), float(tree['bias'][0])]


def _sgd_server(rate=1.0):
  return numpy_optimizers.BaseServer(numpy_optimizers.Sgd(), rate)


def _run(rounds, *, start=(1.0, 1.0), server=None, rho=0.0, weighting='examples', **s):
  """FedAvg's rounds of one step of rate 1/2 on batches of four rows."""
  steps = elastic.LocalSteps(LINEAR, 0.5, batch_size=4, rho=rho)
  settings = {'tau': 0.5, 'mu': 0.5} | s
  return elastic.elastic(
    elastic.FedAvg(steps, server or _sgd_server()),
    elastic.linear_norm_gradient,
    _theta(*start),
    rounds,
    elastic.Elastic(**settings),
    weighting=weighting,
  )


# The outputs at (1, 1) are 2 and 3, so |g| = (4, 4) and (12, 6). Its gradient at
# (1, 1) is (2, 2), so that its update is (1, 1).
A = elastic.Client('A', _rows((1, 0)), _rows((1, 9), (2, -9)))
# The output at (1, 1) is 0, so |g| = (0, 0); the updates are those of A.
B = elastic.Client('B', _rows(*[(1, 0)] * 3), _rows((-1, 0)))
NO_OMEGA = elastic.Client('none', _rows((1, 0)), _rows())
EMPTY = elastic.Client('empty', _rows(), _rows())


# Omega_k.


@pytest.mark.parametrize(
  ('settings', 'want'),
  [
    # 4 / 2 = 2, then 2 / 2 + 12 / 2; and 2, then 2 / 2 + 6 / 2.
    ({'mu': 0.5}, (7, 4)),
    # 3, then 3 / 4 + 9; 3, then 3 / 4 + 4.5.
    ({'mu': 0.25}, (9.75, 5.25)),
    ({'mu': 0.0}, (12, 6)),
    ({'sensitivity': 'average'}, (8, 5)),
    # One batch of the mean gradient.
    ({'mu': 0.5, 'sensitivity_batch_size': 2}, (4, 2.5)),
    ({'sensitivity': 'average', 'sensitivity_batch_size': 2}, (8, 5)),
  ],
)
def test_omega_by_hand(settings, want):
  settings = elastic.Elastic(tau=0.5, **settings)
  omega = elastic.client_omega(
    elastic.linear_norm_gradient, _theta(1.0, 1.0), A.held_back, settings
  )
  assert _pair(omega) == pytest.approx(want)


def test_absolute_values_are_of_the_gradients_of_batches():
  """Gradients (4, 4) and (-12, 4), or (-4, 4) of both."""
  held_back = _rows((1, 0), (-3, 0))
  theta = _theta(0.0, 2.0)

  def omega(batch_size):
    settings = elastic.Elastic(0.5, 0, 'average', batch_size)
    gradient = elastic.linear_norm_gradient
    return _pair(elastic.client_omega(gradient, theta, held_back, settings))

  assert omega(1) == pytest.approx([8, 4])
  assert omega(2) == pytest.approx([4, 4])


def test_the_last_batch_may_be_shorter():
  """Two of the outputs 2, then one of 3: means, and no weights of batches."""
  held_back = _rows((1, 0), (1, 0), (2, 0))
  for sensitivity, want in [('average', [8, 5]), ('momentum', [7, 4])]:
    settings = elastic.Elastic(0.5, 0.5, sensitivity, 2)
    omega = elastic.client_omega(
      elastic.linear_norm_gradient, _theta(1.0, 1.0), held_back, settings
    )
    assert _pair(omega) == pytest.approx(want)


def test_unknown_sensitivity():
  with pytest.raises(ValueError, match='momentum'):
    _run([[A]], sensitivity='maximum')


@pytest.mark.parametrize('batch', [1, 2, 5])
def test_norm_gradients_are_those_of_finite_differences(batch):
  rng = np.random.default_rng(batch)
  x = rng.normal(size=(batch, 4))

  def mlp(w):
    return np.tanh(x @ w['kernel_1'] + w['bias_1']) @ w['kernel_2'] + w['bias_2']

  def linear(w):
    return x @ w['kernel'] + w['bias']

  shapes = {'kernel_1': (4, 3), 'bias_1': (3,), 'kernel_2': (3, 2), 'bias_2': (2,)}
  for outputs, gradient, model_shapes in [
    (linear, elastic.linear_norm_gradient, {'kernel': (4, 2), 'bias': (2,)}),
    (mlp, elastic.mlp_norm_gradient, shapes),
  ]:
    weights = {name: rng.normal(size=shape) for name, shape in model_shapes.items()}
    got = gradient(weights, {'x': x})
    for name, value in weights.items():
      want = np.zeros_like(value)
      for index in np.ndindex(value.shape):
        ends = []
        for step in (1e-6, -1e-6):
          moved = value.copy()
          moved[index] += step
          ends.append(np.sum(outputs(weights | {name: moved}) ** 2) / batch)
        want[index] = (ends[0] - ends[1]) / 2e-6
      np.testing.assert_allclose(got[name], want, rtol=1e-7, atol=1e-7)


# The rows that are held back.


def test_number_of_held_back_rows():
  for hundredths in range(1, 100):
    for n in range(300):
      want = hundredths * n // 100
      assert elastic.num_held_back(n, hundredths / 100, 1) == want
  assert elastic.num_held_back(100, 0.29, 1) == 29  # 0.29 * 100 is less.
  assert [elastic.num_held_back(n, 0.1, 3) for n in (0, 29, 30, 31)] == [0, 0, 3, 3]


def test_split_keeps_the_order():
  data = {'x': np.arange(5)[:, None], 'y': np.arange(5)}
  name, trained, held_back = elastic.split('A', data, [3, 1])
  assert name == 'A'
  assert trained['y'].tolist() == [0, 2, 4]
  assert held_back['y'].tolist() == [1, 3]
  assert held_back['x'].tolist() == [[1], [3]]
  assert numpy_models.num_rows(elastic.split('A', data, []).held_back) == 0


# Rounds.


def test_a_round_by_hand():
  (result,) = _run([[A]])
  assert _pair(result.omega) == pytest.approx([7, 4])
  zeta = [0.5, 1.5 - 4 / 7]
  assert _pair(result.zeta) == pytest.approx(zeta)
  assert _pair(result.weights) == pytest.approx([1 - zeta[0], 1 - zeta[1]])
  metrics = result.metrics
  assert metrics['num_clients'] == metrics['num_examples'] == 1
  assert metrics['num_sensitivities'] == 1
  assert metrics['num_left_out'] == 0
  assert metrics['loss'] == pytest.approx(2)
  assert metrics['drift'] == pytest.approx(math.sqrt(2))
  assert metrics['boosted'] == 0
  assert metrics['least_zeta'] == pytest.approx(zeta[0])
  assert metrics['largest_zeta'] == pytest.approx(zeta[1])
  assert metrics['mean_zeta'] == pytest.approx(sum(zeta) / 2)
  assert metrics['update_norm'] == pytest.approx(math.hypot(*zeta))


def test_share_of_boosted_coordinates():
  (result,) = _run([[A]], tau=0.6)
  assert result.metrics['boosted'] == 0.5  # 1.6 - 4 / 7 is more than 1.
  (result,) = _run([[A]], tau=4 / 7)
  assert _pair(result.zeta)[1] == pytest.approx(1)


@pytest.mark.parametrize(('weighting', 'share'), [('examples', 0.25), ('uniform', 0.5)])
def test_weights_of_omega(weighting, share):
  """Of A's one and B's three trained rows; the client without B_k has no say."""
  (result,) = _run([[A, B, NO_OMEGA, EMPTY]], weighting=weighting)
  assert _pair(result.omega) == pytest.approx([share * 7, share * 4])
  assert result.metrics['num_sensitivities'] == 2
  assert result.metrics['num_clients'] == 3
  assert result.metrics['num_examples'] == 5
  assert _pair(result.zeta) == pytest.approx([0.5, 1.5 - 4 / 7])


def test_without_omega_all_is_boosted():
  (result,) = _run([[NO_OMEGA]])
  assert _pair(result.omega) == [0, 0]
  assert _pair(result.zeta) == [1.5, 1.5]
  assert _pair(result.weights) == pytest.approx([-0.5, -0.5])
  (result,) = _run([[B]])
  assert result.metrics['num_sensitivities'] == 1
  assert _pair(result.zeta) == [1.5, 1.5]


def test_momentum_of_the_server_by_hand():
  """Round 2 starts at (0.5, 4 / 7); its update d, and m = m / 4 + 3 d / 4."""
  server = numpy_optimizers.BaseServer(numpy_optimizers.Momentum(0.25), 2 / 3)
  first, second = _run([[A], [A]], server=server)
  zeta = np.array([0.5, 1.5 - 4 / 7])
  m = 0.75 * zeta
  x = np.array([1, 1]) - 2 / 3 * m
  assert _pair(first.weights) == pytest.approx(x)
  f_1, f_2 = x[0] + x[1], 2 * x[0] + x[1]
  omega = [f_1 / 2 + 2 * f_2, f_1 / 2 + f_2]
  assert _pair(second.omega) == pytest.approx(omega)
  zeta = 1.5 - np.array(omega) / omega[0]
  m = m / 4 + 0.75 * zeta * 0.5 * f_1
  assert _pair(second.weights) == pytest.approx(x - 2 / 3 * m)


def test_fed_prox_by_hand():
  """Two steps on two batches: y = (0, 0), then g = 0 and rho (y - x) = -rho."""
  client = elastic.Client('A', _rows((1, 0), (1, 0)), A.held_back)
  steps = elastic.LocalSteps(LINEAR, 0.5, batch_size=1, rho=0.2)
  (result,) = elastic.elastic(
    elastic.FedAvg(steps, _sgd_server()),
    elastic.linear_norm_gradient,
    _theta(1.0, 1.0),
    [[client]],
    elastic.Elastic(tau=0.5, mu=0.5),
  )
  zeta = [0.5, 1.5 - 4 / 7]
  want = [1 - 0.9 * zeta[0], 1 - 0.9 * zeta[1]]
  assert _pair(result.weights) == pytest.approx(want)


def test_scaffold_by_hand():
  """c_A is A's gradient and c the half of it, both over D_k and not scaled."""
  steps = elastic.LocalSteps(LINEAR, 0.5, batch_size=4)
  for option in (1, 2):
    first, second = elastic.elastic(
      elastic.Scaffold(steps, _sgd_server(), option=option, num_clients=2),
      elastic.linear_norm_gradient,
      _theta(1.0, 1.0),
      [[A], [A]],
      elastic.Elastic(tau=0.5, mu=0.5),
    )
    assert _pair(first.state['c']) == pytest.approx([1, 1])
    assert _pair(first.state['clients']['A']) == pytest.approx([2, 2])
    x = _pair(first.weights)
    assert x == pytest.approx([0.5, 4 / 7 - 0.5])
    g = sum(x)
    update = 0.5 * (g - 2 + 1)
    zeta = _pair(second.zeta)
    want = [x[0] - zeta[0] * update, x[1] - zeta[1] * update]
    assert _pair(second.weights) == pytest.approx(want)
    assert _pair(second.state['c']) == pytest.approx([1 + (g - 2) / 2] * 2)


def test_mime_lite_by_hand():
  """The first step takes m = 0, the server's m a gradient that is not scaled."""
  steps = elastic.LocalSteps(LINEAR, 0.5, batch_size=4)
  (result,) = elastic.elastic(
    elastic.MimeLite(steps, numpy_optimizers.Momentum(0.75)),
    elastic.linear_norm_gradient,
    _theta(1.0, 1.0),
    [[A]],
    elastic.Elastic(tau=0.5, mu=0.5),
  )
  zeta = [0.5, 1.5 - 4 / 7]
  want = [1 - zeta[0] / 4, 1 - zeta[1] / 4]
  assert _pair(result.weights) == pytest.approx(want)
  assert _pair(result.state['m']) == pytest.approx([0.5, 0.5])


# Guards.


def test_a_non_finite_omega_alone_is_left_out():
  bad = elastic.Client('bad', _rows((1, 0)), _rows((NAN, 0)))
  huge = elastic.Client('huge', _rows((1, 0)), _rows((1e200, 0)))
  (result,) = _run([[A, bad, huge]])
  assert result.metrics['num_clients'] == 3
  assert result.metrics['num_sensitivities'] == 1
  assert result.metrics['num_left_out'] == 0
  assert _pair(result.omega) == pytest.approx([7, 4])
  (result,) = _run([[bad]])
  assert _pair(result.zeta) == [1.5, 1.5]
  assert _pair(result.weights) == pytest.approx([-0.5, -0.5])


@pytest.mark.parametrize('value', [NAN, math.inf, 1e200])
def test_a_non_finite_update_leaves_out_its_omega(value):
  bad = elastic.Client('bad', _rows((1, 0), (value, 0)), A.held_back)
  (result,) = _run([[bad, B]])
  assert result.metrics['num_clients'] == 1
  assert result.metrics['num_sensitivities'] == 1
  assert result.metrics['num_left_out'] == 1
  assert _pair(result.omega) == [0, 0]


def test_a_round_without_clients_changes_nothing():
  server = numpy_optimizers.BaseServer(numpy_optimizers.Momentum(0.25), 0.5)
  bad = elastic.Client('bad', _rows((NAN, 0)), A.held_back)
  first, second, third = _run([[A], [bad, EMPTY], []], server=server)
  for result in (second, third):
    assert _pair(result.weights) == _pair(first.weights)
    assert _pair(result.state['m']) == _pair(first.state['m'])
    assert _pair(result.zeta) == [1.5, 1.5]
    assert math.isnan(result.metrics['loss'])


def test_a_step_to_something_not_finite_is_not_taken():
  (result,) = _run([[A]], server=_sgd_server(1e308), tau=1e10)
  assert _pair(result.weights) == [1, 1]


# Beside the other oracles: without held-back rows and tau = 0 zeta is 1.


def _problem(seed=0):
  rng = np.random.default_rng(seed)
  shapes = {'kernel_1': (4, 3), 'bias_1': (3,), 'kernel_2': (3, 2), 'bias_2': (2,)}
  weights = {name: rng.normal(size=shape) for name, shape in shapes.items()}
  clients = [
    (f'c{i}', {'x': rng.normal(size=(n, 4)), 'y': rng.integers(2, size=n)})
    for i, n in enumerate([1, 4, 0, 9, 2])
  ]
  rounds = [
    [clients[i] for i in rng.choice(5, size=3, replace=False)] for _ in range(4)
  ]
  return weights, rounds


STEPS = elastic.LocalSteps(MLP, 0.1, batch_size=2, epochs=2, max_steps=7, rho=0.3)
SAME = {'batch_size': 2, 'epochs': 2, 'max_steps': 7, 'rho': 0.3}


def _without_omega(algorithm, weights, rounds, weighting):
  held_back_nothing = [
    [elastic.split(name, data, []) for name, data in cohort] for cohort in rounds
  ]
  results = elastic.elastic(
    algorithm,
    elastic.mlp_norm_gradient,
    weights,
    held_back_nothing,
    elastic.Elastic(tau=0),
    weighting=weighting,
  )
  return results


def _assert_same(results, want_weights, want_metrics, metrics):
  for result, weights, want in zip(results, want_weights, want_metrics, strict=True):
    for name, value in weights.items():
      np.testing.assert_allclose(result.weights[name], value, rtol=1e-12, atol=1e-14)
    for name in metrics:
      assert result.metrics[name] == pytest.approx(want[name], nan_ok=True), name


COMMON = ('num_clients', 'num_left_out', 'drift', 'update_norm')


@pytest.mark.parametrize('weighting', ['examples', 'uniform'])
def test_zeta_of_one_is_fed_avg(weighting):
  weights, rounds = _problem()
  server = numpy_optimizers.BaseServer(numpy_optimizers.Momentum(0.9), 0.7)
  got = _without_omega(elastic.FedAvg(STEPS, server), weights, rounds, weighting)
  want = fed_avg(
    MLP,
    weights,
    [[data for _, data in cohort] for cohort in rounds],
    client_learning_rate=0.1,
    server_optimizer=server,
    weighting=weighting,
    **SAME,
  )
  _assert_same(got, *want, (*COMMON, 'loss', 'num_examples'))


@pytest.mark.parametrize('option', [1, 2])
def test_zeta_of_one_is_scaffold(option):
  weights, rounds = _problem(1)
  algorithm = elastic.Scaffold(STEPS, _sgd_server(), option=option, num_clients=5)
  got = _without_omega(algorithm, weights, rounds, 'uniform')
  x, c, cs, metrics = scaffold(
    MLP,
    weights,
    rounds,
    num_clients=5,
    client_learning_rate=0.1,
    server_optimizer=_sgd_server(),
    option=option,
    **SAME,
  )
  _assert_same(got, x, metrics, (*COMMON, 'loss', 'num_examples'))
  for result, want_c, want_cs in zip(got, c, cs, strict=True):
    assert result.state['clients'].keys() == want_cs.keys()
    for name, value in want_c.items():
      np.testing.assert_allclose(result.state['c'][name], value, atol=1e-12)
      for client, want in want_cs.items():
        state = result.state['clients'][client]
        np.testing.assert_allclose(state[name], want[name], atol=1e-12)


def test_zeta_of_one_is_mime_lite():
  weights, rounds = _problem(2)
  base = numpy_optimizers.Adam(0.9, 0.99, 1e-2, bias_correction=True)
  algorithm = elastic.MimeLite(STEPS, base, 0.5)
  got = _without_omega(algorithm, weights, rounds, 'examples')
  want = mime(
    MLP,
    weights,
    [[data for _, data in cohort] for cohort in rounds],
    base=base,
    learning_rate=0.1,
    server_learning_rate=0.5,
    corrected=False,
    **SAME,
  )
  _assert_same(got, *want, COMMON)


def test_uniform_omega_and_tau_of_one_is_fed_avg():
  """Held-back inputs that are 1 give both coordinates the same gradient."""
  a = elastic.Client('A', _rows((3, 1), (-1, 2)), _rows((1, 0), (1, 0)))
  b = elastic.Client('B', _rows((2, 0.5)), _rows((1, 7)))
  got = _run([[a, b]] * 3, start=(0.0, 1.0), tau=1)
  want, _ = fed_avg(
    LINEAR,
    _theta(0.0, 1.0),
    [[a.trained, b.trained]] * 3,
    client_learning_rate=0.5,
    server_optimizer=_sgd_server(),
    batch_size=4,
  )
  for result, weights in zip(got, want, strict=True):
    assert _pair(result.zeta) == pytest.approx([1, 1])
    assert _pair(result.weights) == pytest.approx(_pair(weights))


# What the definition of zeta implies.


def test_zeta_lies_between_tau_and_one_plus_tau():
  weights, rounds = _problem(3)
  split_rounds = [
    [elastic.split(name, data, range(len(data['y']) // 2)) for name, data in cohort]
    for cohort in rounds
  ]
  for tau in (0, 0.5, 2):
    for weighting in ('examples', 'uniform'):
      results = elastic.elastic(
        elastic.FedAvg(STEPS, _sgd_server()),
        elastic.mlp_norm_gradient,
        weights,
        split_rounds,
        elastic.Elastic(tau=tau),
        weighting=weighting,
      )
      for result in results:
        assert result.metrics['least_zeta'] == pytest.approx(tau)
        assert result.metrics['largest_zeta'] <= 1 + tau


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_all_is_of_the_dtype_of_the_weights(dtype):
  weights, rounds = _problem(4)
  weights = {name: value.astype(dtype) for name, value in weights.items()}
  cohort = [
    elastic.split(name, data, [0]) for name, data in rounds[1] if len(data['y'])
  ]
  for algorithm in (
    elastic.FedAvg(STEPS, _sgd_server()),
    elastic.Scaffold(STEPS, _sgd_server(), option=2, num_clients=5),
    elastic.MimeLite(STEPS, numpy_optimizers.Momentum()),
  ):
    (result,) = elastic.elastic(
      algorithm, elastic.mlp_norm_gradient, weights, [cohort], elastic.Elastic(0.5)
    )
    for tree in (result.weights, result.omega, result.zeta):
      assert {value.dtype for value in tree.values()} == {np.dtype(dtype)}
