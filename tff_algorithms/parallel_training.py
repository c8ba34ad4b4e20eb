"""Parallel training: Augenstein et al. 2022 (mixed FL), Algorithm 1.

At the server, from x_c = x:  x_c <- CentralOptimizer(x_c, g_c(x_c; b)), K_c times
                              Delta_c = x_c - x
On client i, from x_i = x:    x_i <- ClientOptimizer(x_i, g_i(x_i; b)), K_i times
At the server:                x_f <- ServerOptimizer(x, -mean of Delta_i)
                              Delta_f = x_f - x
                              x <- MergeOptimizer(x, -(Delta_c + Delta_f))
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

import tensorflow_federated as tff

from tff_algorithms import (
  base_optimizers,
  checks,
  client_inputs,
  fed_avg,
  flops,
  local_loop,
  mixed,
  process,
  schedules,
  server_steps,
  structures,
)
from tff_algorithms.client_optimizers import Fresh
from tff_algorithms.dissimilarity import Dissimilarity
from tff_algorithms.local_training import DELTA
from tff_algorithms.merge import Merge
from tff_algorithms.mixed import CentralSteps, Objective
from tff_algorithms.server_state import ServerState
from tff_algorithms.structures import Structure
from tff_algorithms.terms import Term


@dataclasses.dataclass(frozen=True)
class ParallelStep:
  """What the server does in a round of Algorithm 1.

  Attributes:
    central_steps: The central loop.
    optimizer: ServerOptimizer and MergeOptimizer.
    schedule: The factor on the central learning rate.
    server_schedule: The factor on that of ServerOptimizer, or None.
  """

  central_steps: CentralSteps
  optimizer: Merge
  schedule: schedules.Schedule
  server_schedule: schedules.Schedule | None

  def augmenting_gradient(self, server: ServerState) -> Structure:
    """g~_f, what is added to the gradients of the central loop; `()` for nothing."""
    del server
    return ()

  def keep(self, server: ServerState, means: Any, central: local_loop.Outcome) -> tuple:
    """The states of the terms after the round, before they absorb their uploads.

    Args:
      server: The server's state before the round.
      means: The aggregated uploads by name.
      central: What the central loop gave.
    """
    del means, central
    return server.terms

  def __call__(self, server: ServerState, means: Any) -> ServerState:
    x = server.weights.trainable
    central = self.central_steps(
      server, self.schedule(server.round_num), self.augmenting_gradient(server)
    )
    delta_c = structures.subtract(central.weights, x)
    factor = self.server_schedule and self.server_schedule(server.round_num)
    state, x = self.optimizer.step(
      server.optimizer, x, {'server': means[DELTA]}, [delta_c], factor
    )
    return server._replace(
      weights=server.weights._replace(trainable=x),
      optimizer=state,
      terms=self.keep(server, means, central),
    )


def build_parallel_training(
  model: Objective,
  central_model: Objective | None = None,
  *,
  client_learning_rate: float,
  batch_size: int,
  central_batch_size: int,
  central_steps: int,
  central_learning_rate: float | None = None,
  federated_weight: float = 0.5,
  central_weight: float = 0.5,
  central_clip_norm: float | None = None,
  server_optimizer: tff.learning.optimizers.Optimizer | None = None,
  central_optimizer: base_optimizers.BaseOptimizer | None = None,
  merge_optimizer: tff.learning.optimizers.Optimizer | None = None,
  client_schedule: schedules.Schedule | None = None,
  server_schedule: schedules.Schedule | None = None,
  central_input: client_inputs.ClientInput | None = None,
  terms: Sequence[Term] = (),
  diagnostics: bool = False,
  gradient_aggregator: tff.aggregators.AggregationFactory | None = None,
  seed: int = 0,
  step: Callable[..., ParallelStep] = ParallelStep,
  **arguments: Any,
) -> process.PhasedProcess | process.MixedProcess:
  """Builds parallel training.

  `next` is `(<state=S@SERVER, clients={batch*}@CLIENTS, central=batch*@SERVER> ->
  <state=S@SERVER, metrics=M@SERVER>)`; see `process.build_learning_process` for S and
  M. The central steps take the rows of `central` in order, and from the beginning again
  when they are used up. Where the central loss needs no rows there is no third
  argument, and the process is a `LearningProcess`.

  Args:
    model: What is trained: a model, or any gradient oracle.
    central_model: f_c, another oracle by the same weights; the model itself by default.
    client_learning_rate: eta, a hyperparameter of the process.
    batch_size: The rows of a local step.
    central_batch_size: |B_c|, the rows of a central step; how the server's data set is
      batched does not matter.
    central_steps: K_c.
    central_learning_rate: eta_c, a hyperparameter of the process; eta eta_s by default.
    federated_weight: w_f.
    central_weight: w_c.
    central_clip_norm: What the norm of a central gradient is cut to, or None.
    server_optimizer: ServerOptimizer, SGD with rate eta_s = 1 by default.
    central_optimizer: The pair (U, V) of the central steps, new in every round; SGD by
      default.
    merge_optimizer: MergeOptimizer, SGD with rate eta_m = 1 by default.
    client_schedule: Round -> factor on eta and on eta_c.
    server_schedule: Round -> factor on eta_s.
    central_input: What the server's argument is, an ordinary data set by default.
    terms: Augmenting gradients to add to the local step.
    diagnostics: Whether the metrics tell G~^2 and B~^2 (equation 7), for which clients
      upload a gradient, and the operations of a client.
    gradient_aggregator: For that gradient, the mean by default.
    seed: The run's seed.
    step: The server's side of the round.
    **arguments: More arguments of `fed_avg.build_fed_avg`.
  """
  federated, central = mixed.weighted_losses(
    model, central_model, federated_weight, central_weight
  )
  server_optimizer = server_optimizer or tff.learning.optimizers.build_sgdm(1.0)
  merge_optimizer = merge_optimizer or tff.learning.optimizers.build_sgdm(1.0)
  if central_learning_rate is None:
    eta_s = server_steps.learning_rate_of(server_optimizer)
    central_learning_rate = client_learning_rate * eta_s
  loss = mixed.CentralLoss(central, central_batch_size, central_clip_norm, seed)
  if diagnostics:
    dissimilarity = Dissimilarity(
      federated_weight, central_weight, loss.first_gradient, gradient_aggregator
    )
    terms = [*terms, dissimilarity]
    arguments['step_flops'] = flops.of_a_step(
      federated, batch_size, arguments.get('selection')
    )
  optimizer = Merge({'server': server_optimizer}, merge_optimizer)
  return fed_avg.build_fed_avg(
    federated,
    server_step=step(
      central_steps=CentralSteps(
        loss=loss,
        num_steps=checks.count(central_steps, 'central_steps'),
        optimizer=Fresh(central_optimizer or base_optimizers.sgd()),
      ),
      optimizer=optimizer,
      schedule=client_schedule or schedules.constant(),
      server_schedule=server_schedule,
    ),
    server_optimizer=optimizer,
    client_learning_rate=client_learning_rate,
    batch_size=batch_size,
    terms=terms,
    client_schedule=client_schedule,
    central_input=mixed.central_input_for(central, central_input),
    seed=seed,
    hparams={
      'central_learning_rate': checks.positive(
        central_learning_rate, 'central_learning_rate'
      )
    },
    **arguments,
  )
