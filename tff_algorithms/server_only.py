"""Server-only training, the centralized baseline of Karimireddy et al. 2021 (Mime).

On client i:        g_i = grad f_i(x) over all its rows
At the server:      g = mean of g_i,  x <- x - eta U(g, s),  s <- V(g, s)

Clients take no step of their own, so a round is one step of large-batch training on
the cohort's data. With momentum-based variance reduction (MVR, Cutkosky and Orabona
2019) they also send grad f_i(x_old), x_old the weights of the round before, and what
steps is m <- a g + (1 - a) m + (1 - a) (g - g_old) in the place of g.
"""

import tensorflow_federated as tff

from tff_algorithms import (
  checks,
  client_inputs,
  full_gradient,
  local_training,
  mime_mvr,
  models,
  oracles,
  process,
  schedules,
  server_steps,
)
from tff_algorithms.full_gradient import GRADIENT
from tff_algorithms.server_state import ServerState
from tff_algorithms.server_steps import ServerStep


def build_server_only(
  model: models.Model | tff.learning.models.FunctionalModel | oracles.Oracle,
  *,
  optimizer: tff.learning.optimizers.Optimizer,
  mvr_a: float | None = None,
  batch_size: int = 512,
  num_batches: int | None = None,
  communications: int | None = None,
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
    mvr_a: The a of MVR, above 0 and at most 1, for m to be stepped with, usually by
      SGD; None for the gradient itself.
    batch_size: The rows that a client takes at a time; memory, not mathematics, unless
      there is a `num_batches`.
    num_batches: How many batches a client takes its gradient from; None for all rows.
    communications: How many rounds of communication a round counts for, to be told in
      the metrics, or None.
    weighting: 'examples', or 'uniform' over the clients that have any.
    schedule: Round -> factor on the optimizer's learning rate.
    aggregator: For the gradients, their (weighted) mean by default.
    metrics_aggregator: For the sums behind the metrics and the number of clients: a
      plain or a secure sum.
    client_input: What the clients' argument is, an ordinary data set by default.
    seed: The run's seed, for the initial weights and the batches.
  """
  oracle = oracles.as_oracle(model)
  mean = local_training.mean_aggregator(aggregator, weighting)
  server_step = server_steps.optimizer_step(optimizer, GRADIENT, schedule)
  points = {GRADIENT: lambda server: server.weights}
  terms = []
  if mvr_a is not None:
    term = mime_mvr.MVRLite(
      a=checks.share(mvr_a, 'mvr_a'),
      weighting=weighting,
      aggregator=mean,
      dropout=False,
    )
    terms.append(term)
    points[mime_mvr.OLD_GRADIENT] = _x_old
    server_step = _with_mvr(term, server_step)
  gradients = full_gradient.FullGradient(
    oracle=oracle,
    server_step=server_step,
    batch_size=checks.count(batch_size, 'batch_size'),
    weighting=weighting,
    aggregator=mean,
    points=points,
    seed=seed,
    num_batches=None
    if num_batches is None
    else checks.count(num_batches, 'num_batches'),
    communications=communications,
  )
  return process.build_learning_process(
    server_steps.initial_state(
      oracle, optimizer, optimizer_name='optimizer', seed=seed, terms=terms
    ),
    [gradients],
    client_input or client_inputs.from_dataset(oracle.batch_spec),
    server_optimizer=optimizer,
    metrics_aggregator=metrics_aggregator,
  )


def _x_old(server: ServerState) -> models.ModelWeights:
  return server.weights._replace(trainable=server.terms[0].x_old)


def _with_mvr(term: mime_mvr.MVRLite, step: ServerStep) -> ServerStep:
  """The step with m in the place of the gradient."""

  def mvr_step(server, means):
    new = term.absorb(server.terms[0], means, server)
    return step(server, {GRADIENT: new.m})._replace(terms=(new,))

  return mvr_step
