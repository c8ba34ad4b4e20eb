"""What the saddle-point algorithms share: Hou et al. 2021, Algorithm 1.

On client i, from z_i = z~, tau times:  z_i <- z_i - gamma_l g_i
At the server:                          z~ <- z~ - gamma_g mean of sum of g_i

It is local training on the gradient mapping, with the sum of the directions for the
upload, so that gamma_l = 0 is as good as any: all the tau gradients are then taken
at z~. The algorithms differ in the direction g_i: an oracle, and a `Term` or none.
"""

import collections
from collections.abc import Callable, Sequence
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
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
  structures,
  synchronization,
)
from tff_algorithms.client_optimizers import ClientOptimizer
from tff_algorithms.local_loop import Outcome
from tff_algorithms.mime_framework import GradientUpload
from tff_algorithms.models import ModelWeights
from tff_algorithms.phases import Phase, Upload
from tff_algorithms.server_state import ServerState
from tff_algorithms.structures import Structure
from tff_algorithms.terms import Client, Term

SCHEDULES = ('constant', 'inverse_sqrt')
_AVERAGE = 'average'


class _Iterations(NamedTuple):
  """k: how many local iterations there have been in the whole run."""

  k: tf.Tensor


class _AveragedIterations(NamedTuple):
  """k, and the average iterate of Theorem 4, sum of w_k z^k / sum of w_k.

  The weights w_k = rho^(1-k) grow without bounds: the sums are in units of the weight
  that the current iterate, which is not in them yet, will have.
  """

  k: tf.Tensor
  weighted_sum: Structure
  weight_sum: tf.Tensor

  def output(self, weights: ModelWeights) -> ModelWeights:
    """The average, with the current iterate in it."""
    average = tf.nest.map_structure(
      lambda total, z: (total + z) / (self.weight_sum + 1),
      self.weighted_sum,
      weights.trainable,
    )
    return weights._replace(trainable=average)

  def started_again(self) -> '_AveragedIterations':
    """The average of nothing but the current iterate."""
    return self._replace(
      weighted_sum=structures.zeros_like(self.weighted_sum),
      weight_sum=tf.zeros_like(self.weight_sum),
    )


@dataclasses.dataclass(frozen=True)
class LocalIterations(Term):
  """Adds nothing to g_i, but counts iterations and averages iterates.

  Attributes:
    local_steps: Round -> tau.
    weighting: The weight of a client in a mean, 'examples' or 'uniform'.
    rho: 1 - gamma mu / 4, what w_k is a power of; None for no average.
    aggregator: For the clients' weighted sums of iterates.
  """

  local_steps: synchronization.LocalSteps
  weighting: str
  rho: float | None
  aggregator: tff.aggregators.AggregationFactory

  name = 'local_iterations'
  is_constant = True

  @property
  def aggregators(self) -> dict[str, tff.aggregators.AggregationFactory]:
    return {} if self.rho is None else {_AVERAGE: self.aggregator}

  def init(self, weights: ModelWeights) -> _Iterations | _AveragedIterations:
    k = tf.constant(0)
    if self.rho is None:
      return _Iterations(k)
    zeros = structures.zeros_like(weights.trainable)
    return _AveragedIterations(k, zeros, tf.zeros([], structures.weight_dtype(zeros)))

  def message(self, state: Any, server: ServerState) -> Any:
    del state
    return self.local_steps(server.round_num) if self.rho is not None else ()

  def prepare(self, message: Any, client: Client) -> Any:
    del client
    return message

  def uploads(self, client: Client, prepared: Any, outcome: Outcome) -> Any:
    if self.rho is None:
      return {}
    # Where a straggler has stopped it is for the steps that it has not taken, too.
    decay, weight_sum = self._weights(prepared - outcome.num_steps, outcome.weights)
    weighted_sum = structures.add(
      structures.scale(decay, outcome.s.weighted_sum),
      structures.scale(weight_sum, outcome.weights),
    )
    weight = local_training.client_weight(self.weighting, client.num_examples)
    return collections.OrderedDict({_AVERAGE: Upload(weighted_sum, weight)})

  def _weights(self, steps: tf.Tensor, z: Structure) -> tuple[tf.Tensor, tf.Tensor]:
    """rho^steps, and rho + rho^2 + ... + rho^steps."""
    rho = tf.constant(self.rho, structures.weight_dtype(z))
    decay = tf.pow(rho, tf.cast(steps, rho.dtype))
    return decay, rho * (1 - decay) / (1 - rho)

  def absorb(self, state: Any, means: Any, server: ServerState) -> Any:
    tau = self.local_steps(server.round_num)
    state = state._replace(k=state.k + tau)
    if self.rho is None:
      return state
    decay, weight_sum = self._weights(tau, state.weighted_sum)
    return state._replace(
      weighted_sum=structures.add(
        structures.scale(decay, state.weighted_sum), means[_AVERAGE]
      ),
      weight_sum=decay * state.weight_sum + weight_sum,
    )


