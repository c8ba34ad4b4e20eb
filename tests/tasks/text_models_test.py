"""Tests of the models of text, against TFF's own and Keras."""

import collections
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks import text_models
from tests.tasks import tff_baselines
from tests.tasks.tff_baselines import assert_close
from tff_algorithms import models, oracles
from tff_algorithms.models import ModelWeights

_LENGTH = 6
_VOCAB_SIZE = 60  # Of TFF's synthetic data.
_SEED = tf.constant([1, 2])
_MODELS = {
  'one layer': lambda: text_models.next_character(86, _LENGTH, 1),
  'two layers': lambda: text_models.next_character(86, _LENGTH, 2),
  'gru': lambda: text_models.next_character_gru(_VOCAB_SIZE, _LENGTH, 16, 32),
  'words': lambda: text_models.next_word(_VOCAB_SIZE, _LENGTH),
  'tags': lambda: text_models.tag_logistic(_VOCAB_SIZE, 20, 9),
}


def _tff_character_model():
  return tff.simulation.baselines.shakespeare.create_character_prediction_task(
    tff_baselines.CLIENT_SPEC, sequence_length=_LENGTH, use_synthetic_data=True
  ).model_fn()


def _tff_word_model():
  return tff.simulation.baselines.stackoverflow.create_word_prediction_task(
    tff_baselines.CLIENT_SPEC, sequence_length=_LENGTH, use_synthetic_data=True
  ).model_fn()


def _tff_tag_task():
  return tff.simulation.baselines.stackoverflow.create_tag_prediction_task(
    tff_baselines.CLIENT_SPEC, use_synthetic_data=True
  )


def _sentences(vocab_size, lengths):
  """x and y of random sentences: a beginning, words or unknown ones, an end, padding.

  Args:
    vocab_size: How many words there are.
    lengths: For each sentence, how many tokens follow its beginning.
  """
  unknown, beginning, end = vocab_size + 1, vocab_size + 2, vocab_size + 3
  rows = np.zeros([len(lengths), _LENGTH + 1], np.int64)
  generator = np.random.default_rng(0)
  for row, length in zip(rows, lengths, strict=True):
    row[: length + 1] = generator.integers(1, unknown + 1, [length + 1])
    row[0] = beginning
    if length:
      row[length] = end
  return rows[:, :-1], rows[:, 1:]


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'tff_model', 'vocab_size'),
  [
    ('two layers', _tff_character_model, 86),
    ('words', _tff_word_model, _VOCAB_SIZE),
  ],
)
def test_network_is_that_of_tff(name, tff_model, vocab_size):
  model = _MODELS[name]()
  with tff_baselines.keras_in_float64():
    tff_model = tff_model()
  tff_baselines.assert_starts_alike(model, tff_model)
  weights = tff_baselines.random_weights(model)
  x, y = _sentences(vocab_size, [_LENGTH] * 5)
  ours = tff_baselines.our_results(model, weights, x, y)
  theirs = tff_baselines.tff_results(tff_model, weights, x, y)
  assert_close(ours.outputs, theirs.outputs)
  assert_close(ours.loss, theirs.loss)
  assert_close(ours.gradient, theirs.gradient)
  # With padding, which TFF masks in the network: the same where something is asked.
  x, y = _sentences(vocab_size, [4, _LENGTH, 1, 0])
  ours = tff_baselines.our_results(model, weights, x, y)
  theirs = tff_baselines.tff_results(tff_model, weights, x, y)
  assert_close(ours.outputs[y != 0], theirs.outputs[y != 0])


def test_mime_papers_network_is_tffs_without_its_second_layer():
  one, two = (
    [w.shape for w in _MODELS[name]().initialize(_SEED).trainable]
    for name in ('one layer', 'two layers')
  )
  assert one == two[:4] + two[7:]


def test_network_with_a_gru_is_that_of_the_tutorial():
  """TensorFlow's "Text generation with an RNN", which the paper adapted."""
  model = _MODELS['gru']()
  with tff_baselines.keras_in_float64():
    keras_model = tf.keras.Sequential(
      [
        tf.keras.layers.Embedding(_VOCAB_SIZE + 4, 16),
        tf.keras.layers.GRU(32, return_sequences=True),
        tf.keras.layers.Dense(_VOCAB_SIZE + 4),
      ]
    )
    tff_model = tff.learning.models.from_keras_model(
      keras_model,
      tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      [tf.TensorSpec([None, _LENGTH], tf.int64)] * 2,
    )
  tff_baselines.assert_starts_alike(model, tff_model)
  weights = tff_baselines.random_weights(model)
  x, y = _sentences(_VOCAB_SIZE, [_LENGTH] * 5)
  ours = tff_baselines.our_results(model, weights, x, y)
  theirs = tff_baselines.tff_results(tff_model, weights, x, y)
  assert_close(ours.outputs, theirs.outputs)
  assert_close(ours.loss, theirs.loss)
  assert_close(ours.gradient, theirs.gradient)


