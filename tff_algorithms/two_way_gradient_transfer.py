"""2-way gradient transfer: Augenstein et al. 2022 (mixed FL), Algorithm 1.

At the server, from x_c = x:
    x_c <- CentralOptimizer(x_c, g_c(x_c; b) + g~_f), K_c times
On client i, from x_i = x:
    x_i <- ClientOptimizer(x_i, g_i(x_i; b) + g~_c), K_i times
At the server:
    x as in parallel training
    g~_c <- the mean of the K_c gradients g_c
    g~_f <- the mean of the sum of K_i gradients g_i

The gradients that are transferred are those of the round before, 0 at first, without
what was added to them. Where the clients step by plain SGD, g~_f follows from how far
they went (appendix A.2, equation 10), and nothing more is uploaded:

    g~_f = -sum of Delta_i / (eta sum of K_i) - g~_c
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import base_optimizers, local_loop, process, structures
from tff_algorithms.local_training import DELTA, client_weight
from tff_algorithms.mean import MeanFactory
from tff_algorithms.mixed import Objective
from tff_algorithms.models import ModelWeights
from tff_algorithms.parallel_training import ParallelStep, build_parallel_training
from tff_algorithms.phases import Upload
from tff_algorithms.server_state import ServerState
from tff_algorithms.structures import Structure
from tff_algorithms.terms import Client, Step, Term

_PLAIN_MEANS = (
  MeanFactory,
  tff.aggregators.MeanFactory,
  tff.aggregators.UnweightedMeanFactory,
)


def _is_unweighted(aggregator: tff.aggregators.AggregationFactory | None) -> bool:
  return isinstance(aggregator, tff.aggregators.UnweightedAggregationFactory)


class Transferred(NamedTuple):
  """The augmenting gradients."""

  g_c: Structure
  g_f: Structure


@dataclasses.dataclass(frozen=True)
class Transfer(Term):
  """a = g~_c; the state is `Transferred`, which `TwoWayStep` renews.

  What is averaged below is averaged alike, whether clients that were left out count as
  zeros or not at all, so that the quotient of two means does not depend on it.

  Attributes:
    is_recovered: Whether g~_f is made of the Delta_i, not of gradients uploaded.
    is_uniform: Whether the mean of the Delta_i is a plain uniform one, and so serves.
    aggregator: For the gradients, or for the Delta_i once more: a uniform mean.
    steps_aggregator: For K_i, likewise.
  """

  is_recovered: bool
  is_uniform: bool
  aggregator: tff.aggregators.AggregationFactory
  steps_aggregator: tff.aggregators.AggregationFactory

  name = 'transfer'
  is_constant = True

  @property
  def needs_gradient_sum(self) -> bool:
    return not self.is_recovered

  @property
  def aggregators(self) -> Mapping[str, tff.aggregators.AggregationFactory]:
    factories = {'num_steps': self.steps_aggregator}
    if not self.is_recovered:
      factories['gradient_sum'] = self.aggregator
    elif not self.is_uniform:
      factories[DELTA] = self.aggregator
    return factories

  @property
  def shared(self) -> Mapping[str, str]:
    return {DELTA: DELTA} if self.is_recovered and not self.is_uniform else {}

  def init(self, weights: ModelWeights) -> Transferred:
    zeros = structures.zeros_like(weights.trainable)
    return Transferred(g_c=zeros, g_f=zeros)

  def message(self, state: Transferred, server: ServerState) -> Structure:
    del server
    return state.g_c

  def value(self, step: Step, message: Structure, prepared: Any) -> Structure:
    del step, prepared
    return message

  def uploads(self, client: Client, prepared: Any, outcome: local_loop.Outcome) -> Any:
    del prepared
    one = client_weight('uniform', client.num_examples)
    uploads = {'num_steps': Upload(tf.cast(outcome.num_steps, one.dtype), one)}
    if not self.is_recovered:
      uploads['gradient_sum'] = Upload(outcome.gradient_sum, one)
    elif not self.is_uniform:
      uploads[DELTA] = Upload((), one)  # Its value is shared.
    return uploads

  def federated_gradient(self, server: ServerState, means: Any, eta: Any) -> Structure:
    """g~_f of the round.

    Args:
      server: The server's state before the round, its first term this one.
      means: The aggregated uploads by name.
      eta: The rate of the clients in this round.
    """
    num_steps = means[f'{self.name}_num_steps']
    if not self.is_recovered:
      return structures.scale(1 / num_steps, means[f'{self.name}_gradient_sum'])
    minus_delta = means[DELTA if self.is_uniform else f'{self.name}_{DELTA}']
    g_total = structures.scale(
      1 / (tf.cast(eta, num_steps.dtype) * num_steps), minus_delta
    )
    return structures.subtract(g_total, server.terms[0].g_c)


@dataclasses.dataclass(frozen=True)
class TwoWayStep(ParallelStep):
  """The server's side of Algorithm 1 with the gradients that it transfers."""

  term: Transfer

  def augmenting_gradient(self, server: ServerState) -> Structure:
    return server.terms[0].g_f

  def keep(self, server: ServerState, means: Any, central: local_loop.Outcome) -> tuple:
    eta = server.hparams['client_learning_rate']
    eta *= tf.cast(self.schedule(server.round_num), eta.dtype)
    transferred = Transferred(
      g_c=structures.scale(
        1 / tf.cast(central.num_steps, tf.float64), central.gradient_sum
      ),
      g_f=self.term.federated_gradient(server, means, eta),
    )
    return (transferred, *server.terms[1:])


