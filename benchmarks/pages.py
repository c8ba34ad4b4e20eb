"""Pages of which a part was measured, and can be measured again."""

from collections.abc import Sequence
import pathlib

_BEGIN, _END = '<!-- measured -->', '<!-- end of what was measured -->'


def renew(path: pathlib.Path, paragraphs: Sequence[str]) -> None:
  """Puts paragraphs in the place of what a page has of former measurements.

  What stands before and after it stays as it is.

  Args:
    path: The page, which is made if it is not there.
    paragraphs: What was measured.
  """
  text = path.read_text() if path.exists() else f'{_BEGIN}\n{_END}\n'
  before, _, rest = text.partition(_BEGIN)
  _, _, after = rest.partition(_END)
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(before + '\n\n'.join([_BEGIN, *paragraphs, _END]) + after)
