"""Tests of aggregators made of flags."""

import csv

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_algorithms import privacy
from training_loops import aggregators, run, train_flags
from training_loops.options import UserError

_NEEDED = {'task': 'digits_logistic', 'algorithm': 'fed_avg', 'output_dir': 'x'}


def _built(**flags):
  return aggregators.build(train_flags.configure(**{**_NEEDED, **flags}))


def test_the_mean_is_the_algorithms_own():
  assert _built() is None


@pytest.mark.parametrize('algorithm', ['fed_avg', 'one_way_gradient_transfer'])
def test_privacy_needs_uniform_weights(algorithm):
  flags = {**_NEEDED, 'algorithm': algorithm, 'aggregator': 'dp'}
  message = '--aggregator=dp needs --client_weighting=uniform'
  with pytest.raises(UserError, match=message):
    train_flags.configure(**flags)
  train_flags.configure(**flags, client_weighting='uniform')


@pytest.mark.parametrize(
  ('flags', 'message'),
  [
    ({'sampling': 'by_examples'}, 'needs --sampling=uniform'),
    ({'sampling': 'log_normal'}, 'needs --sampling=uniform'),
    ({'available_share': 0.5, 'rounds_per_day': 4}, 'and --available_share=1'),
    ({'mixed_diagnostics': True}, '--mixed_diagnostics averages gradients'),
  ],
)
def test_what_would_make_the_privacy_told_untrue_is_refused(flags, message):
  private = {'aggregator': 'dp', 'client_weighting': 'uniform', **flags}
  with pytest.raises(UserError, match=message):
    train_flags.configure(**{**_NEEDED, 'algorithm': 'parallel_training', **private})


@pytest.mark.parametrize('algorithm', ['fed_avg', 'fed_prox'])
def test_sensitivities_without_noise_are_refused(algorithm):
  private = {'aggregator': 'dp', 'client_weighting': 'uniform'}
  flags = {**_NEEDED, **private, 'algorithm': algorithm}
  with pytest.raises(UserError, match='--elastic_sensitivity averages what'):
    train_flags.configure(**flags, elastic_sensitivity='momentum')
  train_flags.configure(**flags, elastic_sensitivity='none')


@pytest.mark.parametrize(
  ('algorithm', 'flags', 'expected'),
  [
    ('fed_avg', {}, [1, 2, 3, 4]),
    ('parallel_training', {}, [1, 2, 3, 4]),
    # Updates and gradients.
    ('two_way_gradient_transfer', {}, [2, 4, 6, 8]),
    ('transfer_learning', {'transfer_round': 3}, [0, 0, 0, 1]),
    (
      'transfer_learning',
      {'transfer_round': 3, 'transfer_order': 'federated_first'},
      [1, 2, 3, 3],
    ),
  ],
)
def test_privacy_is_spent_where_clients_send(algorithm, flags, expected):
  config = train_flags.configure(**{**_NEEDED, 'algorithm': algorithm, **flags})
  counts = [aggregators.num_private_rounds(config, t) for t in (1, 2, 3, 4)]
  assert counts == expected


@pytest.mark.slow
@pytest.mark.parametrize(
  ('weighting', 'expected'), [('examples', 0.2), ('uniform', 0.3)]
)
def test_updates_are_cut_to_the_norm_to_begin_with(runtime, weighting, expected):
  factory = _built(
    aggregator='adaptive_clipping', client_weighting=weighting, initial_clip=0.5
  )
  vector = tff.TensorType(np.float32, [2])
  updates = [np.array([0.1, 0.0], np.float32), np.array([30.0, 0.0], np.float32)]
  if weighting == 'examples':
    process = factory.create(vector, tff.TensorType(np.float32))
    output = process.next(process.initialize(), updates, [3.0, 1.0])
  else:
    process = factory.create(vector)
    output = process.next(process.initialize(), updates)
  np.testing.assert_allclose(output.result, [expected, 0.0], rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(('quantile', 'norm'), [(0.25, 1.0), (0.75, 3.0)])
def test_the_norm_goes_to_the_quantile_of_those_of_the_updates(runtime, quantile, norm):
  factory = _built(aggregator='adaptive_clipping', clipping_quantile=quantile)
  process = factory.create(tff.TensorType(np.float32, [2]), tff.TensorType(np.float32))
  updates = [np.array([n, 0.0], np.float32) for n in (0.5, 1.5, 2.5, 3.5)]
  state, ones = process.initialize(), [1.0] * 4
  for _ in range(60):
    output = process.next(state, updates, ones)
    state = output.state
  far = np.clip([0.5, 1.5, 2.5, 3.5], 0, norm + 0.5).mean()
  near = np.clip([0.5, 1.5, 2.5, 3.5], 0, norm - 0.5).mean()
  assert near * 0.9 < output.result[0] < far * 1.1


@pytest.mark.slow
def test_without_noise_privacy_is_the_mean_of_what_was_cut(runtime):
  factory = _built(
    aggregator='dp',
    client_weighting='uniform',
    dp_clip=0.5,
    dp_noise_multiplier=0.0,
    clients_per_round=4,
  )
  process = factory.create(tff.TensorType(np.float32, [2]))
  updates = [np.array([n, 0.0], np.float32) for n in (0.1, 3.0, 4.0, 0.0)]
  result = process.next(process.initialize(), updates).result
  np.testing.assert_allclose(result, [(0.1 + 0.5 + 0.5) / 4, 0.0], rtol=1e-5)


@pytest.mark.slow
def test_the_noise_is_as_strong_as_was_asked_for(runtime):
  factory = _built(
    aggregator='dp',
    client_weighting='uniform',
    dp_clip=0.5,
    dp_noise_multiplier=3.0,
    clients_per_round=2,
  )
  process = factory.create(tff.TensorType(np.float32, [10_000]))
  nothing = [np.zeros(10_000, np.float32)] * 2
  result = process.next(process.initialize(), nothing).result
  np.testing.assert_allclose(np.std(result), 3.0 * 0.5 / 2, rtol=0.05)


@pytest.mark.slow
def test_adaptive_clipping_trains(runtime, tmp_path):
  flags = train_flags.configure(
    task='digits_mixed',
    algorithm='one_way_gradient_transfer',
    client_learning_rate=0.5,
    aggregator='adaptive_clipping',
    initial_clip=1.0,
    rounds=12,
    rounds_per_eval=12,
    output_dir=tmp_path / 'run',
  )
  (row,) = run.train(flags, runtime=runtime).rows
  assert row['eval/accuracy'] > 0.3
  assert not any('epsilon' in name for name in row)


@pytest.mark.slow
def test_what_of_privacy_is_spent_is_told_and_grows(runtime, tmp_path):
  flags = train_flags.configure(
    task='digits_mixed',
    algorithm='one_way_gradient_transfer',
    num_clients=20,
    clients_per_round=2,
    client_weighting='uniform',
    aggregator='dp',
    dp_noise_multiplier=1.5,
    rounds=3,
    rounds_per_eval=1,
    output_dir=tmp_path / 'run',
  )
  run.train(flags, runtime=runtime)
  with open(tmp_path / 'run' / 'metrics.csv') as file:
    spent = [float(row['privacy/epsilon']) for row in csv.DictReader(file)]
  expected = [
    privacy.epsilon(
      rounds, noise_multiplier=1.5, sampling_probability=2 / 20, delta=1 / 20
    )
    for rounds in (1, 2, 3)
  ]
  np.testing.assert_allclose(spent, expected, rtol=1e-6)
  assert spent == sorted(set(spent))
