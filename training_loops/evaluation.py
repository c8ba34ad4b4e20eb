"""What is measured of weights on many rows, in this process."""

import collections
from collections.abc import Iterator, Mapping
from concurrent import futures
from typing import Any

import numpy as np
import tensorflow as tf

from tff_algorithms import models, saddle_point, structures
from tff_algorithms.oracles import Oracle
from training_loops import cores

# Large enough to keep the cores busy, small enough for any model's activations: twenty
# words of each row, each with the logits of ten thousand, are 200 MB.
_CHUNK_ROWS = 256


def distance(a: Any, b: Any) -> np.floating:
  """The Euclidean norm of the difference of two structures, in their own dtype."""
  pairs = zip(tf.nest.flatten(a), tf.nest.flatten(b), strict=True)
  norm = _norm([np.subtract(p, q, dtype=np.float64) for p, q in pairs])
  return _dtype(a).type(norm)


def _norm(a: Any) -> np.float64:
  return np.sqrt(sum(np.square(part).sum() for part in tf.nest.flatten(a)))


def _dtype(a: Any) -> np.dtype:
  return np.result_type(*map(np.asarray, tf.nest.flatten(a)))


def _num_rows(rows: Mapping[str, Any]) -> int:
  return len(tf.nest.flatten(rows)[0])


def _in_chunks(
  measure: Any,
  weights: models.ModelWeights,
  rows: Mapping[str, Any],
  num_threads: int | None,
) -> Iterator[tuple[int, Any]]:
  """What is measured of the rows part by part, in order, with the number in each.

  The cores take a part each: TensorFlow may have been told to give an operation but one
  thread, as is best for clients, of which there are several too.

  Args:
    measure: A `tf.function` of weights and rows.
    weights: The weights.
    rows: The rows.
    num_threads: How many parts at once, one a core by default.
  """
  num_rows = _num_rows(rows)
  weights = tf.nest.map_structure(tf.convert_to_tensor, weights)
  # Traced once for parts of any size.
  specs = tf.nest.map_structure(
    lambda a: tf.TensorSpec([None, *a.shape[1:]], a.dtype), rows
  )
  traced = measure.get_concrete_function(structures.tensor_specs(weights), specs)

  def of_chunk(start):
    chunk = tf.nest.map_structure(lambda a: a[start : start + _CHUNK_ROWS], rows)
    chunk = tf.nest.map_structure(tf.convert_to_tensor, chunk)
    return min(_CHUNK_ROWS, num_rows - start), traced(weights, chunk)

  pool = futures.ThreadPoolExecutor(num_threads or cores.number())
  try:
    yield from pool.map(of_chunk, range(0, num_rows, _CHUNK_ROWS))
  finally:
    pool.shutdown(cancel_futures=True)


class Evaluator:
  """Evaluates weights of one model; traced once, whatever it is given."""

  def __init__(self, model: Any, num_threads: int | None = None):
    """Initializes the evaluator.

    Args:
      model: A `models.Model`, or a functional model of TFF's that runs eagerly, which
        those made of Keras models do not.
      num_threads: How many threads to use, one a core by default.
    """
    self._num_threads = num_threads
    self._model = model = models.as_model(model)

    @tf.function(autograph=False)
    def measure(weights, batch):
      x, y = models.x_and_y(batch)
      outputs = model.predict(weights, x, None)
      return model.loss(y, outputs), model.metrics(y, outputs)

    self._measure = measure

  def __call__(
    self, weights: models.ModelWeights, rows: Mapping[str, Any]
  ) -> collections.OrderedDict[str, np.number]:
    """The mean loss and the model's metrics over all the rows.

    Args:
      weights: The model's weights.
      rows: A structure (x, y) of arrays with the examples on their first axis; at
        least one.
    """
    num_rows = _num_rows(rows)
    loss, sums = 0.0, None
    measured = _in_chunks(self._measure, weights, rows, self._num_threads)
    for size, (chunk_loss, chunk_sums) in measured:
      loss += float(chunk_loss) * size
      if sums is None:
        sums = chunk_sums
      else:
        sums = tf.nest.map_structure(tf.add, sums, chunk_sums)
    dtype = chunk_loss.dtype.as_numpy_dtype
    values = collections.OrderedDict(loss=dtype(loss / num_rows))
    # Where examples differ in weight, as sentences do, the model has a loss of its own.
    values.update(self._model.finalize_metrics(sums))
    return tf.nest.map_structure(lambda value: np.asarray(value)[()], values)


class SaddleEvaluator:
  """Evaluates how far weights are from a saddle point of the mean over all rows."""

  def __init__(
    self,
    objective: Oracle,
    rows: Mapping[str, Any],
    optimum: models.ModelWeights | None = None,
    num_threads: int | None = None,
  ):
    """Initializes the evaluator.

    Args:
      objective: f, as an oracle of its gradient mapping.
      rows: A structure of arrays with the examples on their first axis; at least one.
      optimum: The saddle point, where it is known.
      num_threads: How many threads to use, one a core by default.
    """
    self._num_threads = num_threads
    self._rows = rows
    self._optimum = optimum

    @tf.function(autograph=False)
    def measure(weights, batch):
      of_f = objective.evaluate(weights, batch, None)
      return of_f.loss, of_f.gradient

    self._measure = measure

  def __call__(
    self, weights: models.ModelWeights
  ) -> collections.OrderedDict[str, np.number]:
    """The norm of the gradient mapping, and with a known optimum two metrics more.

    These are the distance of x, the weights to minimise over, from its optimum, and
    the duality gap.
    """
    z, values = weights.trainable, collections.OrderedDict()
    if self._optimum is not None:
      z_star = self._optimum.trainable

      def f(z):
        return self._means(weights._replace(trainable=z))[0]

      values['distance_of_x'] = distance(z.min, z_star.min)
      values['duality_gap'] = saddle_point.duality_gap(f, z, z_star)
    values['gradient_mapping_norm'] = _norm(self._means(weights)[1])
    dtype = _dtype(z)
    return collections.OrderedDict((k, dtype.type(v)) for k, v in values.items())

  def _means(self, weights: models.ModelWeights) -> Any:
    """The value of f and its gradient mapping, in float64."""
    sums: Any = None
    measured = _in_chunks(self._measure, weights, self._rows, self._num_threads)
    for size, means in measured:
      terms = tf.nest.map_structure(
        lambda t, size=size: size * t.numpy().astype(np.float64), means
      )
      sums = terms if sums is None else tf.nest.map_structure(np.add, sums, terms)
    num_rows = _num_rows(self._rows)
    return tf.nest.map_structure(lambda total: total / num_rows, sums)
