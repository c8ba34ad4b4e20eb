"""The phase in which clients train: broadcast x, loop there, step at the server."""

import collections
from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import (
  checks,
  local_loop,
  oracles,
  schedules,
  streams,
  structures,
)
from tff_algorithms.client_inputs import ClientRows
from tff_algorithms.client_optimizers import ClientOptimizer
from tff_algorithms.mean import MeanFactory
from tff_algorithms.models import ModelWeights
from tff_algorithms.oracles import Oracle
from tff_algorithms.phases import (
  ClientResult,
  Phase,
  Upload,
  communication_rounds,
  loss_measurements,
  round_metrics,
)
from tff_algorithms.server_state import ServerState
from tff_algorithms.server_steps import ServerStep
from tff_algorithms.terms import Client, Term, value_at_x

WEIGHTINGS = ('examples', 'uniform')
DELTA = 'delta'


class Message(NamedTuple):
  """What a client is sent: x, what belongs to the optimizer and the terms, and rows.

  Attributes:
    round_num: The number of the round.
    weights: x.
    optimizer: What belongs to the client optimizer.
    terms: What belongs to each of the terms.
    examples: Rows of the server's, if it sends some.
    num_steps: How many steps to take, where the server says so.
  """

  round_num: tf.Tensor
  weights: ModelWeights
  optimizer: Any
  terms: tuple
  examples: Any = ()
  num_steps: Any = ()


def client_weight(weighting: str, num_examples: tf.Tensor) -> tf.Tensor:
  """The weight of a client in a mean: its number of examples, or 1 if it has any."""
  if weighting == 'examples':
    return num_examples
  return tf.cast(num_examples > 0, num_examples.dtype)


def mean_aggregator(
  aggregator: tff.aggregators.AggregationFactory | None,
  weighting: str,
  name: str = 'aggregator',
) -> tff.aggregators.AggregationFactory:
  """The aggregator for a mean over clients; checks that it can weight as asked."""
  checks.one_of(weighting, WEIGHTINGS, 'weighting')
  if weighting == 'examples' and isinstance(
    aggregator, tff.aggregators.UnweightedAggregationFactory
  ):
    raise ValueError(
      f'{name} ({type(aggregator).__name__}) cannot weight clients: pass '
      "weighting='uniform', or a weighted aggregator."
    )
  return aggregator or MeanFactory()


