"""Elastic aggregation: Chen et al., supplement, Algorithms 1 and 2.

Client k holds back a part B_k of its data. At the server's weights theta, over its
batches:
                    Omega_k <- mu Omega_k + (1 - mu) |grad mean ||F(theta; batch)||^2|
At the server:      Omega = sum of w_k Omega_k
                    zeta = 1 + tau - Omega / max(Omega)
                    Delta <- zeta * sum of w_k Delta_k       coordinate by coordinate

with w_k by the rows of D_k that are left for training, and Delta_k = theta - theta_k,
which the server's optimizer takes for a gradient (docs/deviations.md says why).
Coordinates that the model's outputs F depend on little move further, the others less.
It is a term that adds nothing to the local step and scales what comes of it: the
server's optimizer, and so the momentum of FedAvgM, steps by the scaled Delta; the terms
of FedProx, SCAFFOLD, Mime or mixed FL are beside.
"""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import (
  checks,
  client_inputs,
  fed_dyn,
  local_loop,
  local_training,
  models,
  oracles,
  saddle_point,
  streams,
  structures,
)
from tff_algorithms.oracles import Oracle
from tff_algorithms.phases import Upload
from tff_algorithms.server_state import ServerState
from tff_algorithms.structures import Structure
from tff_algorithms.terms import Client, Term

SENSITIVITIES = ('momentum', 'average')
_OMEGA = 'omega'
_COUNT = 'count'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Elastic(Term):
  """zeta = 1 + tau - Omega / max(Omega).

  Attributes:
    output_norm: ||F||^2, an oracle.
    tau: What the least sensitive coordinates are boosted by.
    mu: The decay of Omega_k over batches; None for the mean over batches.
    batch_size: The rows of a batch of B_k.
    weighting: The weight of a client in the mean, 'examples' or 'uniform'.
    aggregator: For the Omega_k.
    counter: Sums over clients whether they send one.
  """

  output_norm: Oracle
  tau: float
  mu: float | None
  batch_size: int
  weighting: str
  aggregator: tff.aggregators.AggregationFactory
  counter: tff.aggregators.UnweightedAggregationFactory

  name = 'elastic'
  is_constant = True

  @property
  def aggregators(self) -> dict[str, tff.aggregators.AggregationFactory]:
    return {_OMEGA: self.aggregator, _COUNT: self.counter}

  def init(self, weights: models.ModelWeights) -> Any:
    if isinstance(weights.trainable, saddle_point.SaddlePoint):
      raise ValueError(
        'Elastic aggregation is by the outputs of a model: a saddle point has none.'
      )
    return ()

  def prepare(self, message: Any, client: Client) -> Structure:
    """Omega_k, 0 of no rows."""
    if client.held_back is None:
      raise ValueError(
        'Elastic aggregation needs clients that hold back a part of their data: pass '
        'client_input=client_inputs.holding_back(...).'
      )
    old, new = (1.0, 1.0) if self.mu is None else (self.mu, 1 - self.mu)
    passed = local_loop.local_loop(
      self.output_norm,
      client.weights,
      client.held_back,
      num_steps=streams.ceil_div(streams.num_rows(client.held_back), self.batch_size),
      batch_size=self.batch_size,
      seed=client.seed,  # Of nothing: nothing is drawn.
      shuffle=False,
      update=lambda t, omega, theta, g: (
        tf.nest.map_structure(lambda o, g: old * o + new * tf.abs(g), omega, g),
        theta,
      ),
      s=structures.zeros_like(client.weights.trainable),
    )
    if self.mu is not None:
      return passed.s
    return tf.nest.map_structure(
      lambda t: tf.math.divide_no_nan(t, tf.cast(passed.num_steps, t.dtype)), passed.s
    )

  def uploads(self, client: Client, prepared: Structure, outcome: Any) -> Any:
    weight = local_training.client_weight(self.weighting, client.num_examples)
    # A client's update may be of use where its sensitivity is not.
    sends = (streams.num_rows(client.held_back) > 0) & structures.all_finite(prepared)
    zeros = structures.zeros_like((prepared, weight))
    omega, weight = structures.select(sends, (prepared, weight), zeros)
    count = tf.cast(sends, tf.float32)
    return {_OMEGA: Upload(omega, weight), _COUNT: Upload(count, count)}

  def zeta(self, omega: Structure) -> Structure:
    """How much further each coordinate goes; 1 + tau where Omega is 0 altogether."""
    # Without any Omega_k their mean is no number, and noise may make it negative.
    known = structures.all_finite(omega)
    omega = tf.nest.map_structure(
      lambda t: tf.where(known, tf.nn.relu(t), tf.zeros_like(t)), omega
    )
    most = tf.reduce_max(tf.stack([tf.reduce_max(t) for t in tf.nest.flatten(omega)]))
    return tf.nest.map_structure(
      lambda t: 1 + self.tau - tf.math.divide_no_nan(t, most), omega
    )

  def scaled(self, update: Structure, means: Any) -> Structure:
    return tf.nest.map_structure(tf.multiply, self.zeta(means[_OMEGA]), update)

  def metrics(self, state: Any, means: Any, server: ServerState) -> Any:
    zeta = structures.as_vector(self.zeta(means[_OMEGA]))
    return {
      'num_sensitivities': means[_COUNT],
      'boosted_share': tf.reduce_mean(tf.cast(zeta > 1, tf.float32)),
      'zeta_min': tf.reduce_min(zeta),
      'zeta_mean': tf.reduce_mean(zeta),
      'zeta_max': tf.reduce_max(zeta),
    }


