"""Tests of the page of curves: as text, and as a reader's browser shows it."""

import html.parser
import json
import math
import re

import numpy as np
import pytest
from selenium.webdriver import ActionChains, Chrome
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.actions.pointer_input import PointerInput
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait

from tests.training_loops import browser as browsers
from training_loops import report_page, summaries
from training_loops.report_page import Chart

_NASTY = '</script><b>x & "y"'
_NAMES = ['fed_avg', 'fed_prox', _NASTY]


def _curve(num_points: int, seeds: int = 3, step: int = 1) -> summaries.Curve:
  rounds = step * np.arange(1, num_points + 1)
  values = np.random.default_rng(num_points).uniform(0.2, 1, (seeds, num_points))
  return summaries.Curve(rounds, values.mean(0), values.min(0), values.max(0))


def _constant(*values: float) -> summaries.Curve:
  return summaries.Curve(np.arange(1, len(values) + 1), *[np.array(values)] * 3)


def _render(*charts: Chart) -> str:
  return report_page.render(
    f'Title {_NASTY}',
    [f'Summary {_NASTY}.'],
    charts,
    ['algorithm', 'final'],
    [[name, '91.2% ± 0.4'] for name in _NAMES],
    [f'Note {_NASTY}.'],
  )


def _many(num_charts: int, num_curves: int, num_points: int) -> list[Chart]:
  curves = {f'algorithm {i}': _curve(num_points) for i in range(num_curves)}
  return [Chart(f'chart {i}', curves) for i in range(num_charts)]


def _data(page: str) -> dict:
  (text,) = re.findall('<script type="application/json" id="data">(.*?)</script>', page)
  return json.loads(text)


def test_a_page_of_6_curves_in_3_charts_has_less_than_1_mb():
  page = _render(*_many(3, 6, 200))
  assert len(page.encode()) < 1_000_000
  assert 'points of a curve are drawn' not in page  # All of them are.


def test_no_page_has_1_5_mb_however_many_curves_and_points_there_are():
  charts = _many(5, 60, 2000)
  page = _render(*charts)
  assert len(page.encode()) < 1_500_000
  data = _data(page)
  assert [len(chart['curves']) for chart in data['charts']] == [60] * 5
  (rounds,) = data['rounds']
  assert len(rounds) > 50
  (most,) = re.findall(r'At most (\d+) points of a curve are drawn', page)
  assert len(rounds) <= int(most)
  # The first, every so many-th, and the last; and the values are those of the rounds.
  assert (rounds[0], rounds[-1]) == (1, 2000)
  assert len(set(np.diff(rounds)[:-1])) == 1
  expected = charts[0].curves['algorithm 0'].mean[np.array(rounds) - 1]
  drawn = data['charts'][0]['curves'][0]['mean']
  np.testing.assert_allclose(drawn, expected, rtol=1e-3)


def test_a_curve_of_up_to_200_points_is_drawn_whole():
  for num_points in (1, 2, 199, 200):
    data = _data(_render(Chart('loss', {'a': _curve(num_points)})))
    assert data['rounds'] == [list(range(1, num_points + 1))]


def test_values_that_are_not_finite_are_gaps():
  curve = _constant(0.5, math.nan, math.inf, -math.inf, 0.123456)
  data = _data(_render(Chart('loss', {'a': curve})))
  assert data['charts'][0]['curves'] == [
    {'index': 0, 'rounds': 0, 'mean': [0.5, None, None, None, 0.1235]}
  ]


def test_only_seeds_that_differ_have_a_band():
  curves = {'one': _curve(5, seeds=1), 'three': _curve(5, seeds=3)}
  one, three = _data(_render(Chart('loss', curves)))['charts'][0]['curves']
  assert 'low' not in one and 'high' not in one
  assert all(low < high for low, high in zip(three['low'], three['high'], strict=True))


