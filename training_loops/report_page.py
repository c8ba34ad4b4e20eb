"""A page of curves and a table, one HTML file that needs neither server nor network.

Vega-Lite draws the curves; its JavaScript comes from the package vl-convert-python and
is part of each page. Colours are CSS variables of report_page.html, so that the page
follows the reader's light or dark scheme.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import functools
import html
import json
import pathlib
import re
from typing import Any

import numpy as np

from training_loops import summaries, tables

_TEMPLATE = pathlib.Path(__file__).with_name('report_page.html')
_MAX_BYTES = 1_490_000
_MAX_POINTS = 200
_NUM_COLOURS = 7
# Once the colours are used up, the dashes tell curves apart.
_DASHES = [[1, 0], [8, 4], [2, 3], [10, 3, 2, 3], [16, 4], [5, 2], [4, 6]]
_DASHES += [[10, 3, 2, 3, 2, 3], [16, 3, 5, 3]]


@dataclasses.dataclass(frozen=True)
class Chart:
  """One picture of the page.

  Attributes:
    title: What is shown.
    curves: The curves by name, in all charts of a page in the same colour.
    is_share: Whether values are in [0, 1] and shown as per cent.
    target: Where to draw a horizontal line, if at all.
  """

  title: str
  curves: Mapping[str, summaries.Curve]
  is_share: bool = False
  target: float | None = None


def render(
  title: str,
  summary: Sequence[str],
  charts: Sequence[Chart],
  header: Sequence[str],
  rows: Sequence[Sequence[str]],
  notes: Sequence[str] = (),
) -> str:
  """The whole page, of less than 1.5 MB with up to thousands of curves.

  A curve of over 200 points is thinned to every second of them, every third and so on,
  and the last; where the page would be too large nonetheless, all curves are thinned
  further. Values are rounded to four significant digits, and those that are not finite
  are gaps.

  Args:
    title: The page's title.
    summary: Sentences below the title.
    charts: The pictures; the first one is the largest.
    header: The table's header.
    rows: The table's rows. The first cell is a name.
    notes: Sentences below the table.
  """
  template = _TEMPLATE.read_text(encoding='utf-8')
  longest = max(
    (len(c.rounds) for chart in charts for c in chart.curves.values()), default=0
  )
  parts = {
    'title': html.escape(title),
    'summary': _paragraphs(summary),
    'table': _table(header, rows),
    'library': _library(),
  }
  max_points = _MAX_POINTS
  while True:
    thinned = [f'At most {max_points} points of a curve are drawn.']
    parts['notes'] = _paragraphs([*notes, *(thinned if longest > max_points else [])])
    parts['data'] = _json(_data(charts, max_points))
    page = re.sub(r'{{(\w+)}}', lambda match: parts[match[1]], template)
    if len(page.encode()) <= _MAX_BYTES or max_points == 2:
      return page
    max_points = max_points * 4 // 5


@functools.cache  # It takes most of a second.
def _library() -> str:
  """Vega-Lite as JavaScript that may stand inside a script element."""
  import vl_convert  # Large, and not needed by those who only import this module.

  source = vl_convert.javascript_bundle('window.vegaEmbed = vegaEmbed;')
  return re.sub(r'<(?=/script|script|!--)', r'\\x3c', source, flags=re.IGNORECASE)


def _json(value: Any) -> str:
  """JSON that may stand inside a script element."""
  text = json.dumps(value, separators=(',', ':'), allow_nan=False)
  return text.replace('<', r'\u003c')


def _paragraphs(sentences: Sequence[str]) -> str:
  return '\n'.join(f'<p>{html.escape(sentence)}</p>' for sentence in sentences)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  is_number = tables.numeric_columns(header, rows)
  kinds = ['' if number else ' class="text"' for number in is_number]
  head = ''.join(
    f'<th scope="col"{kind}>{html.escape(cell)}</th>'
    for kind, cell in zip(kinds, header, strict=True)
  )
  lines = [f'<table>\n<thead><tr>{head}</tr></thead>\n<tbody>']
  for name, *cells in rows:
    values = ''.join(
      f'<td{kind}>{html.escape(cell)}</td>'
      for kind, cell in zip(kinds[1:], cells, strict=True)
    )
    lines.append(f'<tr><th scope="row">{html.escape(name)}</th>{values}</tr>')
  return '\n'.join([*lines, '</tbody>\n</table>'])


def _data(charts: Sequence[Chart], max_points: int) -> dict[str, Any]:
  """What the page's JavaScript reads; curves and rounds are named by their index."""
  names = list(dict.fromkeys(name for chart in charts for name in chart.curves))
  styles = [
    {
      'color': f'var(--curve-{i % _NUM_COLOURS})',
      'dash': _DASHES[i // _NUM_COLOURS % len(_DASHES)],
    }
    for i in range(len(names))
  ]
  all_rounds: dict[tuple[int, ...], int] = {}  # Mostly the same for all curves.
  described = []
  for chart in charts:
    curves = []
    for name, curve in chart.curves.items():
      if len(curve.rounds):
        kept = _thin(len(curve.rounds), max_points)
        rounds = tuple(int(r) for r in curve.rounds[kept])
        curves.append(
          {
            'index': names.index(name),
            'rounds': all_rounds.setdefault(rounds, len(all_rounds)),
            **_values(curve, kept),
          }
        )
    described.append(
      {
        'title': chart.title,
        'isShare': chart.is_share,
        'target': chart.target,
        'mayBeLog': not chart.is_share and _is_positive(chart),
        'curves': curves,
      }
    )
  return {
    'names': names,
    'styles': styles,
    'spec': _spec(styles),
    'rounds': list(all_rounds),
    'charts': described,
  }


def _thin(num_points: int, max_points: int) -> np.ndarray:
  """The indices of the points that are drawn."""
  step = max(1, -(-(num_points - 1) // (max_points - 1)))
  return np.unique([*range(0, num_points, step), num_points - 1])


def _values(curve: summaries.Curve, kept: np.ndarray) -> dict[str, Any]:
  """The mean, and the band if there is one."""
  # A band needs both its ends: one seed may be lost and the others not.
  both = np.where(np.isfinite(curve.low) & np.isfinite(curve.high), 1, np.nan)
  mean, low, high = (
    [float(f'{v:.4g}') if np.isfinite(v) else None for v in values[kept]]
    for values in (curve.mean, both * curve.low, both * curve.high)
  )
  return {'mean': mean} | ({} if low == high else {'low': low, 'high': high})


def _is_positive(chart: Chart) -> bool:
  values = [v for c in chart.curves.values() for v in (c.mean, c.low)]
  targets = np.array([] if chart.target is None else [chart.target])
  return not any(np.any(v <= 0) for v in [*values, targets])


def _spec(styles: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
  """The pictures in Vega-Lite.

  What differs from one to the next is left to the page's JavaScript: the data sets
  `points`, `hovered` and `targets`, and the parameters `extent` (of the y axis),
  `lastRound` and `number` (the format).
  """

  def style(field: str) -> dict[str, Any]:
    scale = {'domain': [*range(len(styles))], 'range': [s[field] for s in styles]}
    return {**index, 'scale': scale}

  def quantity(field: str, **others: Any) -> dict[str, Any]:
    return {'field': field, 'type': 'quantitative', **others}

  # Scales and axes are shared by all layers; the first one describes them.
  index = {'field': 'index', 'type': 'nominal', 'legend': None}
  x = quantity(
    'round',
    scale={'domain': [0, {'expr': 'lastRound'}], 'nice': False},
    axis={'title': 'round', 'grid': False, 'tickMinStep': 1, 'format': 'd'},
  )
  low = quantity(
    'low',
    scale={'domain': {'expr': 'extent'}, 'nice': True},
    axis={
      'title': None,
      'domain': False,
      'ticks': False,
      # On a log scale some labels are left out, and empty.
      'labelExpr': 'datum.label && format(datum.value, number)',
    },
  )
  mean = {'x': quantity('round'), 'y': quantity('mean'), 'color': index}
  named = {**mean, 'description': {'field': 'name'}}
  high = {'y2': {'field': 'high'}}
  dot = {'type': 'point', 'filled': True, 'opacity': 1}
  ring = {'size': 60, 'stroke': 'var(--back)', 'strokeWidth': 1.5}
  dashed = {'type': 'rule', 'strokeDash': [5, 4], 'color': 'var(--text)'}
  label = {'type': 'text', 'fontSize': 12, 'color': 'var(--text)'}
  corner = {'x': 4, 'align': 'left', 'baseline': 'bottom', 'dy': -3}
  return {
    'width': 'container',
    'height': 'container',
    'background': None,
    'data': {'name': 'points'},
    'layer': [
      {
        'mark': {'type': 'area', 'opacity': 0.15, 'aria': False},
        'encoding': {'x': x, 'y': low, **high, 'color': style('color')},
      },
      {
        # The band of a single point.
        'transform': [{'filter': 'datum.alone && datum.low !== null'}],
        'mark': {'type': 'rule', 'opacity': 0.5, 'aria': False},
        'encoding': {**mean, 'y': quantity('low'), **high},
      },
      {
        'mark': {'type': 'line', 'strokeWidth': 2},
        'encoding': {**named, 'strokeDash': style('dash')},
      },
      {
        'transform': [{'filter': 'datum.dot && datum.mean !== null'}],
        'mark': {**dot, 'size': 30},
        'encoding': named,
      },
      {
        'data': {'name': 'targets'},
        'mark': {**dashed, 'aria': False},
        'encoding': {'y': quantity('target')},
      },
      {
        'data': {'name': 'targets'},
        'mark': {**label, **corner},
        'encoding': {'y': quantity('target'), 'text': {'field': 'text'}},
      },
      {
        'data': {'name': 'hovered'},
        'transform': [{'filter': '!datum.name'}],
        'mark': {'type': 'rule', 'color': 'var(--muted)', 'aria': False},
        'encoding': {'x': quantity('round')},
      },
      {
        'data': {'name': 'hovered'},
        'transform': [{'filter': 'isNumber(datum.mean)'}],
        'mark': {**dot, **ring, 'aria': False},
        'encoding': mean,
      },
    ],
    'config': {
      'font': 'system-ui, sans-serif',
      'view': {'stroke': None},
      'axis': {
        'labelColor': 'var(--muted)',
        'labelFontSize': 12,
        'titleColor': 'var(--muted)',
        'titleFontSize': 12,
        'titleFontWeight': 'normal',
        'gridColor': 'var(--grid)',
        'domainColor': 'var(--rule)',
        'tickColor': 'var(--rule)',
      },
    },
  }