class _Descent(NamedTuple):
  """Where a client's descent is.

  Attributes:
    rate: gamma_l.
    k: The number of the next iteration.
    total: The sum of phi(k) g_i over this round's.
    weighted_sum: That of the iterates for Theorem 4's average; `()` without.
  """

  rate: tf.Tensor
  k: tf.Tensor
  total: Structure
  weighted_sum: Structure


@dataclasses.dataclass(frozen=True)
class SummedDescent(ClientOptimizer):
  """z_i <- z_i - gamma_l phi(k) g_i, and the sum of phi(k) g_i for the server.

  `LocalIterations` is the last of the terms.

  Attributes:
    schedule: 'constant', phi = 1; or 'inverse_sqrt', phi(k) = 1 / (sqrt(k) + 1).
    rho: See `LocalIterations`.
  """

  schedule: str
  rho: float | None

  def message(self, server: ServerState, factor: Any) -> Any:
    del factor  # The rates of these algorithms go by k.
    return server.hparams['client_learning_rate'], server.terms[-1].k

  def start(self, message: Any, specs: Structure) -> _Descent:
    zeros = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), specs)
    rate, k = message
    return _Descent(rate, k, zeros, () if self.rho is None else zeros)

  def update(
    self, state: _Descent, y: Structure, g: Structure
  ) -> tuple[_Descent, Structure]:
    if self.schedule == 'inverse_sqrt':
      phi = 1 / (tf.sqrt(tf.cast(state.k, state.rate.dtype)) + 1)
      g = structures.scale(phi, g)
    average = state.weighted_sum
    if self.rho is not None:
      average = structures.scale(self.rho, structures.add(average, y))
    new_state = state._replace(
      k=state.k + 1, total=structures.add(state.total, g), weighted_sum=average
    )
    return new_state, structures.subtract(y, structures.scale(state.rate, g))

  def upload(self, x: Structure, y: Structure, state: _Descent) -> Structure:
    return state.total

  def displacement(self, upload: Structure, server: ServerState) -> Structure:
    return structures.scale(server.hparams['client_learning_rate'], upload)


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
    seed: The run's seed, for initial weights, shuffling, dropout and tau.
  """
  oracle = saddle_point.as_gradient_mapping(objective)
  gamma_l = checks.not_negative(client_learning_rate, 'client_learning_rate')
  gamma_g = gamma_l if server_learning_rate is None else server_learning_rate
  if gamma_g == 0:
    raise ValueError(
      'With client_learning_rate=0 a server_learning_rate above 0 is needed.'
    )
  checks.one_of(schedule, SCHEDULES, 'schedule')
  steps = synchronization.every(local_steps)
  if sync_probability is not None:
    steps = synchronization.geometric(sync_probability, seed)
  rho = None if average_mu is None else _rho(gamma_l, average_mu)
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
  iterations = LocalIterations(steps, weighting, rho, average_mean)
  all_terms = [*first, *terms, iterations]
  optimizer = base_optimizers.as_tff_optimizer(base_optimizers.sgd(), gamma_g)
  training = local_training.LocalTraining(
    oracle=oracle,
    server_step=server_steps.optimizer_step(optimizer, local_training.DELTA),
    client_optimizer=SummedDescent(schedule, rho),
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


def _rho(gamma: float, mu: float) -> float:
  """What the weights of Theorem 4 are powers of: w_k = rho^(1-k)."""
  checks.positive(mu, 'average_mu')
  if not 0 < gamma * mu < 4:
    raise ValueError(
      'The weighted average needs 0 < client_learning_rate * average_mu < 4; found '
      f'{gamma} * {mu}.'
    )
  return 1 - gamma * mu / 4
