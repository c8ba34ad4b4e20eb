"""Tests of pages with a part that was measured."""

from benchmarks import pages


def test_what_stands_around_the_measured_part_stays_as_it_is(tmp_path):
  page = tmp_path / 'page.md'
  begin, end = (
    '# Title\n\n<!-- measured -->',
    '<!-- end of what was measured -->\nThe end.',
  )
  page.write_text(f'{begin}\nformer\n{end}')
  for paragraphs in (['one', 'two'], ['three']):
    pages.renew(page, paragraphs)
    assert page.read_text() == '\n\n'.join([begin, *paragraphs, end])


def test_a_page_that_is_not_there_is_made(tmp_path):
  page = tmp_path / 'new' / 'page.md'
  pages.renew(page, ['measured'])
  assert 'measured' in page.read_text().splitlines()


def test_a_page_without_markers_keeps_all_it_has(tmp_path):
  page = tmp_path / 'page.md'
  page.write_text('# Title\n')
  for paragraph in ('first', 'second'):
    pages.renew(page, [paragraph])
  assert page.read_text().startswith('# Title\n')
  assert 'first' not in page.read_text()
  assert 'second' in page.read_text()
