"""Tests of published numbers beside ours."""

import pytest

from training_loops import published, summaries
from training_loops.options import UserError


def _read(tmp_path, text: str | bytes):
  path = tmp_path / 'numbers.csv'
  path.write_bytes(text if isinstance(text, bytes) else text.encode())
  return published.read(path)


def _refusal(tmp_path, text: str | bytes) -> str:
  with pytest.raises(UserError) as caught:
    _read(tmp_path, text)
  message = str(caught.value)
  assert 'numbers.csv' in message
  assert '\n' not in message
  return message


def _summary(name='a', metric='eval/accuracy', target=None, **numbers):
  values = {'final': [0.5], 'best': [0.5], 'rounds_to_target': [None], **numbers}
  return summaries.Summary(
    name=name,
    metric=metric,
    target=target,
    seconds=1.0,
    bytes_down=1.0,
    bytes_up=1.0,
    remark='',
    **values,
  )


def _check(numbers, *names, metric='eval/accuracy', target=None) -> str:
  with pytest.raises(UserError) as caught:
    published.check(numbers, names, metric, target)
  assert '\n' not in str(caught.value)
  return str(caught.value)


# Reading.


def test_per_cent_and_plain_numbers_are_the_same(tmp_path):
  numbers = _read(tmp_path, 'name,final,best,rounds\na,91.25%,0.9125,320\n')
  assert numbers['a']['final'] == pytest.approx(0.9125)
  assert numbers['a']['best'] == 0.9125
  assert numbers['a']['rounds'] == 320


def test_what_was_not_published_is_left_blank(tmp_path):
  text = 'name,final,best,rounds\na,,0.5,\nb, , ,7\nc\nd,,,\n'
  expected = {'a': {'best': 0.5}, 'b': {'rounds': 7}, 'c': {}, 'd': {}}
  assert _read(tmp_path, text) == expected


def test_blanks_around_names_headings_and_numbers_do_not_count(tmp_path):
  text = ' name , best ,rounds\n  FedAvg , 50 % , 7 \n\n'
  assert _read(tmp_path, text) == {'FedAvg': {'best': 0.5, 'rounds': 7}}


def test_the_mark_that_spreadsheets_begin_a_file_with_does_not_count(tmp_path):
  text = b'\xef\xbb\xbfname,best\r\na,0.5\r\n'
  assert _read(tmp_path, text) == {'a': {'best': 0.5}}


def test_further_columns_are_for_the_reader_of_the_file(tmp_path):
  text = 'source,name,best,remark\n"Table 2, page 5",a,0.5,not a number\n'
  assert _read(tmp_path, text) == {'a': {'best': 0.5}}


def test_a_name_with_a_comma_is_quoted(tmp_path):
  text = 'name,best\n"fed_avg, batch_size=3",0.5\n'
  assert _read(tmp_path, text) == {'fed_avg, batch_size=3': {'best': 0.5}}


def test_a_heading_without_names_is_refused(tmp_path):
  message = _refusal(tmp_path, 'algorithm,best\na,0.5\n')
  assert 'columns name and one at least of final, best, rounds' in message
  assert 'it has algorithm, best.' in message


def test_a_heading_without_numbers_is_refused(tmp_path):
  assert 'it has name, source.' in _refusal(tmp_path, 'name,source\na,x\n')
  assert 'it has name;best.' in _refusal(tmp_path, 'name;best\na;0.5\n')


def test_an_empty_file_is_refused(tmp_path):
  assert 'it has none.' in _refusal(tmp_path, '')


@pytest.mark.parametrize('text', ['about 0.5', 'nan', 'inf', '%', '50%%', '0,5'])
def test_a_text_that_is_no_number_is_refused_with_where_it_stands(tmp_path, text):
  message = _refusal(tmp_path, f'name,best\nFedAvg,"{text}"\n')
  assert f'the best of FedAvg is {text!r}, not a number' in message


