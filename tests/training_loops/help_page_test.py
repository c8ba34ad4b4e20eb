"""Tests of the help page."""

import re

from training_loops import command_line, help_page, options, train_flags
from training_loops.options import Section, choice, number


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


def test_the_page_of_training_shows_every_flag_once_and_fits_a_terminal():
  program: command_line.Program = train_flags.PROGRAM
  page = help_page.render(program.summary, '', program.sections, {})
  for name in {option.name for _, option in options.walk(program.options)}:
    assert len(re.findall(rf'^ {{2,4}}--{name}=', page, re.MULTILINE)) == 1, name
  assert max(map(len, page.splitlines())) <= 88
