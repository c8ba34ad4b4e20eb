"""With a selection of rows the server has what it has without one."""

import collections
import dataclasses
import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.tff_algorithms import problems
from tff_algorithms import base_optimizers, models, schedules
from tff_algorithms.elastic import build_elastic
from tff_algorithms.fed_avg import build_fed_avg
from tff_algorithms.fed_prox import Proximal, build_fed_prox
from tff_algorithms.one_way_gradient_transfer import build_one_way_gradient_transfer
from tff_algorithms.parallel_training import build_parallel_training
from tff_algorithms.selection import Selection
from tff_algorithms.two_way_gradient_transfer import build_two_way_gradient_transfer

_NUM_ROWS, _SIZE, _MAX_KEYS, _NUM_CLASSES = 11, 3, 6, 2
_NUM_TABLES = 2
_FLOAT = _INT = 4


def _predict(weights, x, seed):
  w = weights.trainable
  items = tf.gather(w['items'], x['ids']) + tf.tanh(tf.gather(w['gates'], x['ids']))
  features = tf.concat([tf.reduce_mean(items, axis=1), x['dense']], axis=1)
  return features @ w['kernel']


def _initialize(seed):
  del seed
  rng = np.random.default_rng(3)
  shapes = {
    'items': (_NUM_ROWS, _SIZE),
    'kernel': (_SIZE + 1, _NUM_CLASSES),
    'gates': (_NUM_ROWS, _SIZE),
  }
  weights = collections.OrderedDict(
    (name, tf.constant(rng.normal(size=shape), tf.float32))
    for name, shape in shapes.items()
  )
  return models.ModelWeights(weights, ())


_MODEL = models.Model(
  input_spec=collections.OrderedDict(
    x=collections.OrderedDict(
      ids=tf.TensorSpec([None, 2], tf.int32), dense=tf.TensorSpec([None, 1], tf.float32)
    ),
    y=tf.TensorSpec([None], tf.int32),
  ),
  initialize=_initialize,
  predict=_predict,
  loss=models.cross_entropy,
  metrics=models.accuracy_sums,
  finalize_metrics=models.accuracy_from_sums,
)


def _keys(rows):
  own = tf.sort(tf.unique(tf.reshape(rows['x']['ids'], [-1])).y)
  padded = tf.pad(own, [[0, _MAX_KEYS - tf.size(own)]], constant_values=-1)
  return tf.ensure_shape(padded, [_MAX_KEYS])


def _localize(rows, keys):
  ids = rows['x']['ids']
  is_key = tf.equal(ids[..., tf.newaxis], keys)
  local = tf.argmax(is_key, axis=-1, output_type=tf.int32)
  return collections.OrderedDict(rows, x=collections.OrderedDict(rows['x'], ids=local))


_SELECTION = Selection((_NUM_ROWS, _SIZE), _MAX_KEYS, _keys, _localize)
_SIMULATED = dataclasses.replace(_SELECTION, is_simulated=True)


def _rows(n, ids, seed=0):
  rng = np.random.default_rng([seed, n])
  return collections.OrderedDict(
    x=collections.OrderedDict(
      ids=rng.choice(ids, size=(n, 2)).astype(np.int32),
      dense=rng.normal(size=(n, 1)).astype(np.float32),
    ),
    y=rng.integers(0, _NUM_CLASSES, n).astype(np.int32),
  )


def _poisoned():
  rows = _rows(4, [0, 1, 7])
  rows['x']['dense'][2] = np.nan
  return rows


# Rows 8 and 10 are nobody's; 3 and 4 are of several; one client needs all that it may.
_COHORTS = [
  [_rows(9, [1, 3, 4, 9]), _rows(5, [3, 4], 1), _rows(0, [0], 2)],
  [_rows(7, [0, 3, 4, 5, 6, 7], 3), _poisoned(), _rows(2, [2], 4)],
  [_rows(1, [9], 5), _rows(12, [0, 1, 2, 3], 6)],
]
_CENTRALS = [_rows(n, range(_NUM_ROWS), seed=20 + n) for n in (7, 10, 4)]

