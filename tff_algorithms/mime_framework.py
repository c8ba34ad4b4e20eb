"""What the algorithms of the Mime paper share: Karimireddy et al. 2021, section 3.

    on client i, from y = x, K times:    y <- y - eta U(g, s)
    at the server:                       s <- V(c, s)
                                         x <- x - eta_g mean of (x - y_i)

with c the mean of the clients' full gradients at x. The base optimizer's state s is
tracked at the server, from gradients at the server's x alone, and applied at every
local step. The algorithms differ in the direction g: a `Term` each.
"""

import collections
from collections.abc import Callable, Mapping, Sequence
import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import (
  checks,
  client_inputs,
  full_gradient,
  local_loop,
  local_training,
  models,
  oracles,
  process,
  schedules,
  server_steps,
  structures,
)
from tff_algorithms.client_optimizers import ServersState
from tff_algorithms.full_gradient import GRADIENT
from tff_algorithms.local_training import DELTA
from tff_algorithms.phases import Phase
from tff_algorithms.server_state import ServerState
from tff_algorithms.structures import Structure
from tff_algorithms.terms import Client, Term, value_at_x


@dataclasses.dataclass(frozen=True, kw_only=True)
class GradientUpload(Term):
  """Clients send their full gradient at x beside their update; g = grad f_i(y; b).

  Attributes:
    weighting: The weight of a client in the mean, 'examples' or 'uniform'.
    aggregator: For the gradients.
    dropout: Whether they are taken with dropout, as in training.
  """

  name = 'mime'
  weighting: str
  aggregator: tff.aggregators.AggregationFactory
  dropout: bool

  # Whether the gradients are gathered in a phase before, which ends with `store`.
  has_phase = False

  @property
  def aggregators(self) -> Mapping[str, tff.aggregators.AggregationFactory]:
    return {GRADIENT: self.aggregator}

  def prepare(self, message: Any, client: Client) -> Any:
    del message
    return client.full_gradient(client.weights, self.dropout)

  def uploads(self, client: Client, prepared: Any, outcome: Any) -> Any:
    del client, outcome
    upload = full_gradient.gradient_upload(prepared, self.weighting)
    return collections.OrderedDict({GRADIENT: upload})

  def c(self, state: Any, means: Any) -> Structure:
    """The mean of the clients' full gradients at x in this round.

    Args:
      state: The term's state at the server before the round.
      means: Its aggregated uploads by name.
    """
    del state
    return means[GRADIENT]

  def store(self, server: ServerState, means: Any) -> ServerState:
    """The server's state after a phase before; the same where there is none."""
    del means
    return server

  def metrics(
    self, state: Any, means: Any, server: ServerState
  ) -> Mapping[str, tf.Tensor]:
    del server
    return {'gradient_norm': structures.global_norm(self.c(state, means))}


@dataclasses.dataclass(frozen=True)
class MimeStep:
  """s <- V(c, s), x <- x - eta_g mean of (x - y_i).

  With more terms than the paper's, V is fed c plus their values at y = x.

  Attributes:
    base_optimizer: What s is the state of.
    first: The term that knows c.
    others: The terms after it.
    schedule: The factor on eta_g.
  """

  base_optimizer: tff.learning.optimizers.Optimizer
  first: GradientUpload
  others: Sequence[Term]
  schedule: schedules.Schedule

  def __call__(self, server: ServerState, means: Any) -> ServerState:
    x, s = server.weights.trainable, server.optimizer
    own = {name: means[f'{self.first.name}_{name}'] for name in self.first.aggregators}
    c = self.first.c(server.terms[0], own)
    s, _ = self.base_optimizer.next(s, x, structures.add(c, *self._others_at_x(server)))
    eta_g = server.hparams['server_learning_rate']
    eta_g *= tf.cast(self.schedule(server.round_num), eta_g.dtype)
    x = structures.subtract(x, structures.scale(eta_g, means[DELTA]))
    return server._replace(optimizer=s, weights=server.weights._replace(trainable=x))

  def _others_at_x(self, server: ServerState) -> list[Structure]:
    if not _has_statistics(self.base_optimizer, server.optimizer):
      return []  # V keeps nothing, so that any term goes with it.
    values = [
      value_at_x(term, term.message(state, server), server.weights.trainable)
      for term, state in zip(self.others, server.terms[1:], strict=True)
    ]
    return [value for value in values if value != ()]


def _has_statistics(optimizer: tff.learning.optimizers.Optimizer, state: Any) -> bool:
  hparams = optimizer.get_hparams(state)
  return len(tf.nest.flatten(state)) > len(tf.nest.flatten(hparams))


