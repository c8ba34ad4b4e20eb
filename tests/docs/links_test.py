"""Tests that the documents point to what is there."""

import pathlib
import re

import pytest

_ROOT = pathlib.Path(__file__).parents[2]
_DOCUMENTS = sorted([_ROOT / 'README.md', *(_ROOT / 'docs').rglob('*.md')])


@pytest.mark.parametrize('document', _DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document):
  for target in re.findall(r'\]\(([^)#:]*)(#[^)]*)?\)', document.read_text()):
    assert (document.parent / target[0]).exists(), target[0]