def elastic_arguments(
  model: models.Model | tff.learning.models.FunctionalModel,
  client_input: client_inputs.ClientInput | None,
  *,
  batch_size: int,
  weighting: str,
  seed: int,
  tau: float = 0.5,
  sensitivity: str = 'momentum',
  mu: float = 0.95,
  fraction: float = 0.1,
  aggregator: tff.aggregators.AggregationFactory | None = None,
  metrics_aggregator: tff.aggregators.UnweightedAggregationFactory | None = None,
) -> dict[str, Any]:
  """The `terms` and the `client_input` that make an algorithm elastic.

  The arguments are those of `build_elastic`; `batch_size` is `sensitivity_batch_size`,
  and `aggregator` is `sensitivity_aggregator`.
  """
  checks.one_of(sensitivity, SENSITIVITIES, 'sensitivity')
  term = Elastic(
    output_norm=oracles.output_norm(model),
    tau=checks.not_negative(tau, 'tau'),
    mu=checks.fraction(mu, 'mu') if sensitivity == 'momentum' else None,
    batch_size=batch_size,
    weighting=weighting,
    aggregator=local_training.mean_aggregator(
      aggregator, weighting, 'sensitivity_aggregator'
    ),
    counter=metrics_aggregator or tff.aggregators.SumFactory(),
  )
  if client_input is None:
    client_input = client_inputs.from_dataset(models.as_model(model).input_spec)
  held_back = client_inputs.holding_back(client_input, fraction, batch_size, seed)
  return {'terms': [term], 'client_input': held_back}


def build_elastic(
  build: Callable[..., tff.templates.IterativeProcess],
  model: models.Model | tff.learning.models.FunctionalModel,
  *,
  batch_size: int,
  sensitivity_batch_size: int | None = None,
  sensitivity_aggregator: tff.aggregators.AggregationFactory | None = None,
  tau: float = 0.5,
  sensitivity: str = 'momentum',
  mu: float = 0.95,
  fraction: float = 0.1,
  weighting: str = 'examples',
  terms: Sequence[Term] = (),
  client_input: client_inputs.ClientInput | None = None,
  seed: int = 0,
  **arguments: Any,
) -> Any:
  """Builds an algorithm with elastic aggregation, a process of its own kind.

  Args:
    build: The algorithm's builder: `build_fed_avg` (with a momentum for its
      `server_optimizer`, FedAvgM), `build_fed_prox`, `build_scaffold`,
      `build_mime_lite`, one of mixed FL, or any other that takes `terms` and has local
      steps; not FedDyn's, and none for saddle points.
    model: What is trained, and whose outputs are looked at.
    batch_size: The rows of a local step.
    sensitivity_batch_size: Those of a batch of B_k, as many by default; with 1 the
      average is over examples, as in equation 1.
    sensitivity_aggregator: For the Omega_k, their (weighted) mean by default.
    tau: What is added to 1 where the outputs do not depend on a coordinate.
    sensitivity: 'momentum', over the batches of B_k, or their 'average'.
    mu: The decay of the former.
    fraction: The share of its data that a client holds back for B_k: the same in all
      rounds in which its data set begins with the same row, and not trained on. A
      client of which that is less than a batch holds back nothing and sends no Omega_k.
    weighting: 'examples', of those trained on, or 'uniform'; for Omega_k and Delta_k,
      also where the algorithm's own default is another one.
    terms: Augmenting gradients to add to the local step.
    client_input: What the clients' argument is, an ordinary data set by default.
    seed: The run's seed.
    **arguments: The other arguments of `build`; its `metrics_aggregator` also sums how
      many clients send an Omega_k.
  """
  if getattr(build, 'func', build) is fed_dyn.build_fed_dyn:  # Perhaps a partial of it.
    raise ValueError(
      'Elastic aggregation does not go with FedDyn, whose h has the updates unscaled.'
    )
  elastic = elastic_arguments(
    model,
    client_input,
    batch_size=batch_size if sensitivity_batch_size is None else sensitivity_batch_size,
    weighting=weighting,
    seed=seed,
    tau=tau,
    sensitivity=sensitivity,
    mu=mu,
    fraction=fraction,
    aggregator=sensitivity_aggregator,
    metrics_aggregator=arguments.get('metrics_aggregator'),
  )
  elastic['terms'] = [*terms, *elastic['terms']]
  return build(
    model, batch_size=batch_size, weighting=weighting, seed=seed, **elastic, **arguments
  )
