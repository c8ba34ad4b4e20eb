"""Models as pure functions, with randomness that is given and not drawn.

`tff.learning.models.FunctionalModel` cannot be handed a seed, so that its dropout
differs from run to run and between two gradients on one batch. `Model` is the same
idea with `predict(weights, x, seed)`; a `FunctionalModel` (and through TFF's
converter a Keras model) is accepted wherever a `Model` is.
"""

import collections
from collections.abc import Callable, Mapping
import dataclasses
from typing import Any, TypeAlias

import tensorflow as tf
import tensorflow_federated as tff

ModelWeights: TypeAlias = tff.learning.models.ModelWeights


@dataclasses.dataclass(frozen=True)
class Model:
  """A loss to be minimised over weights, on batches of (x, y).

  Attributes:
    input_spec: An `OrderedDict(x=..., y=...)` of (structures of) `tf.TensorSpec`
      of a batch, the leading axis None.
    initialize: seed -> `ModelWeights`; the seed is a `[2]` integer tensor for
      `tf.random.stateless_*`.
    predict: (weights, x, seed) -> outputs. A seed stands for training (dropout on,
      drawn from it), None for inference.
    loss: (y, outputs) -> the mean loss over the batch, a scalar.
    metrics: (y, outputs) -> an OrderedDict of sums over the batch, which add up over
      batches and clients.
    finalize_metrics: such sums -> an OrderedDict of the metrics' values.
    functional: The functional model that `as_model` made it of, if it did.
  """

  input_spec: Any
  initialize: Callable[[Any], ModelWeights]
  predict: Callable[[ModelWeights, Any, Any], Any]
  loss: Callable[[Any, Any], tf.Tensor]
  metrics: Callable[[Any, Any], collections.OrderedDict]
  finalize_metrics: Callable[[Any], collections.OrderedDict]
  functional: tff.learning.models.FunctionalModel | None = None


def as_model(model: Model | tff.learning.models.FunctionalModel) -> Model:
  """Returns the model itself, or a TFF functional model as a `Model`.

  The converted model ignores seeds: whatever randomness it has is its own.

  Args:
    model: A `Model`, a `tff.learning.models.FunctionalModel`, or the latter made of a
      Keras model by `tff.learning.models.functional_model_from_keras`.
  """
  if isinstance(model, Model):
    return model
  if not isinstance(model, tff.learning.models.FunctionalModel):
    raise TypeError(
      'model must be a tff_algorithms.Model or a tff.learning.models.FunctionalModel '
      '(make one of a Keras model with '
      'tff.learning.models.functional_model_from_keras), '
      f'found {type(model).__name__}.'
    )

  def initialize(seed):
    del seed  # A functional model brings its initial weights with it.
    return ModelWeights(*tf.nest.map_structure(tf.constant, model.initial_weights))

  def predict(weights, x, seed):
    return model.predict_on_batch(tuple(weights), x, training=seed is not None)

  def metrics(y, outputs):
    batch_output = tff.learning.models.BatchOutput(
      loss=None,
      predictions=outputs,
      num_examples=tf.shape(tf.nest.flatten(outputs)[0])[0],
    )
    return model.update_metrics_state(
      model.initialize_metrics_state(), y, batch_output, None
    )

  spec = model.input_spec
  return Model(
    # A list in a data set's elements would stand for one tensor.
    input_spec=tuple(spec) if isinstance(spec, list) else spec,
    initialize=initialize,
    predict=predict,
    loss=lambda y, outputs: model.loss(outputs, y),
    metrics=metrics,
    finalize_metrics=model.finalize_metrics,
    functional=model,
  )


def has_stateful_randomness(model: Any) -> bool:
  """Whether a functional model's predictions in training cannot be seeded.

  Args:
    model: Anything that `as_model` takes. A `Model` of our own is always seeded.
  """
  if isinstance(model, Model):
    model = model.functional
  if not isinstance(model, tff.learning.models.FunctionalModel):
    return False
  # In a graph of its own: TFF's functional models of Keras' do not trace elsewhere.
  with tf.Graph().as_default() as graph:
    placeholder = tf.compat.v1.placeholder
    x = tf.nest.map_structure(
      lambda spec: placeholder(spec.dtype, spec.shape), x_and_y(model.input_spec)[0]
    )
    weights = tf.nest.map_structure(tf.constant, tuple(model.initial_weights))
    model.predict_on_batch(weights, x, training=True)
    graph_def = graph.as_graph_def()
  functions = [function.node_def for function in graph_def.library.function]
  operations = {node.op for nodes in [graph_def.node, *functions] for node in nodes}
  operations.discard('StatefulPartitionedCall')  # A call of one of the functions.
  unseeded = ('Random', 'TruncatedNormal', 'Multinomial', 'Stateful', 'Rng')
  return any(operation.startswith(unseeded) for operation in operations)


