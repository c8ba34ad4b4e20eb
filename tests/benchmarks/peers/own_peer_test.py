"""Tests that we as a peer do the work as the papers have it."""

import contextlib
import pathlib
import sys

import numpy as np
import pytest

from benchmarks.peer_processes import PeerProcess
from tests.benchmarks import small_work
from tests.oracles import fed_avg, numpy_models, numpy_optimizers

_COHORTS = [[0, 2], [3, 1]]


def _expected(work):
  clients = [
    {'x': client.x.reshape([len(client), -1]) / 255, 'y': client.y}
    for client in work.clients
  ]
  kernel, bias = (array.astype(np.float64) for array in work.weights)
  all_weights, _ = fed_avg.fed_avg(
    numpy_models.LogisticRegression.loss_and_gradient,
    {'kernel': kernel, 'bias': bias},
    [[clients[i] for i in cohort] for cohort in _COHORTS],
    client_learning_rate=work.learning_rate,
    server_optimizer=numpy_optimizers.TffSgd(1.0),
    batch_size=work.batch_size,
  )
  return [all_weights[-1]['kernel'], all_weights[-1]['bias']]


@pytest.mark.slow
@pytest.mark.parametrize(
  'arguments',
  [(), ('tf.data',), ('local',)],
  ids=['by id', 'data sets', 'on the worker'],
)
def test_two_exact_rounds_of_fed_avg_are_those_of_the_paper(arguments, tmp_path):
  work = small_work.make()
  work.save(tmp_path)
  process = PeerProcess(
    pathlib.Path(sys.executable), 'benchmarks.peers.own_peer', tmp_path, arguments
  )
  with contextlib.closing(process):
    process.start(exact=True)
    for cohort in _COHORTS:
      process.round(cohort)
    weights = process.weights()
  for array, expected in zip(weights, _expected(work), strict=True):
    np.testing.assert_allclose(array, expected, rtol=1e-4, atol=1e-6)
