"""A dual encoder of movies, a regularizer that spreads them out, and their selection.

Mixed Federated Learning, section 4.3, says what these are but prints no formulas; they
are those of Ning et al. 2021, Learning Federated Representations and Recommendations
with Limited Negatives, by its published program.

Movies have the ids from 0 on, which are the rows of one table; -1 is padding, and stays
so where a client numbers the movies that it has anew.
"""

import collections

import tensorflow as tf

from tasks import layers
from tff_algorithms import models, oracles
from tff_algorithms.selection import Selection

PADDING = -1
_SIZE = 16  # d, the length of a movie's vector.
_MARGIN = 0.9
_SPREADOUT_FACTOR = 0.01
_LEAST_SQUARES = 1e-6
_NUM_BEST = 10


def dual_encoder(num_movies: int, num_seen: int) -> models.Model:
  """Predicts the next movie from those seen before it.

  With the table of vectors V, the movies seen s_1, ..., s_k and the next one m, the
  towers give

      u = relu(mean(V[s_1], ..., V[s_k]) W + b)  and  v = V[m],

  and the score of m is cos(u, v). The loss is the hinge loss max(0, 0.9 - cos(u, v))^2
  of the movie that came next, alone: there are no negatives.

  Args:
    num_movies: N, how many movies there are.
    num_seen: How many movies seen an example has, padding included.

  Returns:
    A model with the weights (V, W, b). A table of other movies may stand for V, as a
    client has it that is sent a selection. Its x are the movies seen, `[batch,
    num_seen]`, its y the next ones. An id out of range makes the loss NaN. The metric
    is `recall_at_10`: how often the next movie is among the ten of the best scores, of
    all in the table, equal ones in the order of their ids. In training nothing is
    ranked, as it would cost more than all the rest, and it is NaN.
  """

  def initialize(seed):
    table = layers.uniform((num_movies, _SIZE), 0.05, seed, 0)
    kernel = layers.glorot_uniform((_SIZE, _SIZE), seed, 1)
    return models.ModelWeights((table, kernel, tf.zeros([_SIZE])), ())

  def predict(weights, x, seed):
    table, kernel, bias = weights.trainable
    mean = _mean_vectors(table, x)
    user = _normalized(tf.nn.relu(layers.dense(mean, kernel, bias)))
    if seed is None:
      scores = tf.matmul(user, _normalized(table), transpose_b=True)
    else:
      scores = tf.zeros([tf.shape(x)[0], 0], user.dtype)
    # The loss looks up the next movie, which is none of the inputs.
    return collections.OrderedDict(user=user, table=table, scores=scores)

  def loss(y, outputs):
    movie = _normalized(layers.embedding(outputs['table'], y))
    cosine = tf.reduce_sum(outputs['user'] * movie, axis=1)
    return tf.reduce_mean(tf.square(tf.maximum(_MARGIN - cosine, 0)))

  def metrics(y, outputs):
    num_scores = outputs['scores'].shape[1]
    best = tf.math.top_k(outputs['scores'], k=min(_NUM_BEST, num_scores)).indices
    is_best = tf.reduce_any(tf.equal(best, y[:, tf.newaxis]), axis=1)
    return collections.OrderedDict(
      num_in_top_10=tf.reduce_sum(tf.cast(is_best, tf.float32)),
      num_ranked=tf.cast(tf.size(y) if num_scores else 0, tf.float32),
    )

  def finalize_metrics(sums):
    return collections.OrderedDict(
      recall_at_10=sums['num_in_top_10'] / sums['num_ranked']
    )

  return models.Model(
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None, num_seen], tf.int32), y=tf.TensorSpec([None], tf.int32)
    ),
    initialize=initialize,
    predict=predict,
    loss=loss,
    metrics=metrics,
    finalize_metrics=finalize_metrics,
  )


def _mean_vectors(table: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
  """The means of the vectors of `[batch, n]` movies, without padding; 0 of none."""
  is_movie = tf.not_equal(ids, PADDING)
  vectors = layers.embedding(table, tf.where(is_movie, ids, 0))
  counts = tf.cast(is_movie, table.dtype)[..., tf.newaxis]
  return tf.math.divide_no_nan(
    tf.reduce_sum(counts * vectors, axis=1), tf.reduce_sum(counts, axis=1)
  )


def _normalized(vectors: tf.Tensor) -> tf.Tensor:
  return tf.math.l2_normalize(vectors, axis=-1)


def spreadout() -> oracles.Oracle:
  """The regularizer that keeps a dual encoder's movies apart; it needs no rows.

  It is R(V) = 0.01 sqrt(sum of cos(V[i], V[j])^2 over all i != j), after Zhang et al.
  2017. Without it the loss of a dual encoder is least where all movies are the same.

  The sum over the N^2 pairs is computed as ||U^T U||^2 - sum |U[i]|^4, the norm being
  Frobenius's and U the table with its rows normalized: N d^2 operations for N^2 d.
  """

  def loss(weights):
    table, *_ = weights.trainable
    unit = _normalized(table)
    with_self = tf.reduce_sum(tf.square(tf.matmul(unit, unit, transpose_a=True)))
    of_self = tf.reduce_sum(tf.square(tf.reduce_sum(tf.square(unit), axis=1)))
    # Rounding may leave less than 0 of what is 0, where the root has no slope.
    squares = tf.maximum(with_self - of_self, _LEAST_SQUARES)
    return _SPREADOUT_FACTOR * tf.sqrt(squares)

  return oracles.WeightLoss(loss)


def selection(
  num_movies: int, max_movies: int, *, is_simulated: bool = False
) -> Selection:
  """The movies that a client has, seen or next, as the rows of the table it needs.

  Args:
    num_movies: N, how many movies there are.
    max_movies: n, how many different ones a client has at most. What it has beyond that
      makes its loss NaN, so that it is left out of the round.
    is_simulated: See `Selection`.
  """

  def keys(rows):
    ids = tf.concat([tf.reshape(rows['x'], [-1]), rows['y']], axis=0)
    ids = tf.boolean_mask(ids, (ids >= 0) & (ids < num_movies))
    own = tf.sort(tf.unique(ids).y)[:max_movies]
    missing = max_movies - tf.size(own)
    padded = tf.pad(own, [[0, missing]], constant_values=PADDING)
    return tf.ensure_shape(padded, [max_movies])

  def localize(rows, keys):
    ascending = tf.where(keys >= 0, keys, num_movies)

    def local(ids):
      flat = tf.reshape(ids, [-1])
      place = tf.searchsorted(ascending, flat)
      found = tf.gather(ascending, tf.minimum(place, max_movies - 1))
      is_key = tf.equal(found, flat) & (flat < num_movies)
      place = tf.where(is_key, place, max_movies)
      return tf.reshape(tf.where(flat < 0, flat, place), tf.shape(ids))

    return tf.nest.map_structure(
      lambda ids: tf.ensure_shape(local(ids), ids.shape), rows
    )

  return Selection((num_movies, _SIZE), max_movies, keys, localize, is_simulated)
