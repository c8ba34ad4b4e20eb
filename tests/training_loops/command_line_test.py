"""Tests of reading command lines."""

import subprocess
import sys

import pytest

from training_loops import command_line, train_flags
from training_loops.options import (
  REQUIRED,
  Section,
  UserError,
  integer,
  path,
  switch,
  text,
)

_NEEDED = ['--task=digits_logistic', '--algorithm=fed_avg', '--output_dir=x']


def _error(*arguments: str) -> str:
  with pytest.raises(UserError) as caught:
    command_line.parse(train_flags.PROGRAM, [*_NEEDED, *arguments])
  return str(caught.value)


@pytest.mark.parametrize(
  ('argument', 'message'),
  [
    ('--rounds=abc', '--rounds=abc: expected a whole number of at least 1.'),
    ('--rounds=0', '--rounds=0: expected a whole number of at least 1.'),
    (
      '--server_learning_rate=-1',
      '--server_learning_rate=-1: expected a number above 0.',
    ),
    (
      '--client_weighting=unifrom',
      '--client_weighting=unifrom: did you mean uniform? known are examples, uniform.',
    ),
    ('--round=3', 'unknown flag --round; did you mean --rounds?'),
    ('--zzz', 'unknown flag --zzz; --helpshort shows all.'),
    ('--rounds', 'Missing value for flag --rounds.'),
    ('rounds=3', "unexpected 'rounds=3': flags are written --name=value."),
    (
      '--fed_prox_rho=1',
      '--fed_prox_rho is not used with --algorithm=fed_avg; '
      'it belongs to --algorithm=fed_prox or scaffold.',
    ),
    (
      '--server_momentum=0.5',
      '--server_momentum is not used with --algorithm=fed_avg --server_optimizer=sgd; '
      'it belongs to --server_optimizer=momentum or base_momentum.',
    ),
  ],
)
def test_a_mistake_is_one_line_that_names_the_flag(argument, message):
  assert _error(argument) == message


def test_a_flag_of_another_algorithm_is_refused_even_at_its_default_value():
  assert 'fed_prox' in _error('--fed_prox_rho=0.1')


def test_a_flagfile_counts_as_if_its_flags_were_given(tmp_path):
  flagfile = tmp_path / 'flags'
  flagfile.write_text('# a comment\n--rounds=7\n--batch_size=3\n')
  values = command_line.parse(
    train_flags.PROGRAM, [*_NEEDED, f'--flagfile={flagfile}', '--rounds=8']
  )
  assert (values['rounds'], values['batch_size']) == (8, 3)


def test_a_flag_in_a_flagfile_that_is_not_used_is_refused(tmp_path):
  flagfile = tmp_path / 'flags'
  flagfile.write_text('--fed_prox_rho=7\n')
  assert '--fed_prox_rho is not used' in _error(f'--flagfile={flagfile}')


def test_a_flagfile_that_is_not_there_is_a_mistake_of_the_user():
  assert '/no/such/file' in _error('--flagfile=/no/such/file')


def test_two_command_lines_do_not_touch_each_other():
  first = command_line.parse(train_flags.PROGRAM, [*_NEEDED, '--rounds=3'])
  second = command_line.parse(train_flags.PROGRAM, _NEEDED)
  assert (first['rounds'], second['rounds']) == (3, 100)


@pytest.mark.parametrize(
  ('argument', 'answer'),
  [
    ('--helpshort', '--client_learning_rate=X'),
    ('--help', '--client_learning_rate=X'),
    ('--list_tasks', 'digits_logistic  '),
    ('--list_algorithms', 'fed_prox     '),
  ],
)
def test_a_question_is_answered_on_stdout_with_exit_code_0(argument, answer, capsys):
  with pytest.raises(SystemExit) as exit_info:
    command_line.parse(train_flags.PROGRAM, [argument])
  assert exit_info.value.code == 0
  assert answer in capsys.readouterr().out


def _program(words=None, run_options=()) -> command_line.Program:
  own = [
    text('title', None, 'What stands above.'),
    text('run', ['none'], 'A run.', is_repeated=True),
    switch('again', 'Tries again.'),
    integer('jobs', 2, 'How many.'),
    path('output_dir', REQUIRED, 'Where.'),
  ]
  return command_line.Program(
    module='some.program',
    summary='What it does.',
    example='a b',
    sections=[Section('Things', own)],
    words=words,
    run_options=run_options,
  )


