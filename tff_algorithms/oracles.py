"""Gradient oracles: what an algorithm differentiates.

An algorithm never sees a model, only an oracle: (weights, batch, seed) -> loss,
gradient, metrics. A model's loss is one; a saddle function's gradient mapping or a
server's own loss are others.
"""

import abc
import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import models, structures
from tff_algorithms.models import ModelWeights
from tff_algorithms.structures import Structure


class Evaluation(NamedTuple):
  """What an oracle tells of a batch.

  Attributes:
    loss: The mean loss over the batch, a scalar.
    gradient: Its gradient (or what stands for it) by the trainable weights.
    metrics: An OrderedDict of sums, which add up over batches and clients.
  """

  loss: tf.Tensor
  gradient: Structure
  metrics: collections.OrderedDict


class Oracle(abc.ABC):
  """A function to be optimised, known by its gradients on batches of rows."""

  @property
  @abc.abstractmethod
  def batch_spec(self) -> Any:
    """The structure of `tf.TensorSpec`s of a batch; the leading axis is None."""

  @abc.abstractmethod
  def initial_weights(self, seed: Any) -> ModelWeights:
    """The weights to start from, drawn from a `[2]` integer seed."""

  @abc.abstractmethod
  def evaluate(self, weights: ModelWeights, batch: Any, seed: Any) -> Evaluation:
    """Loss, gradient and metrics at `weights`; seed None stands for inference."""

  @abc.abstractmethod
  def finalize_metrics(self, sums: Any) -> collections.OrderedDict:
    """The metrics' values from sums of `Evaluation.metrics`."""

  @property
  def is_repeatable(self) -> bool:
    """Whether a batch with one seed sees the same randomness every time."""
    return True

  @property
  def is_gradient_mapping(self) -> bool:
    """Whether what it gives for a gradient is that of `saddle_point`."""
    return False


class ModelLoss(Oracle):
  """The loss of a model and its gradient."""

  def __init__(self, model: models.Model | tff.learning.models.FunctionalModel):
    self._given = model
    self._model = models.as_model(model)

  @property
  def is_repeatable(self) -> bool:
    return not models.has_stateful_randomness(self._given)

  @property
  def batch_spec(self) -> Any:
    return self._model.input_spec

  def initial_weights(self, seed: Any) -> ModelWeights:
    return self._model.initialize(seed)

  def evaluate(self, weights: ModelWeights, batch: Any, seed: Any) -> Evaluation:
    x, y = models.x_and_y(batch)
    outputs = None

    def loss_of_batch():
      nonlocal outputs
      outputs = self._model.predict(weights, x, seed)
      return self._model.loss(y, outputs)

    loss, gradient = _value_and_gradient(loss_of_batch, weights)
    return Evaluation(loss, gradient, self._model.metrics(y, outputs))

  def finalize_metrics(self, sums: Any) -> collections.OrderedDict:
    return self._model.finalize_metrics(sums)


def _value_and_gradient(
  loss: Callable[[], tf.Tensor], weights: ModelWeights
) -> tuple[tf.Tensor, Structure]:
  """The loss and its gradient by the trainable weights."""
  with tf.GradientTape() as tape:
    tape.watch(weights.trainable)
    value = loss()
  gradient = tape.gradient(
    value, weights.trainable, unconnected_gradients=tf.UnconnectedGradients.ZERO
  )
  # An embedding's gradient comes as slices, and tf.nest would walk into them.
  return value, tf.nest.map_structure(
    lambda w, g: tf.convert_to_tensor(g), weights.trainable, gradient
  )


def as_oracle(
  objective: Oracle | models.Model | tff.learning.models.FunctionalModel,
) -> Oracle:
  """The objective itself if it is an oracle, else the loss of the model it is."""
  return objective if isinstance(objective, Oracle) else ModelLoss(objective)


class FunctionLoss(Oracle):
  """A pure function of weights and a batch, and its gradient."""

  def __init__(
    self,
    function: Callable[[ModelWeights, Any, Any], tf.Tensor],
    initialize: Callable[[Any], ModelWeights],
    batch_spec: Any,
  ):
    """Initializes the oracle.

    Args:
      function: (weights, batch, seed) -> the mean over the batch, a scalar.
      initialize: seed -> the weights to start from.
      batch_spec: The structure of `tf.TensorSpec`s of a batch; the leading axis is
        None.
    """
    self._function = function
    self._initialize = initialize
    self._batch_spec = batch_spec

  @property
  def batch_spec(self) -> Any:
    return self._batch_spec

  def initial_weights(self, seed: Any) -> ModelWeights:
    return self._initialize(seed)

  def evaluate(self, weights: ModelWeights, batch: Any, seed: Any) -> Evaluation:
    loss, gradient = _value_and_gradient(
      lambda: self._function(weights, batch, seed), weights
    )
    return Evaluation(loss, gradient, collections.OrderedDict())

  def finalize_metrics(self, sums: Any) -> collections.OrderedDict:
    return collections.OrderedDict()


