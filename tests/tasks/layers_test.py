"""Tests of layers and initial weights, against Keras."""

import numpy as np
import pytest
import tensorflow as tf

from tasks import layers

_SEED = tf.constant([1, 2])
_DRAWS = {
  'uniform': lambda shape, seed, index: layers.uniform(shape, 0.05, seed, index),
  'normal': lambda shape, seed, index: layers.normal(shape, 0.01, seed, index),
  'glorot_uniform': layers.glorot_uniform,
  'he_normal': layers.he_normal,
  'orthogonal': layers.orthogonal,
}


def _assert_close(actual, expected, relative=1e-12):
  error = np.linalg.norm(np.ravel(actual) - np.ravel(expected))
  assert error <= relative * np.linalg.norm(np.ravel(expected))


def _random(*shape):
  return tf.constant(np.random.default_rng(sum(shape)).normal(size=shape))


@pytest.mark.parametrize('shape', [(300, 500), (3, 3, 50, 100)])
@pytest.mark.parametrize(
  ('name', 'keras_initializer'),
  [
    ('uniform', tf.keras.initializers.RandomUniform(seed=0)),
    ('normal', tf.keras.initializers.RandomNormal(stddev=0.01, seed=0)),
    ('glorot_uniform', tf.keras.initializers.GlorotUniform(seed=0)),
    ('he_normal', tf.keras.initializers.HeNormal(seed=0)),
  ],
)
def test_initial_weights_are_distributed_as_those_of_keras(
  name, keras_initializer, shape
):
  ours = np.ravel(_DRAWS[name](shape, _SEED, 0))
  theirs = np.ravel(keras_initializer(shape))
  assert ours.size == theirs.size
  assert abs(ours.mean()) < 5 * theirs.std() / np.sqrt(ours.size)
  shares = np.linspace(0.01, 0.99, 50)
  np.testing.assert_allclose(
    np.quantile(ours, shares), np.quantile(theirs, shares), atol=0.03 * theirs.std()
  )
  if name != 'normal':  # The others are bounded.
    np.testing.assert_allclose(np.abs(ours).max(), np.abs(theirs).max(), rtol=1e-3)


@pytest.mark.parametrize('name', _DRAWS)
def test_initial_weights_differ_by_layer_and_seed_and_by_nothing_else(name):
  def draw(seed, layer):
    return _DRAWS[name]((4, 4), tf.constant([seed, 0]), layer).numpy()

  np.testing.assert_array_equal(draw(1, 0), draw(1, 0))
  assert not np.array_equal(draw(1, 0), draw(1, 1))
  assert not np.array_equal(draw(1, 0), draw(2, 0))


@pytest.mark.parametrize('shape', [(20, 80), (80, 20), (30, 30)])
def test_orthogonal_has_orthonormal_rows_or_columns(shape):
  q = layers.orthogonal(shape, _SEED, 0).numpy()
  assert q.shape == shape
  gram = q @ q.T if shape[0] < shape[1] else q.T @ q
  np.testing.assert_allclose(gram, np.eye(min(shape)), atol=1e-5)


def test_orthogonal_has_no_preferred_direction():
  corners = [layers.orthogonal((3, 3), _SEED, i).numpy()[0, 0] for i in range(200)]
  # A coordinate of a random point on the sphere has mean 0 and variance 1/3.
  assert abs(np.mean(corners)) < 4 * np.sqrt(1 / 3 / 200)
  np.testing.assert_allclose(np.var(corners), 1 / 3, rtol=0.25)


def test_kernels_are_followed_by_biases_of_zeros():
  shapes = [(3, 3, 2, 4), (5, 5), (5, 5)]
  weights = layers.kernels_and_biases(shapes, _SEED)
  assert [w.shape for w in weights[::2]] == shapes
  assert [w.numpy().tolist() for w in weights[1::2]] == [[0] * 4, [0] * 5, [0] * 5]
  assert not np.array_equal(weights[2], weights[4])


