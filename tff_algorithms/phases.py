"""Phases: a round is one or more of them, each one broadcast and one aggregation.

A phase says in pure TensorFlow what the server sends, what a client does with it and
how the server takes in what comes back. `process` puts the federated computation, the
guards and the types around it.
"""

import abc
import collections
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import local_loop, structures
from tff_algorithms.client_inputs import ClientRows
from tff_algorithms.models import ModelWeights
from tff_algorithms.oracles import Oracle
from tff_algorithms.server_state import ServerState
from tff_algorithms.structures import Structure


class Upload(NamedTuple):
  """One quantity that a client sends.

  Attributes:
    value: A structure of tensors.
    weight: Its weight in the mean, a scalar of the value's dtype; not used where the
      upload's aggregator is an unweighted one.
  """

  value: Structure
  weight: tf.Tensor


class ClientResult(NamedTuple):
  """What a client returns.

  Attributes:
    uploads: An OrderedDict of name -> `Upload`.
    measurements: An OrderedDict of float sums, added up over the clients.
    state: What it keeps for the next time; `()` where clients keep nothing.
  """

  uploads: collections.OrderedDict
  measurements: collections.OrderedDict
  state: Any = ()


class Phase(abc.ABC):
  """One trip from the server to the clients and back."""

  @property
  @abc.abstractmethod
  def aggregators(self) -> dict[str, tff.aggregators.AggregationFactory]:
    """A factory for each upload, by its name."""

  @property
  def shared(self) -> dict[str, str]:
    """Those that aggregate another's upload: name -> the name of that upload."""
    return {}

  @property
  def cohort_limit(self) -> int | None:
    """How many clients a round can have, where there are no more in all."""
    return None

  def client_init(self, weights: ModelWeights) -> Any:
    """What a client starts with that has never taken part; `()` if it keeps nothing."""
    del weights
    return ()

  @abc.abstractmethod
  def message(self, server: ServerState) -> Any:
    """What is broadcast; work of the server before the broadcast goes here."""

  def is_usable(self, server: ServerState) -> tf.Tensor:
    """Whether the state is one to begin the phase with; if not, nothing changes."""
    del server
    return tf.constant(True)

  def bytes_down(self, message_type: tff.Type) -> int:
    """What a client is sent, counted; in halves, one client of each."""
    return structures.size_in_bytes(message_type)

  def unselected_step(self, server: ServerState) -> dict[str, Any]:
    """What a local step adds to uploads, by name, on weights that a client is not sent.

    Nothing, unless something else than the client's loss moves them.
    """
    del server
    return {}

  @abc.abstractmethod
  def work(self, message: Any, given: ClientRows) -> ClientResult:
    """What a client does with what it has."""

  @abc.abstractmethod
  def finish(self, server: ServerState, means: Any) -> ServerState:
    """The server's next state, from the aggregated uploads by name."""

  @abc.abstractmethod
  def metrics(
    self,
    measurements: Any,
    means: Any,
    old: ServerState,
    new: ServerState,
  ) -> collections.OrderedDict:
    """Scalars that tell about the round, `num_clients` among them.

    Args:
      measurements: The clients' measurements, summed.
      means: The aggregated uploads.
      old: The state before the phase.
      new: The state after it.
    """


def loss_measurements(
  outcome: local_loop.Outcome | local_loop.FullGradient,
) -> collections.OrderedDict:
  """What a client measures wherever it evaluates an oracle, for `round_metrics`."""
  return collections.OrderedDict(
    loss_sum=outcome.loss_sum, num_seen=outcome.num_seen, metrics=outcome.metrics
  )


def round_metrics(
  oracle: Oracle, measurements: Any, old: ServerState, new: ServerState, **own: Any
) -> collections.OrderedDict:
  """The loss, the oracle's metrics, the norm of the server's step, and a phase's own.

  Where the oracle has a metric of the same name (TFF's baseline models count examples
  too), it gives way.
  """
  loss = measurements['loss_sum'] / measurements['num_seen']
  update = structures.subtract(new.weights.trainable, old.weights.trainable)
  metrics = collections.OrderedDict(loss=loss)
  metrics.update(oracle.finalize_metrics(measurements['metrics']))
  metrics.update(loss=loss, update_norm=structures.global_norm(update), **own)
  return metrics


def communication_rounds(a_round: int, old: ServerState) -> tf.Tensor:
  """How many rounds of communication there have been, a number of them a round."""
  return tf.cast(a_round * (old.round_num + 1), tf.float32)
