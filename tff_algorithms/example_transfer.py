"""Example transfer: FedAvg where the server sends examples of its own along.

A baseline of Augenstein et al. 2022 (mixed FL, section 3), after Zhao et al. 2018. A
client with n_i rows trains on these and on n_i w_c / w_f of the server's, drawn for it
in every round, so that its loss is in the mean w_f f_i + w_c f_c, but for a factor.
"""

import dataclasses
import functools
from typing import Any

import tensorflow as tf

from tff_algorithms import (
  checks,
  client_inputs,
  fed_avg,
  local_loop,
  local_training,
  mixed,
  oracles,
  process,
  streams,
)
from tff_algorithms.client_inputs import ClientRows
from tff_algorithms.local_training import LocalTraining
from tff_algorithms.mixed import Objective
from tff_algorithms.phases import ClientResult
from tff_algorithms.server_state import ServerState

_fold_in = tf.random.experimental.stateless_fold_in


@dataclasses.dataclass(frozen=True)
class ExampleTransfer(LocalTraining):
  """Local training on the client's rows and some of the server's.

  Attributes:
    num_sent: How many of its rows the server sends to each client.
    ratio: How many of them a client takes for each row of its own.
  """

  num_sent: int = 0
  ratio: float = 0.0

  def message(self, server: ServerState) -> local_training.Message:
    rows = mixed.server_rows(server)
    # The server's rows may be fewer: then they repeat. TFF wants to know how many.
    indices = tf.range(self.num_sent) % streams.num_rows(rows)
    examples = tf.nest.map_structure(lambda t: tf.gather(t, indices), rows)
    return super().message(server)._replace(examples=examples)

  def work(self, message: local_training.Message, given: ClientRows) -> ClientResult:
    own_rows = streams.in_memory(given.rows, 'Example transfer')
    seed = local_loop.client_seed(self.seed, message.round_num, given.key)
    order = tf.random.experimental.stateless_shuffle(
      tf.range(self.num_sent),
      _fold_in(seed, 3),  # 0, 1 and 2 are the local loop's.
    )
    n = tf.cast(streams.num_rows(own_rows), tf.float32)
    taken = tf.range(tf.cast(tf.round(self.ratio * n), tf.int32)) % self.num_sent
    rows = tf.nest.map_structure(
      lambda own, sent: tf.concat([own, tf.gather(sent, tf.gather(order, taken))], 0),
      own_rows,
      message.examples,
    )
    return super().work(message, given._replace(rows=rows))


def build_example_transfer(
  model: Objective,
  *,
  num_sent: int,
  federated_weight: float = 0.5,
  central_weight: float = 0.5,
  central_input: client_inputs.ClientInput | None = None,
  **arguments: Any,
) -> process.MixedProcess:
  """Builds example transfer.

  `next` is `(<state=S@SERVER, clients={batch*}@CLIENTS, central=batch*@SERVER> ->
  <state=S@SERVER, metrics=M@SERVER>)`; see `process.build_learning_process` for S and
  M, where `bytes_down` counts the rows that are sent.

  Args:
    model: What is trained: a model, or any gradient oracle.
    num_sent: How many of the rows of `central` are sent; a client that takes more of
      them has some twice.
    federated_weight: w_f.
    central_weight: w_c.
    central_input: What the server's argument is, an ordinary data set by default.
    **arguments: More arguments of `fed_avg.build_fed_avg`.
  """
  oracle = oracles.as_oracle(model)
  checks.positive(federated_weight, 'federated_weight')
  checks.not_negative(central_weight, 'central_weight')
  return fed_avg.build_fed_avg(
    oracle,
    training=functools.partial(
      ExampleTransfer,
      num_sent=checks.count(num_sent, 'num_sent'),
      ratio=central_weight / federated_weight,
    ),
    central_input=central_input or client_inputs.from_dataset(oracle.batch_spec),
    **arguments,
  )