def test_where_only_some_seeds_are_finite_there_is_no_band():
  mean, low = np.array([0.5, math.inf]), np.array([0.4, 0.3])
  curve = summaries.Curve(np.arange(2), mean, low, np.array([0.6, math.inf]))
  (drawn,) = _data(_render(Chart('loss', {'a': curve})))['charts'][0]['curves']
  assert drawn['mean'] == [0.5, None]
  assert (drawn['low'], drawn['high']) == ([0.4, None], [0.6, None])


def test_only_positive_values_that_are_no_shares_may_have_a_log_scale():
  def may_be_log(*args, **kwargs) -> bool:
    return _data(_render(Chart('x', *args, **kwargs)))['charts'][0]['mayBeLog']

  positive = {'a': _constant(0.1, math.nan, 10)}
  assert may_be_log(positive) and may_be_log(positive, target=1)
  assert not may_be_log(positive, is_share=True)
  assert not may_be_log(positive, target=0)
  assert not may_be_log({**positive, 'b': _constant(1, 0)})


def test_more_curves_than_colours_differ_in_their_dashes():
  styles = _data(_render(*_many(1, 60, 2)))['styles']
  assert len({json.dumps(style) for style in styles}) == 60
  assert {json.dumps(style['dash']) for style in styles[:7]} == {'[1, 0]'}


class _Parser(html.parser.HTMLParser):
  """Notes the elements of a page, and its texts outside scripts."""

  def __init__(self, page: str):
    super().__init__()
    self.elements: list[tuple[str, dict]] = []
    self.texts: list[str] = []
    self.feed(page)

  def handle_starttag(self, tag, attributes):
    self.elements.append((tag, dict(attributes)))

  def handle_data(self, data):
    if self.elements and self.elements[-1][0] not in ('script', 'style'):
      self.texts.append(data)


def test_names_are_text_wherever_they_stand():
  parser = _Parser(_render(Chart(_NASTY, {_NASTY: _curve(3)})))
  tags = [tag for tag, _ in parser.elements]
  assert 'b' not in tags
  assert tags.count('script') == 3
  texts = ''.join(parser.texts)
  for text in (f'Title {_NASTY}', f'Summary {_NASTY}.', f'Note {_NASTY}.'):
    assert text in texts
  # Without JavaScript, too, the table is there.
  assert texts.count('91.2% ± 0.4') == len(_NAMES)


def test_nothing_is_loaded_from_elsewhere():
  page = _render(Chart('loss', {'a': _curve(3)}))
  for _, attributes in _Parser(page).elements:
    assert not {'src', 'href'} & set(attributes)
  library = max(re.findall('<script type="module">(.*?)</script>', page, re.S), key=len)
  assert len(library) > 500_000  # It has URLs in it, of documentation and namespaces.
  assert not re.search(r'https?://|@import|url\(', page.replace(library, ''))


@pytest.fixture(scope='module')
def browser():
  with browsers.launch() as launched:
    yield launched


_EVAL = {name: _curve(40 + i) for i, name in enumerate(_NAMES)}
_LOSS = {name: _curve(30 + i) for i, name in enumerate(_NAMES)}


@pytest.fixture(scope='module')
def typical(tmp_path_factory):
  path = tmp_path_factory.mktemp('typical') / 'page.html'
  accuracy = Chart('eval accuracy', _EVAL, is_share=True, target=0.9)
  page = _render(accuracy, Chart('eval loss', _LOSS), Chart('train loss', _LOSS))
  path.write_text(page, encoding='utf-8')
  return path


def _open(browser: Chrome, path, width: int = 1000, scheme: str = 'light') -> None:
  browsers.prefer(browser, scheme)
  browsers.resize(browser, width, 800)
  browsers.open_file(browser, path)
  _wait(
    browser, lambda: not _js(browser, "return document.querySelector('.legend').hidden")
  )


def _wait(browser: Chrome, condition) -> None:
  WebDriverWait(browser, 20, poll_frequency=0.02).until(lambda _: condition())


def _js(browser: Chrome, script: str, *arguments):
  return browser.execute_script(script, *arguments)


