"""Tests that pictures are drawn, and of what; how they look is for the eye."""

import math

from matplotlib import figure, image
import numpy as np
import pytest

from training_loops import plots, summaries


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


@pytest.fixture(name='drawn')
def figures_that_are_saved(monkeypatch):
  figures, savefig = [], figure.Figure.savefig

  def save(self, *args, **keywords):
    figures.append(self)
    return savefig(self, *args, **keywords)

  monkeypatch.setattr(figure.Figure, 'savefig', save)
  return figures


def test_what_is_evaluated_on_a_part_is_drawn_with_the_whole(tmp_path, drawn):
  columns = dict.fromkeys(('eval/accuracy', 'eval/server_accuracy'), 0.5)
  columns['eval/server_loss'] = 0.7
  plots.write_curves(tmp_path / 'a.png', _rows(5, **columns), 'title')
  losses, accuracies = (
    [line.get_label() for line in axes.lines] for axes in drawn[0].axes
  )
  assert losses == ['train (the cohort)', 'eval', 'eval, server']
  assert accuracies == ['eval', 'eval, server']


def _curve(*by_seed):
  values = np.array(by_seed, float)
  rounds = 10 * np.arange(1, values.shape[1] + 1)
  return summaries.Curve(rounds, values.mean(0), values.min(0), values.max(0))


def test_a_comparison_draws_each_curve_and_a_band_where_seeds_differ(tmp_path, drawn):
  curves = {
    'eval/accuracy': {'one': _curve([0.25, 0.5], [0.5, 0.5]), 'two': _curve([0, 1])},
    'eval/loss': {'one': _curve([2, 1], [2, 1]), 'two': _curve([3, 2])},
  }
  plots.write_comparison(tmp_path / 'a.png', curves, 'The title')
  _assert_is_drawn(tmp_path / 'a.png', 1000)
  accuracy, loss = drawn[0].axes
  assert drawn[0].get_suptitle() == 'The title'
  assert [text.get_text() for text in drawn[0].legends[0].texts] == ['one', 'two']
  one, two = accuracy.lines
  assert one.get_xydata().tolist() == [[10, 0.375], [20, 0.5]]
  assert two.get_xydata().tolist() == [[10, 0], [20, 1]]
  (band,) = accuracy.collections
  points = band.get_paths()[0].vertices.tolist()
  assert {(10, 0.25), (10, 0.5), (20, 0.5)} == {tuple(point) for point in points}
  assert len(loss.lines) == 2
  assert not loss.collections
  # The same name has the same colour everywhere, and a share is in per cent.
  assert [line.get_color() for line in loss.lines] == [
    one.get_color(),
    two.get_color(),
  ]
  assert accuracy.yaxis.get_major_formatter()(0.5) == '50%'
  assert '%' not in loss.yaxis.get_major_formatter()(0.5)


def test_no_two_of_forty_curves_look_alike(tmp_path, drawn):
  curves = {'eval/loss': {str(i): _curve([i, i]) for i in range(40)}}
  plots.write_comparison(tmp_path / 'a.png', curves, 'title')
  looks = {(line.get_color(), line.get_linestyle()) for line in drawn[0].axes[0].lines}
  assert len(looks) == 40


@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize('good', [[], [0.5]])
def test_a_comparison_with_values_that_are_not_finite_can_be_drawn(
  tmp_path, value, good
):
  curves = {
    'eval/accuracy': {'a': _curve([*good, value], [*good, 0.25]), 'b': _curve([0.5])},
    'eval/loss': {'a': _curve([value])},
  }
  plots.write_comparison(tmp_path / 'a.png', curves, 'title')
  assert image.imread(tmp_path / 'a.png').shape[1] >= 1000


def _sweep(tmp_path, *trials, metric='eval/accuracy'):
  is_loss = metric == 'eval/loss'
  path = tmp_path / 'a.png'
  plots.write_sweep(path, trials, metric, 'The title', is_lower_better=is_loss)
  pixels = image.imread(tmp_path / 'a.png')
  assert pixels.shape[1] >= 500 * len(trials[0][0])
  # Dots in blue, half transparent.
  assert (pixels[..., 2] > pixels[..., 0] + 0.2).sum() > 20