_COMMON = dict(
  client_learning_rate=0.3,
  batch_size=3,
  epochs=2,
  max_steps=5,
  client_schedule=schedules.exponential(2),
  seed=1,
)
_STEPS: dict[str, Any] = dict(central_batch_size=4, central_steps=3)
_MIXED: dict[str, Any] = dict(federated_weight=0.7, central_weight=0.3)
_BUILD = {
  'fed_avg': build_fed_avg,
  'fed_prox': functools.partial(build_fed_prox, rho=0.5),
  'parallel_training': functools.partial(build_parallel_training, **_MIXED, **_STEPS),
  'one_way': functools.partial(
    build_one_way_gradient_transfer, **_MIXED, diagnostics=True
  ),
  'two_way': functools.partial(build_two_way_gradient_transfer, **_MIXED, **_STEPS),
}


def _built(algorithm, **arguments):
  momentum = tff.learning.optimizers.build_sgdm(0.7, 0.9)
  build = functools.partial(_BUILD[algorithm], _MODEL, server_optimizer=momentum)
  return build(**_COMMON, **arguments)


def _run(process):
  """(server, train metrics) of three rounds."""
  state, rounds = process.initialize(), []
  takes_central = len(process.next.type_signature.parameter) == 3
  for cohort, central in zip(_COHORTS, _CENTRALS, strict=True):
    own = [problems.dataset(central)] if takes_central else []
    output = process.next(state, [problems.dataset(rows) for rows in cohort], *own)
    state = output.state
    rounds.append((state.server, output.metrics['client_work']['train']))
  return rounds


@functools.cache
def _without(algorithm, weighting):
  """The rounds without a selection, run once for all tests."""
  return _run(_built(algorithm, weighting=weighting))


# How many tables travel, and uploads with tables.
_TRAVELLING = {
  'fed_avg': (1, 1),
  'fed_prox': (1, 1),
  'parallel_training': (1, 1),
  'one_way': (2, 2),  # The diagnostics upload a gradient.
  'two_way': (2, 1),
}


def _assert_bytes(algorithm, train, whole):
  down, up = _TRAVELLING[algorithm]
  spared = _NUM_TABLES * (_NUM_ROWS - _MAX_KEYS) * _SIZE * _FLOAT
  keys_and_steps = _MAX_KEYS * _INT + _FLOAT
  assert train['bytes_down'] == whole['bytes_down'] - down * spared
  assert train['bytes_up'] == whole['bytes_up'] - up * (spared - keys_and_steps)


_SAME_METRICS = ('loss', 'accuracy', 'num_examples', 'num_clients', 'update_norm')


@pytest.mark.slow
@pytest.mark.parametrize(
  ('algorithm', 'weighting', 'selection'),
  [
    *((name, 'examples', _SIMULATED) for name in _BUILD),
    *((name, 'examples', _SELECTION) for name in _BUILD),
    ('parallel_training', 'uniform', _SIMULATED),
    ('one_way', 'uniform', _SIMULATED),
    ('two_way', 'uniform', _SIMULATED),
    ('two_way', 'uniform', _SELECTION),
  ],
  ids=lambda value: (
    ('simulated' if value.is_simulated else 'select')
    if isinstance(value, Selection)
    else value
  ),
)
def test_the_server_has_the_same_with_and_without_a_selection(
  runtime, algorithm, weighting, selection
):
  rounds = _run(_built(algorithm, weighting=weighting, selection=selection))
  expected = _without(algorithm, weighting)
  for (server, train), (whole_server, whole) in zip(rounds, expected, strict=True):
    problems.assert_close(
      server.weights.trainable, whole_server.weights.trainable, tolerance=1e-6
    )
    tf.nest.map_structure(
      functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6),
      server.terms,
      whole_server.terms,
    )
    for name in _SAME_METRICS:
      np.testing.assert_allclose(train[name], whole[name], rtol=1e-4, err_msg=name)
    _assert_bytes(algorithm, train, whole)
  left_out = [train['num_clients_left_out'] for _, train in rounds]
  assert left_out == [0, 1, 0]


