"""Pictures of data. No display is needed, and no state of pyplot's is touched."""

from collections.abc import Mapping, Sequence
import math
import os
from typing import Any

from matplotlib import colors
from matplotlib.figure import Figure
import numpy as np

_DPI = 120
_MOST_TICKS = 20
_COLUMNS = 5


def label_counts(path: str | os.PathLike, counts: np.ndarray, title: str) -> None:
  """Draws how many examples of each label each client has, and how many in all.

  Args:
    path: The picture, a PNG of 1200 x 720 pixels.
    counts: `[num_clients, num_labels]`, drawn in this order; none is white.
    title: What stands above.
  """
  counts = np.asarray(counts)
  num_clients, num_labels = counts.shape
  figure = Figure(figsize=(10, 6), layout='constrained')
  figure.suptitle(title)
  sizes, heat = figure.subplots(2, 1, sharex=True, height_ratios=[1, 4])
  sizes.stairs(
    counts.sum(axis=1), np.arange(num_clients + 1) - 0.5, fill=True, color='tab:blue'
  )
  sizes.set_ylabel('examples')
  sizes.spines[['top', 'right']].set_visible(False)
  # On a linear scale one client with very many makes all others look alike.
  norm = colors.PowerNorm(0.5, vmin=1, vmax=max(2, counts.max()))
  image = heat.imshow(
    np.ma.masked_equal(counts.T, 0),
    aspect='auto',
    origin='lower',
    cmap='viridis_r',
    norm=norm,
  )
  figure.colorbar(
    image,
    ax=heat,
    label='examples of a label (white: none)',
    ticks=np.unique(np.round(norm.inverse(np.linspace(0, 1, 8)))),
  )
  heat.set_xlabel('client')
  heat.set_ylabel('label')
  heat.set_yticks(_ticks(num_labels))
  heat.set_xticks(_ticks(num_clients))
  figure.savefig(path, format='png', dpi=_DPI)


def image_grid(
  path: str | os.PathLike,
  images: Sequence[np.ndarray],
  titles: Sequence[str],
  title: str,
) -> None:
  """Draws images in rows of five, each below its own title.

  Args:
    path: The picture, a PNG 1080 pixels wide and 60 high, and 240 more for each row.
    images: Grey ones, `[height, width]`, 0 being black, or of colours,
      `[height, width, 3]`. Integers are of 0 to 255, floats of 0 to 1; an image with
      others (such as one that was standardized) is scaled to fill 0 to 1.
    titles: What stands above each, such as its label.
    title: What stands above all.
  """
  num_rows = math.ceil(len(images) / _COLUMNS)
  figure = Figure(figsize=(9, 2 * num_rows + 0.5), layout='constrained')
  figure.suptitle(title)
  all_axes: Any = figure.subplots(num_rows, _COLUMNS, squeeze=False).ravel()
  for axes in all_axes:
    axes.set_axis_off()
  for i, (image, text) in enumerate(zip(images, titles, strict=True)):
    all_axes[i].imshow(_visible(np.asarray(image)), cmap='gray', vmin=0, vmax=1)
    all_axes[i].set_title(text, fontsize=10)
  figure.savefig(path, format='png', dpi=_DPI)


def image_rows(
  path: str | os.PathLike, rows: Mapping[str, np.ndarray], title: str
) -> None:
  """Draws rows of small grey images, each with a name at its left.

  Args:
    path: The picture, a PNG.
    rows: The images of each row by its name, `[number, height, width]`, of 0 to 1.
    title: What stands above all.
  """
  figure = Figure(figsize=(9, 0.55 * len(rows) + 0.5), layout='constrained')
  figure.suptitle(title)
  all_axes: Any = figure.subplots(len(rows), 1, squeeze=False)[:, 0]
  for axes, (name, images) in zip(all_axes, rows.items(), strict=True):
    apart = np.pad(images, [(0, 0), (0, 0), (0, 1)], constant_values=1)
    row = np.concatenate(list(apart), axis=1)
    axes.imshow(row, cmap='gray_r', vmin=0, vmax=1)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.set_ylabel(name, rotation=0, ha='right', va='center', fontsize=9)
  # As wide as the names need.
  figure.savefig(path, format='png', dpi=_DPI, bbox_inches='tight')


def _ticks(count: int) -> range:
  """Which of so many things to name on an axis: all, or so many that are legible."""
  return range(0, count, math.ceil(count / _MOST_TICKS))


def _visible(image: np.ndarray) -> np.ndarray:
  """An image in floats of 0 to 1."""
  if np.issubdtype(image.dtype, np.integer):
    return image / 255
  low, high = image.min(), image.max()
  if low >= 0 and high <= 1:
    return image
  return (image - low) / (high - low or 1)
