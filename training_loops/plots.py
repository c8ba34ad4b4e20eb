"""Pictures of runs. No display is needed, and no state of pyplot's is touched."""

from collections.abc import Iterable, Mapping, Sequence
import io
import math
import pathlib
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, PercentFormatter
import numpy as np

from training_loops import files, summaries

Rows = Sequence[Mapping[str, Any]]


def _save(figure: Figure, path: pathlib.Path) -> None:
  content = io.BytesIO()
  figure.savefig(content, format='png', dpi=120)
  files.write_bytes(path, content.getvalue())


def _prettify(axes: Any, xlabel: str, title: str) -> None:
  axes.set_xlabel(xlabel)
  if xlabel == 'round':
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
  axes.set_title(title)
  axes.grid(alpha=0.3)
  axes.spines[['top', 'right']].set_visible(False)


def _draw(axes: Any, rows: Rows, column: str, **style: Any) -> None:
  values = [row[column] for row in rows]
  rounds = [row['round'] for row in rows]
  axes.plot(rounds, values, marker=_marker(len(rows)), ms=3, **style)


def _marker(num_points: int) -> str | None:
  # A few points are shown as such, or a run of one round would be an empty picture.
  return 'o' if num_points <= 30 else None


def write_curves(path: pathlib.Path, rows: Rows, title: str) -> None:
  """Draws the losses and the eval metrics of one run over its rounds."""
  evals = [name.partition('/')[2] for name in rows[0] if name.startswith('eval/')]
  # What is evaluated on a part of the data is drawn with the metric on all of them.
  parts = {name: base for name in evals for base in evals if name.endswith(f'_{base}')}
  metrics = [name for name in evals if name not in parts and name != 'loss']
  figure = Figure(figsize=(5 * (1 + len(metrics)), 4), layout='constrained')
  figure.suptitle(title)
  all_axes: Any = figure.subplots(1, 1 + len(metrics), squeeze=False)[0]
  _draw(all_axes[0], rows, 'train/loss', label='train (the cohort)', color='tab:orange')
  _draw(all_axes[0], rows, 'eval/loss', label='eval', color='tab:blue')
  for axes, metric in zip(all_axes, ['loss', *metrics], strict=True):
    if metric != 'loss':
      _draw(axes, rows, f'eval/{metric}', label='eval', color='tab:blue')
    of_parts = [name for name, base in parts.items() if base == metric]
    for i, name in enumerate(of_parts, start=2):  # The first two colours are taken.
      label = name.removesuffix(f'_{metric}').replace('_', ' ')
      _draw(axes, rows, f'eval/{name}', label=f'eval, {label}', ls='--', color=f'C{i}')
    if metric == 'loss' or of_parts:
      axes.legend()
    _prettify(axes, 'round', metric if metric == 'loss' else f'eval {metric}')
  _save(figure, path)


def write_comparison(
  path: pathlib.Path,
  curves: Mapping[str, Mapping[str, summaries.Curve]],
  title: str,
  targets: Mapping[str, float] | None = None,
) -> None:
  """Draws curves over the rounds, with a band from the lowest seed to the highest.

  Args:
    path: The picture.
    curves: For each metric, the curves by name.
    title: What stands above.
    targets: Values to reach, by metric.
  """
  panels = [(column, column.replace('/', ' '), curves[column]) for column in curves]
  _write_panels(path, panels, title, targets or {})


def write_panels(
  path: pathlib.Path,
  column: str,
  panels: Mapping[str, Mapping[str, summaries.Curve]],
  title: str,
) -> None:
  """Draws some curves of one metric beside others; a name has one colour in all.

  Args:
    path: The picture.
    column: The metric.
    panels: The curves by name, by what stands above each panel.
    title: What stands above all.
  """
  _write_panels(
    path, [(column, heading, curves) for heading, curves in panels.items()], title, {}
  )


