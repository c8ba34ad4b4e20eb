"""Local steps that are summed, counted and averaged, for saddle-point algorithms.

    z_i <- z_i - gamma_l phi(k) g_i

What a client sends for its steps is the sum of the phi(k) g_i; k counts the local
iterations of the whole run. Hou et al. 2021, Algorithm 1 and Theorem 4.
"""

import collections
import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import checks, local_training, structures, synchronization
from tff_algorithms.client_optimizers import ClientOptimizer
from tff_algorithms.local_loop import Outcome
from tff_algorithms.models import ModelWeights
from tff_algorithms.phases import Upload
from tff_algorithms.server_state import ServerState
from tff_algorithms.structures import Structure
from tff_algorithms.terms import Client, Term

SCHEDULES = ('constant', 'inverse_sqrt')
_AVERAGE = 'average'


class _Iterations(NamedTuple):
  """k: how many local iterations there have been in the whole run."""

  k: tf.Tensor


class _AveragedIterations(NamedTuple):
  """k, and the average iterate of Theorem 4, sum of w_k z^k / sum of w_k.

  The weights w_k = rho^(1-k) grow without bounds: the sums are in units of the weight
  that the current iterate, which is not in them yet, will have.
  """

  k: tf.Tensor
  weighted_sum: Structure
  weight_sum: tf.Tensor

  def output(self, weights: ModelWeights) -> ModelWeights:
    """The average, with the current iterate in it."""
    average = tf.nest.map_structure(
      lambda total, z: (total + z) / (self.weight_sum + 1),
      self.weighted_sum,
      weights.trainable,
    )
    return weights._replace(trainable=average)

  def started_again(self) -> '_AveragedIterations':
    """The average of nothing but the current iterate."""
    return self._replace(
      weighted_sum=structures.zeros_like(self.weighted_sum),
      weight_sum=tf.zeros_like(self.weight_sum),
    )


@dataclasses.dataclass(frozen=True)
class LocalIterations(Term):
  """Adds nothing to g_i, but counts iterations and averages iterates.

  Attributes:
    local_steps: Round -> tau.
    weighting: The weight of a client in a mean, 'examples' or 'uniform'.
    rho: 1 - gamma mu / 4, what w_k is a power of; None for no average.
    aggregator: For the clients' weighted sums of iterates.
  """

  local_steps: synchronization.LocalSteps
  weighting: str
  rho: float | None
  aggregator: tff.aggregators.AggregationFactory

  name = 'local_iterations'
  is_constant = True

  @property
  def aggregators(self) -> dict[str, tff.aggregators.AggregationFactory]:
    return {} if self.rho is None else {_AVERAGE: self.aggregator}

  def init(self, weights: ModelWeights) -> _Iterations | _AveragedIterations:
    k = tf.constant(0)
    if self.rho is None:
      return _Iterations(k)
    zeros = structures.zeros_like(weights.trainable)
    return _AveragedIterations(k, zeros, tf.zeros([], structures.weight_dtype(zeros)))

  def message(self, state: Any, server: ServerState) -> Any:
    del state
    return self.local_steps(server.round_num) if self.rho is not None else ()

  def prepare(self, message: Any, client: Client) -> Any:
    del client
    return message

  def uploads(self, client: Client, prepared: Any, outcome: Outcome) -> Any:
    if self.rho is None:
      return {}
    # Where a straggler has stopped it is for the steps that it has not taken, too.
    decay, weight_sum = self._weights(prepared - outcome.num_steps, outcome.weights)
    weighted_sum = structures.add(
      structures.scale(decay, outcome.s.weighted_sum),
      structures.scale(weight_sum, outcome.weights),
    )
    weight = local_training.client_weight(self.weighting, client.num_examples)
    return collections.OrderedDict({_AVERAGE: Upload(weighted_sum, weight)})

  def _weights(self, steps: tf.Tensor, z: Structure) -> tuple[tf.Tensor, tf.Tensor]:
    """rho^steps, and rho + rho^2 + ... + rho^steps, of rho as the steps have it.

    In float64: in float32 nothing is left of the digits of 1 - rho^steps.
    """
    dtype = structures.weight_dtype(z)
    rho = float(np.asarray(self.rho, dtype.as_numpy_dtype))
    n = tf.cast(steps, tf.float64)
    decay, total = tf.exp(n * math.log(rho)), n
    if rho < 1:
      total = -tf.math.expm1(n * math.log(rho)) * (rho / (1 - rho))
    return tf.cast(decay, dtype), tf.cast(total, dtype)

  def absorb(self, state: Any, means: Any, server: ServerState) -> Any:
    tau = self.local_steps(server.round_num)
    state = state._replace(k=state.k + tau)
    if self.rho is None:
      return state
    decay, weight_sum = self._weights(tau, state.weighted_sum)
    return state._replace(
      weighted_sum=structures.add(
        structures.scale(decay, state.weighted_sum), means[_AVERAGE]
      ),
      weight_sum=decay * state.weight_sum + weight_sum,
    )


class _Descent(NamedTuple):
  """Where a client's descent is.

  Attributes:
    rate: gamma_l.
    k: The number of the next iteration.
    total: The sum of phi(k) g_i over this round's.
    weighted_sum: That of the iterates for Theorem 4's average; `()` without.
  """

  rate: tf.Tensor
  k: tf.Tensor
  total: Structure
  weighted_sum: Structure


@dataclasses.dataclass(frozen=True)
class SummedDescent(ClientOptimizer):
  """z_i <- z_i - gamma_l phi(k) g_i, and the sum of phi(k) g_i for the server.

  `LocalIterations` is the last of the terms.

  Attributes:
    schedule: 'constant', phi = 1; or 'inverse_sqrt', phi(k) = 1 / (sqrt(k) + 1).
    rho: See `LocalIterations`.
  """

  schedule: str
  rho: float | None

  def message(self, server: ServerState, factor: Any) -> Any:
    del factor  # The rates of these algorithms go by k.
    return server.hparams['client_learning_rate'], server.terms[-1].k

  def start(self, message: Any, specs: Structure) -> _Descent:
    zeros = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)
    rate, k = message
    return _Descent(rate, k, zeros, () if self.rho is None else zeros)

  def update(
    self, state: _Descent, y: Structure, g: Structure
  ) -> tuple[_Descent, Structure]:
    if self.schedule == 'inverse_sqrt':
      phi = 1 / (tf.sqrt(tf.cast(state.k, state.rate.dtype)) + 1)
      g = structures.scale(phi, g)
    average = state.weighted_sum
    if self.rho is not None:
      average = structures.scale(self.rho, structures.add(average, y))
    new_state = state._replace(
      k=state.k + 1, total=structures.add(state.total, g), weighted_sum=average
    )
    return new_state, structures.subtract(y, structures.scale(state.rate, g))

  def upload(self, x: Structure, y: Structure, state: _Descent) -> Structure:
    return state.total

  def displacement(self, upload: Structure, server: ServerState) -> Structure:
    return structures.scale(server.hparams['client_learning_rate'], upload)


def rho_of(gamma: float, mu: float) -> float:
  """What the weights of Theorem 4 are powers of: w_k = rho^(1-k)."""
  checks.positive(mu, 'average_mu')
  if not 0 < gamma * mu < 4:
    raise ValueError(
      'The weighted average needs 0 < client_learning_rate * average_mu < 4; found '
      f'{gamma} * {mu}.'
    )
  return 1 - gamma * mu / 4
