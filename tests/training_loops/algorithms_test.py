"""Tests of algorithms made of flags."""

import contextlib

import numpy as np
import pytest
import tensorflow_federated as tff

import tasks
from tff_algorithms import base_optimizers, schedules
from tff_algorithms.client_states import InMemoryClientStates
from tff_algorithms.elastic import build_elastic
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.fed_dyn import build_fed_dyn
from tff_algorithms.fed_prox import Proximal, build_fed_prox
from tff_algorithms.loc_mime import build_loc_mime
from tff_algorithms.mime import build_mime
from tff_algorithms.mime_lite import build_mime_lite
from tff_algorithms.mime_mvr import build_mime_mvr
from tff_algorithms.scaffold import build_scaffold
from tff_algorithms.server_only import build_server_only
from training_loops import algorithms, train_flags
from training_loops.client_state_exchange import ClientStateExchange
from training_loops.client_state_store import ClientStateStore


@pytest.fixture(scope='module')
def task():
  return tasks.load('digits_mlp', seed=0, num_clients=5)


def _built(task, **flags):
  where = dict(task='digits_mlp', output_dir='x', runtime='local')
  return algorithms.build(train_flags.configure(**where, **flags), task)


def _weights(process, task, states=None) -> list[np.ndarray]:
  """The weights after two rounds; `states` has what clients keep, if they do."""
  state = process.initialize()
  ids = task.train.client_ids[:2]
  clients = [task.train.client_dataset(c) for c in ids]
  for _ in range(2):
    kept = [states.read(ids)] if states else []
    output = process.next(state, clients, *kept)
    state = output.state
    if states:
      states.write(output.client_states)
  return process.get_model_weights(state).trainable


def _weights_by_file(process, task, directory) -> list[np.ndarray]:
  """The same, with what clients keep in files, as in a run."""
  store = ClientStateStore(directory / 'states.sqlite', process.initialize_client(), {})
  with contextlib.closing(store):
    store.restore(0, None)
    (directory / 'files').mkdir()
    return _weights(process, task, ClientStateExchange(store, directory / 'files'))


