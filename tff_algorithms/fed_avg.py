"""FedAvg / FedOpt: McMahan et al. 2017; Reddi et al. 2021, Algorithm 1.

On client i, from y = x:    y <- y - eta_l g_i(y; batch)
At the server:              Delta = mean of (x - y_i), x <- ServerOptimizer(x, Delta)

With `base_optimizers.as_tff_optimizer` at the server it is Algorithm 2 of
Karimireddy et al. 2021 (Mime).
"""

from collections.abc import Callable, Mapping, Sequence

import tensorflow_federated as tff

from tff_algorithms import (
  base_optimizers,
  checks,
  client_inputs,
  client_optimizers,
  local_training,
  models,
  oracles,
  process,
  schedules,
  server_steps,
)
from tff_algorithms.selection import Selection
from tff_algorithms.terms import Term


def build_fed_avg(
  model: models.Model | tff.learning.models.FunctionalModel | oracles.Oracle,
  *,
  client_learning_rate: float,
  batch_size: int,
  epochs: int = 1,
  max_steps: int | None = None,
  shuffle: bool = True,
  client_optimizer: base_optimizers.BaseOptimizer | None = None,
  server_optimizer: tff.learning.optimizers.Optimizer | None = None,
  server_step: server_steps.ServerStep | None = None,
  weighting: str = 'examples',
  terms: Sequence[Term] = (),
  client_schedule: schedules.Schedule | None = None,
  server_schedule: schedules.Schedule | None = None,
  aggregator: tff.aggregators.AggregationFactory | None = None,
  metrics_aggregator: tff.aggregators.UnweightedAggregationFactory | None = None,
  client_input: client_inputs.ClientInput | None = None,
  central_input: client_inputs.ClientInput | None = None,
  selection: Selection | None = None,
  client_states_by_file: bool = False,
  training: Callable[..., local_training.LocalTraining] = local_training.LocalTraining,
  hparams: Mapping[str, float] | None = None,
  step_flops: int | None = None,
  seed: int = 0,
) -> process.PhasedProcess | process.MixedProcess | process.StatefulProcess:
  """Builds FedAvg.

  `next` is `(<S@SERVER, {batch*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`; see
  `process.build_learning_process` for S and M. One round: the server sends x; each
  client takes E epochs of steps from it and sends x - y_i; the server's optimizer
  takes their mean for a gradient.

  Args:
    model: What is trained: a model, or any gradient oracle.
    client_learning_rate: eta_l, a hyperparameter of the process.
    batch_size: The rows of a local step; how a client's data set is batched does not
      matter.
    epochs: E, the passes over a client's rows in a round.
    max_steps: Where to cut them, or None.
    shuffle: Whether each pass has a random order, from (seed, round, client).
    client_optimizer: The pair (U, V) of the local step, fresh on each client; SGD by
      default.
    server_optimizer: Any TFF optimizer, or a pair by
      `base_optimizers.as_tff_optimizer`; SGD with rate 1 by default, so x <- mean y_i.
    server_step: (server, aggregated uploads by name) -> server, for more than handing
      their mean to the server's optimizer; a schedule of its rate is then its own.
    weighting: 'examples', or 'uniform' over the clients that have any.
    terms: Augmenting gradients to add to the local step.
    client_schedule: Round -> factor on the client learning rate.
    server_schedule: Round -> factor on the server optimizer's learning rate.
    aggregator: For x - y_i, their (weighted) mean by default. One that does not weight
      counts a client that was left out as a zero.
    metrics_aggregator: For the sums behind the metrics and the number of clients: a
      plain or a secure sum.
    client_input: What the clients' argument is, an ordinary data set by default.
    central_input: What the server's own is, where a term needs rows at the server;
      `next` takes it as a third argument, @SERVER.
    selection: Which rows of the model's tables a client is sent, and sends; None for
      all. The clients then step by SGD.
    client_states_by_file: Whether what clients keep for a term is in files of theirs
      (`client_state_files`); `next` then takes and returns paths.
    training: The phase, for more than local training.
    hparams: More hyperparameters of the process.
    step_flops: What a local step costs (`flops.of_a_step`), to be told in the metrics.
    seed: The run's seed, for initial weights, shuffling and dropout.
  """
  oracle = oracles.as_oracle(model)
  server_optimizer = server_optimizer or tff.learning.optimizers.build_sgdm(1.0)
  checks.positive(client_learning_rate, 'client_learning_rate')
  if server_step is not None and server_schedule is not None:
    raise ValueError(
      'server_schedule goes with no server_step: that has its own rates.'
    )
  if selection is not None and client_optimizer is not None:
    raise ValueError(
      'With a selection the clients step by SGD: what they are not sent would move in '
      'their optimizer too.'
    )
  local = training(
    oracle=oracle,
    server_step=server_step
    or server_steps.optimizer_step(
      server_optimizer, local_training.DELTA, server_schedule
    ),
    client_optimizer=client_optimizers.Fresh(client_optimizer or base_optimizers.sgd()),
    terms=terms,
    batch_size=checks.count(batch_size, 'batch_size'),
    epochs=checks.count(epochs, 'epochs'),
    max_steps=None if max_steps is None else checks.count(max_steps, 'max_steps'),
    shuffle=shuffle,
    weighting=weighting,
    schedule=client_schedule,
    aggregator=local_training.mean_aggregator(aggregator, weighting),
    seed=seed,
    step_flops=step_flops,
  )
  return process.build_learning_process(
    server_steps.initial_state(
      oracle,
      server_optimizer,
      seed=seed,
      terms=terms,
      hparams={'client_learning_rate': client_learning_rate, **(hparams or {})},
    ),
    [local],
    client_input or client_inputs.from_dataset(oracle.batch_spec),
    server_optimizer=server_optimizer,
    metrics_aggregator=metrics_aggregator,
    central_input=central_input,
    selection=selection,
    client_states_by_file=client_states_by_file,
  )
