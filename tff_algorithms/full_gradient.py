"""The phase in which clients send their full gradient at x for the server to use."""

import collections
from collections.abc import Callable
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
  ServerState,
  Upload,
  loss_measurements,
  round_metrics,
)

_GRADIENT = 'gradient'


class Message(NamedTuple):
  """What a client is sent: x."""

  weights: ModelWeights


@dataclasses.dataclass(frozen=True)
class FullGradient(Phase):
  """grad f_i(x) over all rows of each client, averaged.

  Attributes:
    oracle: What gives the gradients; asked without a seed, so without dropout.
    server_step: (server, mean gradient) -> server.
    batch_size: The rows taken at a time; the result does not depend on it.
    weighting: The weight of a client in the mean, 'examples' or 'uniform'.
    aggregator: For the gradient.
  """

  oracle: Oracle
  server_step: Callable[[ServerState, Any], ServerState]
  batch_size: int
  weighting: str
  aggregator: tff.aggregators.AggregationFactory

  @property
  def aggregators(self) -> dict[str, tff.aggregators.AggregationFactory]:
    return {_GRADIENT: self.aggregator}

  def message(self, server: ServerState) -> Message:
    return Message(server.weights)

  def work(self, message: Message, given: ClientRows) -> ClientResult:
    x, rows = message.weights, given.rows
    outcome = local_loop.full_gradient(self.oracle, x, rows, self.batch_size)
    n = tf.cast(local_loop.num_rows(rows), structures.weight_dtype(x.trainable))
    upload = Upload(outcome.gradient, client_weight(self.weighting, n))
    uploads = collections.OrderedDict({_GRADIENT: upload})
    return ClientResult(uploads, loss_measurements(outcome))

  def finish(self, server: ServerState, means: Any) -> ServerState:
    return self.server_step(server, means[_GRADIENT])

  def metrics(
    self,
    measurements: Any,
    num_clients: tf.Tensor,
    means: Any,
    old: ServerState,
    new: ServerState,
  ) -> collections.OrderedDict:
    return round_metrics(
      self.oracle,
      measurements,
      old,
      new,
      num_examples=measurements['num_seen'],
      gradient_norm=structures.global_norm(means[_GRADIENT]),
    )
