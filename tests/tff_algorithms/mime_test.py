"""Mime: its phases and the forms they compile to, dropout, and split cohorts."""

import collections
import dataclasses

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_algorithms import algorithms, problems
from tff_algorithms import base_optimizers, client_inputs, mime
from tff_algorithms.server_only import build_server_only

pytestmark = [pytest.mark.usefixtures('runtime'), pytest.mark.slow]


# How a round travels.

ONE_PHASE = {
  'mime_previous': algorithms.mime_previous,
  'mime_lite': algorithms.mime_lite,
  'mime_mvr': algorithms.mime_mvr,
  'mime_lite_mvr': algorithms.mime_lite_mvr,
  'server_only_mvr': algorithms.server_only_mvr,
  'mime_previous, split': lambda: algorithms.mime_previous(split_cohort=True),
  'mime_lite, split': lambda: algorithms.mime_lite(split_cohort=True),
}
TWO_PHASES = {
  'mime': algorithms.mime,
  'loc_mime': algorithms.loc_mime,
  'mime, split': lambda: algorithms.mime(split_cohort=True),
}


def compiled(computation):
  return tff.backends.mapreduce.get_map_reduce_form_for_computation(computation)


@pytest.mark.parametrize('build', ONE_PHASE.values(), ids=ONE_PHASE)
def test_a_round_of_one_phase_compiles_to_map_reduce_form(build):
  form = compiled(build().next)
  assert isinstance(form, tff.backends.mapreduce.MapReduceForm)


@pytest.mark.parametrize('build', TWO_PHASES.values(), ids=TWO_PHASES)
def test_a_round_with_its_own_c_only_compiles_phase_by_phase(build):
  process = build()
  with pytest.raises(ValueError, match='broadcast dependent on aggregate'):
    compiled(process.next)
  gradients, training = process.phases
  for phase in (gradients, training):
    assert isinstance(compiled(phase), tff.backends.mapreduce.MapReduceForm)


def arguments_for(process, cohort):
  """The clients' arguments, in halves where the process wants them."""
  clients = [problems.dataset(rows) for rows in cohort]
  is_split = isinstance(process.next.type_signature.parameter[1].member, tff.StructType)
  return client_inputs.in_halves(clients) if is_split else clients


@pytest.mark.parametrize('build', TWO_PHASES.values(), ids=TWO_PHASES)
def test_phase_by_phase_is_next_to_the_last_bit(build):
  process = build()
  state = expected = process.initialize()
  clients = arguments_for(process, algorithms.COHORT)
  for _ in range(2):
    expected = process.next(expected, clients).state
    for phase in process.phases:
      state = phase(state, clients).state
  assert expected.server.round_num == 2
  for a, b in zip(tf.nest.flatten(state), tf.nest.flatten(expected), strict=True):
    np.testing.assert_array_equal(a, b)


def test_between_the_phases_c_is_there_and_nothing_else_has_changed():
  process = algorithms.mime()
  state = process.initialize()
  clients = arguments_for(process, algorithms.COHORT)
  between = process.phases[0](state, clients).state.server
  c = between.terms[0].c
  expected = state.server._replace(terms=((c, 0),))
  algorithms.assert_states_close(between, expected, rtol=0)
  problem = problems.logistic()
  sizes = [len(rows['y']) for rows in algorithms.COHORT]
  gradients = [
    problem.oracle.loss_and_gradient(problem.weights, rows)[1]
    for rows in algorithms.COHORT
  ]
  for name in c:
    mean = np.average([g[name] for g in gradients], axis=0, weights=sizes)
    np.testing.assert_allclose(c[name], mean, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
  'build', [algorithms.mime, algorithms.loc_mime], ids=['mime', 'loc_mime']
)
def test_c_of_another_round_is_not_used(build):
  """The phase of the updates alone, without one of the gradients before it."""
  process = build()
  state = process.initialize()
  clients = arguments_for(process, algorithms.COHORT)
  state = process.next(state, clients).state
  after = process.phases[1](state, clients).state
  expected = state._replace(server=state.server._replace(round_num=2))
  algorithms.assert_states_close(after, expected, rtol=0)


def test_a_control_variate_is_current_or_previous():
  with pytest.raises(ValueError, match='control_variate must be one of current'):
    mime.control_variate_term('next')


def test_a_keras_model_trains_as_the_same_model_written_here():
  problem = problems.logistic()
  keras = tf.keras.Sequential([tf.keras.layers.Dense(3, input_shape=(5,))])
  keras.set_weights([problem.weights['kernel'], problem.weights['bias']])
  functional = tff.learning.models.functional_model_from_keras(
    keras,
    tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    input_spec=problem.model.input_spec,
  )
  found = []
  for model in (problem.model, functional):
    process = mime.build_mime(
      model, base_optimizer=optimizer(base_optimizers.adam()), batch_size=2
    )
    weights, _ = problems.run(process, COHORTS)
    found.append(weights[-1])
  np.testing.assert_allclose(found[1][0], found[0]['kernel'], rtol=1e-4)
  np.testing.assert_allclose(found[1][1], found[0]['bias'], rtol=1e-4)


# Dropout.


