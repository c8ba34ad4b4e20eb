"""Minibatch mirror descent and mirror-prox: Hou et al. 2021, sections 4.1 and 4.2.

On client i:            g_i = the mean of tau gradient mappings G_i(z; batch), all at z
Mirror descent:         z <- z - gamma mean of g_i(z)
Mirror-prox:            z_half = z - gamma mean of g_i(z)
                        z <- z - gamma mean of g_i(z_half)

Clients take no step of their own. Mirror descent is server-only training by SGD on the
gradient mapping; mirror-prox has two such phases, and so two communications, a round.
"""

import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import (
  base_optimizers,
  checks,
  client_inputs,
  local_training,
  models,
  oracles,
  process,
  saddle_point,
  server_only,
  server_steps,
  structures,
)
from tff_algorithms.full_gradient import GRADIENT, FullGradient
from tff_algorithms.models import ModelWeights
from tff_algorithms.server_state import ServerState
from tff_algorithms.structures import Structure
from tff_algorithms.terms import Term


def _sgd(learning_rate: float) -> tff.learning.optimizers.Optimizer:
  return base_optimizers.as_tff_optimizer(base_optimizers.sgd(), learning_rate)


def build_minibatch_mirror_descent(
  objective: models.Model | oracles.Oracle,
  *,
  learning_rate: float,
  weighting: str = 'uniform',
  **arguments: Any,
) -> tff.learning.templates.LearningProcess:
  """Builds minibatch mirror descent: `server_only.build_server_only` by SGD.

  Args:
    objective: A model whose trainable weights are a `saddle_point.SaddlePoint`, or an
      oracle of gradient mappings.
    learning_rate: gamma, a hyperparameter of the process.
    weighting: 'uniform', over the clients that have any rows, or 'examples'.
    **arguments: More arguments of `build_server_only`; `num_batches` is tau, None for
      all rows of a client, so that sigma = 0.
  """
  return server_only.build_server_only(
    saddle_point.as_gradient_mapping(objective),
    optimizer=_sgd(learning_rate),
    weighting=weighting,
    communications=1,
    **arguments,
  )


class _Half(NamedTuple):
  """z_half, and the number of the round it belongs to."""

  z: Structure
  round_num: tf.Tensor


class _HalfStep(Term):
  """Keeps z_half between the phases of a round."""

  name = 'half_step'

  def init(self, weights: ModelWeights) -> _Half:
    return _Half(structures.zeros_like(weights.trainable), tf.constant(-1))


@dataclasses.dataclass(frozen=True)
class AtHalf(FullGradient):
  """The gradients at z_half, for z to step by."""

  def is_usable(self, server: ServerState) -> tf.Tensor:
    (half,) = server.terms
    return tf.equal(half.round_num, server.round_num)


def build_minibatch_mirror_prox(
  objective: models.Model | oracles.Oracle,
  *,
  learning_rate: float,
  num_batches: int | None = None,
  batch_size: int = 512,
  weighting: str = 'uniform',
  aggregator: tff.aggregators.AggregationFactory | None = None,
  metrics_aggregator: tff.aggregators.UnweightedAggregationFactory | None = None,
  client_input: client_inputs.ClientInput | None = None,
  seed: int = 0,
) -> process.PhasedProcess:
  """Builds minibatch mirror-prox, in two phases a round, on the same batches in both.

  `next` is `(<S@SERVER, {batch*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`; see
  `process.build_learning_process` for S and M.

  Args:
    objective: A model whose trainable weights are a `saddle_point.SaddlePoint`, or an
      oracle of gradient mappings.
    learning_rate: gamma, a hyperparameter of the process.
    num_batches: tau, the batches that a client takes each gradient from; None for all
      its rows, so that sigma = 0.
    batch_size: The rows of a batch.
    weighting: 'uniform', over the clients that have any rows, or 'examples'.
    aggregator: For the gradients, their (weighted) mean by default.
    metrics_aggregator: For the sums behind the metrics and the number of clients: a
      plain or a secure sum.
    client_input: What the clients' argument is, an ordinary data set by default.
    seed: The run's seed, for initial weights and batches.
  """
  oracle = saddle_point.as_gradient_mapping(objective)
  optimizer = _sgd(learning_rate)
  step = server_steps.optimizer_step(optimizer, GRADIENT)

  def half_step(server, means):
    z = step(server, means).weights.trainable
    return server._replace(terms=(_Half(z, server.round_num),))

  def at_half(server):
    return server.weights._replace(trainable=server.terms[0].z)

  how: dict[str, Any] = dict(
    oracle=oracle,
    batch_size=checks.count(batch_size, 'batch_size'),
    weighting=weighting,
    aggregator=local_training.mean_aggregator(aggregator, weighting),
    seed=seed,
    num_batches=None
    if num_batches is None
    else checks.count(num_batches, 'num_batches'),
  )
  return process.build_learning_process(
    server_steps.initial_state(
      oracle, optimizer, seed=seed, terms=[_HalfStep()], optimizer_name='optimizer'
    ),
    [
      FullGradient(server_step=half_step, **how),
      AtHalf(server_step=step, points={GRADIENT: at_half}, communications=2, **how),
    ],
    client_input or client_inputs.from_dataset(oracle.batch_spec),
    server_optimizer=optimizer,
    metrics_aggregator=metrics_aggregator,
  )