def _drawn(browser: Chrome) -> list[dict[str, float]]:
  """For each chart the lengths of its lines by their names."""
  return _js(
    browser,
    """return [...document.querySelectorAll('.plot svg')].map((svg) => {
      const lines = [...svg.querySelectorAll('.mark-line path[d]')];
      return Object.fromEntries(lines.map(
        (line) => [line.getAttribute('aria-label'), line.getTotalLength()]));
    });""",
  )


def _chips(browser: Chrome) -> dict:
  found = browser.find_elements(By.CSS_SELECTOR, '.legend [aria-pressed]')
  return {chip.text: chip for chip in found}


def _tip(browser: Chrome) -> str:
  return browser.find_element(By.ID, 'tip').text


def _assert_is_silent(browser: Chrome) -> None:
  assert [entry['message'] for entry in browser.get_log('browser')] == []


def _write(tmp_path, *charts: Chart):
  path = tmp_path / 'page.html'
  path.write_text(_render(*charts), encoding='utf-8')
  return path


def test_a_browser_draws_and_names_every_curve_and_asks_for_nothing(browser, typical):
  _open(browser, typical)
  charts = _drawn(browser)
  assert [sorted(lines) for lines in charts] == [sorted(_NAMES)] * 3
  assert min(length for lines in charts for length in lines.values()) > 300
  assert list(_chips(browser)) == _NAMES
  assert browser.title == f'Title {_NASTY}'
  assert browsers.requests(browser) == [typical.as_uri()]
  _assert_is_silent(browser)


def test_a_chip_hides_its_curve_in_all_charts_and_shows_it_again(browser, typical):
  _open(browser, typical)
  chip = _chips(browser)[_NASTY]
  chip.click()
  _wait(browser, lambda: [*map(len, _drawn(browser))] == [2, 2, 2])
  assert not any(_NASTY in lines for lines in _drawn(browser))
  assert chip.get_attribute('aria-pressed') == 'false'
  _js(browser, 'arguments[0].focus()', chip)
  ActionChains(browser).send_keys(' ').perform()
  _wait(browser, lambda: [*map(len, _drawn(browser))] == [3, 3, 3])
  assert chip.get_attribute('aria-pressed') == 'true'
  _assert_is_silent(browser)


def test_all_curves_can_be_hidden_and_shown_at_once(browser, typical):
  _open(browser, typical)
  for text, count in (('hide all', 0), ('show all', 3)):
    browser.find_element(By.XPATH, f'//button[text()="{text}"]').click()
    _wait(browser, lambda n=count: [*map(len, _drawn(browser))] == [n] * 3)
  _assert_is_silent(browser)


def _pixel_of(browser: Chrome, chart: int, share: float):
  """A point of a chart's drawing area, at a share of its width."""
  (left, top, width, height) = _js(
    browser,
    """const plot = document.querySelectorAll('.plot')[arguments[0]];
    plot.scrollIntoView({block: 'center'});
    const box = plot.querySelector('.background').getBoundingClientRect();
    return [box.left, box.top, box.width, box.height];""",
    chart,
  )
  return round(left + share * width), round(top + height / 2)


def _point(browser: Chrome, x: int, y: int) -> None:
  mouse = ActionBuilder(browser)
  mouse.pointer_action.move_to_location(x, y)
  mouse.perform()


def test_hovering_shows_the_round_and_the_value_of_every_curve(browser, typical):
  _open(browser, typical)
  for chart, curves, last, text in (
    (0, _EVAL, 42, '{:.2%}'),
    (2, _LOSS, 32, '{:.4f}'),
  ):
    _point(browser, *_pixel_of(browser, chart, 10 / last))
    lines = _tip(browser).splitlines()
    assert lines[0] == 'round 10'
    shown = dict(zip(lines[1::3], lines[2::3], strict=True))
    assert shown == {name: text.format(c.mean[9]) for name, c in curves.items()}
    bands = dict(zip(lines[1::3], lines[3::3], strict=True))
    one = curves['fed_prox']
    assert bands['fed_prox'] == f'{text} to {text}'.format(one.low[9], one.high[9])
  # The shortest curve ends before the last round, and says so.
  _point(browser, *_pixel_of(browser, 0, 1))
  assert 'round 42' in _tip(browser) and ', round 40' in _tip(browser)
  _point(browser, 1, 1)
  assert _tip(browser) == ''
  _assert_is_silent(browser)