def _best(axes) -> list:
  """The points of the line of the best."""
  _, line = axes.lines
  return line.get_xydata().tolist()


def test_a_sweep_draws_all_that_was_reached_over_each_flag_and_the_best(
  tmp_path, drawn
):
  _sweep(
    tmp_path,
    ({'rate': 0.001, 'epochs': 2}, 0.25),
    ({'rate': 1.0, 'epochs': 1}, 0.75),
    ({'rate': 1.0, 'epochs': 2}, 0.5),
  )
  rate, epochs = drawn[0].axes
  assert (rate.get_xlabel(), epochs.get_xlabel()) == ('rate', 'epochs')
  tried, _ = rate.lines
  assert tried.get_xydata().tolist() == [[0.001, 0.25], [1, 0.75], [1, 0.5]]
  assert _best(rate) == [[0.001, 0.25], [1, 0.75]]
  assert _best(epochs) == [[1, 0.75], [2, 0.5]]
  assert rate.yaxis.get_major_formatter()(0.5) == '50%'


def test_a_sweep_over_drawn_numbers_has_no_line_where_others_vary_too(tmp_path, drawn):
  points = [(0.1, 1), (0.2, 2), (0.3, 1)]
  _sweep(tmp_path, *(({'rate': r, 'epochs': e}, r) for r, e in points))
  rate, epochs = drawn[0].axes
  assert len(rate.lines) == 1
  assert _best(epochs) == [[1, 0.3], [2, 0.2]]


def test_a_sweep_shows_numbers_of_several_magnitudes_by_their_logarithms(
  tmp_path, drawn
):
  for tried, scale in (
    ([0.001, 0.1, 1], 'log'),
    (['1e-3', 1], 'log'),  # As YAML reads them.
    ([1, 2, 4], 'linear'),
    ([0, 0.1, 100], 'linear'),  # Zero has none.
    ([-1, 100], 'linear'),
  ):
    _sweep(tmp_path, *(({'x': x}, i / 4) for i, x in enumerate(tried)))
    assert drawn.pop().axes[0].get_xscale() == scale, tried


def test_of_a_metric_that_is_better_lower_a_sweep_shows_the_lowest(tmp_path, drawn):
  _sweep(
    tmp_path,
    *(({'x': 1}, 3.0), ({'x': 1}, 2.0), ({'x': 2}, 4.0)),
    metric='eval/loss',
  )
  (axes,) = drawn[0].axes
  assert _best(axes) == [[1, 2], [2, 4]]
  assert '%' not in axes.yaxis.get_major_formatter()(0.5)


def test_a_sweep_over_names_has_a_place_for_each_and_a_line_from_left_to_right(
  tmp_path, drawn
):
  _sweep(
    tmp_path,
    ({'server': 'sgd'}, 0.75),
    ({'server': 'adam'}, 0.5),
    ({'server': 'yogi'}, 0.25),
    ({'server': 'adam'}, 0.125),
  )
  (axes,) = drawn[0].axes
  drawn[0].draw_without_rendering()
  labels = [label.get_text() for label in axes.get_xticklabels()]
  assert sorted(labels) == ['adam', 'sgd', 'yogi']
  reached = {'sgd': 0.75, 'adam': 0.5, 'yogi': 0.25}
  assert _best(axes) == [[place, reached[n]] for place, n in enumerate(labels)]


@pytest.mark.parametrize('value', [0.1, 'sgd'])
def test_a_sweep_of_one_value_can_be_drawn(tmp_path, value):
  _sweep(tmp_path, ({'x': value}, 0.5))


@pytest.mark.parametrize('metric', ['eval/accuracy', 'eval/loss'])
def test_what_is_not_a_number_is_never_the_best_of_a_sweep(tmp_path, drawn, metric):
  trials = [({'x': 1}, math.nan), ({'x': 1}, 0.5), ({'x': 1}, math.nan)]
  _sweep(tmp_path, *trials, metric=metric)
  assert _best(drawn[0].axes[0]) == [[1, 0.5]]


