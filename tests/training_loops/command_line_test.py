"""Tests of reading command lines."""

import subprocess
import sys

import pytest

from training_loops import command_line, train_flags
from training_loops.options import UserError

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
      '--client_learning_rate=-1',
      '--client_learning_rate=-1: expected a number above 0.',
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
      'it belongs to --algorithm=fed_prox.',
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
  ('argument', 'text'),
  [
    ('--helpshort', '--client_learning_rate=X'),
    ('--help', '--client_learning_rate=X'),
    ('--list_tasks', 'digits_logistic  '),
    ('--list_algorithms', 'fed_prox     '),
  ],
)
def test_a_question_is_answered_on_stdout_with_exit_code_0(argument, text, capsys):
  with pytest.raises(SystemExit) as exit_info:
    command_line.parse(train_flags.PROGRAM, [argument])
  assert exit_info.value.code == 0
  assert text in capsys.readouterr().out


@pytest.mark.parametrize('arguments', [['--helpshort'], ['--list_tasks'], ['--oops']])
def test_an_answer_needs_no_tensorflow(arguments):
  program = f"""
import sys
sys.argv[1:] = {arguments}
from training_loops import command_line, train
try:
  command_line.run(train.train_flags.PROGRAM, train.main)
finally:
  print([name for name in sys.modules if 'tensorflow' in name], file=sys.stderr)
"""
  done = subprocess.run(
    [sys.executable, '-c', program], capture_output=True, text=True, timeout=30
  )
  assert done.stderr.splitlines()[-1] == '[]'


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