def test_touching_shows_the_same_until_something_else_is_touched(browser, typical):
  _open(browser, typical, width=360)

  def touch(x: int, y: int) -> None:
    finger = ActionBuilder(browser, mouse=PointerInput('touch', 'finger'))
    finger.pointer_action.move_to_location(x, y).pointer_down().pointer_up()
    finger.perform()

  touch(*_pixel_of(browser, 0, 0.5))
  assert _tip(browser).startswith('round 21\n')
  assert all(name in _tip(browser) for name in _NAMES)
  assert _js(browser, 'return document.documentElement.scrollWidth <= innerWidth')
  touch(3, 3)
  assert _tip(browser) == ''


def test_a_log_scale_is_offered_for_losses_and_keeps_the_curves(browser, typical):
  _open(browser, typical)
  _chips(browser)['fed_avg'].click()
  boxes = browser.find_elements(By.CSS_SELECTOR, 'figcaption input')
  assert len(boxes) == 2
  linear = _drawn(browser)[1]
  boxes[0].click()
  _wait(browser, lambda: len(now := _drawn(browser)[1]) == 2 and now != linear)
  _assert_is_silent(browser)


def test_on_a_phone_the_page_is_as_wide_as_the_screen(browser, tmp_path):
  name = 'a_long_name_without_any_blank_' * 4
  table = [['algorithm', *[f'column {i}' for i in range(8)]], [name, *['12,345'] * 8]]
  charts = [Chart(name, {name: _curve(30), 'other': _curve(20)}) for _ in range(2)]
  path = tmp_path / 'page.html'
  path.write_text(report_page.render(name, [name], charts, table[0], table[1:], [name]))
  for width in (360, 700, 1400):
    _open(browser, path, width)
    assert _js(browser, 'return document.documentElement.scrollWidth <= innerWidth')
    for svg in browser.find_elements(By.CSS_SELECTOR, '.plot svg'):
      assert 250 <= svg.rect['width'] <= width
  # A window that is made narrower takes its charts along.
  browsers.resize(browser, 360, 800)
  _wait(
    browser,
    lambda: _js(
      browser, 'return document.querySelector(".plot svg").clientWidth <= 360'
    ),
  )
  assert _js(browser, 'return document.documentElement.scrollWidth <= innerWidth')


def test_on_a_desk_the_whole_table_is_seen(browser, tmp_path):
  header = [
    '',
    'seeds',
    'final accuracy',
    'best accuracy',
    'rounds to 50.0%',
    'seconds',
  ]
  header += ['MB down', 'MB up', 'published final', 'ours minus it']
  row = ['FedAvg, AdaGrad server at rate 1', '3', '54.8% ± 0.4', '55.1% ± 0.2', '103']
  row += ['87.4', '3,894', '3,894', '66.8%', '-12.0']
  path = tmp_path / 'page.html'
  charts = [Chart('a', {row[0]: _curve(30)})]
  path.write_text(report_page.render('a', [], charts, header, [row]))
  _open(browser, path, width=1200)
  table = 'document.querySelector(".table")'
  assert _js(browser, f'return {table}.scrollWidth <= {table}.clientWidth')


def _luminance(color: str) -> float:
  channels = [int(c) / 255 for c in re.findall(r'\d+', color)[:3]]
  linear = [
    c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
  ]
  return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


