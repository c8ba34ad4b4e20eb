"""The phase in which clients train: broadcast x, loop there, step at the server."""

import collections
from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import checks, local_loop, schedules, structures
from tff_algorithms.base_optimizers import BaseOptimizer
from tff_algorithms.client_inputs import ClientRows
from tff_algorithms.mean import MeanFactory
from tff_algorithms.models import ModelWeights
from tff_algorithms.oracles import Oracle
from tff_algorithms.phases import (
  ClientResult,
  Phase,
  ServerState,
  Upload,
  loss_measurements,
  round_metrics,
)
from tff_algorithms.terms import Client, Term

WEIGHTINGS = ('examples', 'uniform')
_DELTA = 'delta'


class Message(NamedTuple):
  """What a client is sent: x, and what belongs to the round and to the terms."""

  round_num: tf.Tensor
  weights: ModelWeights
  learning_rate: tf.Tensor
  statistics: Any
  terms: tuple


def client_weight(weighting: str, num_examples: tf.Tensor) -> tf.Tensor:
  """The weight of a client in a mean: its number of examples, or 1."""
  return num_examples if weighting == 'examples' else tf.ones_like(num_examples)


def mean_aggregator(
  aggregator: tff.aggregators.AggregationFactory | None, weighting: str
) -> tff.aggregators.AggregationFactory:
  """The aggregator for a mean over clients; checks that it can weight as asked."""
  checks.one_of(weighting, WEIGHTINGS, 'weighting')
  if weighting == 'examples' and isinstance(
    aggregator, tff.aggregators.UnweightedAggregationFactory
  ):
    raise ValueError(
      f'aggregator ({type(aggregator).__name__}) cannot weight clients: pass '
      "weighting='uniform', or a weighted aggregator."
    )
  return aggregator or MeanFactory()


@dataclasses.dataclass(frozen=True)
class LocalTraining(Phase):
  """Local steps on the clients; the server steps on the mean of x - y_i.

  Attributes:
    oracle: What gives the gradients.
    server_step: (server, mean of x - y_i) -> server.
    client_optimizer: The pair (U, V) of the local step.
    terms: The augmenting gradients.
    batch_size: The rows of a local step.
    epochs: The passes over a client's rows.
    max_steps: Where to cut them, or None.
    shuffle: Whether each pass has an order of its own.
    weighting: The weight of a client in the mean, 'examples' or 'uniform'.
    schedule: The factor on the client learning rate.
    aggregator: For x - y_i.
    seed: The run's seed.
    statistics: server -> the s that clients are sent to start from; None for a fresh
      one on every client in every round.
    advance: Whether local steps update s by V, on the client and for this round only.
  """

  oracle: Oracle
  server_step: Callable[[ServerState, Any], ServerState]
  client_optimizer: BaseOptimizer
  terms: Sequence[Term]
  batch_size: int
  epochs: int
  max_steps: int | None
  shuffle: bool
  weighting: str
  schedule: schedules.Schedule
  aggregator: tff.aggregators.AggregationFactory
  seed: int
  statistics: Callable[[ServerState], Any] | None = None
  advance: bool = True

  def __post_init__(self):
    names = [term.name for term in self.terms]
    if len(set(names)) < len(names):
      raise ValueError(f'terms must have names of their own, found {", ".join(names)}.')

  @property
  def aggregators(self) -> dict[str, tff.aggregators.AggregationFactory]:
    factories = {_DELTA: self.aggregator}
    for term in self.terms:
      for name, factory in term.aggregators.items():
        factories[f'{term.name}_{name}'] = factory
    return factories

  def message(self, server: ServerState) -> Message:
    eta = server.hparams['client_learning_rate'] * self.schedule(server.round_num)
    return Message(
      round_num=server.round_num,
      weights=server.weights,
      learning_rate=eta,
      statistics=self.statistics(server) if self.statistics else (),
      terms=tuple(
        term.message(state, server.weights)
        for term, state in zip(self.terms, server.terms, strict=True)
      ),
    )

  def work(self, message: Message, given: ClientRows) -> ClientResult:
    x, base = message.weights, self.client_optimizer
    fresh = base.init(structures.tensor_specs(x.trainable))
    num_steps = local_loop.num_local_steps(
      given.rows, self.batch_size, self.epochs, self.max_steps
    )
    if given.max_steps is not None:
      num_steps = tf.minimum(num_steps, given.max_steps)
    client = self._client(message, given)
    prepared = [
      term.prepare(sent, client)
      for term, sent in zip(self.terms, message.terms, strict=True)
    ]
    outcome = local_loop.local_loop(
      self.oracle,
      x,
      given.rows,
      num_steps=num_steps,
      batch_size=self.batch_size,
      rate=lambda step: message.learning_rate,
      seed=client.seed,
      shuffle=self.shuffle,
      base=base,
      s=message.statistics if self.statistics else fresh,
      advance=self.advance,
      sum_gradients=any(term.needs_gradient_sum for term in self.terms),
      terms=[
        functools.partial(term.value, message=sent, prepared=made)
        for term, sent, made in zip(self.terms, message.terms, prepared, strict=True)
      ],
    )
    delta = structures.subtract(x.trainable, outcome.weights)
    weight = client_weight(self.weighting, client.num_examples)
    uploads = collections.OrderedDict({_DELTA: Upload(delta, weight)})
    for term, made in zip(self.terms, prepared, strict=True):
      for name, upload in term.uploads(client, made, outcome).items():
        uploads[f'{term.name}_{name}'] = upload
    norm, weight = structures.global_norm(delta), tf.cast(weight, tf.float32)
    measurements = collections.OrderedDict(
      loss_measurements(outcome),
      num_examples=tf.cast(client.num_examples, tf.float32),
      norm_sum=norm,
      weighted_square_sum=weight * tf.square(norm),
      weight_sum=weight,
    )
    return ClientResult(uploads, measurements)

  def _client(self, message, given):
    x, rows = message.weights, given.rows
    fold_in = tf.random.experimental.stateless_fold_in
    run_seed = tf.constant([self.seed, 0], tf.int64)
    return Client(
      weights=x,
      rows=rows,
      num_examples=tf.cast(
        local_loop.num_rows(rows), structures.weight_dtype(x.trainable)
      ),
      seed=fold_in(fold_in(run_seed, message.round_num), given.key),
      full_gradient=lambda seed: local_loop.full_gradient(
        self.oracle, x, rows, self.batch_size, seed
      ),
    )

  def finish(self, server: ServerState, means: Any) -> ServerState:
    states = []
    for term, state in zip(self.terms, server.terms, strict=True):
      own = {name: means[f'{term.name}_{name}'] for name in term.aggregators}
      states.append(term.absorb(state, own, server.weights))
    server = server._replace(terms=tuple(states))
    return self.server_step(server, means[_DELTA])

  def metrics(
    self,
    measurements: Any,
    num_clients: tf.Tensor,
    means: Any,
    old: ServerState,
    new: ServerState,
  ) -> collections.OrderedDict:
    # mean ||y_i - ybar||^2 = mean ||y_i - x||^2 - ||ybar - x||^2, so that one
    # aggregation is enough; exact where the aggregator is a plain mean.
    mean_square = measurements['weighted_square_sum'] / measurements['weight_sum']
    spread_square = mean_square - tf.square(structures.global_norm(means[_DELTA]))
    return round_metrics(
      self.oracle,
      measurements,
      old,
      new,
      num_examples=measurements['num_examples'],
      client_drift=measurements['norm_sum'] / num_clients,
      client_spread=tf.sqrt(tf.maximum(spread_square, 0.0)),
    )
