"""Models of text: the next character, the next word, the tags of a question.

The networks, but for the one with a GRU, are those of `tff.simulation.baselines`, which
Reddi et al. 2021 used; with the same weights they compute the same, and their weights
have the same order. The losses are means of another kind: TFF's over tokens is also
over padding (the mask gets lost in `from_keras_model`), and its loss of tags is a sum
over the batch of means.

Ids of tokens are TFF's: 0 is padding, 1, 2, ... are the words or characters of the
vocabulary, and then come out of vocabulary, beginning and end of a sentence.
"""

import collections
from collections.abc import Mapping
from typing import NamedTuple

import tensorflow as tf

from tasks import layers
from tff_algorithms import models

_PADDING = 0
_NUM_SPECIAL_TOKENS = 4


class SpecialIds(NamedTuple):
  """What the ids after those of the vocabulary mean; 0, before them, is padding."""

  out_of_vocab: int
  beginning: int
  end: int


def special_ids(vocab_size: int) -> SpecialIds:
  """As in TFF's preprocessing; the vocabulary has the ids from 1 on."""
  return SpecialIds(vocab_size + 1, vocab_size + 2, vocab_size + 3)


def next_character(
  vocab_size: int, sequence_length: int, num_layers: int
) -> models.Model:
  """Predicts every next character, with LSTM layers of 256 units.

  TFF's network has two layers, that of the Mime paper one.

  Args:
    vocab_size: How many characters there are, without the special ones.
    sequence_length: How many characters an example has.
    num_layers: How many LSTM layers there are.

  Returns:
    A model like `next_word`'s, but with one accuracy.
  """
  return _next_token(
    vocab_size,
    sequence_length,
    embedding_size=8,
    recurrent_kind='lstm',
    recurrent_sizes=(256,) * num_layers,
    recurrent_kernel=layers.he_normal,
    projection_sizes=(),
    partial_accuracies={},
  )


def next_character_gru(
  vocab_size: int, sequence_length: int, embedding_size: int, num_units: int
) -> models.Model:
  """Predicts every next character, with a GRU layer.

  The network of TensorFlow's tutorial "Text generation with an RNN".

  Args:
    vocab_size: How many characters there are, without the special ones.
    sequence_length: How many characters an example has.
    embedding_size: The length of a character's vector.
    num_units: How many units the GRU has.

  Returns:
    A model like `next_word`'s, but with one accuracy.
  """
  return _next_token(
    vocab_size,
    sequence_length,
    embedding_size=embedding_size,
    recurrent_kind='gru',
    recurrent_sizes=(num_units,),
    recurrent_kernel=layers.glorot_uniform,
    projection_sizes=(),
    partial_accuracies={},
  )


def next_word(vocab_size: int, sequence_length: int) -> models.Model:
  """Predicts every next word, with a layer of 670 LSTM units.

  Args:
    vocab_size: How many words there are, without the special tokens.
    sequence_length: How many words an example has.

  Returns:
    A model whose x and y are ids, `[batch, sequence_length]`; y is what follows x, and
    padding comes last. Where the label is padding nothing is asked. The loss is the
    mean over the tokens asked for in the batch, 0 if there are none; an id out of range
    makes it NaN. The metrics are over those tokens too: `loss`, `num_tokens`,
    `accuracy`, and accuracies without some labels.
  """
  special = special_ids(vocab_size)
  return _next_token(
    vocab_size,
    sequence_length,
    embedding_size=96,
    recurrent_kind='lstm',
    recurrent_sizes=(670,),
    recurrent_kernel=layers.glorot_uniform,
    projection_sizes=(96,),
    partial_accuracies={
      'accuracy_without_out_of_vocab': (special.out_of_vocab,),
      'accuracy_without_out_of_vocab_or_end_of_sentence': (
        special.out_of_vocab,
        special.end,
      ),
    },
  )


# By kind of recurrent layer: initial weights, of which there are three; the layer.
_RECURRENT = {
  'lstm': (layers.lstm_weights, layers.lstm),
  'gru': (layers.gru_weights, layers.gru),
}