def test_two_rows_of_one_name_are_refused(tmp_path):
  assert 'two rows a' in _refusal(tmp_path, 'name,best\na,0.5\nb,0.5\na,0.6\n')


def test_numbers_without_a_name_are_refused(tmp_path):
  assert 'no name' in _refusal(tmp_path, 'name,best\n,0.5\n')


def test_a_file_that_cannot_be_read_is_refused(tmp_path):
  with pytest.raises(UserError, match=r'cannot be read.*No such file'):
    published.read(tmp_path / 'no')
  with pytest.raises(UserError, match='cannot be read'):
    published.read(tmp_path)
  assert 'cannot be read' in _refusal(tmp_path, b'name,best\n\xff,0.5\n')


# Checking.


def test_numbers_that_all_stand_beside_ours_are_accepted():
  numbers = {'a': {'final': 0.5, 'best': 1.0, 'rounds': 320.0}, 'b': {}}
  published.check(numbers, ['a', 'b', 'c'], 'eval/accuracy', 0.5)


def test_a_name_that_no_run_has_is_refused_with_those_that_there_are():
  message = _check({'FedAgv': {'best': 0.5}}, 'FedAvg', 'FedProx')
  assert 'FedAgv' in message
  assert 'FedAvg' in message and 'FedProx' in message


def test_rounds_need_a_target():
  message = _check({'a': {'rounds': 320.0}}, 'a')
  assert '--target' in message


@pytest.mark.parametrize('column', ['final', 'best'])
def test_a_share_above_1_is_refused_with_how_to_write_it(column):
  message = _check({'a': {column: 91.2}}, 'a')
  assert f'the published {column} of a is 91.2' in message
  assert '0.912 or 91.2%' in message


def test_what_is_no_share_may_be_above_1_and_so_may_rounds():
  published.check({'a': {'best': 91.2}}, ['a'], 'eval/loss', None)
  published.check({'a': {'rounds': 91.2}}, ['a'], 'eval/accuracy', 0.5)


def test_before_there_are_runs_the_metric_is_taken_for_the_accuracy():
  assert 'name another --metric' in _check({'a': {'best': 91.2}}, 'a', metric=None)


# Columns.


def test_each_number_stands_beside_ours_minus_it():
  ours = _summary(final=[0.50, 0.60], best=[0.75])
  header, rows = published.columns({'a': {'final': 0.5, 'best': 0.8}}, [ours])
  difference = 'ours minus it'
  assert header == ['published final', difference, 'published best', difference]
  # (50 + 60) / 2 - 50 = 5 and 75 - 80 = -5, in per cent.
  assert rows == [['50.0%', '+5.0', '80.0%', '-5.0']]


def test_a_metric_that_is_no_share_is_shown_as_it_is():
  ours = _summary(metric='eval/loss', best=[1.5, 2.5])
  _, rows = published.columns({'a': {'best': 1.75}}, [ours])
  assert rows == [['1.75', '+0.25']]


def test_rounds_are_compared_with_those_of_the_seeds_that_reached_the_target():
  numbers = {'a': {'rounds': 320.0}}
  for reached, difference in (
    ([300, 320], '-10'),
    ([330, None], '+10'),
    ([None, None], 'never'),
  ):
    ours = _summary(target=0.5, rounds_to_target=reached)
    header, rows = published.columns(numbers, [ours])
    assert header == ['published rounds', 'ours minus it']
    assert rows == [['320', difference]]


def test_rows_are_ours_and_blank_where_nothing_was_published():
  numbers = {'c': {'rounds': 3.0}, 'a': {'best': 0.5}}
  ours = [_summary(name, target=0.5, rounds_to_target=[3]) for name in 'abc']
  header, rows = published.columns(numbers, ours)
  assert header[::2] == ['published best', 'published rounds']
  assert rows[0] == ['50.0%', '+0.0', '', '']
  assert rows[1] == ['', '', '', '']
  assert rows[2] == ['', '', '3', '+0']