@pytest.mark.parametrize('value', [math.nan, math.inf, -math.inf])
def test_a_sweep_with_values_that_are_not_finite_can_be_drawn(tmp_path, value):
  for trials in (
    [({'x': 1}, value)],
    [({'x': 0.001}, value), ({'x': 1}, value)],
    [({'x': 'a'}, value), ({'x': 'b'}, 0.5)],
  ):
    path = tmp_path / 'a.png'
    plots.write_sweep(path, trials, 'eval/loss', 'title', is_lower_better=True)
    assert image.imread(path).shape[1] >= 500


def test_a_spread_can_be_drawn_of_many_clients_and_of_one(tmp_path):
  for num_clients in (1, 100):
    values = np.linspace(0.2, 1, num_clients)
    plots.write_spread(tmp_path / 'a.png', values, 0.7, 'accuracy', 'title')
    _assert_is_drawn(tmp_path / 'a.png', 1000)


def test_panels_show_their_own_curves_and_a_name_has_one_colour_in_all(tmp_path, drawn):
  a, b, c = (_curve([0.1 * k, 0.2 * k]) for k in (1, 2, 3))
  panels = {'left': {'a': a, 'b': b}, 'right': {'c': c, 'b': b}}
  plots.write_panels(tmp_path / 'p.png', 'eval/accuracy', panels, 'Title')
  left, right = drawn[0].axes
  assert [left.get_title(), right.get_title()] == ['left', 'right']
  colours = [[line.get_color() for line in axes.get_lines()] for axes in (left, right)]
  assert colours[0][1] == colours[1][1]
  assert len({*colours[0], *colours[1]}) == 3


@pytest.mark.parametrize(
  ('column', 'values', 'scale'),
  [
    ('eval/loss', [1.0, 1e-2, 1e-4], 'log'),
    ('eval/distance_to_optimum', [1.0, 1e-2, 1e-4], 'log'),
    ('eval/loss', [1.0, 1e-4, 0.0], 'log'),  # Rounded to nothing in the end.
    ('eval/loss', [2.0, 1.0, 0.5], 'linear'),
    ('eval/loss', [0.0, 0.0, 0.0], 'linear'),
    ('eval/accuracy', [1e-4, 0.1, 1.0], 'linear'),
  ],
)
def test_a_loss_that_falls_by_orders_of_magnitude_is_shown_by_its_logarithm(
  tmp_path, drawn, column, values, scale
):
  curves = {column: {'one': _curve(values)}}
  plots.write_comparison(tmp_path / 'p.png', curves, 'Title')
  (axes,) = drawn[0].axes
  assert axes.get_yscale() == scale


def test_lines_go_over_a_logarithmic_axis_from_left_to_right(tmp_path, drawn):
  lines = {'a': {1.0: 0.5, 0.1: 0.4, 10.0: math.nan}}
  plots.write_lines(tmp_path / 'p.png', lines, 'rate', 'eval/accuracy')
  (axes,) = drawn[0].axes
  assert axes.get_xscale() == 'log'
  (line,) = axes.get_lines()
  assert list(line.get_xdata()) == [0.1, 1.0, 10.0]
  _assert_is_drawn(tmp_path / 'p.png', 300)


def test_a_grid_has_the_lowest_row_at_the_bottom_and_its_values_written_in(
  tmp_path, drawn
):
  grid = {(1.0, 0.1): 0.5, (10.0, 0.1): 0.25, (1.0, 0.01): math.nan, (10.0, 0.01): 0.75}
  plots.write_grids(
    tmp_path / 'p.png', {'A': grid, 'B': grid}, ('row', 'column'), 2, 'eval/accuracy'
  )
  axes, _ = drawn[0].axes
  assert axes.get_title() == 'A'
  written = {text.get_position(): text.get_text() for text in axes.texts}
  assert written == {(1, 0): '50', (1, 1): '25', (0, 0): '–', (0, 1): '75'}
  assert [label.get_text() for label in axes.get_yticklabels()] == ['1', '10']
