"""A round of two phases: Mime with SGD and this round's c, from the core's parts."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_algorithms import problems
from tff_algorithms import (
  base_optimizers,
  client_inputs,
  client_optimizers,
  oracles,
  process,
  schedules,
  server_steps,
  structures,
)
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.full_gradient import GRADIENT, FullGradient
from tff_algorithms.local_training import DELTA, LocalTraining
from tff_algorithms.server_only import build_server_only
from tff_algorithms.terms import Term

pytestmark = [pytest.mark.usefixtures('runtime'), pytest.mark.slow]


@dataclasses.dataclass(frozen=True)
class ControlVariate(Term):
  """a = c - g_i(x; batch), with c from the phase before."""

  name = 'control_variate'

  def init(self, weights):
    return structures.zeros_like(weights.trainable)

  def message(self, state, server):
    return state

  def value(self, step, message, prepared):
    return structures.subtract(message, step.evaluate(step.x).gradient)


def _mime(model, *, client_learning_rate, batch_size, epochs, weighting='examples'):
  oracle = oracles.as_oracle(model)
  optimizer = tff.learning.optimizers.build_sgdm(1.0)
  mean = tff.aggregators.MeanFactory()
  control_variate = FullGradient(
    oracle=oracle,
    server_step=lambda server, means: server._replace(terms=(means[GRADIENT],)),
    batch_size=batch_size,
    weighting=weighting,
    aggregator=mean,
  )
  training = LocalTraining(
    oracle=oracle,
    server_step=server_steps.optimizer_step(optimizer, DELTA),
    client_optimizer=client_optimizers.Fresh(base_optimizers.sgd()),
    terms=[ControlVariate()],
    batch_size=batch_size,
    epochs=epochs,
    max_steps=None,
    shuffle=True,
    weighting=weighting,
    schedule=schedules.constant(),
    aggregator=mean,
    seed=0,
  )
  return process.build_learning_process(
    server_steps.initial_state(
      oracle,
      optimizer,
      seed=0,
      terms=[ControlVariate()],
      hparams={'client_learning_rate': client_learning_rate},
    ),
    [control_variate, training],
    client_inputs.from_dataset(oracle.batch_spec),
    server_optimizer=optimizer,
  )


_COHORTS = [
  [problems.classification_rows(n, seed=t + 5 * n) for n in sizes]
  for t, sizes in enumerate([(4, 3, 1), (2, 0, 4)])
]


def test_with_one_local_step_mime_is_server_only():
  model = problems.mlp().model
  mime, _ = problems.run(
    _mime(model, client_learning_rate=0.3, batch_size=4, epochs=1), _COHORTS
  )
  server_only, _ = problems.run(
    build_server_only(model, optimizer=tff.learning.optimizers.build_sgdm(0.3)),
    _COHORTS,
  )
  for a, b in zip(mime, server_only, strict=True):
    problems.assert_close(a, b)


def test_mime_stays_at_the_optimum_where_fed_avg_does_not():
  a = np.array([[1.0, 2.0], [3.0, 1.0]])
  b = np.array([[1.0, 0.0], [-1.0, 2.0]])
  best = (a * b).sum(axis=0) / a.sum(axis=0)
  cohort = [
    problems.quadratic_rows([np.diag(h)], [o]) for h, o in zip(a, b, strict=True)
  ]
  arguments = dict(client_learning_rate=0.1, batch_size=1, epochs=5)
  model = problems.quadratic(best).model
  mime, _ = problems.run(_mime(model, **arguments), [cohort] * 3)
  fed_avg, _ = problems.run(build_fed_avg(model, **arguments), [cohort] * 3)
  assert np.linalg.norm(mime[-1]['w'] - best) < 1e-5
  assert np.linalg.norm(fed_avg[-1]['w'] - best) > 1e-2


def test_the_metrics_of_both_phases_are_told_and_their_bytes_added():
  model = problems.mlp().model
  learning_process = _mime(model, client_learning_rate=0.3, batch_size=4, epochs=1)
  _, metrics = problems.run(learning_process, _COHORTS)
  size = sum(w.nbytes for w in problems.mlp().weights.values())
  # Down: x, then x, c, the round's number and the rate; up: two uploads, two weights.
  assert metrics[0]['bytes_down'] == 3 * size + 8
  assert metrics[0]['bytes_up'] == 2 * size + 8
  np.testing.assert_allclose(
    metrics[0]['FullGradient_loss'], metrics[0]['loss'], rtol=1e-5
  )
  assert metrics[0]['FullGradient_gradient_norm'] > 0


def test_the_round_is_counted_once():
  learning_process = _mime(
    problems.mlp().model, client_learning_rate=0.3, batch_size=4, epochs=1
  )
  state = learning_process.initialize()
  clients = [problems.dataset(rows) for rows in _COHORTS[0]]
  assert learning_process.next(state, clients).state.server.round_num == 1


def test_phase_by_phase_is_next_to_the_last_bit():
  learning_process = _mime(
    problems.mlp().model, client_learning_rate=0.3, batch_size=2, epochs=2
  )
  state = learning_process.initialize()
  clients = [problems.dataset(rows) for rows in _COHORTS[0]]
  expected = learning_process.next(state, clients).state
  for phase in learning_process.phases:
    state = phase(state, clients).state
  for a, b in zip(tf.nest.flatten(state), tf.nest.flatten(expected), strict=True):
    np.testing.assert_array_equal(a, b)


def test_each_phase_compiles_to_map_reduce_form_where_two_in_one_do_not():
  learning_process = _mime(
    problems.mlp().model, client_learning_rate=0.3, batch_size=4, epochs=1
  )
  compile_form = tff.backends.mapreduce.get_map_reduce_form_for_computation
  for phase in learning_process.phases:
    assert isinstance(compile_form(phase), tff.backends.mapreduce.MapReduceForm)
  with pytest.raises(ValueError, match='broadcast dependent on aggregate'):
    compile_form(learning_process.next)


def test_a_models_metric_gives_way_to_ours_of_the_same_name():
  problem = problems.logistic()
  counting = dataclasses.replace(
    problem.model,
    metrics=lambda y, outputs: collections.OrderedDict(n=tf.constant(-1.0)),
    finalize_metrics=lambda sums: collections.OrderedDict(
      num_examples=sums['n'], loss=sums['n'], other=sums['n']
    ),
  )
  cohort = [problems.classification_rows(4), problems.classification_rows(3)]
  for process_ in (
    build_fed_avg(counting, client_learning_rate=0.1, batch_size=4),
    build_server_only(counting, optimizer=tff.learning.optimizers.build_sgdm(0.1)),
  ):
    _, (metrics,) = problems.run(process_, [cohort])
    assert metrics['num_examples'] == 7
    assert metrics['loss'] > 0
    assert metrics['other'] < 0


@pytest.mark.parametrize('updates_locally', [False, True])
def test_clients_can_step_with_the_servers_statistics(updates_locally):
  """On f = a w^2 / 2 from m at the server: frozen as in MimeLite, or as in Loc-Mime."""
  a, eta, beta, m, w = 2.0, 0.1, 0.5, 0.25, 1.0
  problem = problems.quadratic([w])
  oracle = oracles.as_oracle(problem.model)
  optimizer = base_optimizers.as_tff_optimizer(base_optimizers.momentum(beta), eta)

  def keep_y(server, means):
    trainable = structures.subtract(server.weights.trainable, means[DELTA])
    return server._replace(weights=server.weights._replace(trainable=trainable))

  training = LocalTraining(
    oracle=oracle,
    server_step=keep_y,
    client_optimizer=client_optimizers.ServersState(optimizer, updates_locally),
    terms=[],
    batch_size=1,
    epochs=3,
    max_steps=None,
    shuffle=False,
    weighting='uniform',
    schedule=schedules.constant(),
    aggregator=tff.aggregators.MeanFactory(),
    seed=0,
  )

  def initial_state():
    state = server_steps.initial_state(oracle, optimizer, seed=0)()
    statistics = collections.OrderedDict(w=tf.constant([m]))
    return state._replace(
      optimizer=collections.OrderedDict(state.optimizer, statistics=statistics)
    )

  learning_process = process.build_learning_process(
    initial_state,
    [training],
    client_inputs.from_dataset(oracle.batch_spec),
    server_optimizer=optimizer,
  )
  state = learning_process.initialize()
  rows = problems.quadratic_rows([[[a]]], [[0.0]])
  after = learning_process.next(state, [problems.dataset(rows)]).state.server
  for _ in range(3):
    u = (1 - beta) * a * w + beta * m
    w, m = w - eta * u, (u if updates_locally else m)
  np.testing.assert_allclose(after.weights.trainable['w'], [w], rtol=1e-5)
  np.testing.assert_allclose(after.optimizer['statistics']['w'], [0.25])


def test_a_phase_listed_twice_is_one_round():
  oracle = oracles.as_oracle(problems.logistic().model)
  optimizer = tff.learning.optimizers.build_sgdm(0.1)
  phase = FullGradient(
    oracle=oracle,
    server_step=server_steps.optimizer_step(optimizer, GRADIENT),
    batch_size=4,
    weighting='examples',
    aggregator=tff.aggregators.MeanFactory(),
  )
  learning_process = process.build_learning_process(
    server_steps.initial_state(oracle, optimizer, seed=0),
    [phase, phase],
    client_inputs.from_dataset(oracle.batch_spec),
    server_optimizer=optimizer,
  )
  state = learning_process.initialize()
  clients = [problems.dataset(rows) for rows in _COHORTS[0]]
  assert learning_process.next(state, clients).state.server.round_num == 1
