"""Server steps: how the server moves x, and the state that this needs."""

import collections
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import schedules, structures
from tff_algorithms.oracles import Oracle
from tff_algorithms.phases import ServerState
from tff_algorithms.terms import Term

_LEARNING_RATE = tff.learning.optimizers.LEARNING_RATE_KEY


def initial_state(
  oracle: Oracle,
  optimizer: tff.learning.optimizers.Optimizer,
  *,
  seed: int,
  terms: Sequence[Term] = (),
  **hparams: float,
) -> Callable[[], ServerState]:
  """The TensorFlow function that makes an algorithm's first `ServerState`."""

  def make():
    # [seed, 0] seeds the rounds: see LocalTraining.
    weights = oracle.initial_weights(tf.constant([seed, 1], tf.int64))
    return ServerState(
      round_num=tf.constant(0),
      weights=weights,
      optimizer=optimizer.initialize(structures.tensor_specs(weights.trainable)),
      terms=tuple(term.init(weights) for term in terms),
      hparams=collections.OrderedDict(
        (name, tf.constant(value, tf.float32)) for name, value in hparams.items()
      ),
    )

  return make


def optimizer_step(
  optimizer: tff.learning.optimizers.Optimizer,
  schedule: schedules.Schedule | None = None,
) -> Callable[[ServerState, Any], ServerState]:
  """The server step that hands a (pseudo-)gradient to an optimizer.

  Args:
    optimizer: The optimizer; its state is `ServerState.optimizer`.
    schedule: The factor on its learning rate, which must then be among its
      hyperparameters.
  """

  def step(server, gradient):
    state = server.optimizer
    if schedule is not None:
      hparams = optimizer.get_hparams(state)
      if _LEARNING_RATE not in hparams:
        raise ValueError(
          f'A schedule needs an optimizer with a {_LEARNING_RATE!r} hyperparameter, '
          f'{type(optimizer).__name__} has none.'
        )
      rate = tf.convert_to_tensor(hparams[_LEARNING_RATE])
      now = collections.OrderedDict(hparams)
      now[_LEARNING_RATE] = rate * tf.cast(schedule(server.round_num), rate.dtype)
      state = optimizer.set_hparams(state, now)
    state, trainable = optimizer.next(state, server.weights.trainable, gradient)
    if schedule is not None:
      state = optimizer.set_hparams(state, hparams)
    weights = server.weights._replace(trainable=trainable)
    return server._replace(optimizer=state, weights=weights)

  return step
