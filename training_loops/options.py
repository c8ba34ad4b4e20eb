"""Flags as data: what each is called, accepts, defaults to, and who uses it.

An option is an absl flag. A choice between names (a task, an algorithm, an optimizer)
says for each name which further options it brings, so the options of a binary form a
tree. Whatever lies on branches not taken is not used by that command line, and
setting it there is refused; one name may lie on several branches, with a default on
each.

Importing this module does not import TensorFlow.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import difflib
import math
from typing import Any

from absl import flags

_MAX_INTEGER = 2**31 - 1

# A default of this kind makes the flag obligatory.
REQUIRED = object()


class UserError(Exception):
  """Something that the user can mend: shown as one line, without a stack trace."""


@dataclasses.dataclass(frozen=True)
class Option:
  """One flag, where it is used.

  Attributes:
    name: The flag's name.
    default: Its value where it is not given, None, or `REQUIRED`.
    help: One sentence.
    parser: Text -> value; raises ValueError.
    branches: For a choice, the options that each name brings along.
    is_free: Whether a run may be continued with another value.
    is_repeated: Whether it may be given several times; its value is then a list.
  """

  name: str
  default: Any
  help: str
  parser: flags.ArgumentParser
  branches: Mapping[str, Sequence['Option']] = dataclasses.field(default_factory=dict)
  is_free: bool = False
  is_repeated: bool = False


@dataclasses.dataclass(frozen=True)
class Section:
  """A titled group of options on the help page."""

  title: str
  options: Sequence[Option]


class _Parser(flags.ArgumentParser):
  """A converter with its range, and words for both."""

  def __init__(
    self,
    convert: Callable[[str], Any],
    accepts: Callable[[Any], bool],
    kind: str,
    expected: str,
  ):
    self._convert, self._accepts, self._expected = convert, accepts, expected
    self.kind = kind

  def parse(self, argument: str) -> Any:
    try:
      value = self._convert(argument)
    except (TypeError, ValueError):
      raise ValueError(f'expected {self._expected}') from None
    if not self._accepts(value):
      raise ValueError(f'expected {self._expected}')
    return value


class _NameParser(flags.ArgumentParser):
  """One of several names; a wrong one is answered with the nearest."""

  def __init__(self, names: Sequence[str], check_dotted: Callable[[str], None] | None):
    self.names = tuple(names)
    self.kind = 'NAME'
    self._check_dotted = check_dotted

  def parse(self, argument: str) -> Any:
    if argument in self.names:
      return argument
    if self._check_dotted and '.' in argument:
      self._check_dotted(argument)
      return argument
    near = difflib.get_close_matches(argument, self.names, n=3, cutoff=0.5)
    hint = f'did you mean {" or ".join(near)}? ' if near else ''
    raise ValueError(f'{hint}known are {", ".join(self.names)}')


def integer(
  name: str, default: Any, help_text: str, *, at_least: int = 1, is_free: bool = False
) -> Option:
  """A whole number from `at_least` up, that TensorFlow can hold in 32 bits."""
  expected = f'a whole number of at least {at_least}'

  def accepts(value):
    if value > _MAX_INTEGER:
      raise ValueError(f'expected a whole number of at most {_MAX_INTEGER}')
    return value >= at_least

  parser = _Parser(int, accepts, 'N', expected)
  return Option(name, default, help_text, parser, is_free=is_free)


def number(
  name: str,
  default: Any,
  help_text: str,
  *,
  at_least: float = -math.inf,
  above: float = -math.inf,
  below: float = math.inf,
  at_most: float = math.inf,
) -> Option:
  """A finite number within bounds."""
  bounds = [
    f'{words} {bound:g}'
    for words, bound in (
      ('at least', at_least),
      ('above', above),
      ('below', below),
      ('at most', at_most),
    )
    if math.isfinite(bound)
  ]
  expected = ' '.join(['a number', ' and '.join(bounds)]).strip()

  def accepts(value):
    inside = at_least <= value <= at_most and above < value < below
    return math.isfinite(value) and inside

  return Option(name, default, help_text, _Parser(float, accepts, 'X', expected))


def choice(
  name: str,
  default: Any,
  help_text: str,
  branches: Mapping[str, Sequence[Option]],
  check_dotted: Callable[[str], None] | None = None,
) -> Option:
  """One of the branches' names, bringing that branch's options along.

  Args:
    name: The flag's name.
    default: Its value where it is not given.
    help_text: One sentence.
    branches: The options that each name brings along.
    check_dotted: Where names with a dot in them are taken too: raises ValueError for
      those that are not.
  """
  parser = _NameParser(tuple(branches), check_dotted)
  return Option(name, default, help_text, parser, branches)


def path(name: str, default: Any, help_text: str, *, is_free: bool = False) -> Option:
  """A file or directory; an empty one is refused."""
  parser = _Parser(str, lambda value: value != '', 'PATH', 'a path')
  return Option(name, default, help_text, parser, is_free=is_free)


def text(
  name: str,
  default: Any,
  help_text: str,
  *,
  is_free: bool = False,
  is_repeated: bool = False,
) -> Option:
  """Any text but an empty one."""
  parser = _Parser(str, lambda value: value != '', 'TEXT', 'a text')
  return Option(
    name, default, help_text, parser, is_free=is_free, is_repeated=is_repeated
  )


def switch(name: str, help_text: str) -> Option:
  """Off unless given, and given without a value."""
  return Option(name, False, help_text, flags.BooleanParser())


def define(option: Option, flag_values: flags.FlagValues) -> None:
  """Makes the option a flag, unset as yet."""
  name, sentence = option.name, option.help
  if isinstance(option.parser, flags.BooleanParser):
    flags.DEFINE_boolean(name, None, sentence, flag_values=flag_values)
  elif option.is_repeated:
    serializer = flags.ArgumentSerializer()
    flags.DEFINE_multi(option.parser, serializer, name, None, sentence, flag_values)
  else:
    flags.DEFINE(option.parser, name, None, sentence, flag_values)


def spelling(option: Option) -> str:
  """The flag as the help page writes it."""
  kind = getattr(option.parser, 'kind', '')
  return f'--{option.name}={kind}' if kind else f'--{option.name}'


# The names and values of the choices that lead to an option, outermost first.
Branch = tuple[tuple[str, str], ...]


def walk(
  options: Sequence[Option], branch: Branch = ()
) -> Iterator[tuple[Branch, Option]]:
  """All options on all branches, each with where it lies, parents first."""
  for option in options:
    yield branch, option
    for value, brought in option.branches.items():
      yield from walk(brought, (*branch, (option.name, value)))


def narrowed(options: Sequence[Option], given: Mapping[str, Any]) -> list[Option]:
  """The tree with only those branches that the choices made so far leave open.

  What is given is the default.
  """
  return [
    dataclasses.replace(
      option,
      default=given.get(option.name, option.default),
      branches={
        value: narrowed(brought, given)
        for value, brought in option.branches.items()
        if given.get(option.name) in (None, value)
      },
    )
    for option in options
  ]


def used(options: Sequence[Option], given: Mapping[str, Any]) -> dict[str, Any]:
  """The values of the options on the branches taken, defaults included.

  Args:
    options: The tree.
    given: The values that were set, by name; others may be among them.

  Raises:
    UserError: If an obligatory option was not set.
  """
  values: dict[str, Any] = {}
  for option in options:
    value = given.get(option.name, option.default)
    if value is REQUIRED:
      known = f': one of {", ".join(option.branches)}' if option.branches else ''
      raise UserError(f'--{option.name} is needed{known}.')
    values[option.name] = value
    if option.branches:
      values.update(used(option.branches.get(value, ()), given))
  return values


def refusal(options: Sequence[Option], name: str, values: Mapping[str, Any]) -> str:
  """Says why the option of that name is not among the values that are used.

  Args:
    options: The tree; the name is on one of its branches.
    name: The option that was set and is not used.
    values: The values that are used.
  """
  branches = [branch for branch, option in walk(options) if option.name == name]

  def taken(branch):  # How many of the branch's choices were made that way.
    made = [values.get(choice_name) == value for choice_name, value in branch]
    return made.index(False)

  depth = max(map(taken, branches))
  nearest = [branch for branch in branches if taken(branch) == depth]
  context, where = nearest[0][:depth], nearest[0][depth][0]
  users = dict.fromkeys(
    branch[depth][1]
    for branch in nearest
    if branch[:depth] == context and branch[depth][0] == where
  )
  chosen = ' '.join(
    f'--{choice_name}={values[choice_name]}'
    for choice_name in (*(name for name, _ in context), where)
  )
  return (
    f'--{name} is not used with {chosen}; '
    f'it belongs to --{where}={either(tuple(users))}.'
  )


def either(names: Sequence[str]) -> str:
  """`a`, `a or b`, `a, b or c`."""
  *head, last = names
  return f'{", ".join(head)} or {last}' if head else last
