"""Tests that pictures are drawn; what they look like is for the eye."""

from matplotlib import image
import numpy as np

from training_loops import plots


def _rows(num_rounds: int, **columns):
  return [
    {'round': r, 'train/loss': 1 / r, 'eval/loss': 2 / r, **columns}
    for r in range(1, num_rounds + 1)
  ]


def _assert_is_drawn(path, min_width: int):
  pixels = image.imread(path)
  assert pixels.shape[1] >= min_width
  # Neither blank nor black, and something in the colour of curves.
  assert 0.5 < pixels[..., :3].mean() < 0.999
  blue = (np.abs(pixels[..., :3] - [0.122, 0.467, 0.706]) < 0.02).all(axis=-1)
  assert blue.sum() > 20


def test_curves_show_the_losses_and_each_metric(tmp_path):
  path = tmp_path / 'a.png'
  plots.write_curves(path, _rows(50), 'title')
  _assert_is_drawn(path, 500)
  plots.write_curves(path, _rows(50, **{'eval/accuracy': 0.5}), 'title')
  _assert_is_drawn(path, 1000)


def test_a_run_of_one_round_and_one_that_diverged_can_be_drawn(tmp_path):
  plots.write_curves(tmp_path / 'a.png', _rows(1), 'title')
  _assert_is_drawn(tmp_path / 'a.png', 500)
  plots.write_curves(
    tmp_path / 'b.png', _rows(5, **{'eval/accuracy': float('nan')}), 'title'
  )


def test_a_comparison_draws_each_run(tmp_path):
  runs = {'one': _rows(50), 'two': _rows(40)}
  plots.write_comparison(tmp_path / 'a.png', runs, ['train/loss', 'eval/loss'], 'title')
  _assert_is_drawn(tmp_path / 'a.png', 1000)


def test_a_spread_can_be_drawn_of_many_clients_and_of_one(tmp_path):
  for num_clients in (1, 100):
    values = np.linspace(0.2, 1, num_clients)
    plots.write_spread(tmp_path / 'a.png', values, 0.7, 'accuracy', 'title')
    _assert_is_drawn(tmp_path / 'a.png', 1000)
