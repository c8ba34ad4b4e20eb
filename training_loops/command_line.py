"""From a command line to the values of a program's options, or to one clear line.

The flags are absl's, in a `FlagValues` of their own: nothing that TensorFlow or TFF
defines gets in between, and several command lines can be read in one process (a
notebook, a sweep).

Importing this module does not import TensorFlow.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import difflib
import os
import signal
import sys
from typing import Any, NoReturn

from absl import flags

from training_loops import help_page, interrupts, options, runtimes
from training_loops.options import Option, Section, UserError

_HELP_FLAGS = ('help', 'helpshort', 'helpfull')


@dataclasses.dataclass(frozen=True)
class Program:
  """A binary and its flags.

  Attributes:
    module: What `python -m` runs.
    summary: What it does, for the top of the help page.
    example: Flags of a typical use.
    sections: The options, as the help page groups them.
    lists: Flags that print a text and do nothing else: a description and the text.
    check: Raises a `UserError` for values that do not go together.
    words: The name of the value that is a list of what is no flag; None refuses such.
    run_options: Where the binary makes runs, the options of each. Those that are given
      are the value of `run_flags`, by name; whether they go together is not checked.
  """

  module: str
  summary: str
  example: str
  sections: Sequence[Section]
  lists: Mapping[str, tuple[str, Callable[[], str]]] = dataclasses.field(
    default_factory=dict
  )
  check: Callable[[Mapping[str, Any]], None] = lambda values: None
  words: str | None = None
  run_options: Sequence[Option] = ()

  @property
  def options(self) -> list[Option]:
    """The options of all sections."""
    return [option for section in self.sections for option in section.options]

  @property
  def name(self) -> str:
    """The last part of the module's name."""
    return self.module.rpartition('.')[2]


def parse(program: Program, arguments: Sequence[str]) -> dict[str, Any]:
  """Reads flags: the value of every option that this command line uses, by name.

  A flag that asks for a text (help, a list) is answered on stdout and exits with 0.

  Args:
    program: The binary.
    arguments: What stands after its name, such as `['--rounds=10']`.

  Raises:
    UserError: If a flag is unknown, obligatory and missing, set but not used, or has
      a value that it does not take, or the program's check refuses them together.
  """
  flag_values = flags.FlagValues()
  for name in (*_HELP_FLAGS, *program.lists):
    flags.DEFINE_boolean(name, False, '', flag_values=flag_values)
  of_runs = {option.name: option for _, option in options.walk(program.run_options)}
  own = {option.name: option for _, option in options.walk(program.options)}
  for option in {**of_runs, **own}.values():
    options.define(option, flag_values)
  flag_values.set_gnu_getopt(True)  # Flags may stand behind words.
  try:
    _, *words = flag_values([program.name, *arguments])
  except flags.UnrecognizedFlagError as error:
    near = difflib.get_close_matches(error.flagname, flag_values, n=3)
    hint = (
      f'did you mean {options.either([f"--{name}" for name in near])}?'
      if near
      else '--helpshort shows all.'
    )
    raise UserError(f'unknown flag --{error.flagname}; {hint}') from None
  except (flags.Error, ValueError) as error:
    # absl's own words, without what it calls them.
    words_of_absl = str(error).removeprefix('ERROR:: ').removeprefix('flag ')
    raise UserError(f'{words_of_absl.rstrip(".")}.') from None
  if words and program.words is None:
    raise UserError(f'unexpected {words[0]!r}: flags are written --name=value.')

  def given_of(names):
    return {n: flag_values[n].value for n in names if flag_values[n].present}

  given = given_of(own)
  if any(flag_values[name].value for name in _HELP_FLAGS):
    usage = f'python -m {program.module} {program.example}'
    lists = {name: description for name, (description, _) in program.lists.items()}
    sections = [
      Section(section.title, options.narrowed(section.options, given))
      for section in program.sections
    ]
    _answer(help_page.render(program.summary, usage, sections, lists))
  for name, (_, text) in program.lists.items():
    if flag_values[name].value:
      _answer(text())

  values = options.used(program.options, given)
  for name in given:
    if name not in values:
      raise UserError(options.refusal(program.options, name, values))
  if program.words:
    values[program.words] = words
  if program.run_options:
    values['run_flags'] = given_of(name for name in of_runs if name not in own)
  program.check(values)
  return values


def _answer(text: str) -> NoReturn:
  print(text)
  sys.exit(0)


def run(program: Program, main: Callable[[dict[str, Any]], None]) -> NoReturn:
  """Runs a binary: parses its flags, calls `main`, exits with the usual codes.

  0: done. 2: the user's mistake, one line on stderr. 1: the machine failed (a full
  disk, a dead worker), one line too; 3: no worker on another machine is left. 130, 143:
  SIGINT, SIGTERM. Anything else that is raised is a bug, and shows its stack trace.
  """
  interrupts.install()
  # TensorFlow's remarks on this machine are not what the user asked for.
  os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '1')
  code = 0
  try:
    main(parse(program, sys.argv[1:]))
    sys.stdout.flush()
  except UserError as error:
    code = _fail(program, 2, error)
  except interrupts.Interrupted as error:
    error.exit()
  except BrokenPipeError:  # `train | head`: as if killed by SIGPIPE.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    code = 128 + signal.SIGPIPE
  except runtimes.RuntimeFailure as error:
    code = _fail(program, error.exit_code, error)
  except OSError as error:
    code = _fail(program, 1, error)
  sys.exit(code)


def _fail(program: Program, code: int, error: Exception) -> int:
  print(f'{program.name}: error: {error}', file=sys.stderr)
  return code
