"""The one local loop, y <- y - eta U(g_i(y; batch) + a, s), and the full gradient.

Pure TensorFlow without placement: it runs on a client, and could run at the server.
All rows are one structure of tensors; a step takes its rows by index and the last
batch of an epoch is simply shorter, which is exact for any loss (a loss that ignores
sample weights would be silently wrong under padding) and costs nothing. The rows of a
`Stream` are many such structures, which the same steps run over one after the other.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tff_algorithms import streams, structures
from tff_algorithms.loop_sums import LoopSums
from tff_algorithms.models import ModelWeights
from tff_algorithms.oracles import Oracle
from tff_algorithms.streams import Stream, ceil_div, num_rows
from tff_algorithms.structures import Structure
from tff_algorithms.terms import Step

_fold_in = tf.random.experimental.stateless_fold_in


class Outcome(NamedTuple):
  """What a run of batches gave.

  Attributes:
    weights: y, the trainable weights after the last step.
    num_steps: K_i, how many steps were taken.
    s: The optimizer's state after the last step.
    gradient_sum: The sum of the loss gradients g_i alone, `()` unless asked for.
    num_seen: How many examples the steps saw, with repetition.
    loss_sum: The sum of their losses, each at the weights before its step.
    metrics: The sums of the oracle's metrics over them.
  """

  weights: Structure
  num_steps: tf.Tensor
  s: Any
  gradient_sum: Structure
  num_seen: tf.Tensor
  loss_sum: tf.Tensor
  metrics: Any


class FullGradient(NamedTuple):
  """What a pass over all rows at one point gave, or one over a number of batches.

  Attributes:
    gradient: The gradient of the mean loss over the rows, 0 if there are none.
    num_seen: How many rows there are, or were seen.
    loss_sum: The sum of their losses.
    metrics: The sums of the oracle's metrics over them.
  """

  gradient: Structure
  num_seen: tf.Tensor
  loss_sum: tf.Tensor
  metrics: Any


def client_seed(run_seed: int, round_num: tf.Tensor, key: tf.Tensor) -> tf.Tensor:
  """The `[2]` seed of a client in a round; the initial weights have [run_seed, 1]."""
  return _fold_in(_fold_in(tf.constant([run_seed, 0], tf.int64), round_num), key)


def num_local_steps(
  rows: Structure | Stream, batch_size: int, epochs: int, max_steps: int | None
) -> tf.Tensor:
  """K_i: `epochs` passes over the rows, cut at `max_steps`."""
  steps = epochs * ceil_div(num_rows(rows), batch_size)
  return steps if max_steps is None else tf.minimum(steps, max_steps)


def rows_at_a_time(batch_size: int) -> int:
  """How many rows a full gradient takes at a time beside steps of so many.

  A few large operations are quicker than many small ones, where memory allows.
  """
  return 4 * batch_size


def local_loop(
  oracle: Oracle,
  x: ModelWeights,
  rows: Structure | Stream,
  *,
  num_steps: tf.Tensor,
  batch_size: int,
  seed: tf.Tensor,
  shuffle: bool,
  update: Callable[[tf.Tensor, Any, Structure, Structure], tuple[Any, Structure]],
  s: Any,
  terms: Sequence[Callable[[Step], Structure]] = (),
  sum_gradients: bool = False,
  compiled: bool = False,
) -> Outcome:
  """Takes local steps from x.

  Args:
    oracle: What gives the gradients.
    x: The weights to start from; the non-trainable ones stay.
    rows: The rows to train on, passed through as often as the steps need.
    num_steps: How many steps to take, an integer scalar.
    batch_size: How many rows a step takes; the last step of a pass may take fewer.
    seed: A `[2]` integer seed for shuffling and dropout.
    shuffle: Whether each pass takes the rows in an order of its own; those of a stream
      stay within their part.
    update: (step number from 0, s, y, direction) -> (s, y): the optimizer's step.
    s: The optimizer's state to start from.
    terms: The augmenting gradients, to be summed; `()` for one that adds nothing.
    sum_gradients: Whether to add up the loss gradients.
    compiled: Whether XLA compiles the steps, once for each number of rows. They are
      then in memory.
  """
  shuffle_seed, step_seed = _fold_in(seed, 0), _fold_in(seed, 1)

  def steps(start, rows, end, place):
    """Steps on rows in memory up to number `end`, each on batch b of a pass."""
    as_given = tf.range(num_rows(rows))

    def order_of(pass_num):
      order_seed = _fold_in(shuffle_seed, pass_num)
      order = tf.random.experimental.stateless_shuffle(as_given, order_seed)
      return tf.ensure_shape(order, as_given.shape)  # It may be known, and then stays.

    def step(t, y, s, sums, order):
      pass_num, b = place(t)
      if shuffle:
        order = tf.cond(tf.equal(b, 0), lambda: order_of(pass_num), lambda: order)
      batch = _batch(rows, order, b, batch_size)
      seed_t = _fold_in(step_seed, t)

      def evaluate(weights):
        return oracle.evaluate(ModelWeights(weights, x.non_trainable), batch, seed_t)

      g = evaluate(y)
      step_t = Step(y=y, x=x.trainable, evaluate=evaluate)
      summands = [a for a in (term(step_t) for term in terms) if a != ()]
      s, y = update(t, s, y, structures.add(g.gradient, *summands))
      return t + 1, y, s, loop_sums.add(sums, g, num_rows(batch)), order

    def loop():
      *stop, _ = tf.while_loop(lambda t, *_: t < end, step, (*start, as_given))
      return tuple(stop)

    return (
      tf.function(loop, jit_compile=True, autograph=False)() if compiled else loop()
    )

  def part_steps(start, numbered_part):
    (number, part), first = numbered_part, start[0]
    end = tf.minimum(first + ceil_div(num_rows(part), batch_size), num_steps)
    # A client of one part has the orders of one whose rows are in memory.
    return steps(start, part, end, lambda t: (tf.cast(number, tf.int32), t - first))

  loop_sums = LoopSums(oracle, x, rows, sum_gradients)
  start = (0, x.trainable, s, loop_sums.zero())
  if isinstance(rows, Stream):
    parts = rows.parts_of(num_steps, batch_size)
    t, y, s, sums = streams.reduce(parts, start, part_steps)
  else:
    batches = tf.maximum(ceil_div(num_rows(rows), batch_size), 1)  # in an epoch
    t, y, s, sums = steps(start, rows, num_steps, lambda t: (t // batches, t % batches))
  return Outcome(y, t, s, *loop_sums.result(sums))


def mean_gradient(
  oracle: Oracle,
  x: ModelWeights,
  rows: Structure | Stream,
  *,
  num_steps: tf.Tensor,
  **how: Any,
) -> FullGradient:
  """The mean of the loss gradients on the batches of so many steps, all at x.

  Args:
    oracle: What gives the gradients.
    x: The weights.
    rows: The rows.
    num_steps: How many steps; without any, or without rows, the gradient is 0.
    **how: batch_size, seed and shuffle, as in `local_loop`.
  """
  stays = local_loop(
    oracle,
    x,
    rows,
    num_steps=tf.where(num_rows(rows) > 0, num_steps, 0),
    update=lambda t, s, y, g: (s, y),
    s=(),
    sum_gradients=True,
    **how,
  )
  gradient = _divided(stays.gradient_sum, stays.num_steps)
  return FullGradient(gradient, stays.num_seen, stays.loss_sum, stays.metrics)


def full_gradient(
  oracle: Oracle,
  x: ModelWeights,
  rows: Structure | Stream,
  batch_size: int,
  seed: tf.Tensor | None = None,
) -> FullGradient:
  """The gradient of the mean loss over all rows at x, each row counted once.

  Args:
    oracle: What gives the gradients.
    x: The weights.
    rows: The rows.
    batch_size: How many rows are taken at a time; the result does not depend on it.
    seed: None for inference (no dropout), or what dropout is seeded from.
  """
  n = num_rows(rows)
  pass_seed = None if seed is None else _fold_in(seed, 2)  # 0 and 1 are local_loop's.

  def add(start, rows, end, place):
    """Adds rows in memory, batch by batch up to number `end`."""
    order = tf.range(num_rows(rows))

    def step(t, total, sums):
      batch = _batch(rows, order, place(t), batch_size)
      g = oracle.evaluate(x, batch, None if seed is None else _fold_in(pass_seed, t))
      k = num_rows(batch)
      total = structures.add(total, structures.scale(k, g.gradient))
      return t + 1, total, loop_sums.add(sums, g, k)

    return tf.while_loop(lambda t, *_: t < end, step, start)

  def add_part(start, part):
    first = start[0]
    end = first + ceil_div(num_rows(part), batch_size)
    return add(start, part, end, lambda t: t - first)

  loop_sums = LoopSums(oracle, x, rows, with_gradients=False)
  start = (0, structures.zeros_like(x.trainable), loop_sums.zero())
  if isinstance(rows, Stream):
    _, total, sums = streams.reduce(rows.parts, start, add_part)
  else:
    end = ceil_div(n, batch_size)
    _, total, sums = add(start, rows, end, lambda t: t)
  _, *told = loop_sums.result(sums)
  return FullGradient(_divided(total, n), *told)


def _divided(total, n):
  """A mean from a sum; 0 of nothing."""
  return tf.nest.map_structure(
    lambda a: tf.math.divide_no_nan(a, tf.cast(n, a.dtype)), total
  )


def _batch(rows, order, b, batch_size):
  """Rows number b * batch_size and on, in the given order."""
  indices = order[b * batch_size : (b + 1) * batch_size]
  return tf.nest.map_structure(lambda t: tf.gather(t, indices), rows)