def build_two_way_gradient_transfer(
  model: Objective,
  central_model: Objective | None = None,
  *,
  client_optimizer: base_optimizers.BaseOptimizer | None = None,
  weighting: str = 'examples',
  terms: Sequence[Term] = (),
  aggregator: tff.aggregators.AggregationFactory | None = None,
  gradient_aggregator: tff.aggregators.AggregationFactory | None = None,
  steps_aggregator: tff.aggregators.AggregationFactory | None = None,
  **arguments: Any,
) -> process.PhasedProcess | process.MixedProcess:
  """Builds 2-way gradient transfer.

  `next` is that of `parallel_training.build_parallel_training`. From its second round
  on a step goes about twice as far as in the other algorithms.

  Args:
    model: What is trained: a model, or any gradient oracle.
    central_model: f_c, another oracle by the same weights; the model itself by default.
    client_optimizer: The pair (U, V) of the local step, None for SGD. With None and no
      other terms g~_f is recovered from the updates, otherwise clients upload the sum
      of their gradients.
    weighting: 'examples', or 'uniform' over the clients that have any.
    terms: Augmenting gradients to add to the local step.
    aggregator: For x - x_i, their (weighted) mean by default. Where g~_f is recovered
      and this is no plain uniform mean, the updates are averaged once more, plainly.
      With one that does not weight (DP, secure sums) nothing is recovered.
    gradient_aggregator: For what is averaged beside the updates, and for the gradient
      of `diagnostics`: a plain mean by default, and needed with such an `aggregator`.
    steps_aggregator: For K_i, a scalar: a plain mean by default. Where all is to be
      secure, give this and `gradient_aggregator` too.
    **arguments: More arguments of `build_parallel_training`.
  """
  is_unweighted = _is_unweighted(aggregator)
  is_plain = aggregator is None or isinstance(aggregator, _PLAIN_MEANS)
  # A mechanism of privacy is an unweighted one: nothing is averaged past it.
  is_private = is_unweighted and not is_plain
  is_recovered = client_optimizer is None and not terms and not is_private
  if is_private and gradient_aggregator is None:
    raise ValueError(
      f'With {type(aggregator).__name__} for the updates, clients upload their '
      'gradients beside: pass a gradient_aggregator for these, such as another of its '
      'kind.'
    )
  is_uniform = weighting == 'uniform' and is_plain
  beside = gradient_aggregator or tff.aggregators.UnweightedMeanFactory()
  # Clients that are left out count among the steps where they count in the other mean.
  counts_all = is_unweighted if is_recovered and is_uniform else _is_unweighted(beside)
  steps = tff.aggregators.UnweightedMeanFactory() if counts_all else MeanFactory()
  term = Transfer(is_recovered, is_uniform, beside, steps_aggregator or steps)
  return build_parallel_training(
    model,
    central_model,
    client_optimizer=client_optimizer,
    weighting=weighting,
    terms=[term, *terms],
    aggregator=aggregator,
    gradient_aggregator=gradient_aggregator,
    step=functools.partial(TwoWayStep, term=term),
    **arguments,
  )