def test_lstm_weights_are_those_of_keras_in_shape_and_bias():
  ours = layers.lstm_weights(3, 5, layers.he_normal, _SEED, 0)
  keras_layer = tf.keras.layers.LSTM(5)
  keras_layer.build((None, None, 3))
  theirs = keras_layer.get_weights()
  assert [w.shape for w in ours] == [w.shape for w in theirs]
  np.testing.assert_array_equal(ours[2], theirs[2])
  other = layers.lstm_weights(3, 5, layers.he_normal, _SEED, 1)
  assert not np.array_equal(ours[0], other[0])
  assert not np.array_equal(ours[1], other[1])


@pytest.mark.parametrize('initial', [layers.lstm_weights, layers.gru_weights])
def test_kernels_of_one_recurrent_layer_are_drawn_from_different_seeds(initial):
  kernel, recurrent, _ = initial(5, 5, layers.orthogonal, _SEED, 0)
  assert not np.array_equal(kernel, recurrent)


def test_gru_weights_are_those_of_keras_in_shape_and_bias():
  ours = layers.gru_weights(3, 5, layers.he_normal, _SEED, 0)
  keras_layer = tf.keras.layers.GRU(5)
  keras_layer.build((None, None, 3))
  theirs = keras_layer.get_weights()
  assert [w.shape for w in ours] == [w.shape for w in theirs]
  np.testing.assert_array_equal(ours[2], theirs[2])
  other = layers.gru_weights(3, 5, layers.he_normal, _SEED, 1)
  assert not np.array_equal(ours[0], other[0])
  assert not np.array_equal(ours[1], other[1])


@pytest.mark.parametrize('shape', [(5, 6, 8, 3), (2, 7, 5, 4), (0, 4, 4, 1)])
def test_pooling_is_tensorflows_and_gives_the_gradient_to_the_first_of_equals(shape):
  x = tf.constant(np.random.default_rng(0).integers(0, 3, shape), tf.float32)
  with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    ours, theirs = layers.max_pool(x), tf.nn.max_pool2d(x, 2, 2, 'VALID')
  np.testing.assert_array_equal(ours, theirs)
  dy = tf.cast(_random(*theirs.shape), tf.float32)
  np.testing.assert_array_equal(
    tape.gradient(ours, x, dy), tape.gradient(theirs, x, dy)
  )


def test_dropout_is_off_without_a_seed():
  x = _random(3, 4)
  assert layers.dropout(x, 0.5, None, 0) is x


@pytest.mark.parametrize('rate', [0.25, 0.5, 0.1])  # Of 8 bits, and of more.
def test_dropout_drops_at_its_rate_and_scales_the_rest(rate):
  kept = layers.dropout(tf.fill([201, 501], 3.0), rate, _SEED, 0).numpy()
  values = np.unique(kept)
  np.testing.assert_allclose(values, [0, 3 / (1 - rate)], rtol=1e-6)
  # The share of 100,000 coins.
  assert abs(np.mean(kept == 0) - rate) < 4 * np.sqrt(rate * (1 - rate) / kept.size)


def test_dropout_of_nothing_is_nothing():
  assert layers.dropout(tf.zeros([0, 3]), 0.5, _SEED, 0).shape == (0, 3)


def test_gradient_goes_where_dropout_let_pass():
  x = tf.fill([4, 5], 2.0)
  with tf.GradientTape() as tape:
    tape.watch(x)
    y = layers.dropout(x, 0.5, _SEED, 0)
  np.testing.assert_array_equal(tape.gradient(y, x), y / x)


def test_dropout_masks_differ_by_layer_and_seed_and_by_nothing_else():
  def mask(seed, index):
    return layers.dropout(tf.ones([10, 10]), 0.5, tf.constant(seed), index).numpy()

  np.testing.assert_array_equal(mask([1, 2], 0), mask([1, 2], 0))
  assert not np.array_equal(mask([1, 2], 0), mask([1, 2], 1))
  assert not np.array_equal(mask([1, 2], 0), mask([1, 3], 0))
  assert not np.array_equal(mask([1, 2], 0), mask([2, 2], 0))


