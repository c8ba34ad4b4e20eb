"""How unlike clients and server are: Augenstein et al. 2022 (mixed FL), equation 7.

G~^2 = ||grad f_f||^2 / w_f + ||grad f_c||^2 / w_c - ||grad f||^2
B~^2 = (||grad f_f||^2 / w_f + ||grad f_c||^2 / w_c) / ||grad f||^2
"""

from collections.abc import Callable, Mapping
import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import structures
from tff_algorithms.local_training import client_weight
from tff_algorithms.mean import MeanFactory
from tff_algorithms.phases import Upload
from tff_algorithms.server_state import ServerState
from tff_algorithms.structures import Structure
from tff_algorithms.terms import Client, Term


@dataclasses.dataclass(frozen=True)
class Dissimilarity(Term):
  """G~_t^2 and B~_t^2, equation 7: metrics of the gradients at x, nothing else.

  The federated gradient is the uniform mean over clients, each on its first batch.

  Attributes:
    federated_weight: w_f.
    central_weight: w_c.
    central_gradient: server -> g_c(x).
    aggregator: For g_i(x).
  """

  federated_weight: float
  central_weight: float
  central_gradient: Callable[[ServerState], Structure]
  aggregator: tff.aggregators.AggregationFactory | None = None

  name = 'dissimilarity'

  @property
  def aggregators(self) -> Mapping[str, tff.aggregators.AggregationFactory]:
    return {'gradient': self.aggregator or MeanFactory()}

  def uploads(self, client: Client, prepared: Any, outcome: Any) -> Any:
    del prepared, outcome
    weight = client_weight('uniform', client.num_examples)
    return {'gradient': Upload(client.first_gradient(), weight)}

  def metrics(
    self, state: Any, means: Any, server: ServerState
  ) -> Mapping[str, tf.Tensor]:
    del state
    f_f, f_c = means['gradient'], self.central_gradient(server)
    parts = _square(f_f) / self.federated_weight
    parts += tf.math.divide_no_nan(_square(f_c), self.central_weight)
    total = _square(structures.add(f_f, f_c))
    return {'g_tilde_square': parts - total, 'b_tilde_square': parts / total}


def _square(a: Structure) -> tf.Tensor:
  return tf.square(structures.global_norm(a))
