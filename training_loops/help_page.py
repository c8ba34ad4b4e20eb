"""The help page: all flags, grouped by section and by the choices they belong to."""

from collections.abc import Mapping, Sequence
import textwrap

from training_loops import options
from training_loops.options import Option, Section

_WIDTH = 88
_COLUMN = 34


def render(
  summary: str, usage: str, sections: Sequence[Section], lists: Mapping[str, str]
) -> str:
  """The page as text.

  Args:
    summary: What the program does.
    usage: A command line.
    sections: The program's options.
    lists: Further flags without a value, with their descriptions.
  """
  lines = textwrap.wrap(summary, _WIDTH)
  wrapped = textwrap.wrap(usage, _WIDTH - 6)
  lines += ['', *textwrap.indent(' \\\n  '.join(wrapped), '  ').split('\n')]
  for section in sections:
    lines += ['', section.title]
    heading = ''
    for users, described in _grouped(section.options):
      if users != heading:
        lines.append(f'  with {users}:')
        heading = users
      lines += described
  lines += ['', 'And']
  lines += _entry('--flagfile=PATH', 'Reads flags from a file, one a line.', 2)
  for name, description in lists.items():
    lines += _entry(f'--{name}', description, 2)
  return '\n'.join(lines)


def _grouped(tree: Sequence[Option]) -> list[tuple[str, list[str]]]:
  """For each name of an option: who uses it, and its lines on the page."""
  by_name: dict[str, list[tuple[options.Branch, Option]]] = {}
  choices = {}
  for branch, option in options.walk(tree):
    by_name.setdefault(option.name, []).append((branch, option))
    choices[option.name] = option.branches
  groups = []
  for places in by_name.values():
    pairs = [branch[-1] for branch, _ in places if branch]
    users = {name for name, _ in pairs}
    everyone = [
      (name, value) for name in choices if name in users for value in choices[name]
    ]
    if len(everyone) > len(users) and set(pairs) == set(everyone):
      words = ' or '.join(f'any --{name}' for name in choices if name in users)
    else:
      words = _joined(pairs)
    groups.append((words, _described(places, indent=4 if words else 2)))
  order = list(dict.fromkeys(words for words, _ in groups))
  return sorted(groups, key=lambda group: order.index(group[0]))


def _described(places: list[tuple[options.Branch, Option]], indent: int) -> list[str]:
  option = places[0][1]
  text = option.help
  if option.branches:
    text += f' One of {", ".join(option.branches)}.'
  if option.default is options.REQUIRED:
    text += ' Needed.'
  else:
    text += _defaults(places)
  return _entry(f'--{option.name}={option.parser.kind}', text, indent)


def _defaults(places: list[tuple[options.Branch, Option]]) -> str:
  """The default in brackets, or each with the choices that have it."""
  users: dict[str, list[tuple[str, str]]] = {}
  for branch, option in places:
    if option.default is not None:
      users.setdefault(str(option.default), []).extend(branch[-1:])
  if len(users) == 1:
    return f' [{next(iter(users))}]'
  texts = [f'{default} for {_joined(pairs)}' for default, pairs in users.items()]
  return f' [{"; ".join(texts)}]' if texts else ''


def _joined(pairs: Sequence[tuple[str, str]]) -> str:
  """`--a=x,y or --b=z` of pairs (a, x), (a, y), (b, z)."""
  values: dict[str, dict[str, None]] = {}
  for name, value in pairs:
    values.setdefault(name, {})[value] = None
  return ' or '.join(f'--{name}={",".join(names)}' for name, names in values.items())


def _entry(flag: str, text: str, indent: int) -> list[str]:
  head = ' ' * indent + flag
  wrapped = textwrap.wrap(text, _WIDTH - _COLUMN)
  if len(head) >= _COLUMN:
    return [head, *(' ' * _COLUMN + line for line in wrapped)]
  first, *rest = wrapped
  return [head.ljust(_COLUMN) + first, *(' ' * _COLUMN + line for line in rest)]
