"""Parallel training of several client populations: Augenstein et al. 2022, section 6.

On client i of population p:  x_i <- ClientOptimizer(x_i, w_p g_i(x_i; b)), from x_i = x
At the server:                x_p <- ServerOptimizer_p(x, -mean of its Delta_i)
                              x <- MergeOptimizer(x, -sum of (x_p - x))

There is no central part. TFF has one group of clients a round, so that a cohort is of
all populations together and each member carries the number of its own; what it sends is
averaged within that population.
"""

import collections
from collections.abc import Sequence
import dataclasses
import functools
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import checks, client_inputs, fed_avg, oracles, process
from tff_algorithms.client_inputs import ClientRows
from tff_algorithms.local_training import DELTA, LocalTraining, Message
from tff_algorithms.merge import Merge
from tff_algorithms.mixed import Objective
from tff_algorithms.phases import ClientResult, Upload
from tff_algorithms.server_state import ServerState

_PRESENT = 'present'


def _name(p: int) -> str:
  return f'population_{p}'


@dataclasses.dataclass(frozen=True)
class PopulationTraining(LocalTraining):
  """Local training whose updates are averaged within each population.

  Attributes:
    weights: w_p, of each population's loss.
  """

  weights: Sequence[float] = ()

  @property
  def aggregators(self) -> dict[str, tff.aggregators.AggregationFactory]:
    factories = super().aggregators
    mean = factories.pop(DELTA)
    means = {name: mean for name in self.updates}
    return {_PRESENT: tff.aggregators.SumFactory()} | means | factories

  @property
  def updates(self) -> Sequence[str]:
    return [_name(p) for p in range(len(self.weights))]

  @property
  def shared(self) -> dict[str, str]:
    return super().shared | {name: DELTA for name in self.updates}

  def work(self, message: Message, given: ClientRows) -> ClientResult:
    w_p = tf.gather(tf.constant(self.weights), given.population)
    weighted = dataclasses.replace(self, oracle=oracles.Weighted(w_p, self.oracle))
    result = super(PopulationTraining, weighted).work(message, given)
    weight = result.uploads[DELTA].weight
    masked = collections.OrderedDict(
      (
        _name(p),
        # The value is that of DELTA: see `shared`.
        Upload(
          (), tf.where(tf.equal(given.population, p), weight, tf.zeros_like(weight))
        ),
      )
      for p in range(len(self.weights))
    )
    present = tf.one_hot(given.population, len(self.weights), dtype=weight.dtype)
    masked[_PRESENT] = Upload(present, tf.ones_like(weight))
    return result._replace(uploads=result.uploads | masked)


def build_parallel_training_of_populations(
  model: Objective,
  *,
  population_weights: Sequence[float],
  server_optimizers: Sequence[tff.learning.optimizers.Optimizer] | None = None,
  merge_optimizer: tff.learning.optimizers.Optimizer | None = None,
  aggregator: tff.aggregators.AggregationFactory | None = None,
  client_input: client_inputs.ClientInput | None = None,
  **arguments: Any,
) -> process.PhasedProcess:
  """Builds parallel training of populations.

  `next` is `(<S@SERVER, {<client=batch*,population=int32>}@CLIENTS> -> <state=S@SERVER,
  metrics=M@SERVER>)`; see `process.build_learning_process` for S and M.

  Args:
    model: What is trained: a model, or any gradient oracle.
    population_weights: w_p for each population, at least two.
    server_optimizers: ServerOptimizer_p for each, SGD with rate 1 by default.
    merge_optimizer: MergeOptimizer, SGD with rate 1 by default.
    aggregator: For x - x_i within a population; their weighted mean by default. A
      population without a client in the round contributes nothing.
    client_input: What a client is beside its population, a data set by default.
    **arguments: More arguments of `fed_avg.build_fed_avg`.
  """
  if isinstance(aggregator, tff.aggregators.UnweightedAggregationFactory):
    raise ValueError(
      f'aggregator ({type(aggregator).__name__}) cannot weight clients, and those of '
      'the other populations must count for nothing.'
    )
  weights = tuple(checks.positive(w, 'population_weights') for w in population_weights)
  if len(weights) < 2:
    raise ValueError(f'population_weights must be of two or more, found {weights}.')
  sgd = tff.learning.optimizers.build_sgdm(1.0)
  server_optimizers = server_optimizers or [sgd] * len(weights)
  if len(server_optimizers) != len(weights):
    raise ValueError(
      f'There are {len(weights)} population_weights and {len(server_optimizers)} '
      'server_optimizers.'
    )
  optimizer = Merge(
    {_name(p): server for p, server in enumerate(server_optimizers)},
    merge_optimizer or sgd,
  )

  def server_step(server: ServerState, means: Any) -> ServerState:
    present = {_name(p): means[_PRESENT][p] > 0.5 for p in range(len(weights))}
    x = server.weights.trainable
    state, x = optimizer.step(server.optimizer, x, means, is_present=present)
    return server._replace(
      optimizer=state, weights=server.weights._replace(trainable=x)
    )

  oracle = oracles.as_oracle(model)
  return fed_avg.build_fed_avg(
    oracle,
    training=functools.partial(PopulationTraining, weights=weights),
    server_step=server_step,
    server_optimizer=optimizer,
    aggregator=aggregator or tff.aggregators.MeanFactory(no_nan_division=True),
    client_input=client_inputs.of_populations(
      client_input or client_inputs.from_dataset(oracle.batch_spec)
    ),
    **arguments,
  )
