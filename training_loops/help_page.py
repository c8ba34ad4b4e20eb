"""The help page: all flags, grouped by section and by the choices they belong to."""

from collections.abc import Mapping, Sequence
import textwrap

from training_loops import options
from training_loops.options import Option, Section

_WIDTH = 88
_COLUMN = 34

_Places = list[tuple[options.Branch, Option]]
_Choices = Mapping[str, Mapping[str, None]]  # The values of each choice, by its name.


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
        lines += _wrapped(f'with {users}:', 2, 4)
        heading = users
      lines += described
  lines += ['', 'And']
  lines += _entry('--helpshort', 'This page, narrowed by whatever was chosen.', 2)
  lines += _entry('--flagfile=PATH', 'Reads flags from a file, one a line.', 2)
  for name, description in lists.items():
    lines += _entry(f'--{name}', description, 2)
  return '\n'.join(lines)


def _grouped(tree: Sequence[Option]) -> list[tuple[str, list[str]]]:
  """For each name of an option: who uses it, and its lines on the page."""
  by_name: dict[str, _Places] = {}
  choices: dict[str, dict[str, None]] = {}
  for branch, option in options.walk(tree):
    by_name.setdefault(option.name, []).append((branch, option))
    choices.setdefault(option.name, {}).update(dict.fromkeys(option.branches))
  groups = []
  for places in by_name.values():
    words = _joined([branch[-1] for branch, _ in places if branch], choices)
    described = _described(places, choices, indent=4 if words else 2)
    groups.append((words, described))
  order = list(dict.fromkeys(words for words, _ in groups))
  return sorted(groups, key=lambda group: order.index(group[0]))


def _described(places: _Places, choices: _Choices, indent: int) -> list[str]:
  option = places[0][1]
  text = option.help
  if len(choices[option.name]) > 1:
    text += f' One of {", ".join(choices[option.name])}.'
  if option.is_repeated:
    text += ' May be given several times.'
  if option.default is options.REQUIRED:
    text += ' Needed.'
  elif option.default is not False:
    text += _defaults(places, choices)
  return _entry(options.spelling(option), text, indent)


def _defaults(places: _Places, choices: _Choices) -> str:
  """The default in brackets, or each with the choices that have it."""
  defaults = dict.fromkeys(str(o.default) for _, o in places if o.default is not None)
  if len(defaults) < 2:
    return ''.join(f' [{default}]' for default in defaults)
  # The innermost choice that tells the defaults apart: where clients are dealt out, the
  # task and not the partitioner.
  for depth in (-1, -2):
    users: dict[str, list[tuple[str, str]]] = {default: [] for default in defaults}
    for branch, option in places:
      if option.default is not None:
        users[str(option.default)].append(branch[max(depth, -len(branch))])
    told_apart = [set(pairs) for pairs in users.values()]
    if sum(map(len, told_apart)) == len(set().union(*told_apart)):
      break
  texts = [f'{default} for {_joined(users[default], choices)}' for default in defaults]
  return f' [{"; ".join(texts)}]'


def _joined(pairs: Sequence[tuple[str, str]], choices: _Choices) -> str:
  """`--a=x, y or --b=z` of pairs (a, x), (a, y), (b, z); most are `any but`."""
  values: dict[str, dict[str, None]] = {}
  for name, value in pairs:
    values.setdefault(name, {})[value] = None
  texts = []
  for name, taken in values.items():
    others = [value for value in choices[name] if value not in taken]
    if len(taken) > 1 and not others:
      texts.append(f'any --{name}')
    elif others and len(taken) > 2 * len(others):
      texts.append(f'any --{name} but {", ".join(others)}')
    else:
      texts.append(f'--{name}={", ".join(taken)}')
  return ' or '.join(texts)


def _wrapped(text: str, indent: int, further: int) -> list[str]:
  return textwrap.wrap(
    text,
    _WIDTH,
    initial_indent=' ' * indent,
    subsequent_indent=' ' * further,
    break_long_words=False,
    break_on_hyphens=False,
  )


def _entry(flag: str, text: str, indent: int) -> list[str]:
  head = ' ' * indent + flag
  wrapped = textwrap.wrap(text, _WIDTH - _COLUMN)
  if len(head) >= _COLUMN:
    return [head, *(' ' * _COLUMN + line for line in wrapped)]
  first, *rest = wrapped
  return [head.ljust(_COLUMN) + first, *(' ' * _COLUMN + line for line in rest)]