def _parse(*arguments: str, **keywords) -> dict:
  return command_line.parse(_program(**keywords), [*arguments, '--output_dir=x'])


@pytest.mark.parametrize(
  ('line', 'words', 'title', 'jobs', 'again'),
  [
    ('', [], None, 2, False),
    ('a b', ['a', 'b'], None, 2, False),
    ('--title=t a b', ['a', 'b'], 't', 2, False),
    ('a --title=t b', ['a', 'b'], 't', 2, False),
    ('a b --title t', ['a', 'b'], 't', 2, False),
    ('a --title t b --jobs 3', ['a', 'b'], 't', 3, False),
    ('a --again b', ['a', 'b'], None, 2, True),
    ('a --jobs 3 -- --title=t b', ['a', '--title=t', 'b'], None, 3, False),
  ],
)
def test_words_are_all_that_is_no_flag_wherever_they_stand(
  line, words, title, jobs, again
):
  values = command_line.parse(_program('paths'), ['--output_dir=x', *line.split()])
  assert values == {
    'paths': words,
    'title': title,
    'jobs': jobs,
    'again': again,
    'run': ['none'],
    'output_dir': 'x',
  }


def test_words_are_refused_where_there_are_none():
  with pytest.raises(UserError, match="unexpected 'b': flags are written --name=value"):
    _parse('--title', 'a', 'b')
  assert 'paths' not in _parse('--title', 'a')


def test_a_mistake_behind_words_is_found():
  with pytest.raises(UserError, match='unknown flag --titel; did you mean --title'):
    _parse('a', '--titel', 'b', words='paths')
  with pytest.raises(UserError, match='--jobs=0: expected a whole number'):
    _parse('a', '--jobs', '0', words='paths')


def test_a_repeated_flag_is_a_list_whose_values_may_look_like_flags():
  values = _parse('--run=--algorithm=a', '--run', '--b=c d', '--run=Name: --e')
  assert values['run'] == ['--algorithm=a', '--b=c d', 'Name: --e']
  assert _parse()['run'] == ['none']
  with pytest.raises(UserError, match='--run=: expected a text'):
    _parse('--run=')


def test_a_switch_takes_no_value_and_is_off_by_default():
  assert _parse()['again'] is False
  assert _parse('--again')['again'] is True
  assert _parse('--noagain')['again'] is False
  with pytest.raises(UserError, match='--again=perhaps'):
    _parse('--again=perhaps')


_RUN_OPTIONS = train_flags.PROGRAM.options


def test_the_flags_of_runs_are_a_value_of_their_own_and_only_those_given():
  values = _parse(
    *('--task=digits_logistic', '--rounds', '7', '--jobs=3', '--fed_prox_rho=0.5'),
    run_options=_RUN_OPTIONS,
  )
  # That no algorithm is given, and a flag of one, is for the runs to judge.
  assert values['run_flags'] == {
    'task': 'digits_logistic',
    'rounds': 7,
    'fed_prox_rho': 0.5,
  }
  assert (values['jobs'], values['output_dir']) == (3, 'x')
  assert 'task' not in values
  assert _parse(run_options=_RUN_OPTIONS)['run_flags'] == {}
  assert 'run_flags' not in _parse()


@pytest.mark.parametrize(
  ('argument', 'message'),
  [
    ('--rounds=abc', '--rounds=abc: expected a whole number of at least 1.'),
    ('--round=3', 'unknown flag --round; did you mean --rounds or --run?'),
    ('--task=digit_mlp', '--task=digit_mlp: did you mean digits_mlp'),
  ],
)
def test_a_mistake_in_a_flag_of_runs_is_one_line_that_names_it(argument, message):
  with pytest.raises(UserError) as caught:
    _parse(argument, run_options=_RUN_OPTIONS)
  assert str(caught.value).startswith(message)
  assert '\n' not in str(caught.value)


def test_the_flags_of_runs_and_words_may_be_in_a_flagfile(tmp_path):
  flagfile = tmp_path / 'flags'
  flagfile.write_text('--rounds=7\n--run=a\n--run=b\n')
  values = _parse('--run=c', f'--flagfile={flagfile}', run_options=_RUN_OPTIONS)
  assert values['run_flags'] == {'rounds': 7}
  assert values['run'] == ['c', 'a', 'b']