@pytest.mark.slow
def test_diagnostics_are_the_same_with_and_without_a_selection(runtime):
  rounds = _run(_built('one_way', weighting='uniform', selection=_SELECTION))
  for (_, train), (_, whole) in zip(
    rounds, _without('one_way', 'uniform'), strict=True
  ):
    for name in ('g_tilde_square', 'b_tilde_square'):
      np.testing.assert_allclose(train[name], whole[name], rtol=1e-4, err_msg=name)


@pytest.mark.slow
def test_rows_that_nobody_holds_stay_where_they_are_in_fed_avg(runtime):
  *_, (last, _) = _run(_built('fed_avg', selection=_SIMULATED))
  start = _initialize(None).trainable
  for name in ('items', 'gates'):
    is_same = np.all(last.weights.trainable[name] == start[name].numpy(), axis=1)
    assert np.flatnonzero(is_same).tolist() == [8, 10]


@pytest.mark.slow
def test_an_unweighted_mean_is_taken_too(runtime):
  """It counts the empty client and the poisoned one as zeros, with tables or rows."""
  mean = tff.aggregators.UnweightedMeanFactory()
  arguments = dict(weighting='uniform', aggregator=mean)
  rounds = _run(_built('fed_avg', selection=_SELECTION, **arguments))
  expected = _run(_built('fed_avg', **arguments))
  for (server, _), (whole_server, _) in zip(rounds, expected, strict=True):
    problems.assert_close(
      server.weights.trainable, whole_server.weights.trainable, tolerance=1e-6
    )


@pytest.mark.parametrize(
  ('weighting', 'aggregator'),
  [
    ('examples', tff.aggregators.MeanFactory()),
    ('examples', tff.aggregators.clipping_factory(1.0, tff.aggregators.MeanFactory())),
    (
      'uniform',
      tff.aggregators.DifferentiallyPrivateFactory.gaussian_fixed(
        noise_multiplier=1.0, clients_per_round=3, clip=1.0
      ),
    ),
  ],
  ids=['tff mean', 'clipping', 'dp'],
)
def test_aggregators_that_would_need_whole_tables_are_refused(weighting, aggregator):
  arguments = dict(weighting=weighting, aggregator=aggregator, selection=_SELECTION)
  with pytest.raises(
    ValueError, match=r'delta \(.*\) would have every client send whole'
  ):
    _built('fed_avg', **arguments)


@pytest.mark.parametrize('algorithm', ['fed_avg', 'two_way'])
def test_client_optimizers_other_than_sgd_are_refused(algorithm):
  with pytest.raises(ValueError, match='With a selection the clients step by SGD'):
    _built(
      algorithm, client_optimizer=base_optimizers.momentum(0.9), selection=_SELECTION
    )


def test_terms_whose_work_on_missing_rows_cannot_be_followed_are_refused(runtime):
  with pytest.raises(ValueError, match='what central_gradient, proximal together do'):
    _built('one_way', terms=[Proximal(0.1)], selection=_SELECTION)


def test_a_weight_of_the_shape_of_a_clients_table_is_refused():
  as_kernel = dataclasses.replace(
    _SELECTION, table_shape=(_NUM_ROWS, _NUM_CLASSES), max_keys=_SIZE + 1
  )
  with pytest.raises(ValueError, match='choose another max_keys'):
    _built('fed_avg', selection=as_kernel)


@pytest.mark.parametrize(
  'selection', [_SELECTION, _SIMULATED], ids=['sent', 'simulated']
)
def test_rows_that_are_held_back_are_refused(selection):
  with pytest.raises(ValueError, match='With a selection nothing can be held back'):
    build_elastic(
      build_fed_avg,
      _MODEL,
      client_learning_rate=0.1,
      batch_size=2,
      selection=selection,
    )