class WeightLoss(FunctionLoss):
  """A loss of the weights alone, such as a regularizer: it needs no rows."""

  def __init__(self, loss: Callable[[ModelWeights], tf.Tensor]):
    super().__init__(lambda weights, batch, seed: loss(weights), _no_start, ())


def output_norm(
  model: models.Model | tff.learning.models.FunctionalModel,
) -> FunctionLoss:
  """The mean over a batch of ||F||^2, F being the model's outputs without dropout."""
  own = models.as_model(model)

  def norm(weights, batch, seed):
    del seed
    x, _ = models.x_and_y(batch)
    outputs = tf.nest.flatten(own.predict(weights, x, None))
    squares = tf.add_n([tf.reduce_sum(tf.square(t)) for t in outputs])
    return squares / tf.cast(tf.shape(outputs[0])[0], squares.dtype)

  return FunctionLoss(norm, own.initialize, own.input_spec)


def _no_start(seed: Any) -> ModelWeights:
  raise ValueError('A loss of the weights alone has none to start from.')


class Altered(Oracle):
  """An oracle that is another in all but its evaluations."""

  def __init__(self, oracle: Oracle):
    self._oracle = oracle

  @property
  def is_repeatable(self) -> bool:
    return self._oracle.is_repeatable

  @property
  def is_gradient_mapping(self) -> bool:
    return self._oracle.is_gradient_mapping

  @property
  def batch_spec(self) -> Any:
    return self._oracle.batch_spec

  def initial_weights(self, seed: Any) -> ModelWeights:
    return self._oracle.initial_weights(seed)

  def finalize_metrics(self, sums: Any) -> collections.OrderedDict:
    return self._oracle.finalize_metrics(sums)


class Weighted(Altered):
  """w f: the gradient times a weight; what is told of the loss stays that of f."""

  def __init__(self, weight: Any, oracle: Oracle):
    super().__init__(oracle)
    self._weight = weight

  def evaluate(self, weights: ModelWeights, batch: Any, seed: Any) -> Evaluation:
    of_f = self._oracle.evaluate(weights, batch, seed)
    return of_f._replace(gradient=structures.scale(self._weight, of_f.gradient))


class Clipped(Altered):
  """f with its gradients on batches scaled down to a norm where theirs is larger."""

  def __init__(self, norm: float, oracle: Oracle):
    super().__init__(oracle)
    self._norm = norm

  def evaluate(self, weights: ModelWeights, batch: Any, seed: Any) -> Evaluation:
    of_f = self._oracle.evaluate(weights, batch, seed)
    return of_f._replace(gradient=structures.clip(of_f.gradient, self._norm))


class Extrapolated(Altered):
  """f with its gradients taken a step of its own further on, on the same batch.

      g(w - rate g(w))

  Loss and metrics are those at w.
  """

  def __init__(self, rate: float, oracle: Oracle):
    super().__init__(oracle)
    self._rate = rate

  def evaluate(self, weights: ModelWeights, batch: Any, seed: Any) -> Evaluation:
    here = self._oracle.evaluate(weights, batch, seed)
    step = structures.scale(self._rate, here.gradient)
    there = ModelWeights(
      structures.subtract(weights.trainable, step), weights.non_trainable
    )
    return here._replace(gradient=self._oracle.evaluate(there, batch, seed).gradient)


class Sum(Altered):
  """f + h, where h needs no rows; loss and metrics are those of f alone."""

  def __init__(self, f: Oracle, h: Oracle):
    if h.batch_spec != ():
      raise ValueError(
        'The second loss of a sum needs rows of its own; it may need none.'
      )
    super().__init__(f)
    self._h = h

  def evaluate(self, weights: ModelWeights, batch: Any, seed: Any) -> Evaluation:
    of_f = self._oracle.evaluate(weights, batch, seed)
    of_h = self._h.evaluate(weights, (), seed)
    return of_f._replace(gradient=structures.add(of_f.gradient, of_h.gradient))


class _Inference(Altered):
  """See `without_dropout`."""

  @property
  def is_repeatable(self) -> bool:
    return True

  def evaluate(self, weights: ModelWeights, batch: Any, seed: Any) -> Evaluation:
    del seed
    return self._oracle.evaluate(weights, batch, None)


def without_dropout(
  objective: Oracle | models.Model | tff.learning.models.FunctionalModel,
) -> Oracle:
  """The objective as it is in inference, also where it is trained."""
  return _Inference(as_oracle(objective))


def check_repeatable(oracle: Oracle) -> None:
  """Checks that two gradients on one batch can see the same randomness.

  Raises:
    ValueError: If they cannot.
  """
  if not oracle.is_repeatable:
    raise ValueError(
      'model draws random numbers that cannot be seeded (dropout in a '
      'tff.learning.models.FunctionalModel), and this algorithm compares two gradients '
      'on one batch: pass oracles.without_dropout(model), or a tff_algorithms.Model, '
      'whose dropout takes a seed.'
    )