def as_functional_model(
  model: Model, seed: int = 0
) -> tff.learning.models.FunctionalModel:
  """A `Model` as a functional model, for evaluation with TFF's own tools.

  Its weights are flat tuples, as TFF expects: `tf.nest.flatten` of the model's. It
  predicts as in inference even when asked for training: there is no seed to draw a
  dropout mask from.

  Args:
    model: The model to convert.
    seed: What the initial weights are drawn from.
  """
  initial = model.initialize(tf.constant([seed, 1], tf.int64))

  def flat(weights):
    return tuple(tuple(tf.nest.flatten(part)) for part in weights)

  def packed(flat_weights):
    flat_list = tf.nest.flatten(flat_weights)
    return tf.nest.pack_sequence_as(initial, flat_list)

  @tf.function
  def predict_on_batch(model_weights, x, training=False):
    del training  # See above.
    return model.predict(packed(model_weights), x, None)

  @tf.function
  def initialize_metrics():
    empty = tf.nest.map_structure(
      lambda spec: tf.zeros([0] + spec.shape[1:], spec.dtype), model.input_spec
    )
    x, y = x_and_y(empty)
    outputs = model.predict(packed(numpy_weights), x, None)
    return tf.nest.map_structure(tf.zeros_like, model.metrics(y, outputs))

  @tf.function
  def update_metrics(state, y, batch_output, sample_weight=None):
    del sample_weight  # Metrics count every example once.
    sums = model.metrics(y, batch_output.predictions)
    return tf.nest.map_structure(tf.add, state, sums)

  numpy_weights = flat(tf.nest.map_structure(lambda t: t.numpy(), initial))
  return tff.learning.models.FunctionalModel(
    initial_weights=numpy_weights,
    predict_on_batch_fn=predict_on_batch,
    loss_fn=lambda output, label, sample_weight=None: model.loss(label, output),
    metrics_fns=(
      initialize_metrics,
      update_metrics,
      tf.function(model.finalize_metrics),
    ),
    input_spec=model.input_spec,
  )


def x_and_y(batch: Any) -> tuple[Any, Any]:
  """The inputs and the labels of a batch, or their specs: a mapping or a pair."""
  return (batch['x'], batch['y']) if isinstance(batch, Mapping) else tuple(batch)


def cross_entropy(y: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
  """The mean softmax cross-entropy of integer labels.

  A label out of range makes the loss NaN, so that the client that holds it is left
  out of the round; TensorFlow's own loss would stop the whole round. To the gradient it
  adds nothing.

  Args:
    y: The labels.
    logits: Of the same shape, and an axis more, static, for the classes.
  """
  y, logits = tf.convert_to_tensor(y), tf.convert_to_tensor(logits)
  num_classes = logits.shape[-1]
  if logits.shape.rank != 2:
    y, logits = tf.reshape(y, [-1]), tf.reshape(logits, [-1, num_classes])

  # TensorFlow's own takes two to five times as long on a CPU, with ten thousand classes
  # as with sixty, and its gradient five times as many operations.
  @tf.custom_gradient
  def mean(logits):
    label = tf.one_hot(y, num_classes, dtype=logits.dtype)  # 0 where out of range.
    p = tf.nn.softmax(logits)
    # The largest of them is never too small for its logarithm.
    log_normalizer = tf.reduce_max(logits, axis=1) - tf.math.log(
      tf.reduce_max(p, axis=1)
    )
    of_label = tf.reduce_sum(tf.math.multiply_no_nan(logits, label), axis=1)
    is_valid = (y >= 0) & (y < num_classes)
    nan = tf.constant(float('nan'), logits.dtype)
    losses = tf.where(is_valid, log_normalizer - of_label, nan)

    def gradient(upstream):
      share = upstream / tf.cast(tf.size(y), logits.dtype)
      return tf.where(is_valid, share, 0)[:, tf.newaxis] * (p - label)

    return tf.reduce_mean(losses), gradient

  return mean(logits)


def accuracy_sums(y: tf.Tensor, logits: tf.Tensor) -> collections.OrderedDict:
  """The number of right answers and of answers, for `accuracy_from_sums`."""
  right = tf.equal(tf.argmax(logits, axis=-1, output_type=y.dtype), y)
  return collections.OrderedDict(
    num_right=tf.reduce_sum(tf.cast(right, tf.float32)),
    num_answers=tf.cast(tf.size(y), tf.float32),
  )


def accuracy_from_sums(sums: collections.OrderedDict) -> collections.OrderedDict:
  """The share of right answers."""
  return collections.OrderedDict(accuracy=sums['num_right'] / sums['num_answers'])
