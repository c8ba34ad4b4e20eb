"""Mime: Karimireddy et al. 2021, "Breaking the centralized barrier", Algorithm 1.

At the server:           c <- mean of grad f_i(x)
On client i, from y = x: g <- grad f_i(y; b) - grad f_i(x; b) + c     for K batches b
                         y <- y - eta U(g, s)
At the server:           s <- V(c, s)
                         x <- x - eta_g mean of (x - y_i)

c is this round's, which takes a phase of its own, or the round's before (Algorithms 3
and 4), so that a round is one broadcast and one aggregation.
"""

from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import checks, mime_framework, models, oracles, structures
from tff_algorithms.mime_framework import GradientUpload
from tff_algorithms.models import ModelWeights
from tff_algorithms.server_state import ServerState
from tff_algorithms.structures import Structure
from tff_algorithms.terms import Client, Step

CONTROL_VARIATES = ('current', 'previous')


class ControlVariate(GradientUpload):
  """a = c - grad f_i(x; b), with c for its message."""

  takes_second_gradient = True

  def value(self, step: Step, message: Structure, prepared: Any) -> Structure:
    del prepared
    return structures.subtract(message, step.evaluate(step.x).gradient)


class PreviousControlVariate(ControlVariate):
  """c from the gradients of the round before, 0 at first."""

  def init(self, weights: ModelWeights) -> Structure:
    return structures.zeros_like(weights.trainable)

  def message(self, state: Structure, server: ServerState) -> Structure:
    del server
    return state

  def absorb(self, state: Structure, means: Any, server: ServerState) -> Structure:
    del server
    return self.c(state, means)


class Gathered(NamedTuple):
  """c, and the number of the round it was gathered in."""

  c: Structure
  round_num: tf.Tensor


class CurrentControlVariate(ControlVariate):
  """c from the gradients of this round, which a phase before has gathered."""

  has_phase = True
  aggregators = {}  # noqa: RUF012

  def init(self, weights: ModelWeights) -> Gathered:
    return Gathered(structures.zeros_like(weights.trainable), tf.constant(-1))

  def store(self, server: ServerState, means: Any) -> ServerState:
    gathered = Gathered(means[mime_framework.GRADIENT], server.round_num)
    return server._replace(terms=(gathered, *server.terms[1:]))

  def message(self, state: Gathered, server: ServerState) -> Structure:
    del server
    return state.c

  def prepare(self, message: Any, client: Client) -> Any:
    return ()

  def uploads(self, client: Client, prepared: Any, outcome: Any) -> Any:
    return {}

  def c(self, state: Gathered, means: Any) -> Structure:
    return state.c

  def is_usable(self, state: Gathered, round_num: tf.Tensor) -> tf.Tensor:
    return tf.equal(state.round_num, round_num)


def control_variate_term(control_variate: str) -> type[GradientUpload]:
  """The term for c of the 'current' or of the 'previous' round."""
  checks.one_of(control_variate, CONTROL_VARIATES, 'control_variate')
  is_current = control_variate == 'current'
  return CurrentControlVariate if is_current else PreviousControlVariate


def build_mime(
  model: models.Model | tff.learning.models.FunctionalModel | oracles.Oracle,
  *,
  base_optimizer: tff.learning.optimizers.Optimizer,
  batch_size: int,
  control_variate: str = 'current',
  **arguments: Any,
) -> tff.learning.templates.LearningProcess:
  """Builds Mime.

  `next` is `(<S@SERVER, {batch*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`; see
  `process.build_learning_process` for S and M.

  Args:
    model: What is trained: a model, or any gradient oracle.
    base_optimizer: (U, V) with its rate eta: a pair by
      `base_optimizers.as_tff_optimizer`, or any of TFF's.
    batch_size: The rows of a local step.
    control_variate: 'current', two phases a round; or 'previous', one, which compiles
      to TFF's `MapReduceForm`.
    **arguments: More arguments of `mime_framework.build`.
  """
  return mime_framework.build(
    model,
    control_variate_term(control_variate),
    base_optimizer=base_optimizer,
    batch_size=batch_size,
    **arguments,
  )