@pytest.mark.parametrize('name', ['one layer', 'gru', 'words'])
def test_padding_changes_neither_loss_nor_gradient(name):
  model = _MODELS[name]()
  weights = tff_baselines.random_weights(model)
  x, y = _sentences(_VOCAB_SIZE, [4, _LENGTH, 1, 0])
  padded = tff_baselines.our_results(model, weights, x, y)
  # The loss by hand: each token asked for counts alike.
  losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, padded.outputs)
  assert_close(padded.loss, np.mean(losses.numpy()[y != 0]))
  # Other inputs where nothing is asked.
  other_x = np.where(y == 0, 7, x)
  other = tff_baselines.our_results(model, weights, other_x, y)
  assert_close(padded.loss, other.loss)
  assert_close(padded.gradient, other.gradient)
  # Without the sentence that asks nothing.
  shorter = tff_baselines.our_results(model, weights, x[:-1], y[:-1])
  assert_close(padded.loss, shorter.loss)
  assert_close(padded.gradient, shorter.gradient)


def test_batch_that_asks_nothing_has_loss_and_gradient_zero():
  model = _MODELS['one layer']()
  weights = tff_baselines.random_weights(model)
  x, y = _sentences(86, [0, 0])
  results = tff_baselines.our_results(model, weights, x, y)
  assert results.loss == 0
  assert not any(np.any(g) for g in results.gradient)


@pytest.mark.parametrize('token', [-1, 90])
@pytest.mark.parametrize('where', ['x', 'y'])
def test_id_out_of_range_makes_the_loss_nan(token, where):
  model = _MODELS['one layer']()
  weights = tff_baselines.random_weights(model)
  batch = dict(zip('xy', _sentences(86, [3, 3]), strict=True))
  assert np.isfinite(tff_baselines.our_results(model, weights, **batch).loss)
  batch[where][0, 1] = token
  assert np.isnan(tff_baselines.our_results(model, weights, **batch).loss)


_OWN_METRICS = ('loss', 'num_examples', 'num_batches')  # That TFF adds to a model's.


def _sums_over_batches(model, batches):
  """The sums of a model's metrics over batches of (y, outputs)."""
  all_sums = [model.metrics(*batch) for batch in batches]
  return tf.nest.map_structure(lambda *sums: tf.add_n(sums), *all_sums)


@pytest.mark.slow
@pytest.mark.parametrize(
  ('name', 'tff_model', 'vocab_size'),
  [
    ('two layers', _tff_character_model, 86),
    ('words', _tff_word_model, _VOCAB_SIZE),
  ],
)
def test_metrics_of_tokens_are_those_of_tff(name, tff_model, vocab_size):
  model = _MODELS[name]()
  metrics = [m for m in tff_model().get_metrics() if m.name not in _OWN_METRICS]
  generator = np.random.default_rng(1)
  batches = []
  for lengths in ([4, _LENGTH, 1, 0], [_LENGTH, 2]):
    _, y = _sentences(vocab_size, lengths)
    logits = generator.normal(size=[*y.shape, vocab_size + 4])
    logits += 3 * np.eye(vocab_size + 4)[y]  # Many right answers.
    batches.append((y, tf.constant(logits, tf.float32)))
    for metric in metrics:
      metric.update_state(*batches[-1])
  values = model.finalize_metrics(_sums_over_batches(model, batches))
  assert list(values) == ['loss', *(metric.name for metric in metrics)]
  for metric in metrics:
    np.testing.assert_allclose(values[metric.name], metric.result(), rtol=1e-6)
  whole = (tf.concat(parts, axis=0) for parts in zip(*batches, strict=True))
  np.testing.assert_allclose(values['loss'], model.loss(*whole), rtol=1e-6)


_WORDS = list(tff.simulation.datasets.stackoverflow.get_synthetic_word_counts())
_TAGS = list(tff.simulation.datasets.stackoverflow.get_synthetic_tag_counts())
_QUESTIONS = {
  'tokens': ['the median is UNKNOWN the', 'UNKNOWN', 'sql sql sql'],
  'title': ['here', 'UNKNOWN', 'UNKNOWN if you are'],
  'tags': ['css|median|dvcs', 'git', 'UNKNOWN'],
}


def _tag_rows():
  """x and y of the questions for our model."""
  x, y = np.zeros([3, 9], np.int32), np.zeros([3, 20], np.uint8)
  for i, (text, title, tags) in enumerate(zip(*_QUESTIONS.values(), strict=True)):
    for place, word in enumerate(f'{text} {title}'.split()):
      x[i, place] = _WORDS.index(word) + 1 if word in _WORDS else 0
    y[i, [_TAGS.index(tag) for tag in tags.split('|') if tag in _TAGS]] = 1
  return x, y


