"""The phase in which clients send their full gradient for the server to use."""

import collections
from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import local_loop, structures
from tff_algorithms.client_inputs import ClientRows
from tff_algorithms.local_training import client_weight
from tff_algorithms.models import ModelWeights
from tff_algorithms.oracles import Oracle
from tff_algorithms.phases import (
  ClientResult,
  Phase,
  Upload,
  communication_rounds,
  loss_measurements,
  round_metrics,
)
from tff_algorithms.server_state import ServerState
from tff_algorithms.server_steps import ServerStep

GRADIENT = 'gradient'


class Message(NamedTuple):
  """What a client is sent: the points by name, and the round where a seed needs it."""

  points: collections.OrderedDict
  round_num: Any


def gradient_upload(outcome: local_loop.FullGradient, weighting: str) -> Upload:
  """A client's full gradient, with its weight; that of a client without rows is 0."""
  n = tf.cast(outcome.num_seen, structures.weight_dtype(outcome.gradient))
  return Upload(outcome.gradient, client_weight(weighting, n))


@dataclasses.dataclass(frozen=True)
class FullGradient(Phase):
  """grad f_i over all rows of each client, averaged, at x or at several points.

  Attributes:
    oracle: What gives the gradients.
    server_step: (server, mean gradients by the points' names) -> server.
    batch_size: The rows taken at a time; the result does not depend on it.
    weighting: The weight of a client in the mean, 'examples' or 'uniform'.
    aggregator: For each gradient.
    points: What is uploaded -> (server -> the weights to take that gradient at). The
      metrics tell of `GRADIENT`.
    dropout: Whether the gradients are taken with dropout, as in training; all points
      then see the same masks.
    seed: The run's seed.
    num_batches: How many batches a client takes its gradient from, those of so many
      local steps; None for all its rows, each once.
    communications: How many rounds of communication there are in a round with this
      phase, to be told in the metrics, or None.
  """

  oracle: Oracle
  server_step: ServerStep
  batch_size: int
  weighting: str
  aggregator: tff.aggregators.AggregationFactory
  points: Mapping[str, Callable[[ServerState], ModelWeights]] = dataclasses.field(
    default_factory=lambda: {GRADIENT: lambda server: server.weights}
  )
  dropout: bool = False
  seed: int = 0
  num_batches: int | None = None
  communications: int | None = None

  @property
  def _draws(self) -> bool:
    return self.dropout or self.num_batches is not None

  @property
  def aggregators(self) -> dict[str, tff.aggregators.AggregationFactory]:
    return dict.fromkeys(self.points, self.aggregator)

  def message(self, server: ServerState) -> Message:
    return Message(
      points=collections.OrderedDict(
        (name, point(server)) for name, point in self.points.items()
      ),
      round_num=server.round_num if self._draws else (),
    )

  def work(self, message: Message, given: ClientRows) -> ClientResult:
    outcomes = {
      name: self._gradient(message, given, point)
      for name, point in message.points.items()
    }
    uploads = collections.OrderedDict(
      (name, gradient_upload(outcome, self.weighting))
      for name, outcome in outcomes.items()
    )
    measured = outcomes[GRADIENT]
    measurements = collections.OrderedDict(
      loss_measurements(measured),
      num_gradients=tf.cast(measured.num_seen > 0, tf.float32),
    )
    return ClientResult(uploads, measurements)

  def _gradient(
    self, message: Message, given: ClientRows, point: ModelWeights
  ) -> local_loop.FullGradient:
    rows, seed = given.rows_for_gradient, None
    if self._draws:
      seed = local_loop.client_seed(self.seed, message.round_num, given.key)
    if self.num_batches is None:
      return local_loop.full_gradient(self.oracle, point, rows, self.batch_size, seed)
    return local_loop.mean_gradient(
      self.oracle,
      point,
      rows,
      num_steps=self.num_batches,
      batch_size=self.batch_size,
      seed=seed,
      shuffle=True,
    )

  def finish(self, server: ServerState, means: Any) -> ServerState:
    return self.server_step(server, means)

  def metrics(
    self,
    measurements: Any,
    means: Any,
    old: ServerState,
    new: ServerState,
  ) -> collections.OrderedDict:
    own = {}
    if self.communications is not None:
      own['communication_rounds'] = communication_rounds(self.communications, old)
    return round_metrics(
      self.oracle,
      measurements,
      old,
      new,
      num_examples=measurements['num_seen'],
      num_clients=measurements['num_gradients'],
      gradient_norm=structures.global_norm(means[GRADIENT]),
      **own,
    )