@pytest.mark.slow
def test_every_flag_of_local_training_reaches_fed_avg(runtime, task):
  ours = _built(
    task,
    algorithm='fed_avg',
    client_learning_rate=0.2,
    batch_size=7,
    client_epochs=3,
    max_client_steps=4,
    client_weighting='uniform',
    client_lr_schedule='exponential',
    client_lr_half_life=2,
    server_lr_schedule='linear_warmup',
    server_lr_warmup=3,
    server_optimizer='momentum',
    server_learning_rate=0.5,
    server_momentum=0.8,
    seed=5,
  )
  theirs = build_fed_avg(
    task.model,
    client_learning_rate=0.2,
    batch_size=7,
    epochs=3,
    max_steps=4,
    weighting='uniform',
    client_schedule=schedules.exponential(2),
    server_schedule=schedules.linear_warmup(3),
    server_optimizer=tff.learning.optimizers.build_sgdm(0.5, 0.8),
    seed=5,
  )
  for a, b in zip(_weights(ours, task), _weights(theirs, task), strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_every_flag_reaches_fed_prox(runtime, task):
  ours = _built(task, algorithm='fed_prox', fed_prox_rho=0.7, client_epochs=2)
  theirs = build_fed_prox(
    task.model, rho=0.7, client_learning_rate=0.1, batch_size=20, epochs=2
  )
  for a, b in zip(_weights(ours, task), _weights(theirs, task), strict=True):
    np.testing.assert_array_equal(a, b)


_STATEFUL_FLAGS = dict(
  client_learning_rate=0.2,
  batch_size=7,
  client_epochs=3,
  max_client_steps=4,
  client_weighting='examples',
  client_lr_schedule='exponential',
  client_lr_half_life=2,
  server_lr_schedule='linear_warmup',
  server_lr_warmup=3,
  server_optimizer='momentum',
  server_learning_rate=0.5,
  server_momentum=0.8,
  seed=5,
)
_STATEFUL_ARGUMENTS = dict(
  num_clients=5,  # All those of the task.
  client_learning_rate=0.2,
  batch_size=7,
  epochs=3,
  max_steps=4,
  weighting='examples',
  client_schedule=schedules.exponential(2),
  server_schedule=schedules.linear_warmup(3),
  server_optimizer=tff.learning.optimizers.build_sgdm(0.5, 0.8),
  seed=5,
)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('algorithm', 'build', 'more', 'own'),
  [
    (
      'scaffold',
      build_scaffold,
      {'scaffold_option': '1', 'fed_prox_rho': 0.7},
      {'option': 1, 'terms': [Proximal(0.7)]},
    ),
    ('scaffold', build_scaffold, {'scaffold_option': '2'}, {'option': 2}),
    ('fed_dyn', build_fed_dyn, {'fed_dyn_alpha': 0.3}, {'alpha': 0.3}),
  ],
)
def test_every_flag_reaches_scaffold_and_fed_dyn(
  runtime, task, tmp_path, algorithm, build, more, own
):
  ours = _built(task, algorithm=algorithm, **_STATEFUL_FLAGS, **more)
  theirs = build(task.model, **_STATEFUL_ARGUMENTS, **own)
  found = _weights_by_file(ours, task, tmp_path)
  expected = _weights(theirs, task, InMemoryClientStates(theirs))
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('algorithm', 'build', 'own'),
  [('scaffold', build_scaffold, {}), ('fed_dyn', build_fed_dyn, {'alpha': 0.1})],
)
def test_without_flags_scaffold_and_fed_dyn_are_those_of_their_papers(
  runtime, task, tmp_path, algorithm, build, own
):
  """Clients count alike, and there is no proximal term."""
  ours = _built(task, algorithm=algorithm)
  theirs = build(
    task.model, num_clients=5, client_learning_rate=0.1, batch_size=20, **own
  )
  found = _weights_by_file(ours, task, tmp_path)
  expected = _weights(theirs, task, InMemoryClientStates(theirs))
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_every_flag_reaches_server_only(runtime, task):
  ours = _built(
    task,
    algorithm='server_only',
    base_optimizer='adam',
    base_beta_1=0.8,
    base_beta_2=0.7,
    base_epsilon=0.1,
    base_initial_accumulator=0.2,
    server_learning_rate=0.05,
    server_lr_schedule='inverse_sqrt',
    client_weighting='uniform',
    batch_size=30,
    seed=3,
  )
  theirs = build_server_only(
    task.model,
    optimizer=base_optimizers.as_tff_optimizer(
      base_optimizers.adam(0.8, 0.7, 0.1, 0.2), 0.05
    ),
    schedule=schedules.inverse_sqrt(1.0),
    weighting='uniform',
    batch_size=30,
    seed=3,
  )
  for a, b in zip(_weights(ours, task), _weights(theirs, task), strict=True):
    np.testing.assert_array_equal(a, b)


