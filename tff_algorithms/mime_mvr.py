"""MimeMVR and MimeLiteMVR: Karimireddy et al. 2021, Algorithm 5, equations 13-16.

Momentum-based variance reduction as the base optimizer. In round t, with x = x^{t-1},
x_old = x^{t-2}, and m and c those of the round before:

On client i, from y = x: d <- a (grad f_i(y; b) - grad f_i(x; b) + c) + (1 - a) m
                              + (1 - a) (grad f_i(y; b) - grad f_i(x; b))    (MimeMVR)
                         d <- a grad f_i(y; b) + (1 - a) m
                              + (1 - a) (grad f_i(y; b) - grad f_i(x; b))    (Lite)
                         y <- y - eta d                               for K batches b
At the server:           c     <- mean of grad f_i(x)
                         c_old <- mean of grad f_i(x_old)
                         m     <- a c + (1 - a) m + (1 - a) (c - c_old)
                         x     <- x - eta_g mean of (x - y_i)
"""

import collections
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import (
  base_optimizers,
  checks,
  full_gradient,
  mime_framework,
  models,
  oracles,
  structures,
)
from tff_algorithms.full_gradient import GRADIENT
from tff_algorithms.mime_framework import GradientUpload
from tff_algorithms.models import ModelWeights
from tff_algorithms.server_state import ServerState
from tff_algorithms.structures import Structure
from tff_algorithms.terms import Client, Step

OLD_GRADIENT = 'old_gradient'


class State(NamedTuple):
  """What the server keeps, and sends.

  Attributes:
    x_old: The weights of the round before; at first those of the beginning.
    m: The corrected momentum, 0 at first.
    c: The mean gradient of the round before, 0 at first; `()` in MimeLiteMVR.
  """

  x_old: Structure
  m: Structure
  c: Structure


def initial_state(weights: ModelWeights) -> State:
  """The state before the first round."""
  zeros = structures.zeros_like(weights.trainable)
  return State(weights.trainable, m=zeros, c=zeros)


def momentum(a: float, m: Structure, c: Structure, c_old: Structure) -> Structure:
  """a c + (1 - a) m + (1 - a) (c - c_old), equation 16."""
  return tf.nest.map_structure(
    lambda m, c, c_old: a * c + (1 - a) * m + (1 - a) * (c - c_old), m, c, c_old
  )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MVR(GradientUpload):
  """The augmenting gradient is d - grad f_i(y; b) = a c + (1 - a) m - grad f_i(x; b).

  Attributes:
    a: 1 - beta.
  """

  name = 'mvr'
  takes_second_gradient = True
  a: float

  @property
  def aggregators(self) -> Mapping[str, tff.aggregators.AggregationFactory]:
    return {GRADIENT: self.aggregator, OLD_GRADIENT: self.aggregator}

  def init(self, weights: ModelWeights) -> State:
    return initial_state(weights)

  def message(self, state: State, server: ServerState) -> State:
    del server
    return state

  def prepare(self, message: State, client: Client) -> Any:
    x = client.weights
    x_old = x._replace(trainable=message.x_old)
    points = {GRADIENT: x, OLD_GRADIENT: x_old}
    return {
      name: client.full_gradient(point, self.dropout) for name, point in points.items()
    }

  def value(self, step: Step, message: State, prepared: Any) -> Structure:
    del prepared
    return tf.nest.map_structure(
      lambda c, m, g_x: self.a * c + (1 - self.a) * m - g_x,
      message.c,
      message.m,
      step.evaluate(step.x).gradient,
    )

  def uploads(self, client: Client, prepared: Any, outcome: Any) -> Any:
    del client, outcome
    return collections.OrderedDict(
      (name, full_gradient.gradient_upload(gradient, self.weighting))
      for name, gradient in prepared.items()
    )

  def absorb(self, state: State, means: Any, server: ServerState) -> State:
    c, c_old = means[GRADIENT], means[OLD_GRADIENT]
    return State(server.weights.trainable, momentum(self.a, state.m, c, c_old), c)


class MVRLite(MVR):
  """The augmenting gradient is (1 - a) (m - grad f_i(x; b))."""

  def init(self, weights: ModelWeights) -> State:
    return initial_state(weights)._replace(c=())

  def value(self, step: Step, message: State, prepared: Any) -> Structure:
    del prepared
    g_x = step.evaluate(step.x).gradient
    return structures.scale(1 - self.a, structures.subtract(message.m, g_x))

  def absorb(self, state: State, means: Any, server: ServerState) -> State:
    return super().absorb(state, means, server)._replace(c=())


def build_mime_mvr(
  model: models.Model | tff.learning.models.FunctionalModel | oracles.Oracle,
  *,
  a: float,
  learning_rate: float,
  batch_size: int,
  lite: bool = False,
  **arguments: Any,
) -> tff.learning.templates.LearningProcess:
  """Builds MimeMVR, or MimeLiteMVR.

  `next` is `(<S@SERVER, {batch*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`; see
  `process.build_learning_process` for S and M. The first round of MimeMVR moves
  nothing, because c and m are 0.

  Args:
    model: What is trained: a model, or any gradient oracle.
    a: 1 - beta, above 0 and at most 1.
    learning_rate: eta, a hyperparameter of the process, below `base_optimizer`.
    batch_size: The rows of a local step.
    lite: Whether it is MimeLiteMVR.
    **arguments: More arguments of `mime_framework.build`.
  """
  term = functools.partial(MVRLite if lite else MVR, a=checks.share(a, 'a'))
  return mime_framework.build(
    model,
    term,
    base_optimizer=base_optimizers.as_tff_optimizer(
      base_optimizers.sgd(), learning_rate
    ),
    batch_size=batch_size,
    **arguments,
  )