def _write_panels(
  path: pathlib.Path,
  panels: Sequence[tuple[str, str, Mapping[str, summaries.Curve]]],
  title: str,
  targets: Mapping[str, float],
) -> None:
  """Draws panels (metric, heading, curves by name) side by side."""
  names = list(dict.fromkeys(name for *_, by_name in panels for name in by_name))
  # Ten colours, and then other lines.
  style: dict[str, dict[str, Any]] = {
    name: {'color': f'C{i % 10}', 'ls': ('-', '--', ':', '-.')[i // 10 % 4]}
    for i, name in enumerate(names)
  }
  figure = Figure(figsize=(5.5 * len(panels), 4.5), layout='constrained')
  figure.suptitle(title)
  for axes, (column, heading, by_name) in zip(
    figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
  ):
    for name, curve in by_name.items():
      marker = _marker(len(curve.rounds))
      axes.plot(curve.rounds, curve.mean, marker=marker, ms=3, **style[name])
      if (curve.low < curve.high).any():
        colour = style[name]['color']
        axes.fill_between(curve.rounds, curve.low, curve.high, color=colour, alpha=0.15)
    if _spans_decades(column, by_name.values()):
      axes.set_yscale('log')
    if column in targets:
      axes.axhline(targets[column], color='0.4', ls='--', lw=1)
    _prettify(axes, 'round', heading)
    if summaries.is_share(column):
      axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
  lines = [Line2D([], [], label=name, **style[name]) for name in names]
  figure.legend(handles=lines, loc='outside lower center', ncols=min(3, len(names)))
  _save(figure, path)


def _spans_decades(column: str, curves: Iterable[summaries.Curve]) -> bool:
  """Whether a metric falls by so much that only its logarithm shows it."""
  if not summaries.is_lower_better(column):
    return False
  values = np.concatenate([curve.mean for curve in curves])
  values = values[np.isfinite(values) & (values > 0)]
  return len(values) > 0 and bool(1000 * values.min() < values.max())


def write_sweep(
  path: pathlib.Path,
  trials: Sequence[tuple[Mapping[str, Any], float]],
  metric: str,
  title: str,
  *,
  is_lower_better: bool,
) -> None:
  """Draws what was reached over each flag that was searched for, the best as a line.

  Args:
    path: The picture.
    trials: The values of the flags, and what was reached with them.
    metric: What that is.
    title: What stands above.
    is_lower_better: Whether the best is the lowest.
  """
  names = list(trials[0][0])
  figure = Figure(figsize=(5 * len(names), 4), layout='constrained')
  figure.suptitle(title)
  choose: Any = min if is_lower_better else max
  reached = [value for _, value in trials]
  for axes, name in zip(
    figure.subplots(1, len(names), squeeze=False)[0], names, strict=True
  ):
    tried, is_log = _scale([point[name] for point, _ in trials])
    axes.plot(tried, reached, 'o', ms=4, alpha=0.5, color='tab:blue')
    # Names stand in the order of their first appearance.
    places = list(dict.fromkeys(tried)) if is_log is None else sorted(set(tried))
    measured = [
      (x, v) for x, v in zip(tried, reached, strict=True) if not math.isnan(v)
    ]
    best = [
      choose((v for x, v in measured if x == place), default=math.nan)
      for place in places
    ]
    # Drawn from a range, each has a place of its own, and a line says nothing.
    if len(names) == 1 or len(places) < len(trials):
      axes.plot(places, best, color='tab:orange', label='the best of each')
      axes.legend()
    if is_log:
      axes.set_xscale('log')
    elif all(isinstance(point[name], int) for point, _ in trials):
      axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _prettify(axes, name, metric.replace('/', ' '))
    if summaries.is_share(metric):
      axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
  _save(figure, path)


def write_lines(
  path: pathlib.Path,
  lines: Mapping[str, Mapping[float, float]],
  xlabel: str,
  metric: str,
) -> None:
  """Draws a metric over positive numbers on a logarithmic axis.

  Args:
    path: The picture.
    lines: What was reached at each number, by name.
    xlabel: What the numbers are.
    metric: What was reached.
  """
  figure = Figure(figsize=(6.5, 4.5), layout='constrained')
  axes = figure.subplots()
  for name, reached in lines.items():
    points = sorted(reached.items())
    axes.plot(*zip(*points, strict=True), marker='o', ms=4, label=name)
  axes.set_xscale('log')
  _prettify(axes, xlabel, metric.replace('/', ' '))
  if summaries.is_share(metric):
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
  axes.legend()
  _save(figure, path)


def write_decades(
  path: pathlib.Path,
  panels: Mapping[str, Mapping[str, np.ndarray]],
  labels: tuple[str, str],
  title: str,
) -> None:
  """Draws lines on a logarithmic axis, panel by panel on the same one.

  Args:
    path: The picture.
    panels: Points `[number, 2]` by name, by what stands above each panel.
    labels: What the two coordinates are.
    title: What stands above all.
  """
  figure = Figure(figsize=(5.5 * len(panels), 4.5), layout='constrained')
  figure.suptitle(title)
  every_axes = list(figure.subplots(1, len(panels), squeeze=False, sharey=True).flat)
  for axes, (heading, lines) in zip(every_axes, panels.items(), strict=True):
    for name, points in lines.items():
      axes.plot(*points.T, marker=_marker(len(points)), ms=3, label=name)
    axes.set_yscale('log')
    _prettify(axes, labels[0], heading)
  every_axes[0].set_ylabel(labels[1])
  every_axes[-1].legend()
  _save(figure, path)


def write_grids(
  path: pathlib.Path,
  grids: Mapping[str, Mapping[tuple[float, float], float]],
  labels: tuple[str, str],
  num_columns: int,
  metric: str,
) -> None:
  """Draws a metric over two numbers, as coloured squares with the value in each.

  Args:
    path: The picture.
    grids: What was reached at each (row, column), by what stands above the grid.
    labels: What rows and columns are.
    num_columns: How many grids stand side by side.
    metric: What was reached.
  """
  num_rows = -(-len(grids) // num_columns)
  figure = Figure(figsize=(3.6 * num_columns, 3.2 * num_rows), layout='constrained')
  every_axes = list(figure.subplots(num_rows, num_columns, squeeze=False).flat)
  for axes in every_axes[len(grids) :]:
    axes.set_visible(False)
  reached = [v for grid in grids.values() for v in grid.values() if not math.isnan(v)]
  for axes, (heading, grid) in zip(every_axes, grids.items(), strict=False):
    rows, columns = (sorted({point[i] for point in grid}) for i in (0, 1))
    values = np.array([[grid[r, c] for c in columns] for r in rows])
    axes.imshow(values, vmin=min(reached), vmax=max(reached), origin='lower')
    for (i, j), value in np.ndenumerate(values):
      axes.text(j, i, _short(metric, value), ha='center', va='center', fontsize=8)
    axes.set_yticks(range(len(rows)), [f'{r:g}' for r in rows])
    axes.set_xticks(range(len(columns)), [f'{c:g}' for c in columns])
    axes.set(title=heading, ylabel=labels[0], xlabel=labels[1])
  _save(figure, path)


def _short(metric: str, value: float) -> str:
  if math.isnan(value):
    return '–'
  return f'{100 * value:.0f}' if summaries.is_share(metric) else f'{value:.2g}'


def _scale(values: Sequence[Any]) -> tuple[list[Any], bool | None]:
  """Numbers, and whether they are best shown by their logarithms; else names."""
  try:
    numbers = [float(value) for value in values]
  except ValueError:
    return [str(value) for value in values], None
  return numbers, min(numbers) > 0 and max(numbers) > 20 * min(numbers)


def write_spread(
  path: pathlib.Path, values: np.ndarray, overall: float, name: str, title: str
) -> None:
  """Draws how a metric is spread over the clients: a histogram, and its sum.

  Args:
    path: The picture.
    values: The metric of each client.
    overall: The metric over all examples.
    name: What the metric is called.
    title: What stands above.
  """
  figure = Figure(figsize=(10, 4), layout='constrained')
  figure.suptitle(title)
  histogram, cumulative = figure.subplots(1, 2)
  histogram.hist(values, bins=20, color='tab:blue')
  histogram.set_ylabel('clients')
  _prettify(histogram, f'{name} of a client', 'histogram')
  share = np.arange(1, len(values) + 1) / len(values)
  cumulative.step(np.sort(values), share, where='post', color='tab:blue')
  cumulative.set_ylabel('share of clients at or below')
  cumulative.set_ylim(0, 1.02)
  _prettify(cumulative, f'{name} of a client', 'cumulative')
  for axes in (histogram, cumulative):
    axes.axvline(overall, color='tab:orange', label=f'all examples: {overall:.3f}')
    axes.legend()
  _save(figure, path)
