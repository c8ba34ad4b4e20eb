"""What the algorithms of mixed federated learning share: Augenstein et al. 2022.

    f = w_f f_f + w_c f_c

f_f is the mean of the clients' losses, f_c a loss of the server's own, on rows that it
has or of the weights alone. As in the paper the weights are inside the losses: every
gradient below has its own in it.
"""

from collections.abc import Callable
import dataclasses
import logging
from typing import Any, TypeAlias

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import (
  checks,
  client_inputs,
  local_loop,
  models,
  oracles,
  streams,
  structures,
)
from tff_algorithms.client_optimizers import Fresh
from tff_algorithms.oracles import Oracle
from tff_algorithms.server_state import ServerState
from tff_algorithms.structures import Structure

Objective: TypeAlias = models.Model | tff.learning.models.FunctionalModel | Oracle

_CENTRAL_KEY = -1  # Clients' keys, from which their seeds are made, are not negative.
_logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class CentralLoss:
  """w_c f_c, and how its gradients are taken.

  Attributes:
    oracle: w_c f_c.
    batch_size: |B_c|, the rows of a central step.
    clip_norm: What the norm of a central gradient is cut to, or None.
    seed: The run's seed.
  """

  oracle: Oracle
  batch_size: int
  clip_norm: float | None
  seed: int

  def __post_init__(self):
    checks.count(self.batch_size, 'central_batch_size')
    if self.clip_norm is not None:
      checks.positive(self.clip_norm, 'central_clip_norm')

  def _rows(self, server: ServerState) -> Structure:
    if self.oracle.batch_spec == ():
      return tf.zeros([1, 0])
    return server_rows(server)

  def _seed(self, server: ServerState) -> tf.Tensor:
    key = tf.constant(_CENTRAL_KEY, tf.int64)
    return local_loop.client_seed(self.seed, server.round_num, key)

  def gradient(self, server: ServerState, clipped: bool = True) -> Structure:
    """g_c(x; B_c), B_c being all the rows that the server has in this round."""
    full = local_loop.full_gradient(
      self.oracle,
      server.weights,
      self._rows(server),
      self.batch_size,
      self._seed(server),
    )
    gradient = _if_finite(full.loss_sum, full.gradient)
    if self.clip_norm is None or not clipped:
      return gradient
    return structures.clip(gradient, self.clip_norm)

  def first_gradient(self, server: ServerState) -> Structure:
    """g_c(x; B_c) on the first central batch, not clipped."""
    return local_loop.mean_gradient(
      self.oracle,
      server.weights,
      self._rows(server),
      num_steps=1,
      batch_size=self.batch_size,
      seed=self._seed(server),
      shuffle=False,
    ).gradient

  def train(
    self,
    server: ServerState,
    num_steps: Any,
    update: Callable[..., Any],
    s: Any,
    g_f: Structure = (),
  ) -> local_loop.Outcome:
    """x_c <- CentralOptimizer(x_c, g_c(x_c; batch) + g_f) from x, K_c times.

    The rows are taken in order, and from the beginning again when they are used up.

    Args:
      server: The server's state.
      num_steps: K_c.
      update: (s, y, g) -> (s, y), the optimizer's step.
      s: Its state.
      g_f: The augmenting gradient, or `()`.
    """
    oracle = self.oracle
    if self.clip_norm is not None:
      oracle = oracles.Clipped(self.clip_norm, oracle)
    outcome = local_loop.local_loop(
      oracle,
      server.weights,
      self._rows(server),
      num_steps=tf.convert_to_tensor(num_steps),
      batch_size=self.batch_size,
      seed=self._seed(server),
      shuffle=False,
      update=lambda t, s, y, g: update(s, y, g),
      s=s,
      terms=[lambda step: g_f],
      sum_gradients=True,
    )
    return outcome._replace(weights=_if_finite(outcome.loss_sum, outcome.weights))


def server_rows(server: ServerState) -> Structure:
  """The server's own rows in this round; that there are none stops the round."""
  rows = streams.in_memory(server.central(), 'The server')
  some = tf.debugging.assert_greater(
    streams.num_rows(rows), 0, message='The server has no rows in this round.'
  )
  with tf.control_dependencies([some]):
    return tf.nest.map_structure(tf.identity, rows)


def _if_finite(loss: tf.Tensor, a: Structure) -> Structure:
  """a, or where the loss is not finite, nothing that is: the guards then stop it.

  A label out of range makes a loss NaN, but not its gradient.
  """
  nan = tf.nest.map_structure(
    lambda t: tf.fill(t.shape, tf.cast(float('nan'), t.dtype)), a
  )
  return structures.select(tf.math.is_finite(loss), a, nan)


@dataclasses.dataclass(frozen=True)
class CentralSteps:
  """The central loop of Algorithm 1, its optimizer new in every round."""

  loss: CentralLoss
  num_steps: int
  optimizer: Fresh

  def __call__(self, server: ServerState, factor: Any, g_f: Any) -> local_loop.Outcome:
    """K_c steps from x.

    Args:
      server: The server's state, with the `central_learning_rate`.
      factor: What the rate is multiplied by.
      g_f: The augmenting gradient, or `()`.
    """
    rate = server.hparams['central_learning_rate']
    rate *= tf.cast(factor, rate.dtype)
    specs = structures.tensor_specs(server.weights.trainable)
    s = self.optimizer.start(rate, specs)
    return self.loss.train(server, self.num_steps, self.optimizer.update, s, g_f)


def weighted_losses(
  model: Objective,
  central_model: Objective | None,
  federated_weight: float,
  central_weight: float,
) -> tuple[Oracle, Oracle]:
  """w_f f_f and w_c f_c; f_c is the clients' model on other data by default."""
  checks.positive(federated_weight, 'federated_weight')
  checks.not_negative(central_weight, 'central_weight')
  if abs(federated_weight + central_weight - 1) > 1e-6:
    _logger.warning(
      'The weights of the federated and the central loss add up to %g, not to 1: the '
      'learning rates act as if multiplied by that.',
      federated_weight + central_weight,
    )
  central = model if central_model is None else central_model
  return (
    oracles.Weighted(federated_weight, oracles.as_oracle(model)),
    oracles.Weighted(central_weight, oracles.as_oracle(central)),
  )


def central_input_for(
  oracle: Oracle, given: client_inputs.ClientInput | None
) -> client_inputs.ClientInput | None:
  """What the server's argument is: as given, data sets of batches, or none at all."""
  if oracle.batch_spec == ():
    return None
  return given or client_inputs.from_dataset(oracle.batch_spec)
