"""Server-only training, the centralized baseline of Karimireddy et al. 2021 (Mime).

On client i:        g_i = grad f_i(x) over all its rows
At the server:      g = mean of g_i,  x <- x - eta U(g, s),  s <- V(g, s)

Clients take no step of their own, so a round is one step of large-batch training on
the cohort's data.
"""

import tensorflow_federated as tff

from tff_algorithms import (
  checks,
  client_inputs,
  full_gradient,
  local_training,
  models,
  oracles,
  process,
  schedules,
  server_steps,
)


def build_server_only(
  model: models.Model | tff.learning.models.FunctionalModel | oracles.Oracle,
  *,
  optimizer: tff.learning.optimizers.Optimizer,
  batch_size: int = 512,
  weighting: str = 'examples',
  schedule: schedules.Schedule | None = None,
  aggregator: tff.aggregators.AggregationFactory | None = None,
  metrics_aggregator: tff.aggregators.UnweightedAggregationFactory | None = None,
  client_input: client_inputs.ClientInput | None = None,
  seed: int = 0,
) -> tff.learning.templates.LearningProcess:
  """Builds server-only training.

  `next` is `(<S@SERVER, {batch*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`; see
  `process.build_learning_process` for S and M.

  Args:
    model: What is trained: a model, or any gradient oracle.
    optimizer: The server's: a pair (U, V) by `base_optimizers.as_tff_optimizer`, or
      any of TFF's.
    batch_size: The rows that a client takes at a time; memory, not mathematics.
    weighting: 'examples', or 'uniform' over the clients that have any.
    schedule: Round -> factor on the optimizer's learning rate.
    aggregator: For the gradients, their (weighted) mean by default.
    metrics_aggregator: For the sums behind the metrics and the number of clients: a
      plain or a secure sum.
    client_input: What the clients' argument is, an ordinary data set by default.
    seed: The run's seed, for the initial weights.
  """
  oracle = oracles.as_oracle(model)
  gradients = full_gradient.FullGradient(
    oracle=oracle,
    server_step=server_steps.optimizer_step(optimizer, schedule),
    batch_size=checks.count(batch_size, 'batch_size'),
    weighting=weighting,
    aggregator=local_training.mean_aggregator(aggregator, weighting),
  )
  return process.build_learning_process(
    server_steps.initial_state(oracle, optimizer, seed=seed),
    [gradients],
    client_input or client_inputs.from_dataset(oracle.batch_spec),
    server_optimizer=optimizer,
    metrics_aggregator=metrics_aggregator,
  )
