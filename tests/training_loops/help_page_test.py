"""Tests of the help page."""

import re
import shlex

import pytest

from training_loops import (
  command_line,
  compare,
  evaluate,
  help_page,
  options,
  report,
  show_task,
  sweep,
  train_flags,
)
from training_loops.options import REQUIRED, Section, choice, number, switch, text


def _page() -> str:
  return help_page.render(
    'What it does.',
    'python -m x --a=b',
    [
      Section(
        'Things',
        [
          choice(
            'kind',
            'plain',
            'Which kind.',
            {
              'plain': [number('rate', 0.1, 'How fast.')],
              'fancy': [number('rate', 0.5, 'How fast.'), number('beta', 0.9, 'b.')],
            },
          )
        ],
      )
    ],
    {'list_things': 'Lists them.'},
  )


def test_the_page_groups_options_by_the_choice_that_uses_them():
  assert (
    _page()
    == """\
What it does.

  python -m x --a=b

Things
  --kind=NAME                     Which kind. One of plain, fancy. [plain]
  with any --kind:
    --rate=X                      How fast. [0.1 for --kind=plain; 0.5 for --kind=fancy]
  with --kind=fancy:
    --beta=X                      b. [0.9]

And
  --helpshort                     This page, narrowed by whatever was chosen.
  --flagfile=PATH                 Reads flags from a file, one a line.
  --list_things                   Lists them."""
  )


def test_the_page_says_what_may_be_repeated_what_is_needed_and_what_is_a_switch():
  things = [
    text('run', REQUIRED, 'A run.', is_repeated=True),
    text('more', None, 'More.', is_repeated=True),
    switch('again', 'Tries again.'),
    switch('once', 'Tries once.'),
  ]
  page = help_page.render('x', 'y', [Section('Things', things)], {})
  assert page.splitlines()[4:9] == [
    'Things',
    '  --run=TEXT                      A run. May be given several times. Needed.',
    '  --more=TEXT                     More. May be given several times.',
    '  --again                         Tries again.',
    '  --once                          Tries once.',
  ]


_PROGRAMS = [
  train_flags.PROGRAM,
  compare.PROGRAM,
  evaluate.PROGRAM,
  report.PROGRAM,
  show_task.PROGRAM,
  sweep.PROGRAM,
]


@pytest.mark.parametrize('program', _PROGRAMS, ids=lambda program: program.name)
def test_the_page_of_a_binary_shows_every_flag_once_and_fits_a_terminal(
  program: command_line.Program, capsys
):
  with pytest.raises(SystemExit):
    command_line.parse(program, ['--helpshort'])
  page = capsys.readouterr().out
  _, _, flags = page.split('\n\n', 2)  # Behind the summary and the example.
  for name in {option.name for _, option in options.walk(program.options)}:
    shown = re.findall(rf'^ {{2,4}}--{name}(?=[= ])', flags, re.MULTILINE)
    assert len(shown) == 1, name
  assert max(map(len, page.splitlines())) <= 88


@pytest.mark.parametrize('program', _PROGRAMS, ids=lambda program: program.name)
def test_the_example_of_a_binary_is_a_command_line_that_it_takes(
  program: command_line.Program,
):
  assert command_line.parse(program, shlex.split(program.example))
