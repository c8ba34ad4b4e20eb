"""What `speed` has measured, as tables, a picture, and a file that remembers it."""

from collections.abc import Mapping, Sequence
import csv
import dataclasses
import pathlib

import numpy as np

from benchmarks import pages
from training_loops import tables


@dataclasses.dataclass(frozen=True)
class Goal:
  """What is wanted of our speed, or memory, beside a peer's.

  Attributes:
    peer: The peer.
    factor: How many times faster, or how many times less memory.
    of: 'time' or 'memory'.
    is_open: Whether it is beyond what had been reached when it was set.
  """

  peer: str
  factor: float
  of: str = 'time'
  is_open: bool = False


@dataclasses.dataclass(frozen=True)
class Measured:
  """What was measured of a peer.

  Attributes:
    seconds: The time of each round.
    examples: How many examples each round trained on.
    megabytes: The most memory that its processes have had, added up.
    first_round: Seconds from its start to the end of its first round.
    apart: How far its weights were from ours, in parts of the way they had moved.
  """

  seconds: np.ndarray
  examples: np.ndarray
  megabytes: float
  first_round: float
  apart: float


@dataclasses.dataclass(frozen=True)
class Row:
  """A peer at a work, as the file remembers it.

  Attributes:
    work: The work.
    peer: The peer.
    milliseconds: Of a round, the median.
    low: The lower quartile.
    high: The upper one.
    per_thousand: Seconds for 1,000 examples, the median of the rounds.
    megabytes: The most memory.
    first_round: Seconds to the end of the first round.
    times_ours: Its time over ours, the median over rounds.
    apart: How far its weights were from ours, in parts of the way they had moved.
  """

  work: str
  peer: str
  milliseconds: float
  low: float
  high: float
  per_thousand: float
  megabytes: float
  first_round: float
  times_ours: float
  apart: float


def rows_of(work: str, measured: Mapping[str, Measured], ours: str) -> list[Row]:
  """The rows of a work, by peer."""
  rows = []
  for name, own in measured.items():
    low, median, high = (
      float(np.percentile(1000 * own.seconds, q)) for q in (25, 50, 75)
    )
    row = Row(
      work=work,
      peer=name,
      milliseconds=median,
      low=low,
      high=high,
      per_thousand=float(np.median(1000 * own.seconds / own.examples)),
      megabytes=own.megabytes,
      first_round=own.first_round,
      times_ours=float(np.median(own.seconds / measured[ours].seconds)),
      apart=own.apart,
    )
    rows.append(row)
  return rows


def table(rows: Sequence[Row]) -> str:
  """A Markdown table of what was measured."""
  header = [
    'work', 'by', 'ms a round', 'quartiles', 'rounds a second', 's per 1,000 examples',
    'peak memory, MB', 'first round after, s', 'weights apart', 'time over ours',
  ]  # fmt: skip
  cells = [
    [
      row.work,
      row.peer,
      f'{row.milliseconds:,.0f}'
      if row.milliseconds > 100
      else f'{row.milliseconds:.1f}',
      f'{row.low:.0f} - {row.high:.0f}',
      f'{1000 / row.milliseconds:.3g}',
      f'{row.per_thousand:.4f}',
      f'{row.megabytes:,.0f}',
      f'{row.first_round:.1f}',
      f'{row.apart:.0e}',
      f'{row.times_ours:.2f}',
    ]
    for row in rows
  ]
  return tables.markdown(header, cells)


def goal_table(
  rows: Sequence[Row], goals: Mapping[str, Sequence[Goal]], ours: str
) -> str:
  """A Markdown table of what was wanted and what came out."""
  by_name = {(row.work, row.peer): row for row in rows}
  cells = []
  for work, wanted in goals.items():
    for goal in wanted:
      own, other = by_name.get((work, ours)), by_name.get((work, goal.peer))
      if own is None or other is None:
        continue
      ratio = other.times_ours
      if goal.of == 'memory':
        ratio = other.megabytes / own.megabytes
      star = '*' if goal.is_open else ''
      reached = 'yes' if ratio >= goal.factor else 'no'
      cells.append(
        [work, goal.of, goal.peer, f'{goal.factor:g}{star}', f'{ratio:.2f}', reached]
      )
  header = ['work', 'of', 'against', 'goal', 'measured', 'reached']
  return tables.markdown(header, cells)


def update(
  path: pathlib.Path,
  rows: Sequence[Row],
  goals: Mapping[str, Sequence[Goal]],
  ours: str,
  circumstances: str,
) -> None:
  """Puts the rows of a work in the place of those that a page has of it.

  Args:
    path: The page. Beside it are a CSV file with the rows and a picture; what stands
      in it before and after what was measured stays.
    rows: The rows of one work.
    goals: The goals of all works, in the order in which they are shown.
    ours: Our own name among the peers.
    circumstances: What it was measured on.
  """
  file = path.with_suffix('.csv')
  others = [row for row in _load(file) if row.work != rows[0].work]
  all_rows = sorted([*others, *rows], key=lambda row: list(goals).index(row.work))
  names = [field.name for field in dataclasses.fields(Row)]
  content = [dataclasses.astuple(row) for row in all_rows]
  path.parent.mkdir(parents=True, exist_ok=True)
  file.write_bytes(tables.as_csv(names, content))
  _draw(path.with_suffix('.png'), all_rows, ours)
  paragraphs = [
    goal_table(all_rows, goals, ours),
    f'![Time over ours]({path.with_suffix(".png").name})',
    table(all_rows),
    circumstances,
  ]
  pages.renew(path, paragraphs)


def _load(path: pathlib.Path) -> list[Row]:
  if not path.exists():
    return []
  with open(path, newline='') as file:
    return [
      Row(row.pop('work'), row.pop('peer'), **{k: float(v) for k, v in row.items()})
      for row in csv.DictReader(file)
    ]


def _draw(path: pathlib.Path, rows: Sequence[Row], ours: str) -> None:
  """Each peer's time over ours, a group of bars a work."""
  from matplotlib.figure import Figure

  works = list(dict.fromkeys(row.work for row in rows))
  peers = list(dict.fromkeys(row.peer for row in rows if row.peer != ours))
  figure = Figure(figsize=(8, 1 + 0.7 * len(works)), layout='constrained')
  axes = figure.subplots()
  height = 0.8 / max(1, len(peers))
  for i, name in enumerate(peers):
    own = [row for row in rows if row.peer == name]
    places = [
      works.index(row.work) + (i - (len(peers) - 1) / 2) * height for row in own
    ]
    bars = axes.barh(places, [row.times_ours for row in own], height, label=name)
    axes.bar_label(bars, fmt='%.2f', padding=2, fontsize='small')
  axes.axvline(1, color='black', linewidth=1)
  axes.set(xscale='log', xlabel=f'time of a round over that of {ours}')
  axes.set_yticks(range(len(works)), works)
  axes.invert_yaxis()
  axes.margins(x=0.15)
  axes.legend(fontsize='small')
  figure.savefig(path, dpi=120)