@pytest.mark.slow
def test_logistic_regression_of_tags_is_that_of_tff():
  model = _MODELS['tags']()
  tff_task = _tff_tag_task()  # In float32: its metrics have no other.
  weights = tff_baselines.random_weights(model)
  x, y = _tag_rows()
  ours = tff_baselines.our_results(model, weights, x, y)
  questions = tf.data.Dataset.from_tensor_slices(_QUESTIONS)
  batches = list(tff_task.datasets.train_preprocess_fn(questions))  # Of one question.
  features, labels = (tf.concat(parts, axis=0) for parts in zip(*batches, strict=True))
  theirs = tff_baselines.tff_results(tff_task.model_fn(), weights, features, labels)
  assert_close(tf.sigmoid(ours.outputs), theirs.outputs, relative=1e-6)
  # TFF's loss is a sum over the batch and a mean over the tags, where we have a mean
  # and a sum, and keeps logarithms finite by adding 1e-7.
  factor = len(_TAGS) / len(x)
  assert_close(ours.loss, factor * theirs.loss, relative=1e-6)
  scaled = tuple(factor * g for g in theirs.gradient)
  assert_close(ours.gradient, scaled, relative=1e-6)


def test_question_without_known_words_has_the_logits_of_the_bias():
  model = _MODELS['tags']()
  weights = tff_baselines.random_weights(model)
  logits = model.predict(weights, tf.zeros([2, 9], tf.int32), None)
  np.testing.assert_array_equal(logits, [weights.trainable[1]] * 2)


@pytest.mark.parametrize('word', [-1, _VOCAB_SIZE + 1])
def test_word_out_of_range_makes_the_loss_nan(word):
  model = _MODELS['tags']()
  weights = tff_baselines.random_weights(model)
  x, y = _tag_rows()
  x[1, 0] = _VOCAB_SIZE
  assert np.isfinite(tff_baselines.our_results(model, weights, x, y).loss)
  x[1, 0] = word
  assert np.isnan(tff_baselines.our_results(model, weights, x, y).loss)


def test_metrics_of_tags_are_those_of_tff():
  model = _MODELS['tags']()
  tff_model = _tff_tag_task().model_fn()
  metrics = [m for m in tff_model.get_metrics() if m.name not in _OWN_METRICS]
  generator = np.random.default_rng(0)
  batches = []
  for num_rows in (7, 3):
    y = (generator.random([num_rows, 20]) < 0.2).astype(np.uint8)
    logits = tf.constant(generator.normal(size=[num_rows, 20]) + y, tf.float32)
    batches.append((y, logits))
    for metric in metrics:
      metric.update_state(y, tf.sigmoid(logits))
  values = model.finalize_metrics(_sums_over_batches(model, batches))
  assert list(values) == [metric.name for metric in metrics]
  for metric in metrics:
    np.testing.assert_allclose(values[metric.name], metric.result(), rtol=1e-6)


def test_tags_start_at_zero():
  assert not any(np.any(w) for w in _MODELS['tags']().initialize(_SEED).trainable)


@pytest.mark.parametrize('name', ['one layer', 'two layers', 'gru', 'words'])
def test_seed_determines_the_initial_weights(name):
  model = _MODELS[name]()

  def matrices(seed):
    weights = model.initialize(tf.constant(seed)).trainable
    return [w.numpy() for w in weights if w.shape.rank > 1 and np.any(w)]

  one, again, other = matrices([1, 2]), matrices([1, 2]), matrices([1, 3])
  for a, b in zip(one, again, strict=True):
    np.testing.assert_array_equal(a, b)
  assert not any(map(np.array_equal, one, other))
  assert not any(itertools.starmap(np.array_equal, itertools.combinations(one, 2)))


@pytest.mark.parametrize('name', _MODELS)
def test_metrics_of_no_rows_are_zero(name):
  functional = models.as_functional_model(_MODELS[name]())
  assert all(value == 0 for value in functional.initialize_metrics_state().values())


@pytest.mark.slow
@pytest.mark.parametrize('name', ['two layers', 'gru', 'words', 'tags'])
def test_model_runs_in_a_loop_on_tffs_worker(runtime, name):
  """Its operations are there, and it takes batches of any size."""
  model = _MODELS[name]()
  spec = model.input_spec
  oracle = oracles.ModelLoss(model)

  def losses(x, y):
    def step(t, weights, losses):
      batch = collections.OrderedDict(x=x[: t + 1], y=y[: t + 1])
      evaluation = oracle.evaluate(weights, batch, _SEED)
      moved = [
        w - g for w, g in zip(weights.trainable, evaluation.gradient, strict=True)
      ]
      return t + 1, ModelWeights(tuple(moved), ()), losses.write(t, evaluation.loss)

    start = 0, model.initialize([1, 2]), tf.TensorArray(tf.float32, 3)
    return tf.while_loop(lambda t, *_: t < 3, step, start)[-1].stack()

  x, y = _tag_rows() if name == 'tags' else _sentences(_VOCAB_SIZE, [4, 0, 2])
  x, y = (
    x.astype(spec['x'].dtype.as_numpy_dtype),
    y.astype(spec['y'].dtype.as_numpy_dtype),
  )
  types = tff.types.tensorflow_to_type([spec['x'], spec['y']])
  on_worker = tff.tensorflow.computation(losses, types)(x, y)
  assert len(set(on_worker)) == 3
  np.testing.assert_allclose(on_worker, tf.function(losses)(x, y), rtol=1e-5)