@dataclasses.dataclass(frozen=True)
class LocalTraining(Phase):
  """Local steps on the clients; the server steps on the mean of x - y_i.

  Attributes:
    oracle: What gives the gradients.
    server_step: (server, aggregated uploads by name) -> server; `DELTA` is the mean of
      x - y_i. The terms absorb theirs after it.
    client_optimizer: What takes the local steps.
    terms: The augmenting gradients.
    batch_size: The rows of a local step.
    epochs: The passes over a client's rows.
    max_steps: Where to cut them, or None.
    shuffle: Whether each pass has an order of its own.
    weighting: The weight of a client in the mean, 'examples' or 'uniform'.
    schedule: The factor on the client learning rate, or None.
    aggregator: For x - y_i, or what the client optimizer uploads in its place.
    seed: The run's seed.
    local_steps: The server's state -> how many steps every client takes that has rows,
      in the place of `epochs` and `max_steps`; None for these.
    communications: How many rounds of communication a round counts for, to be told in
      the metrics, or None.
    num_gradient_points: How many points half of a split cohort is sent to take full
      gradients at, and nothing else; 0 for a cohort that is not split.
    compiled: Whether XLA compiles the local steps, once for each number of rows.
    step_flops: What a local step costs, to be told in the metrics, or None.
  """

  oracle: Oracle
  server_step: ServerStep
  client_optimizer: ClientOptimizer
  terms: Sequence[Term]
  batch_size: int
  epochs: int
  max_steps: int | None
  shuffle: bool
  weighting: str
  schedule: schedules.Schedule | None
  aggregator: tff.aggregators.AggregationFactory
  seed: int
  local_steps: Callable[[ServerState], tf.Tensor] | None = None
  communications: int | None = None
  num_gradient_points: int = 0
  compiled: bool = False
  step_flops: int | None = None

  def __post_init__(self):
    names = [term.name for term in self.terms]
    if len(set(names)) < len(names):
      raise ValueError(f'terms must have names of their own, found {", ".join(names)}.')
    if any(term.takes_second_gradient for term in self.terms):
      oracles.check_repeatable(self.oracle)

  @property
  def aggregators(self) -> dict[str, tff.aggregators.AggregationFactory]:
    factories = {DELTA: self.aggregator}
    for term in self.terms:
      for name, factory in term.aggregators.items():
        factories[f'{term.name}_{name}'] = factory
    return factories

  @property
  def updates(self) -> Sequence[str]:
    """The names of the means of x - y_i, which the terms may scale."""
    return (DELTA,)

  @property
  def shared(self) -> dict[str, str]:
    return {
      f'{term.name}_{name}': upload
      for term in self.terms
      for name, upload in term.shared.items()
    }

  @property
  def cohort_limit(self) -> int | None:
    limits = [t.cohort_limit for t in self.terms if t.cohort_limit is not None]
    return min(limits) if limits else None

  def client_init(self, weights: ModelWeights) -> Any:
    kept = collections.OrderedDict()
    for term in self.terms:
      state = tf.nest.map_structure(tf.convert_to_tensor, term.client_init(weights))
      if tf.nest.flatten(state):
        kept[term.name] = state
    return kept or ()

  def message(self, server: ServerState) -> Message:
    factor = None if self.schedule is None else self.schedule(server.round_num)
    return Message(
      round_num=server.round_num,
      weights=server.weights,
      optimizer=self.client_optimizer.message(server, factor),
      terms=tuple(
        term.message(state, server)
        for term, state in zip(self.terms, server.terms, strict=True)
      ),
      num_steps=() if self.local_steps is None else self.local_steps(server),
    )

  def is_usable(self, server: ServerState) -> tf.Tensor:
    usable = [
      term.is_usable(state, server.round_num)
      for term, state in zip(self.terms, server.terms, strict=True)
    ]
    return tf.reduce_all(tf.stack(usable)) if usable else tf.constant(True)

  def bytes_down(self, message_type: tff.Type) -> int:
    x = structures.size_in_bytes(message_type.weights)
    return structures.size_in_bytes(message_type) + self.num_gradient_points * x

  def unselected_step(self, server: ServerState) -> dict[str, Any]:
    # A client does not step along its loss there, but along what the server adds.
    x = server.weights.trainable
    values = [
      (term, value_at_x(term, term.message(state, server), x))
      for term, state in zip(self.terms, server.terms, strict=True)
    ]
    values = [(term, value) for term, value in values if value != ()]
    if len(values) > 1 and not all(term.is_constant for term, _ in values):
      names = ', '.join(term.name for term, _ in values)
      raise ValueError(
        f'With a selection the server cannot follow what {names} together do to the '
        'rows that a client is not sent: pass selection=None, or one term.'
      )
    if not values:
      return {}
    factor = None if self.schedule is None else self.schedule(server.round_num)
    eta = self.client_optimizer.message(server, factor)
    return {DELTA: structures.scale(eta, structures.add(*(v for _, v in values)))}

  def work(self, message: Message, given: ClientRows) -> ClientResult:
    x, optimizer = message.weights, self.client_optimizer
    client = self._client(message, given)
    kept: Any = collections.OrderedDict(given.state)
    clients = [
      dataclasses.replace(client, state=kept.get(term.name, ())) for term in self.terms
    ]
    trains = tf.constant(True) if given.only_gradient is None else ~given.only_gradient
    prepared = [
      term.prepare(sent, own)
      for term, sent, own in zip(self.terms, message.terms, clients, strict=True)
    ]
    outcome = local_loop.local_loop(
      self.oracle,
      x,
      given.rows,
      num_steps=tf.where(trains, self._num_steps(message, given), 0),
      batch_size=self.batch_size,
      seed=client.seed,
      shuffle=self.shuffle,
      update=lambda t, s, y, g: optimizer.update(s, y, g),
      s=optimizer.start(message.optimizer, structures.tensor_specs(x.trainable)),
      sum_gradients=any(term.needs_gradient_sum for term in self.terms),
      compiled=self.compiled,
      terms=[
        functools.partial(term.value, message=sent, prepared=made)
        for term, sent, made in zip(self.terms, message.terms, prepared, strict=True)
      ],
    )
    delta = optimizer.upload(x.trainable, outcome.weights, outcome.s)
    n = tf.where(trains, client.num_examples, tf.zeros_like(client.num_examples))
    weight = client_weight(self.weighting, n)
    uploads = collections.OrderedDict({DELTA: Upload(delta, weight)})
    for term, own, made in zip(self.terms, clients, prepared, strict=True):
      for name, upload in term.uploads(own, made, outcome).items():
        uploads[f'{term.name}_{name}'] = upload
      if term.name in kept:
        kept[term.name] = term.next_client_state(own, made, outcome)
    norm = structures.global_norm(structures.subtract(x.trainable, outcome.weights))
    weight = tf.cast(weight, tf.float32)
    measurements = collections.OrderedDict(
      loss_measurements(outcome),
      num_examples=tf.cast(n, tf.float32),
      num_trained=tf.cast(trains, tf.float32),
      num_steps=tf.cast(outcome.num_steps, tf.float32),
      norm_sum=norm,
      weighted_square_sum=weight * tf.square(norm),
      weight_sum=weight,
    )
    return ClientResult(uploads, measurements, kept or ())

  def _num_steps(self, message: Message, given: ClientRows) -> tf.Tensor:
    if self.local_steps is None:
      num_steps = local_loop.num_local_steps(
        given.rows, self.batch_size, self.epochs, self.max_steps
      )
    else:
      num_steps = tf.where(streams.num_rows(given.rows) > 0, message.num_steps, 0)
    if given.max_steps is None:
      return num_steps
    return tf.minimum(num_steps, given.max_steps)

  def _client(self, message: Message, given: ClientRows) -> Client:
    x = message.weights
    n = streams.num_rows(given.rows)
    seed = local_loop.client_seed(self.seed, message.round_num, given.key)
    return Client(
      weights=x,
      rows=given.rows,
      num_examples=tf.cast(n, structures.weight_dtype(x.trainable)),
      seed=seed,
      held_back=given.held_back_for_update,
      full_gradient=lambda weights, dropout: local_loop.full_gradient(
        self.oracle,
        weights,
        given.rows_for_gradient,
        local_loop.rows_at_a_time(self.batch_size),
        seed if dropout else None,
      ),
      first_gradient=lambda: (
        local_loop.mean_gradient(
          self.oracle,
          x,
          given.rows,
          num_steps=1,
          batch_size=self.batch_size,
          seed=seed,
          shuffle=self.shuffle,
        ).gradient
      ),
    )

  def _means_of(self, term: Term, means: Any) -> dict[str, Any]:
    return {name: means[f'{term.name}_{name}'] for name in term.aggregators}

  def finish(self, server: ServerState, means: Any) -> ServerState:
    updates = {name: means[name] for name in self.updates}
    for term in self.terms:
      own = self._means_of(term, means)
      updates = {name: term.scaled(update, own) for name, update in updates.items()}
    stepped = self.server_step(server, {**means, **updates})
    states = tuple(
      term.absorb(state, self._means_of(term, means), server)
      for term, state in zip(self.terms, stepped.terms, strict=True)
    )
    return stepped._replace(terms=states)

  def metrics(
    self,
    measurements: Any,
    means: Any,
    old: ServerState,
    new: ServerState,
  ) -> collections.OrderedDict:
    own: dict[str, tf.Tensor] = {}
    for term, state in zip(self.terms, old.terms, strict=True):
      usable = term.is_usable(state, old.round_num)
      told = term.metrics(state, self._means_of(term, means), old)
      for name, value in told.items():
        own[name] = tf.where(usable, value, float('nan'))
    client_steps = measurements['num_steps'] / measurements['num_trained']
    if DELTA in means:
      # mean ||y_i - ybar||^2 = mean ||y_i - x||^2 - ||ybar - x||^2, so that one
      # aggregation is enough; exact where the aggregator is a plain mean.
      mean_square = measurements['weighted_square_sum'] / measurements['weight_sum']
      mean = self.client_optimizer.displacement(means[DELTA], old)
      spread_square = mean_square - tf.square(structures.global_norm(mean))
      own['client_spread'] = tf.sqrt(tf.maximum(spread_square, 0.0))
    if self.step_flops is not None:
      own['client_flops'] = self.step_flops * client_steps
    if self.communications is not None:
      own['communication_rounds'] = communication_rounds(self.communications, old)
    return round_metrics(
      self.oracle,
      measurements,
      old,
      new,
      num_examples=measurements['num_examples'],
      num_clients=measurements['num_trained'],
      client_steps=client_steps,
      client_drift=measurements['norm_sum'] / measurements['num_trained'],
      **own,
    )
