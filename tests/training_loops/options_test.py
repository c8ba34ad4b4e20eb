"""Tests of flags as data."""

from absl import flags
import pytest

from training_loops import options
from training_loops.options import (
  UserError,
  choice,
  integer,
  number,
  path,
  switch,
  text,
)

_TREE = [
  choice(
    'algorithm',
    options.REQUIRED,
    '',
    {
      'plain': [number('rate', 0.1, '', above=0)],
      'fancy': [
        number('rate', 0.5, '', above=0),
        choice(
          'optimizer',
          'sgd',
          '',
          {
            'sgd': [],
            'adam': [number('beta', 0.9, '')],
            'yogi': [number('beta', 0.8, '')],
          },
        ),
      ],
    },
  ),
  integer('rounds', 10, ''),
]


def test_the_options_of_branches_not_taken_have_no_value():
  assert options.used(_TREE, {'algorithm': 'plain', 'beta': 0.3}) == {
    'algorithm': 'plain',
    'rate': 0.1,
    'rounds': 10,
  }


def test_a_default_may_depend_on_the_branch():
  values = options.used(_TREE, {'algorithm': 'fancy', 'optimizer': 'yogi'})
  assert (values['rate'], values['beta']) == (0.5, 0.8)


def test_a_given_value_comes_before_every_default():
  values = options.used(
    _TREE, {'algorithm': 'fancy', 'optimizer': 'adam', 'beta': 0.1, 'rate': 2.0}
  )
  assert (values['rate'], values['beta']) == (2.0, 0.1)


def test_an_obligatory_option_is_asked_for_with_its_names():
  with pytest.raises(UserError, match='--algorithm is needed: one of plain, fancy'):
    options.used(_TREE, {})


@pytest.mark.parametrize(
  ('values', 'message'),
  [
    (
      {'algorithm': 'plain'},
      '--beta is not used with --algorithm=plain; it belongs to --algorithm=fancy.',
    ),
    (
      {'algorithm': 'fancy', 'optimizer': 'sgd'},
      '--beta is not used with --algorithm=fancy --optimizer=sgd; '
      'it belongs to --optimizer=adam or yogi.',
    ),
  ],
)
def test_a_refusal_names_the_nearest_choice_that_uses_the_option(values, message):
  assert options.refusal(_TREE, 'beta', values) == message


@pytest.mark.parametrize(
  ('option', 'argument', 'value'),
  [
    (integer('n', 1, '', at_least=0), '0', 0),
    (number('x', 1, '', above=0), '1e-3', 0.001),
    (number('x', 1, '', at_least=0, below=1), '0', 0.0),
    (path('p', None, ''), 'a b', 'a b'),
    (text('t', None, ''), 'a, b: --c', 'a, b: --c'),
    (switch('s', ''), 'true', True),
    (switch('s', ''), 'false', False),
    (choice('c', 'a', '', {'a': [], 'b': []}), 'b', 'b'),
  ],
)
def test_a_value_within_bounds_is_taken(option, argument, value):
  parsed = option.parser.parse(argument)
  assert parsed == value
  assert type(parsed) is type(value)


@pytest.mark.parametrize(
  ('option', 'argument', 'message'),
  [
    (integer('n', 1, ''), '0', 'a whole number of at least 1'),
    (integer('n', 1, ''), '1.5', 'a whole number of at least 1'),
    (integer('n', 1, ''), '', 'a whole number'),
    (number('x', 1, '', above=0), '0', 'a number above 0'),
    (number('x', 1, '', above=0), 'nan', 'a number above 0'),
    (number('x', 1, '', above=0), 'inf', 'a number above 0'),
    (number('x', 1, ''), 'inf', 'a number'),
    (number('x', 1, '', at_least=0, below=1), '1', 'at least 0 and below 1'),
    (path('p', None, ''), '', 'a path'),
    (text('t', None, ''), '', 'a text'),
    (switch('s', ''), 'perhaps', 'boolean'),
    (choice('c', 'a', '', {'sgd': [], 'adam': []}), 'adm', 'did you mean adam'),
    (choice('c', 'a', '', {'sgd': [], 'adam': []}), 'zzz', '^known are sgd, adam$'),
  ],
)
def test_a_value_out_of_bounds_is_answered_with_what_is_expected(
  option, argument, message
):
  with pytest.raises(ValueError, match=message):
    option.parser.parse(argument)


def test_a_tree_is_narrowed_by_what_is_given():
  tree = [
    choice(
      'kind',
      options.REQUIRED,
      'Which.',
      {'plain': [number('rate', 0.1, 'r')], 'fancy': [number('beta', 0.9, 'b')]},
    ),
    number('size', 1, 's'),
  ]
  kind, size = options.narrowed(tree, {'kind': 'fancy', 'size': 2})
  assert (kind.default, size.default) == ('fancy', 2)
  assert [name for name, _ in kind.branches.items()] == ['fancy']
  assert options.narrowed(tree, {}) == tree


def _parsed(option, *arguments: str):
  flag_values = flags.FlagValues()
  options.define(option, flag_values)
  flag_values(['program', *arguments])
  flag = flag_values[option.name]
  return flag.value if flag.present else 'not given'


def test_a_flag_that_is_not_given_has_no_value_whatever_its_default():
  for option in (
    switch('x', ''),
    text('x', 'a', ''),
    text('x', 'a', '', is_repeated=True),
    integer('x', 3, ''),
  ):
    assert _parsed(option) == 'not given'


@pytest.mark.parametrize(
  ('arguments', 'value'),
  [
    (['--x'], True),
    (['--nox'], False),
    (['--x=true'], True),
    (['--x=false'], False),
    (['--x', '--nox'], False),
    (['--x', 'false'], True),  # Behind a switch stands a word.
  ],
)
def test_a_switch_is_given_without_a_value(arguments, value):
  assert _parsed(switch('x', ''), *arguments) is value


def test_a_switch_is_off_unless_given():
  assert options.used([switch('x', '')], {}) == {'x': False}
  assert options.used([switch('x', '')], {'x': True}) == {'x': True}


def test_what_may_be_repeated_is_a_list_in_the_order_given():
  option = text('x', options.REQUIRED, '', is_repeated=True)
  assert _parsed(option, '--x=b', '--x', 'a, c', '--x=b') == ['b', 'a, c', 'b']
  assert _parsed(option, '--x=b') == ['b']
  with pytest.raises(UserError, match='--x is needed'):
    options.used([option], {})


def test_of_what_may_not_be_repeated_the_last_counts():
  assert _parsed(text('x', None, ''), '--x=b', '--x=a') == 'a'


def test_a_flag_is_spelled_with_the_kind_of_its_value_and_a_switch_without():
  spellings = [
    options.spelling(option)
    for option in (
      integer('a', 1, ''),
      number('b', 1, ''),
      path('c', None, ''),
      text('d', None, ''),
      choice('e', 'x', '', {'x': []}),
      switch('f', ''),
    )
  ]
  assert spellings == ['--a=N', '--b=X', '--c=PATH', '--d=TEXT', '--e=NAME', '--f']