def _contrasts(browser: Chrome) -> dict[str, float]:
  """By selector, the lowest contrast of texts (or lines) to the page's background."""
  colors = _js(
    browser,
    """const colors = (selector, property) => [...document.querySelectorAll(selector)]
      .map((element) => getComputedStyle(element)[property]);
    return {
      'background': colors('body', 'backgroundColor'),
      'text': colors('h1, h2, p, th, td, label, button', 'color'),
      'labels': colors('.role-axis-label text, .role-axis-title text', 'fill'),
      'target': colors('.mark-text text', 'fill'),
      'lines': colors('.mark-line path', 'stroke'),
      'keys': colors('.key path', 'stroke'),
    };""",
  )
  assert all(colors.values())
  (background,) = map(_luminance, colors.pop('background'))
  contrasts = {}
  for kind, found in colors.items():
    ratios = [
      (max(background, other) + 0.05) / (min(background, other) + 0.05)
      for other in map(_luminance, found)
    ]
    contrasts[kind] = min(ratios)
  return {'background': background, **contrasts}


def test_light_and_dark_are_readable_and_may_change_at_any_time(browser, tmp_path):
  curves = {f'algorithm {i}': _curve(20) for i in range(8)}
  _open(browser, _write(tmp_path, Chart('loss', curves, target=0.5)), scheme='light')
  light = _contrasts(browser)
  browsers.prefer(browser, 'dark')
  dark = _contrasts(browser)
  assert light['background'] > 0.9 and dark['background'] < 0.05
  for contrasts in (light, dark):
    for kind in ('text', 'labels', 'target'):
      assert contrasts[kind] >= 4.5, kind
    for kind in ('lines', 'keys'):
      assert contrasts[kind] >= 3, kind
  browsers.prefer(browser, 'light')
  assert _contrasts(browser) == light
  _assert_is_silent(browser)


def test_a_single_point_and_one_between_gaps_are_dots(browser, tmp_path):
  values = np.full(100, math.nan)
  values[50] = 0.5
  curves = {
    'single': _curve(1),
    'lonely': _constant(*values),
    'few': _curve(5),
    'long': _curve(100),
    'lost': _constant(math.nan, math.inf),
    'none': _constant(),
  }
  _open(browser, _write(tmp_path, Chart('loss', curves)))
  dots = _js(
    browser,
    """return [...document.querySelectorAll('.mark-symbol path[aria-label]')]
    .map((dot) => dot.getAttribute('aria-label'));""",
  )
  assert sorted(dots) == ['few'] * 5 + ['lonely', 'single']
  assert list(_chips(browser)) == list(curves)
  _point(browser, *_pixel_of(browser, 0, 0.01))
  assert {'single', 'lonely', '–', 'lost'} < set(_tip(browser).splitlines())
  _assert_is_silent(browser)


@pytest.mark.parametrize(
  'charts',
  [
    [],
    [Chart('loss', {})],
    [Chart('loss', {'a': _constant(), 'b': _constant(math.nan)})],
    [Chart('loss', {'a': _constant(0)}), Chart('accuracy', {'a': _constant(1)}, True)],
    [Chart('loss', {'a': _constant(1e-30, 1e30), 'b': _constant(-3, -3)}, False, -5)],
  ],
)
def test_whatever_there_is_to_draw_nothing_fails(browser, tmp_path, charts):
  browsers.open_file(browser, _write(tmp_path, *charts))
  _wait(
    browser,
    lambda: len(browser.find_elements(By.CSS_SELECTOR, '.plot svg')) == len(charts),
  )
  _assert_is_silent(browser)


def test_60_curves_are_drawn_and_told_apart(browser, tmp_path):
  _open(browser, _write(tmp_path, *_many(2, 60, 300)))
  assert [len(lines) for lines in _drawn(browser)] == [60, 60]
  looks = _js(
    browser,
    """return [...document.querySelectorAll('figure:first-child .mark-line path')].map(
      (line) => getComputedStyle(line).stroke + getComputedStyle(line).strokeDasharray);
    """,
  )
  assert len(set(looks)) == 60
  _point(browser, *_pixel_of(browser, 0, 0.5))
  assert len(re.findall(r'algorithm \d+', _tip(browser))) == 60
  _assert_is_silent(browser)
