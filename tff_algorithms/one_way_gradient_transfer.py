"""1-way gradient transfer: Augenstein et al. 2022 (mixed FL), Algorithm 2.

At the server:              g~_c = g_c(x; B_c)
On client i, from x_i = x:  x_i <- ClientOptimizer(x_i, g_i(x_i; b) + g~_c), K_i times
At the server:              x <- ServerOptimizer(x, -mean of Delta_i)

FedAvg with one more term, which is why it goes with whatever FedAvg goes with.
"""

import dataclasses
from typing import Any

from tff_algorithms import client_inputs, fed_avg, flops, mixed, process
from tff_algorithms.dissimilarity import Dissimilarity
from tff_algorithms.mixed import CentralLoss, Objective
from tff_algorithms.server_state import ServerState
from tff_algorithms.structures import Structure
from tff_algorithms.terms import Step, Term


@dataclasses.dataclass(frozen=True)
class CentralGradient(Term):
  """a = g~_c, the gradient of the server's loss at x on its rows of this round.

  In any algorithm that takes terms it is 1-way transfer on top of that algorithm.
  """

  loss: CentralLoss

  name = 'central_gradient'
  is_constant = True

  def message(self, state: Any, server: ServerState) -> Structure:
    del state
    return self.loss.gradient(server)

  def value(self, step: Step, message: Structure, prepared: Any) -> Structure:
    del step, prepared
    return message


def build_one_way_gradient_transfer(
  model: Objective,
  central_model: Objective | None = None,
  *,
  client_learning_rate: float,
  batch_size: int,
  federated_weight: float = 0.5,
  central_weight: float = 0.5,
  central_batch_size: int = 512,
  central_clip_norm: float | None = None,
  central_input: client_inputs.ClientInput | None = None,
  diagnostics: bool = False,
  gradient_aggregator: Any = None,
  seed: int = 0,
  **arguments: Any,
) -> process.PhasedProcess | process.MixedProcess:
  """Builds 1-way gradient transfer.

  `next` is `(<state=S@SERVER, clients={batch*}@CLIENTS, central=batch*@SERVER> ->
  <state=S@SERVER, metrics=M@SERVER>)`; see `process.build_learning_process` for S and
  M. B_c is all that `central` holds. Where the central loss needs no rows there is no
  third argument, and the process is a `LearningProcess`.

  Args:
    model: What is trained: a model, or any gradient oracle.
    central_model: f_c, another oracle by the same weights; the model itself by default.
    client_learning_rate: eta, a hyperparameter of the process.
    batch_size: The rows of a local step.
    federated_weight: w_f.
    central_weight: w_c.
    central_batch_size: The rows of B_c that are taken at a time; memory, not
      mathematics.
    central_clip_norm: What the norm of g~_c is cut to, or None.
    central_input: What the server's argument is, an ordinary data set by default.
    diagnostics: Whether the metrics tell G~^2 and B~^2 (equation 7), for which clients
      upload a gradient, and the operations of a client.
    gradient_aggregator: For that gradient, the mean by default.
    seed: The run's seed.
    **arguments: More arguments of `fed_avg.build_fed_avg`.
  """
  federated, central = mixed.weighted_losses(
    model, central_model, federated_weight, central_weight
  )
  loss = CentralLoss(central, central_batch_size, central_clip_norm, seed)
  terms = [CentralGradient(loss), *arguments.pop('terms', ())]
  if diagnostics:
    dissimilarity = Dissimilarity(
      federated_weight,
      central_weight,
      lambda server: loss.gradient(server, clipped=False),
      gradient_aggregator,
    )
    terms.append(dissimilarity)
    arguments['step_flops'] = flops.of_a_step(
      federated, batch_size, arguments.get('selection')
    )
  return fed_avg.build_fed_avg(
    federated,
    client_learning_rate=client_learning_rate,
    batch_size=batch_size,
    terms=terms,
    central_input=mixed.central_input_for(central, central_input),
    seed=seed,
    **arguments,
  )
