"""Training on the server's own rows alone, without clients: a baseline of mixed FL.

    x <- CentralOptimizer(x, g_c(x; b)), K_c times a round

On the rows of server and clients together it is the centralized oracle.
"""

import collections

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import (
  checks,
  client_inputs,
  oracles,
  process,
  schedules,
  server_steps,
  structures,
)
from tff_algorithms.mixed import CentralLoss, Objective


def build_only_central(
  model: Objective,
  *,
  optimizer: tff.learning.optimizers.Optimizer,
  central_batch_size: int,
  central_steps: int,
  central_clip_norm: float | None = None,
  schedule: schedules.Schedule | None = None,
  central_input: client_inputs.ClientInput | None = None,
  seed: int = 0,
) -> process.MixedProcess:
  """Builds central training.

  `next` is `(<state=S@SERVER, central=batch*@SERVER> -> <state=S@SERVER,
  metrics=M@SERVER>)`; see `process.build_learning_process` for S and M. The steps take
  the rows in order, and from the beginning again when they are used up. A round whose
  weights would not be finite changes nothing.

  Args:
    model: What is trained: a model, or any gradient oracle.
    optimizer: Any TFF optimizer; its state is kept from round to round.
    central_batch_size: |B_c|, the rows of a step.
    central_steps: K_c, the steps of a round.
    central_clip_norm: What the norm of a gradient is cut to, or None.
    schedule: Round -> factor on the learning rate.
    central_input: What the server's argument is, an ordinary data set by default.
    seed: The run's seed, for initial weights and dropout.
  """
  oracle = oracles.as_oracle(model)
  loss = CentralLoss(oracle, central_batch_size, central_clip_norm, seed)
  num_steps = checks.count(central_steps, 'central_steps')

  def run_round(server):
    state = server.optimizer
    if schedule is not None:
      factor = schedule(server.round_num)
      state = server_steps.scheduled(optimizer, state, factor)
    outcome = loss.train(server, num_steps, optimizer.next, state)
    state = optimizer.set_hparams(outcome.s, optimizer.get_hparams(server.optimizer))
    weights = server.weights._replace(trainable=outcome.weights)
    finite = structures.all_finite((outcome.weights, state))
    weights, state = structures.select(
      finite, (weights, state), (server.weights, server.optimizer)
    )
    new = server._replace(
      round_num=server.round_num + 1, weights=weights, optimizer=state, central=()
    )
    update = structures.subtract(weights.trainable, server.weights.trainable)
    metrics = collections.OrderedDict(
      oracle.finalize_metrics(outcome.metrics),
      loss=outcome.loss_sum / outcome.num_seen,
      update_norm=structures.global_norm(update),
      num_examples=outcome.num_seen,
      num_clients=tf.zeros([]),
    )
    return new, metrics

  return process.build_central_process(
    server_steps.initial_state(
      oracle, optimizer, optimizer_name='optimizer', seed=seed
    ),
    run_round,
    central_input or client_inputs.from_dataset(oracle.batch_spec),
    optimizer=optimizer,
  )
