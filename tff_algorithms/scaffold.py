"""SCAFFOLD: Karimireddy et al. 2020, Algorithm 1.

On client i, from y_i = x:  y_i <- y_i - eta_l (g_i(y_i) - c_i + c), K_i times
                            c_i+ <- (I) g_i(x), or (II) c_i - c + (x - y_i)/(K_i eta_l)
                            dy_i = y_i - x, dc_i = c_i+ - c_i, c_i <- c_i+
At the server:              x <- x + eta_g mean of dy_i, c <- c + (1/N) sum of dc_i

FedAvg with one more term, a = c - c_i, which goes with whatever FedAvg goes with. c and
all c_i start at 0, so that c is the mean of all N c_i, after every round.
"""

import collections
from collections.abc import Mapping
import dataclasses
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import (
  aggregation,
  checks,
  fed_avg,
  models,
  oracles,
  process,
  structures,
)
from tff_algorithms.local_loop import Outcome
from tff_algorithms.models import ModelWeights
from tff_algorithms.phases import Upload
from tff_algorithms.server_state import ServerState
from tff_algorithms.structures import Structure
from tff_algorithms.terms import Client, Step, Term

OPTIONS = (1, 2)
_CHANGE = 'change'


class _Prepared(NamedTuple):
  """What a client knows before its loop.

  Attributes:
    correction: c - c_i.
    gradient: g_i(x) over all its rows, for option I; else `()`.
  """

  correction: Structure
  gradient: Structure


@dataclasses.dataclass(frozen=True)
class ControlVariates(Term):
  """a = c - c_i; the server keeps c, client i keeps c_i.

  Attributes:
    num_clients: N.
    option: How c_i is renewed, 1 or 2.
    aggregator: Sums the dc_i.
  """

  num_clients: int
  option: int
  aggregator: tff.aggregators.UnweightedAggregationFactory

  name = 'control_variates'

  @property
  def needs_gradient_sum(self) -> bool:
    return self.option == 2

  @property
  def cohort_limit(self) -> int:
    return self.num_clients

  @property
  def aggregators(self) -> Mapping[str, tff.aggregators.AggregationFactory]:
    return {_CHANGE: self.aggregator}

  def init(self, weights: ModelWeights) -> Structure:
    return structures.zeros_like(weights.trainable)

  def client_init(self, weights: ModelWeights) -> Structure:
    return structures.zeros_like(weights.trainable)

  def message(self, state: Structure, server: ServerState) -> Structure:
    del server
    return state

  def prepare(self, message: Structure, client: Client) -> _Prepared:
    c, c_i = message, client.state
    gradient = ()
    if self.option == 1:
      gradient = client.full_gradient(client.weights, False).gradient
    return _Prepared(structures.subtract(c, c_i), gradient)

  def value(self, step: Step, message: Structure, prepared: _Prepared) -> Structure:
    del step, message
    return prepared.correction

  def uploads(self, client: Client, prepared: _Prepared, outcome: Outcome) -> Any:
    c_plus = self.next_client_state(client, prepared, outcome)
    dc = structures.subtract(c_plus, client.state)
    one = tf.ones([], structures.weight_dtype(dc))
    return collections.OrderedDict({_CHANGE: Upload(dc, one)})

  def next_client_state(
    self, client: Client, prepared: _Prepared, outcome: Outcome
  ) -> Structure:
    if self.option == 1:
      c_plus = prepared.gradient
    else:
      # (x - y_i) / (K_i eta_l) is the mean of the steps' g_i - c_i + c, if nothing else
      # is in them: c_i+ is the mean of the loss gradients, whatever else is in them.
      k = tf.cast(outcome.num_steps, structures.weight_dtype(client.state))
      c_plus = structures.scale(1 / k, outcome.gradient_sum)
    return structures.select(outcome.num_steps > 0, c_plus, client.state)

  def absorb(
    self, state: Structure, means: Mapping[str, Structure], server: ServerState
  ) -> Structure:
    del server
    return structures.add(state, structures.scale(1 / self.num_clients, means[_CHANGE]))

  def metrics(self, state: Structure, means: Any, server: ServerState) -> Any:
    return {'control_variate_norm': structures.global_norm(state)}


def build_scaffold(
  model: models.Model | tff.learning.models.FunctionalModel | oracles.Oracle,
  *,
  num_clients: int,
  option: int = 2,
  weighting: str = 'uniform',
  control_variate_aggregator: tff.aggregators.UnweightedAggregationFactory
  | None = None,
  **fed_avg_arguments: Any,
) -> process.StatefulProcess:
  """Builds SCAFFOLD.

  `next` is `(<state=S@SERVER, clients={batch*}@CLIENTS,
  client_states={<client_id=str,value=C>}@CLIENTS> -> <state=S@SERVER,
  metrics=M@SERVER, proposed={<client_id=str,value=C>}@CLIENTS,
  is_accepted=bool@SERVER>)`, C being `<control_variates=c_i>`; `client_states` has what
  keeps them between rounds. See `process.build_learning_process` for S and M. A client
  that is left out, or takes no step, keeps its c_i.

  Args:
    model: What is trained: a model, or any gradient oracle.
    num_clients: N, all the clients there are; a round has at most so many.
    option: How c_i is renewed: 1, the gradient at x over all the client's rows (one
      more pass), without dropout; 2, the mean gradient of its local steps.
    weighting: The weights of the dy_i: 'uniform' as in the paper, or 'examples'. The
      dc_i are never weighted.
    control_variate_aggregator: Sums the dc_i, `tff.aggregators.SumFactory()` by
      default. With one that clips, rounds or adds noise, c is no longer the mean of
      the c_i.
    **fed_avg_arguments: More arguments of `fed_avg.build_fed_avg`, where
      `client_learning_rate` is eta_l and `server_optimizer`, SGD with rate 1 by
      default, has eta_g; `terms` are added to.
  """
  checks.one_of(option, OPTIONS, 'option')
  control_variates = ControlVariates(
    checks.count(num_clients, 'num_clients'),
    option,
    aggregation.sum_aggregator(
      control_variate_aggregator, 'control_variate_aggregator'
    ),
  )
  terms = [control_variates, *fed_avg_arguments.pop('terms', ())]
  return fed_avg.build_fed_avg(
    model, terms=terms, weighting=weighting, **fed_avg_arguments
  )
