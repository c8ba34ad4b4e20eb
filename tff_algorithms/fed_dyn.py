"""FedDyn: Acar et al. 2021, "Federated Learning Based on Dynamic Regularization".

On client i, from y_i = x:  y_i <- y_i - eta_l (g_i(y_i) - h_i + alpha (y_i - x)), and
                            again, K_i times
                            h_i <- h_i - alpha (y_i - x)
At the server:              h <- h - (alpha / N) sum of (y_i - x)
                            x <- mean of y_i - h / alpha

Their Algorithm 1 has the client solve its problem, so that h_i is the gradient of its
loss at its last y_i; here it takes local steps. h and all h_i start at 0.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import tensorflow_federated as tff

from tff_algorithms import (
  aggregation,
  checks,
  fed_avg,
  local_training,
  models,
  oracles,
  process,
  schedules,
  server_steps,
  structures,
)
from tff_algorithms.local_loop import Outcome
from tff_algorithms.models import ModelWeights
from tff_algorithms.server_state import ServerState
from tff_algorithms.structures import Structure
from tff_algorithms.terms import Client, Step, Term

_SUM = 'sum'


@dataclasses.dataclass(frozen=True)
class DynamicRegularizer(Term):
  """a = -h_i + alpha (y - x); the server keeps h, client i keeps h_i.

  Attributes:
    alpha: alpha.
    num_clients: N.
    aggregator: Sums the x - y_i.
  """

  alpha: float
  num_clients: int
  aggregator: tff.aggregators.UnweightedAggregationFactory

  name = 'dynamic_regularizer'

  @property
  def cohort_limit(self) -> int:
    return self.num_clients

  @property
  def aggregators(self) -> Mapping[str, tff.aggregators.AggregationFactory]:
    return {_SUM: self.aggregator}

  @property
  def shared(self) -> Mapping[str, str]:
    return {_SUM: local_training.DELTA}

  def init(self, weights: ModelWeights) -> Structure:
    return structures.zeros_like(weights.trainable)

  def client_init(self, weights: ModelWeights) -> Structure:
    return structures.zeros_like(weights.trainable)

  def prepare(self, message: Any, client: Client) -> Structure:
    del message
    return client.state

  def value(self, step: Step, message: Any, prepared: Structure) -> Structure:
    del message
    h_i, away = prepared, structures.subtract(step.y, step.x)
    return structures.subtract(structures.scale(self.alpha, away), h_i)

  def next_client_state(
    self, client: Client, prepared: Structure, outcome: Outcome
  ) -> Structure:
    h_i, away = prepared, structures.subtract(outcome.weights, client.weights.trainable)
    return structures.subtract(h_i, structures.scale(self.alpha, away))

  def absorb(
    self, state: Structure, means: Mapping[str, Structure], server: ServerState
  ) -> Structure:
    del server
    h, factor = state, self.alpha / self.num_clients
    return structures.add(h, structures.scale(factor, means[_SUM]))  # of x - y_i

  def server_step(
    self,
    optimizer: tff.learning.optimizers.Optimizer,
    schedule: schedules.Schedule | None,
  ) -> server_steps.ServerStep:
    """x <- mean of y_i - h / alpha with the new h, by way of an optimizer.

    It is for this term as the first of an algorithm's.
    """
    step = server_steps.optimizer_step(optimizer, local_training.DELTA, schedule)

    def with_h(server: ServerState, means: Any) -> ServerState:
      sums = {_SUM: means[f'{self.name}_{_SUM}']}
      h = self.absorb(server.terms[0], sums, server)
      away = structures.scale(1 / self.alpha, h)
      return step(
        server,
        {local_training.DELTA: structures.add(means[local_training.DELTA], away)},
      )

    return with_h


def build_fed_dyn(
  model: models.Model | tff.learning.models.FunctionalModel | oracles.Oracle,
  *,
  num_clients: int,
  alpha: float,
  weighting: str = 'uniform',
  sum_aggregator: tff.aggregators.UnweightedAggregationFactory | None = None,
  server_optimizer: tff.learning.optimizers.Optimizer | None = None,
  server_schedule: schedules.Schedule | None = None,
  **fed_avg_arguments: Any,
) -> process.StatefulProcess:
  """Builds FedDyn.

  `next` takes and returns the clients' states, as SCAFFOLD's does; C is
  `<dynamic_regularizer=h_i>`. A client that is left out, or takes no step, keeps its
  h_i.

  Args:
    model: What is trained: a model, or any gradient oracle.
    num_clients: N, all the clients there are; a round has at most so many.
    alpha: The strength of the regularizer, above 0.
    weighting: The weights of the y_i in their mean: 'uniform' as in the paper, or
      'examples'. In h they are never weighted.
    sum_aggregator: Sums the x - y_i, for h; `tff.aggregators.SumFactory()` by default.
    server_optimizer: What takes x - (mean of y_i - h / alpha) for a gradient, SGD with
      rate 1 by default, which is the paper's step.
    server_schedule: Round -> factor on its learning rate.
    **fed_avg_arguments: More arguments of `fed_avg.build_fed_avg`; `terms` are added
      to.
  """
  server_optimizer = server_optimizer or tff.learning.optimizers.build_sgdm(1.0)
  regularizer = DynamicRegularizer(
    checks.positive(alpha, 'alpha'),
    checks.count(num_clients, 'num_clients'),
    aggregation.sum_aggregator(sum_aggregator, 'sum_aggregator'),
  )
  return fed_avg.build_fed_avg(
    model,
    terms=[regularizer, *fed_avg_arguments.pop('terms', ())],
    weighting=weighting,
    server_optimizer=server_optimizer,
    server_step=regularizer.server_step(server_optimizer, server_schedule),
    **fed_avg_arguments,
  )
