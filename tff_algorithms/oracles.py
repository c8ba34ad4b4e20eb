"""Gradient oracles: what an algorithm differentiates.

An algorithm never sees a model, only an oracle: (weights, batch, seed) -> loss,
gradient, metrics. A model's loss is one; a saddle function's gradient mapping or a
server's own loss are others.
"""

import abc
import collections
from typing import Any, NamedTuple

import tensorflow as tf
import tensorflow_federated as tff

from tff_algorithms import models
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
    with tf.GradientTape() as tape:
      tape.watch(weights.trainable)
      outputs = self._model.predict(weights, x, seed)
      loss = self._model.loss(y, outputs)
    gradient = tape.gradient(
      loss, weights.trainable, unconnected_gradients=tf.UnconnectedGradients.ZERO
    )
    # An embedding's gradient comes as slices, and tf.nest would walk into them.
    gradient = tf.nest.map_structure(
      lambda w, g: tf.convert_to_tensor(g), weights.trainable, gradient
    )
    return Evaluation(loss, gradient, self._model.metrics(y, outputs))

  def finalize_metrics(self, sums: Any) -> collections.OrderedDict:
    return self._model.finalize_metrics(sums)


def as_oracle(
  objective: Oracle | models.Model | tff.learning.models.FunctionalModel,
) -> Oracle:
  """The objective itself if it is an oracle, else the loss of the model it is."""
  return objective if isinstance(objective, Oracle) else ModelLoss(objective)


class _Inference(Oracle):
  """See `without_dropout`."""

  def __init__(self, oracle: Oracle):
    self._oracle = oracle

  @property
  def batch_spec(self) -> Any:
    return self._oracle.batch_spec

  def initial_weights(self, seed: Any) -> ModelWeights:
    return self._oracle.initial_weights(seed)

  def evaluate(self, weights: ModelWeights, batch: Any, seed: Any) -> Evaluation:
    del seed
    return self._oracle.evaluate(weights, batch, None)

  def finalize_metrics(self, sums: Any) -> collections.OrderedDict:
    return self._oracle.finalize_metrics(sums)


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