def test_the_help_page_of_a_binary_that_makes_runs_shows_its_own_flags(capsys):
  program = _program('paths', _RUN_OPTIONS)
  with pytest.raises(SystemExit):
    command_line.parse(program, ['--helpshort'])
  page = capsys.readouterr().out
  assert '  python -m some.program a b\n' in page
  assert '--jobs=N' in page
  assert '--rounds=N' not in page


# What takes a second or more to import, or comes with what does.
_SLOW = {
  *('jax', 'keras', 'matplotlib', 'pandas', 'scipy', 'sklearn'),
  *('tensorflow', 'tensorflow_datasets', 'tensorflow_federated'),
}
_BINARIES = (
  'compare',
  'evaluate',
  'lay_out',
  'report',
  'show_task',
  'sweep',
  'train',
)
_ANSWERS = [
  *(
    (f'training_loops.{name}', [argument], code)
    for name in _BINARIES
    for argument, code in (('--helpshort', 0), ('--oops', 2))
  ),
  ('training_loops.train', ['--list_tasks'], 0),
  ('training_loops.train', ['--list_algorithms'], 0),
  ('training_loops.train', [*_NEEDED, '--rounds=many'], 2),
  ('training_loops.train', [*_NEEDED, '--fed_prox_rho=1'], 2),
  ('training_loops.train', [*_NEEDED, '--task=emnist_cnn', '--data_dir=/no'], 2),
  ('training_loops.evaluate', ['--run=/no'], 2),
  ('training_loops.lay_out', ['--task=emnist_cnn', '--data_dir=/no'], 2),
  ('training_loops.report', ['/no', '--output_dir=x'], 2),
  *(
    (f'experiments.{name}', ['--helpshort'], 0)
    for name in ('demo', 'server_optimizers', 'task_gallery')
  ),
]


@pytest.mark.parametrize(('module', 'arguments', 'code'), _ANSWERS)
def test_an_answer_imports_nothing_slow(module, arguments, code):
  program = f"""
import runpy, sys
sys.argv[1:] = {arguments}
try:
  runpy.run_module({module!r}, run_name='__main__', alter_sys=True)
finally:
  print(sorted({_SLOW} & set(sys.modules)), file=sys.stderr)
"""
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True, timeout=30
  )
  assert (done.returncode, done.stderr.splitlines()[-1]) == (code, '[]'), done.stderr


def _run_main(body: str) -> subprocess.CompletedProcess:
  """Runs a program whose `main` has this body, given one option --n."""
  program = f"""
import os, signal
from training_loops import command_line, options, runtimes
def main(flags):
{body}
command_line.run(command_line.Program(
  'some.program', '', '', [options.Section('', [options.integer('n', 1, '')])]), main)
"""
  return subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True, timeout=30
  )


@pytest.mark.parametrize(
  ('body', 'code', 'stderr'),
  [
    ('  pass', 0, ''),
    ('  raise options.UserError("no.")', 2, 'program: error: no.\n'),
    (
      '  open("/no/such/directory/file", "w")',
      1,
      'program: error: [Errno 2] No such file or directory: '
      "'/no/such/directory/file'\n",
    ),
    ('  raise runtimes.RuntimeFailure("dead.")', 1, 'program: error: dead.\n'),
    ('  os.kill(os.getpid(), signal.SIGTERM)', 143, ''),
    ('  os.kill(os.getpid(), signal.SIGINT)', 130, ''),
  ],
)
def test_every_kind_of_end_has_its_exit_code_and_no_stack_trace(body, code, stderr):
  done = _run_main(body)
  assert (done.returncode, done.stderr) == (code, stderr)


def test_a_bug_shows_its_stack_trace():
  done = _run_main('  raise KeyError("bug")')
  assert done.returncode == 1
  assert 'Traceback' in done.stderr


def test_a_closed_pipe_ends_the_program_quietly():
  program = """
from training_loops import command_line
def main(flags):
  while True:
    print('x' * 1000)
command_line.run(command_line.Program('p', '', '', []), main)
"""
  command = f'{sys.executable} -c "{program}" | head -n 1; exit ${{PIPESTATUS[0]}}'
  done = subprocess.run(
    ['bash', '-c', command], capture_output=True, text=True, timeout=30
  )
  assert (done.returncode, done.stderr) == (141, '')