def with_dropout(problem):
  """The problem's model with stateless dropout of its inputs."""

  def predict(weights, x, seed):
    if seed is not None:
      x = tf.nn.experimental.stateless_dropout(x, rate=0.5, seed=seed)
    return problem.model.predict(weights, x, seed)

  return dataclasses.replace(problem.model, predict=predict)


def optimizer(base=None, rate=0.3):
  return base_optimizers.as_tff_optimizer(base or base_optimizers.momentum(0.8), rate)


COHORTS = [
  [problems.classification_rows(n, seed=t + 5 * n) for n in sizes]
  for t, sizes in enumerate([(4, 3, 1), (2, 0, 4)])
]


@pytest.mark.parametrize('batch_size', [4, 2])
def test_both_gradients_of_a_step_see_one_dropout_mask(batch_size):
  """With one step the two cancel, whatever the batch, and c alone is stepped with."""
  model = with_dropout(problems.mlp())
  arguments = dict(batch_size=batch_size, max_steps=1)
  process = mime.build_mime(model, base_optimizer=optimizer(), **arguments)
  weights, _ = problems.run(process, COHORTS)
  server_only = build_server_only(model, optimizer=optimizer())
  expected, _ = problems.run(server_only, COHORTS)
  for ours, theirs in zip(weights, expected, strict=True):
    problems.assert_close(ours, theirs)


def test_dropout_is_on_in_local_steps():
  """From the second step on the gradients differ, and the masks with the seed."""
  model = with_dropout(problems.mlp())
  arguments = dict(base_optimizer=optimizer(), batch_size=4, epochs=3, shuffle=False)

  def trained(**changed):
    process = mime.build_mime(model, **arguments, **changed)
    return problems.run(process, COHORTS[:1])[0][0]['kernel_1']

  assert np.abs(trained(seed=1) - trained(seed=2)).max() > 1e-4


@pytest.mark.parametrize('control_variate', mime.CONTROL_VARIATES)
def test_full_gradients_are_without_dropout_unless_asked_for(control_variate):
  model = with_dropout(problems.mlp())

  def s(**changed):
    process = mime.build_mime(
      model,
      base_optimizer=optimizer(),
      batch_size=4,
      control_variate=control_variate,
      **changed,
    )
    state = algorithms.next_round(process, process.initialize(), COHORTS[0]).state
    return state.server.optimizer['statistics']

  plain = s(seed=1)
  problems.assert_close(s(seed=2), plain, 0)
  with_it, otherwise = (s(seed=seed, gradient_dropout=True) for seed in (1, 2))
  for a, b in ((with_it, plain), (with_it, otherwise)):
    assert np.abs(a['kernel_1'] - b['kernel_1']).max() > 1e-4


def test_gradients_with_dropout_differ_from_round_to_round():
  """s = V(c, s) of momentum: c is recovered from it."""
  process = mime.build_mime(
    with_dropout(problems.mlp()),
    base_optimizer=optimizer(rate=1e-9),  # x stays where it is.
    batch_size=4,
    gradient_dropout=True,
  )
  state, found = process.initialize(), []
  for _ in range(2):
    state = algorithms.next_round(process, state, COHORTS[0]).state
    found.append(state.server.terms[0].c['kernel_1'])
  assert np.abs(found[0] - found[1]).max() > 1e-4


# Split cohorts.

BUILDERS = {
  'mime': algorithms.mime,
  'mime_previous': algorithms.mime_previous,
  'mime_lite': algorithms.mime_lite,
}


def half(rows, only_gradient):
  return collections.OrderedDict(
    client=problems.dataset(rows), only_gradient=only_gradient
  )


@pytest.mark.parametrize('build', BUILDERS.values(), ids=BUILDERS)
@pytest.mark.parametrize(
  'halves', [[True], [False], [True, True], [False, False]], ids=str
)
def test_a_cohort_all_in_one_half_is_a_clear_error(build, halves):
  process = build(split_cohort=True)
  clients = [
    half(rows, only_gradient)
    for rows, only_gradient in zip(algorithms.COHORT, halves, strict=False)
  ]
  with pytest.raises(Exception, match='split_cohort: a round needs at least one'):
    process.next(process.initialize(), clients)


@pytest.mark.parametrize('build', BUILDERS.values(), ids=BUILDERS)
def test_each_half_of_a_cohort_counts_for_its_own_part_alone(build):
  """A client more of one half, in the place of one of the other, moves just that."""
  process = build(split_cohort=True)
  first, second, third = algorithms.COHORT
  state = process.initialize()
  state = process.next(state, [half(first, False), half(second, True)]).state

  def s_after(clients):
    server = process.next(state, clients).state.server
    return server.optimizer['statistics']

  both = s_after([half(first, False), half(second, True)])
  problems.assert_close(
    s_after([half(first, False), half(third, False), half(second, True)]), both, 1e-6
  )
  other = s_after([half(first, False), half(third, True)])
  assert np.abs(other['kernel'] - both['kernel']).max() > 1e-4


def test_clients_without_a_half_are_refused():
  process = algorithms.mime_lite(split_cohort=True)
  with pytest.raises(TypeError):
    algorithms.next_round(process, process.initialize(), algorithms.COHORT)