def _next_token(
  vocab_size: int,
  sequence_length: int,
  *,
  embedding_size: int,
  recurrent_kind: str,
  recurrent_sizes: tuple[int, ...],
  recurrent_kernel: layers.Initializer,
  projection_sizes: tuple[int, ...],
  partial_accuracies: Mapping[str, tuple[int, ...]],
) -> models.Model:
  """An embedding, recurrent layers, and linear ones of which the last gives the logits.

  Args:
    vocab_size: How many words there are, without the special tokens.
    sequence_length: How many tokens an example has.
    embedding_size: The length of a token's vector.
    recurrent_kind: `lstm` or `gru`.
    recurrent_sizes: How many units the recurrent layers have.
    recurrent_kernel: What their kernels are drawn by.
    projection_sizes: How many units the linear layers before the last have.
    partial_accuracies: By name, the labels that an accuracy leaves out.
  """
  recurrent_weights, recurrent = _RECURRENT[recurrent_kind]
  num_ids = vocab_size + _NUM_SPECIAL_TOKENS
  linear_sizes = (*projection_sizes, num_ids)
  accuracies = {'accuracy': (), **partial_accuracies}

  def initialize(seed):
    weights = [layers.uniform((num_ids, embedding_size), 0.05, seed, 0)]
    size_in = embedding_size
    for index, size in enumerate(recurrent_sizes, start=1):
      weights += recurrent_weights(size_in, size, recurrent_kernel, seed, index)
      size_in = size
    for index, size in enumerate(linear_sizes, start=1 + len(recurrent_sizes)):
      weights += [layers.glorot_uniform((size_in, size), seed, index), tf.zeros([size])]
      size_in = size
    return models.ModelWeights(tuple(weights), ())

  def predict(weights, x, seed):
    del seed
    weights = iter(weights.trainable)
    # Padding need not be masked: it comes last, and changes nothing before it.
    h = layers.embedding(next(weights), x)
    for _ in recurrent_sizes:
      h = recurrent(h, next(weights), next(weights), next(weights))
    for _ in linear_sizes:
      h = layers.dense(h, next(weights), next(weights))
    return h

  def loss(y, logits):
    y, logits = _asked_for(y, logits)
    return tf.where(tf.size(y) > 0, models.cross_entropy(y, logits), 0.0)

  def metrics(y, logits):
    y, logits = _asked_for(y, logits)
    right = tf.equal(tf.argmax(logits, axis=-1, output_type=y.dtype), y)
    sums = collections.OrderedDict()
    for name, left_out in accuracies.items():
      is_other = tf.not_equal(y[:, tf.newaxis], tf.constant(left_out, y.dtype))
      counts = tf.reduce_all(is_other, axis=1)
      sums[f'{name}_right'] = _count(right & counts)
      sums[f'{name}_answers'] = _count(counts)
    mean_loss = tf.cast(models.cross_entropy(y, logits), tf.float32)
    sums['loss'] = tf.math.multiply_no_nan(mean_loss, sums['accuracy_answers'])
    return sums

  def finalize_metrics(sums):
    num_tokens = sums['accuracy_answers']
    values = collections.OrderedDict(
      loss=tf.math.divide_no_nan(sums['loss'], num_tokens), num_tokens=num_tokens
    )
    for name in accuracies:
      values[name] = tf.math.divide_no_nan(
        sums[f'{name}_right'], sums[f'{name}_answers']
      )
    return values

  ids = tf.TensorSpec([None, sequence_length], tf.int32)
  return models.Model(
    input_spec=collections.OrderedDict(x=ids, y=ids),
    initialize=initialize,
    predict=predict,
    loss=loss,
    metrics=metrics,
    finalize_metrics=finalize_metrics,
  )


def _asked_for(y, logits):
  """The labels that are not padding, and their logits."""
  asked = tf.not_equal(y, _PADDING)
  return tf.boolean_mask(y, asked), tf.boolean_mask(logits, asked)


def _count(conditions):
  return tf.reduce_sum(tf.cast(conditions, tf.float32))


def tag_logistic(num_words: int, num_tags: int, max_words: int) -> models.Model:
  """Predicts which tags a text has from how often it uses which words; convex.

  Args:
    num_words: How many words there are.
    num_tags: How many tags there are.
    max_words: How many words an example has at most.

  Returns:
    A model, started at zero. Its x are the ids of the words of the texts, `[batch,
    max_words]`; words have the ids from 1 to `num_words`, and what is 0 counts for
    nothing. The features are the shares of the words in the text, or 0 if it has none.
    An id out of range makes the loss NaN. Its y are `[batch, num_tags]`, 1 for the tags
    of the text and else 0. The loss is the mean over the texts of the sum of the tags'
    cross-entropies; the metrics are `precision` and `recall_at_5`.
  """

  def initialize(seed):
    del seed  # The start of a convex problem need not be random.
    weights = (tf.zeros([num_words, num_tags]), tf.zeros([num_tags]))
    return models.ModelWeights(weights, ())

  def predict(weights, x, seed):
    del seed
    kernel, bias = weights.trainable
    valid = (x >= 0) & (x <= num_words)
    places = tf.where(valid & (x > 0))
    # The shares of words times the kernel, without the many that are 0.
    logits = bias + tf.sparse.segment_mean(
      kernel, tf.gather_nd(x, places) - 1, places[:, 0], num_segments=tf.shape(x)[0]
    )
    valid_rows = tf.reduce_all(valid, axis=1, keepdims=True)
    return tf.where(valid_rows, logits, float('nan'))

  def loss(y, logits):
    losses = tf.nn.sigmoid_cross_entropy_with_logits(tf.cast(y, logits.dtype), logits)
    return tf.reduce_mean(tf.reduce_sum(losses, axis=1))

  def metrics(y, logits):
    has_tag = tf.cast(y, tf.bool)
    predicted = tf.sigmoid(logits) > 0.5
    top = tf.math.top_k(logits, k=min(5, num_tags)).indices
    return collections.OrderedDict(
      num_predicted=_count(predicted),
      num_predicted_right=_count(predicted & has_tag),
      num_tags=_count(has_tag),
      num_tags_in_top_5=_count(tf.gather(has_tag, top, batch_dims=1)),
    )

  def finalize_metrics(sums):
    return collections.OrderedDict(
      precision=tf.math.divide_no_nan(
        sums['num_predicted_right'], sums['num_predicted']
      ),
      recall_at_5=tf.math.divide_no_nan(sums['num_tags_in_top_5'], sums['num_tags']),
    )

  return models.Model(
    input_spec=collections.OrderedDict(
      x=tf.TensorSpec([None, max_words], tf.int32),
      y=tf.TensorSpec([None, num_tags], tf.uint8),
    ),
    initialize=initialize,
    predict=predict,
    loss=loss,
    metrics=metrics,
    finalize_metrics=finalize_metrics,
  )
