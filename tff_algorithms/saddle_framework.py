"""What the saddle-point algorithms share: Hou et al. 2021, Algorithm 1.

On client i, from z_i = z~, tau times:  z_i <- z_i - gamma_l g_i
At the server:                          z~ <- z~ - gamma_g mean of sum of g_i

It is local training on the gradient mapping, with the sum of the directions for the
upload, so that gamma_l = 0 is as good as any: all the tau gradients are then taken
at z~. The algorithms differ in the direction g_i: an oracle, and a `Term` or none.
"""

from collections.abc import Callable, Sequence

import tensorflow_federated as tff

from tff_algorithms import (
  base_optimizers,
  checks,
  client_inputs,
  full_gradient,
  local_training,
  models,
  oracles,
  process,
  saddle_point,
  server_steps,
  summed_descent,
  synchronization,
)
from tff_algorithms.mime_framework import GradientUpload
from tff_algorithms.phases import Phase
from tff_algorithms.server_state import ServerState
from tff_algorithms.terms import Term


def build(
  objective: models.Model | oracles.Oracle,
  *,
  client_learning_rate: float,
  server_learning_rate: float | None = None,
  local_steps: int = 20,
  sync_probability: float | None = None,
  batch_size: int,
  shuffle: bool = True,
  schedule: str = 'constant',
  average_mu: float | None = None,
  weighting: str = 'uniform',
  control_variate: type[GradientUpload] | None = None,
  gathered: Callable[[ServerState], ServerState] = lambda server: server,
  terms: Sequence[Term] = (),
  aggregator: tff.aggregators.AggregationFactory | None = None,
  gradient_aggregator: tff.aggregators.AggregationFactory | None = None,
  average_aggregator: tff.aggregators.AggregationFactory | None = None,
  metrics_aggregator: tff.aggregators.UnweightedAggregationFactory | None = None,
  client_input: client_inputs.ClientInput | None = None,
  compiled: bool = False,
  seed: int = 0,
) -> process.PhasedProcess:
  """Builds a saddle-point algorithm with local steps.

  `next` is `(<S@SERVER, {batch*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`; see
  `process.build_learning_process` for S and M.

  Args:
    objective: The f_i: a model whose trainable weights are a
      `saddle_point.SaddlePoint`, or an oracle of their gradient mappings.
    client_learning_rate: gamma_l, 0 or above, a hyperparameter of the process.
    server_learning_rate: gamma_g, that of the process's server optimizer; gamma_l if
      None, so that z~ <- mean of z_i. It multiplies the sum of the g_i.
    local_steps: tau, on every client that has rows.
    sync_probability: p, above 0 and at most 1, for one tau ~ Geometric(p) a round in
      the place of `local_steps`, from (seed, round); None for a fixed tau.
    batch_size: The rows of a local step; with all rows of the client sigma = 0.
    shuffle: Whether each pass has a random order, from (seed, round, client).
    schedule: Of gamma_l and gamma_g together: 'constant', or 'inverse_sqrt' for
      gamma / (sqrt(k) + 1), k counting the local iterations of the whole run.
    average_mu: mu, for the weighted average iterate of Theorem 4 to come out instead
      of the last one; None for that.
    weighting: 'uniform', over the clients that have any rows, or 'examples'.
    control_variate: The term of Mime's c, gathered in a phase before.
    gathered: server -> server, called once c is there.
    terms: Augmenting gradients to add to the local step.
    aggregator: For the sums of the g_i, their (weighted) mean by default.
    gradient_aggregator: For what c is the mean of, likewise.
    average_aggregator: For the weighted sums of iterates, likewise.
    metrics_aggregator: For the sums behind the metrics and the number of clients: a
      plain or a secure sum.
    client_input: What the clients' argument is, an ordinary data set by default.
    compiled: Whether XLA compiles the local steps, once for each number of rows that a
      client has: for many steps of small arithmetic.
    seed: The run's seed, for initial weights, shuffling, dropout and tau.
  """
  oracle = saddle_point.as_gradient_mapping(objective)
  gamma_l = checks.not_negative(client_learning_rate, 'client_learning_rate')
  gamma_g = gamma_l if server_learning_rate is None else server_learning_rate
  if gamma_g == 0:
    raise ValueError(
      'With client_learning_rate=0 a server_learning_rate above 0 is needed.'
    )
  checks.one_of(schedule, summed_descent.SCHEDULES, 'schedule')
  steps = synchronization.every(local_steps)
  if sync_probability is not None:
    steps = synchronization.geometric(sync_probability, seed)
  rho = None if average_mu is None else summed_descent.rho_of(gamma_l, average_mu)
  batch_size = checks.count(batch_size, 'batch_size')
  gradient_mean = local_training.mean_aggregator(
    gradient_aggregator, weighting, 'gradient_aggregator'
  )
  first: list[Term] = []
  phases: list[Phase] = []
  if control_variate is not None:
    # With the randomness of a local step: without it a GAN would have no noise.
    c = control_variate(weighting=weighting, aggregator=gradient_mean, dropout=True)
    gradients = full_gradient.FullGradient(
      oracle=oracle,
      server_step=lambda server, means: gathered(c.store(server, means)),
      batch_size=batch_size,
      weighting=weighting,
      aggregator=gradient_mean,
      dropout=True,
      seed=seed,
    )
    first.append(c)
    phases.append(gradients)
  average_mean = local_training.mean_aggregator(
    average_aggregator, weighting, 'average_aggregator'
  )
  iterations = summed_descent.LocalIterations(steps, weighting, rho, average_mean)
  all_terms = [*first, *terms, iterations]
  optimizer = base_optimizers.as_tff_optimizer(base_optimizers.sgd(), gamma_g)
  training = local_training.LocalTraining(
    oracle=oracle,
    server_step=server_steps.optimizer_step(optimizer, local_training.DELTA),
    client_optimizer=summed_descent.SummedDescent(schedule, rho),
    terms=all_terms,
    batch_size=batch_size,
    epochs=1,
    max_steps=None,
    shuffle=shuffle,
    weighting=weighting,
    schedule=None,
    aggregator=local_training.mean_aggregator(aggregator, weighting),
    seed=seed,
    local_steps=lambda server: steps(server.round_num),
    communications=1,
    compiled=compiled,
  )
  return process.build_learning_process(
    server_steps.initial_state(
      oracle,
      optimizer,
      seed=seed,
      terms=all_terms,
      hparams={'client_learning_rate': gamma_l},
    ),
    [*phases, training],
    client_input or client_inputs.from_dataset(oracle.batch_spec),
    server_optimizer=optimizer,
    metrics_aggregator=metrics_aggregator,
  )