def _assert_is_keras_layer(layer, keras_layer, x):
  """With random weights, the values and all gradients of a random form of them."""
  keras_layer.build(x.shape)
  weights = [_random(*w.shape) + i for i, w in enumerate(keras_layer.get_weights())]
  keras_layer.set_weights(weights)
  form = _random(*keras_layer(x).shape)
  with tf.GradientTape(persistent=True) as tape:
    tape.watch([x, *weights])
    ours, theirs = layer(x, *weights), keras_layer(x)
    our_sum, their_sum = tf.reduce_sum(form * ours), tf.reduce_sum(form * theirs)
  _assert_close(ours, theirs)
  our_gradients = tape.gradient(our_sum, [x, *weights])
  their_gradients = tape.gradient(their_sum, [x, *keras_layer.trainable_weights])
  for our_gradient, their_gradient in zip(our_gradients, their_gradients, strict=True):
    _assert_close(our_gradient, their_gradient)


@pytest.mark.parametrize('shape', [(4, 3), (4, 7, 3)])
def test_dense_is_that_of_keras(shape):
  keras_layer = tf.keras.layers.Dense(5, dtype=tf.float64)
  _assert_is_keras_layer(layers.dense, keras_layer, _random(*shape))


@pytest.mark.parametrize('window', [(3, 3), (1, 1), (5, 3)])
def test_conv2d_is_that_of_keras(window):
  keras_layer = tf.keras.layers.Conv2D(
    5, window, padding='same', use_bias=False, dtype=tf.float64
  )
  _assert_is_keras_layer(layers.conv2d, keras_layer, _random(2, 6, 7, 3))


@pytest.mark.parametrize('shape', [(3, 4, 5, 64), (1, 2, 2, 32)])
def test_group_norm_is_that_of_keras(shape):
  keras_layer = tf.keras.layers.GroupNormalization(dtype=tf.float64)
  _assert_is_keras_layer(layers.group_norm, keras_layer, 2 + _random(*shape))


@pytest.mark.parametrize('shape', [(3, 6, 4), (1, 2, 3), (2, 1, 3)])
def test_lstm_is_that_of_keras(shape):
  keras_layer = tf.keras.layers.LSTM(5, return_sequences=True, dtype=tf.float64)
  _assert_is_keras_layer(layers.lstm, keras_layer, _random(*shape))


@pytest.mark.parametrize('shape', [(3, 6, 4), (1, 2, 3), (2, 1, 3)])
def test_gru_is_that_of_keras(shape):
  keras_layer = tf.keras.layers.GRU(5, return_sequences=True, dtype=tf.float64)
  _assert_is_keras_layer(layers.gru, keras_layer, _random(*shape))


@pytest.mark.parametrize(
  ('layer', 'shape', 'weight_shapes'),
  [
    (layers.dense, (4, 3), [(3, 5), (5,)]),
    (layers.conv2d, (4, 5, 3), [(3, 3, 3, 2)]),
    (layers.group_norm, (2, 3, 32), [(32,), (32,)]),
    (layers.lstm, (4, 3), [(3, 20), (5, 20), (20,)]),
    (layers.gru, (4, 3), [(3, 15), (5, 15), (2, 15)]),
  ],
)
@pytest.mark.parametrize('batch_size', [0, 1, 4])
def test_batch_may_be_of_unknown_size(layer, shape, weight_shapes, batch_size):
  weights = [_random(*weight_shape) for weight_shape in weight_shapes]

  @tf.function(input_signature=[tf.TensorSpec([None, *shape], tf.float64)])
  def traced(x):
    with tf.GradientTape() as tape:
      tape.watch(weights)
      y = layer(x, *weights)
    return y, tape.gradient(y, weights)

  x = _random(9, *shape)
  y, gradients = traced(x[:batch_size])
  np.testing.assert_allclose(y, layer(x, *weights)[:batch_size], atol=1e-12)
  assert [g.shape for g in gradients] == weight_shapes
  assert np.isfinite(np.concatenate([np.ravel(g) for g in gradients])).all()


def test_embedding_takes_rows_and_gives_nan_where_there_is_none():
  table = _random(4, 2)
  rows = layers.embedding(table, tf.constant([[3, 0], [-1, 4]])).numpy()
  np.testing.assert_array_equal(rows[0], table.numpy()[[3, 0]])
  assert np.isnan(rows[1]).all()