_STEPS = dict(
  client_epochs=2,
  max_client_steps=3,
  client_weighting='uniform',
  client_lr_schedule='exponential',
  client_lr_half_life=2,
  server_lr_schedule='linear_warmup',
  server_lr_warmup=3,
  server_learning_rate=0.5,
  batch_size=7,
  mime_gradient_dropout=True,
  seed=5,
)
_ARGUMENTS = dict(
  epochs=2,
  max_steps=3,
  weighting='uniform',
  client_schedule=schedules.exponential(2),
  server_schedule=schedules.linear_warmup(3),
  server_learning_rate=0.5,
  batch_size=7,
  gradient_dropout=True,
  seed=5,
)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('algorithm', 'build', 'more', 'own'),
  [
    ('mime', build_mime, {}, {}),
    (
      'mime',
      build_mime,
      {'mime_control_variate': 'previous'},
      {'control_variate': 'previous'},
    ),
    ('mime_lite', build_mime_lite, {}, {}),
    (
      'loc_mime',
      build_loc_mime,
      {'mime_control_variate': 'previous'},
      {'control_variate': 'previous'},
    ),
  ],
)
def test_every_flag_reaches_mime(runtime, task, algorithm, build, more, own):
  adam = dict(base_optimizer='adam', base_epsilon=0.1, base_initial_accumulator=0.2)
  ours = _built(
    task, algorithm=algorithm, client_learning_rate=0.2, **_STEPS, **adam, **more
  )
  base_optimizer = base_optimizers.as_tff_optimizer(
    base_optimizers.adam(eps=0.1, initial_accumulator=0.2), 0.2
  )
  theirs = build(task.model, base_optimizer=base_optimizer, **_ARGUMENTS, **own)
  for a, b in zip(_weights(ours, task), _weights(theirs, task), strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize('lite', [False, True])
def test_every_flag_reaches_mime_mvr(runtime, task, lite):
  algorithm = 'mime_lite_mvr' if lite else 'mime_mvr'
  flags = dict(client_learning_rate=0.2, mvr_a=0.3)
  ours = _built(task, algorithm=algorithm, **_STEPS, **flags)
  theirs = build_mime_mvr(task.model, a=0.3, learning_rate=0.2, lite=lite, **_ARGUMENTS)
  for a, b in zip(_weights(ours, task), _weights(theirs, task), strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_server_only_can_reduce_variance(runtime, task):
  ours = _built(task, algorithm='server_only', base_optimizer='mvr', mvr_a=0.3)
  sgd = base_optimizers.as_tff_optimizer(base_optimizers.sgd(), 0.1)
  theirs = build_server_only(task.model, optimizer=sgd, mvr_a=0.3)
  for a, b in zip(_weights(ours, task), _weights(theirs, task), strict=True):
    np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('algorithm', 'build', 'flags', 'arguments'),
  [
    (
      'fed_avg',
      build_fed_avg,
      {'elastic_sensitivity': 'momentum', 'elastic_mu': 0.3},
      {'sensitivity': 'momentum', 'mu': 0.3, 'weighting': 'examples'},
    ),
    (
      'scaffold',
      build_scaffold,
      {'elastic_sensitivity': 'average', 'fed_prox_rho': 0.7},
      {
        'sensitivity': 'average',
        'weighting': 'uniform',
        'num_clients': 5,
        'terms': [Proximal(0.7)],
      },
    ),
  ],
  ids=['fed_avg', 'scaffold'],
)
def test_every_flag_reaches_elastic_aggregation(
  runtime, task, tmp_path, algorithm, build, flags, arguments
):
  ours = _built(
    task,
    algorithm=algorithm,
    client_learning_rate=0.2,
    batch_size=7,
    elastic_tau=0.8,
    elastic_fraction=0.3,
    elastic_batch_size=5,
    seed=5,
    **flags,
  )
  theirs = build_elastic(
    build,
    task.model,
    client_learning_rate=0.2,
    batch_size=7,
    tau=0.8,
    fraction=0.3,
    sensitivity_batch_size=5,
    seed=5,
    **arguments,
  )
  if algorithm == 'scaffold':
    found = _weights_by_file(ours, task, tmp_path)
    expected = _weights(theirs, task, InMemoryClientStates(theirs))
  else:
    found, expected = _weights(ours, task), _weights(theirs, task)
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_array_equal(a, b)


def test_elastic_aggregation_of_a_part_of_the_weights_is_refused(data_dir):
  movies = tasks.load('movielens', seed=0, data_dir=str(data_dir))
  flags = train_flags.configure(
    task='movielens', algorithm='fed_avg', elastic_sensitivity='average', output_dir='x'
  )
  with pytest.raises(ValueError, match='--selection=none sends them all'):
    algorithms.build(flags, movies)


def test_a_split_cohort_is_asked_for_by_its_flag(task):
  common = dict(task='digits_mlp', algorithm='mime_lite', output_dir='x')
  for split in (False, True):
    flags = train_flags.configure(**common, mime_split_cohort=split)
    assert algorithms.splits_cohort(flags) == split
    client_type = algorithms.build(flags, task).next.type_signature.parameter[1]
    assert ('only_gradient' in str(client_type)) == split
  assert not algorithms.splits_cohort(
    train_flags.configure(**(common | {'algorithm': 'fed_avg'}))
  )


def test_every_algorithm_is_described_in_a_line():
  for text in algorithms.descriptions().values():
    assert 20 < len(text) < 80
    assert text.endswith('.')