def build(
  model: models.Model | tff.learning.models.FunctionalModel | oracles.Oracle,
  first: Callable[..., GradientUpload],
  *,
  base_optimizer: tff.learning.optimizers.Optimizer,
  batch_size: int,
  epochs: int = 1,
  max_steps: int | None = None,
  shuffle: bool = True,
  server_learning_rate: float = 1.0,
  weighting: str = 'examples',
  split_cohort: bool = False,
  gradient_dropout: bool = False,
  terms: Sequence[Term] = (),
  client_schedule: schedules.Schedule | None = None,
  server_schedule: schedules.Schedule | None = None,
  aggregator: tff.aggregators.AggregationFactory | None = None,
  gradient_aggregator: tff.aggregators.AggregationFactory | None = None,
  metrics_aggregator: tff.aggregators.UnweightedAggregationFactory | None = None,
  client_input: client_inputs.ClientInput | None = None,
  central_input: client_inputs.ClientInput | None = None,
  seed: int = 0,
  updates_locally: bool = False,
) -> process.PhasedProcess | process.MixedProcess:
  """Builds an algorithm of the Mime paper.

  `next` is `(<S@SERVER, {I}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`; see
  `process.build_learning_process` for S and M. I is `batch*`, or what `client_input`
  says; with `split_cohort` it is `<client=I,only_gradient=bool>`.

  Args:
    model: What is trained: a model, or any gradient oracle.
    first: Makes the algorithm's own term.
    base_optimizer: (U, V) with its rate eta: a pair by
      `base_optimizers.as_tff_optimizer`, or any of TFF's. Its hyperparameters are the
      process's, under the name `base_optimizer`.
    batch_size: The rows of a local step; how a client's data set is batched does not
      matter.
    epochs: The passes over a client's rows in a round. Its full gradient is over all
      its rows, each once, whatever this is.
    max_steps: Where to cut the local steps, or None.
    shuffle: Whether each pass has a random order, from (seed, round, client).
    server_learning_rate: eta_g, a hyperparameter of the process.
    weighting: 'examples', or 'uniform' over the clients that have any, as in the
      pseudo-code; for updates and gradients alike.
    split_cohort: Whether half of the clients send only gradients and the others only
      updates (section 5.1); `client_inputs.in_halves` makes the arguments.
    gradient_dropout: Whether full gradients are taken with dropout, as in training.
    terms: Augmenting gradients to add to the local step.
    client_schedule: Round -> factor on the base optimizer's learning rate.
    server_schedule: Round -> factor on eta_g.
    aggregator: For x - y_i, their (weighted) mean by default.
    gradient_aggregator: For the full gradients, likewise.
    metrics_aggregator: For the sums behind the metrics and the number of clients: a
      plain or a secure sum.
    client_input: What the clients' argument is, an ordinary data set by default.
    central_input: What the server's own is, where a term needs rows at the server.
    seed: The run's seed, for initial weights, shuffling and dropout.
    updates_locally: Whether local steps update the client's copy of s by V.
  """
  oracle = oracles.as_oracle(model)
  checks.positive(server_learning_rate, 'server_learning_rate')
  mean = local_training.mean_aggregator(aggregator, weighting)
  gradient_mean = local_training.mean_aggregator(
    gradient_aggregator, weighting, 'gradient_aggregator'
  )
  for name, factory in (('aggregator', mean), ('gradient_aggregator', gradient_mean)):
    if split_cohort and isinstance(
      factory, tff.aggregators.UnweightedAggregationFactory
    ):
      raise ValueError(
        f'{name} ({type(factory).__name__}) cannot weight clients, and with '
        'split_cohort one half of them must count for nothing.'
      )
  own = first(weighting=weighting, aggregator=gradient_mean, dropout=gradient_dropout)
  all_terms = [own, *terms]
  training = local_training.LocalTraining(
    oracle=oracle,
    server_step=MimeStep(
      base_optimizer, own, terms, server_schedule or schedules.constant()
    ),
    client_optimizer=ServersState(base_optimizer, updates_locally),
    terms=all_terms,
    batch_size=checks.count(batch_size, 'batch_size'),
    epochs=checks.count(epochs, 'epochs'),
    max_steps=None if max_steps is None else checks.count(max_steps, 'max_steps'),
    shuffle=shuffle,
    weighting=weighting,
    schedule=client_schedule,
    aggregator=mean,
    seed=seed,
    num_gradient_points=len(own.aggregators) if split_cohort else 0,
  )
  phases: list[Phase] = [training]
  if own.has_phase:
    phases.insert(
      0,
      full_gradient.FullGradient(
        oracle=oracle,
        server_step=own.store,
        batch_size=local_loop.rows_at_a_time(batch_size),
        weighting=weighting,
        aggregator=gradient_mean,
        dropout=gradient_dropout,
        seed=seed,
      ),
    )
  client_input = client_input or client_inputs.from_dataset(oracle.batch_spec)
  return process.build_learning_process(
    server_steps.initial_state(
      oracle,
      base_optimizer,
      optimizer_name='base_optimizer',
      seed=seed,
      terms=all_terms,
      hparams={'server_learning_rate': server_learning_rate},
    ),
    phases,
    client_inputs.of_halves(client_input) if split_cohort else client_input,
    server_optimizer=base_optimizer,
    optimizer_name='base_optimizer',
    metrics_aggregator=metrics_aggregator,
    central_input=central_input,
  )
