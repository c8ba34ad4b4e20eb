"""Tests of what can be read off pictures; whether they please is for the eye."""

from matplotlib import image
import numpy as np
import pytest

from tasks import pictures


def _draw_counts(path, counts):
  """The pixels of the picture, `[height, width, 3]` from 0 to 1."""
  pictures.label_counts(path, np.array(counts), 'title')
  return image.imread(path)[..., :3]


def _draw_images(path, images):
  pictures.image_grid(path, images, [f'label {i}' for i in range(len(images))], 'title')
  return image.imread(path)[..., :3]


def _share(pixels, colour):
  """Which share of the pixels has a colour."""
  return (np.abs(pixels - colour) < 1 / 255).all(axis=-1).mean()


@pytest.mark.parametrize('shape', [(1, 1), (10, 10), (500, 62)])
def test_label_counts_are_drawn_in_one_size(tmp_path, shape):
  counts = np.random.default_rng(0).integers(0, 50, shape)
  assert _draw_counts(tmp_path / 'a.png', counts).shape == (720, 1200, 3)


def test_label_counts_differ_where_counts_or_their_order_do(tmp_path):
  drawings = [
    _draw_counts(tmp_path / 'a.png', counts)
    for counts in ([[1, 2], [3, 4]], [[1, 2], [4, 3]], [[3, 4], [1, 2]])
  ]
  for i, drawing in enumerate(drawings):
    assert not any(np.array_equal(drawing, other) for other in drawings[:i])


def test_label_counts_have_clients_from_the_left_and_labels_from_below(tmp_path):
  pixels = _draw_counts(tmp_path / 'a.png', [[9, 0, 0], [0, 0, 0]])
  darkest = (np.abs(pixels - [0.267, 0.005, 0.329]) < 0.01).all(axis=-1)
  rows, columns = np.nonzero(darkest[:, :1000])  # Right of it is the colour bar.
  # The one cell is a sixth of the heat map, which is most of the picture.
  assert len(rows) > 720 * 1200 / 6 / 3
  assert rows.min() > 400
  assert columns.max() < 600


def test_label_counts_show_the_sizes_of_clients(tmp_path):
  pixels = _draw_counts(tmp_path / 'a.png', [[1, 1], [2, 2]])
  blue = (np.abs(pixels - [0.122, 0.467, 0.706]) < 0.01).all(axis=-1)
  heights = blue.sum(axis=0)
  heights = heights[heights > 0]
  # The lines of the axis hide a pixel or so.
  assert heights[-1] == pytest.approx(2 * heights[0], abs=2)


@pytest.mark.parametrize(('count', 'height'), [(1, 300), (5, 300), (10, 540)])
def test_images_are_drawn_in_rows_of_five(tmp_path, count, height):
  pixels = _draw_images(tmp_path / 'a.png', [np.zeros([4, 4])] * count)
  assert pixels.shape == (height, 1080, 3)
  # They cover most of a row's five places.
  black = _share(pixels, 0)
  assert 0.5 < black / (count / 5 * 240 / height) < 1


def test_grey_images_have_the_polarity_that_they_have(tmp_path):
  black = _share(_draw_images(tmp_path / 'a.png', [np.zeros([4, 4])] * 5), 0)
  white = _share(_draw_images(tmp_path / 'a.png', [np.ones([4, 4])] * 5), 0)
  grey = _draw_images(tmp_path / 'a.png', [np.full([4, 4], 0.6)] * 5)
  assert white < 0.02 < 0.5 < black
  assert _share(grey, 0.6) == pytest.approx(black, abs=0.02)


@pytest.mark.parametrize('scale', [1, 255])
def test_images_have_the_colours_that_they_have(tmp_path, scale):
  colour = np.array([200, 30, 90]) / 255
  dtype = np.uint8 if scale == 255 else np.float32
  images = np.broadcast_to(np.round(colour * scale, 6), [5, 4, 4, 3]).astype(dtype)
  assert _share(_draw_images(tmp_path / 'a.png', images), colour) > 0.5


def test_images_of_another_range_are_scaled_to_be_visible(tmp_path):
  # In the middle of what is one level on the screen, where rounding changes nothing.
  plain = (np.random.default_rng(0).integers(0, 255, [8, 8, 3]) + 0.5) / 255
  plain.flat[:2] = 0, 1
  standardized = (plain - plain.mean()) / plain.std()
  np.testing.assert_array_equal(
    _draw_images(tmp_path / 'a.png', [plain]),
    _draw_images(tmp_path / 'a.png', [standardized]),
  )
  # One without contrast can still be drawn.
  _draw_images(tmp_path / 'a.png', [np.full([4, 4], -3.0)])


def test_images_need_a_title_each(tmp_path):
  with pytest.raises(ValueError, match='zip'):
    pictures.image_grid(tmp_path / 'a.png', [np.zeros([4, 4])] * 2, ['one'], 'title')
