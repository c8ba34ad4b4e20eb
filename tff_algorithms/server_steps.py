"""Server steps: how the server moves x, and the state that this needs."""

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import base_optimizers, schedules, structures
from tff_algorithms.oracles import Oracle
from tff_algorithms.server_state import ServerState
from tff_algorithms.terms import Term

_LEARNING_RATE = tff.learning.optimizers.LEARNING_RATE_KEY

# (server, the aggregated uploads by name) -> server.
ServerStep = Callable[[ServerState, Any], ServerState]


def initial_state(
  oracle: Oracle,
  optimizer: tff.learning.optimizers.Optimizer,
  *,
  seed: int,
  terms: Sequence[Term] = (),
  optimizer_name: str = 'server_optimizer',
  hparams: Mapping[str, float] | None = None,
) -> Callable[[], ServerState]:
  """The TensorFlow function that makes an algorithm's first `ServerState`.

  Args:
    oracle: What gives the gradients.
    optimizer: The optimizer whose state is `ServerState.optimizer`.
    seed: The run's seed.
    terms: The augmenting gradients.
    optimizer_name: The builder's argument that the optimizer is, for error messages.
    hparams: The hyperparameters of the algorithm's own.
  """

  def make():
    # [seed, 0] seeds the rounds: see local_loop.client_seed.
    weights = oracle.initial_weights(tf.constant([seed, 1], tf.int64))
    specs = structures.tensor_specs(weights.trainable)
    dtype = structures.weight_dtype(specs)
    base_optimizers.check_fits(optimizer, specs, optimizer_name)
    return ServerState(
      round_num=tf.constant(0),
      weights=weights,
      optimizer=optimizer.initialize(specs),
      terms=tuple(term.init(weights) for term in terms),
      hparams=collections.OrderedDict(
        (name, tf.constant(value, dtype)) for name, value in (hparams or {}).items()
      ),
    )

  return make


def scheduled(
  optimizer: tff.learning.optimizers.Optimizer, state: Any, factor: Any
) -> Any:
  """The optimizer's state with its learning rate multiplied by a factor.

  Raises:
    ValueError: If the learning rate is not among the optimizer's hyperparameters.
  """
  hparams = optimizer.get_hparams(state)
  if _LEARNING_RATE not in hparams:
    raise ValueError(
      f'A schedule needs an optimizer with a {_LEARNING_RATE!r} hyperparameter, '
      f'{type(optimizer).__name__} has none.'
    )
  rate = tf.convert_to_tensor(hparams[_LEARNING_RATE])
  now = collections.OrderedDict(hparams)
  now[_LEARNING_RATE] = rate * tf.cast(factor, rate.dtype)
  return optimizer.set_hparams(state, now)


def learning_rate_of(optimizer: tff.learning.optimizers.Optimizer) -> float:
  """The learning rate that an optimizer starts with.

  Raises:
    ValueError: If it is not among its hyperparameters.
  """
  hparams = optimizer.get_hparams(optimizer.initialize(tf.TensorSpec([1])))
  if _LEARNING_RATE not in hparams:
    raise ValueError(
      f'{type(optimizer).__name__} has no {_LEARNING_RATE!r} hyperparameter to derive '
      'another rate from.'
    )
  return float(hparams[_LEARNING_RATE])


def optimizer_step(
  optimizer: tff.learning.optimizers.Optimizer,
  upload: str,
  schedule: schedules.Schedule | None = None,
) -> ServerStep:
  """The server step that hands a (pseudo-)gradient to an optimizer.

  Args:
    optimizer: The optimizer; its state is `ServerState.optimizer`.
    upload: The name of the upload whose mean is the gradient.
    schedule: The factor on its learning rate, which must then be among its
      hyperparameters.
  """

  def step(server, means):
    factor = None if schedule is None else schedule(server.round_num)
    state, trainable = scheduled_step(
      optimizer, server.optimizer, server.weights.trainable, means[upload], factor
    )
    weights = server.weights._replace(trainable=trainable)
    return server._replace(optimizer=state, weights=weights)

  return step


def scheduled_step(
  optimizer: tff.learning.optimizers.Optimizer,
  state: Any,
  x: Any,
  g: Any,
  factor: Any,
) -> tuple[Any, Any]:
  """A step with the rate multiplied by a factor, which the state does not keep.

  Args:
    optimizer: The optimizer.
    state: Its state.
    x: The weights.
    g: The gradient.
    factor: The factor, or None.
  """
  if factor is None:
    return optimizer.next(state, x, g)
  new_state, x = optimizer.next(scheduled(optimizer, state, factor), x, g)
  return optimizer.set_hparams(new_state, optimizer.get_hparams(state)), x
