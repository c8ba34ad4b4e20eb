"""Tests of data of one's own."""

import numpy as np
import pytest
import tensorflow as tf

from tasks import own_data
from tasks.federated_data import FederatedData


def test_arrays_are_dealt_out_by_client_in_sorted_order():
  data = own_data.from_arrays(
    ['b', 'a', 'b', 'c', 'a'], x=np.arange(10.0).reshape(5, 2), y=[0, 1, 2, 3, 4]
  )
  assert data.client_ids == ('a', 'b', 'c')
  assert [data.num_examples(client_id) for client_id in 'abc'] == [2, 2, 1]
  assert list(data.rows('b')) == ['x', 'y']
  np.testing.assert_array_equal(data.rows('b')['x'], [[0, 1], [4, 5]])
  np.testing.assert_array_equal(data.rows('a')['y'], [1, 4])


@pytest.mark.parametrize(
  ('ids', 'expected'),
  [
    ([10, 9, 10], ('10', '9')),
    (np.array([10, 9, 10]), ('10', '9')),
    ([('site', 2), ('site', 1), ('site', 2)], ("('site', 1)", "('site', 2)")),
    ([1, 'one', 1], ('1', 'one')),
  ],
)
def test_client_ids_are_anything_that_can_be_printed(ids, expected):
  data = own_data.from_arrays(ids, x=[5.0, 6.0, 7.0], y=[0, 1, 2])
  assert data.client_ids == expected
  assert data.rows(str(ids[0]))['y'].tolist() == [0, 2]


@pytest.mark.parametrize(
  ('given', 'expected'),
  [
    (np.float64, np.float32),
    (np.int64, np.int32),
    (np.uint32, np.int32),
    (np.float32, np.float32),
    (np.int32, np.int32),
    (np.uint8, np.uint8),
  ],
)
def test_arrays_are_of_32_bits_and_otherwise_as_given(given, expected):
  data = own_data.from_arrays(['a'], x=np.array([3], given), y=np.array([3], given))
  for array in data.rows('a').values():
    assert array.dtype == expected
    assert array.tolist() == [3]


@pytest.mark.parametrize(
  ('ids', 'x', 'y', 'message'),
  [
    ('ab', [1.0], [1, 2], "found {'client_ids': 2, 'x': 1, 'y': 2}"),
    ('', [], [], 'no examples'),
    ('a', [1.0], [2**31], 'y has whole numbers beyond 32 bits'),
    ('a', np.array([2**63], np.uint64), [0], 'x has whole numbers beyond 32 bits'),
  ],
)
def test_arrays_that_do_not_match_are_refused(ids, x, y, message):
  with pytest.raises(ValueError, match=message):
    own_data.from_arrays(list(ids), x=x, y=y)


def _csv(directory, text, **options):
  path = directory / 'table.csv'
  path.write_text(text, encoding='utf-8')
  return own_data.from_csv(path, client='hospital', label='outcome', **options)


def test_a_table_has_a_vector_of_features_in_the_order_of_the_columns(tmp_path):
  data = _csv(
    tmp_path, 'age,hospital,outcome,dose\n50,b,1,.5\n\n60,a,0,1e1\n7,b,0,-2\n'
  )
  assert data.client_ids == ('a', 'b')
  rows = data.rows('b')
  assert rows['x'].dtype == np.float32
  np.testing.assert_array_equal(rows['x'], [[50, 0.5], [7, -2]])
  assert rows['y'].dtype == np.int32
  np.testing.assert_array_equal(rows['y'], [1, 0])


def test_features_are_those_asked_for_in_that_order(tmp_path):
  text = 'note,a,b,hospital,outcome\nx,1,2,h,0\n'
  data = _csv(tmp_path, text, features=['b', 'a'])
  np.testing.assert_array_equal(data.rows('h')['x'], [[2, 1]])


@pytest.mark.parametrize(
  ('labels', 'dtype', 'expected'),
  [
    (['2', '0', '7'], np.int32, [2, 0, 7]),
    (['2.0', '0', '-7'], np.int32, [2, 0, -7]),
    (['2', '0.5', '7'], np.float32, [2, 0.5, 7]),
    (['3000000000', '0', '1'], np.float32, [3e9, 0, 1]),
    (['well', 'dead', 'ill'], np.int32, [2, 0, 1]),
    (['well', '10', '9'], np.int32, [2, 0, 1]),
  ],
)
def test_labels_are_classes_or_targets(tmp_path, labels, dtype, expected):
  lines = ''.join(f'h,{label},0\n' for label in labels)
  rows = _csv(tmp_path, f'hospital,outcome,x\n{lines}').rows('h')
  assert rows['y'].dtype == dtype
  np.testing.assert_array_equal(rows['y'], expected)


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    ('hospital,x\na,1\n', "line 1: the column 'outcome' is not there.*hospital, x"),
    ('hospital,outcome,x,x\na,1,2,3\n', "line 1: the column 'x' is there twice"),
    ('hospital,outcome\na,1\n', 'line 1: there are no columns to predict from'),
    ('hospital,outcome,x\na,1,?\n', "line 2, column 'x': '\\?' is not a number"),
    ('hospital,outcome,x\na,1,0\na,b,0\n', "line 3, column 'outcome': 'b' is not a n"),
    ('hospital,outcome,x\na,1,0\n,1,0\n', "line 3, column 'hospital': there is noth"),
    ('hospital,outcome,x\na,b,0\na,,0\n', "line 3, column 'outcome': there is nothi"),
  ],
)
def test_a_broken_table_is_refused_with_file_line_and_column(tmp_path, text, message):
  with pytest.raises(ValueError, match=rf'table\.csv.*{message}'):
    _csv(tmp_path, text)


def test_a_missing_column_among_the_features_is_named(tmp_path):
  with pytest.raises(ValueError, match=r"table\.csv, line 1: the column 'dose'"):
    _csv(tmp_path, 'hospital,outcome,x\na,1,0\n', features=['x', 'dose'])


_RED, _GREY = [255, 0, 0], [51]


def _write_picture(path, pixel, shape=(4, 6)):
  pixels = tf.cast(tf.broadcast_to(pixel, [*shape, len(pixel)]), tf.uint8)
  encode = tf.io.encode_png if path.suffix.lower() == '.png' else tf.io.encode_jpeg
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_bytes(encode(pixels).numpy())


def test_pictures_are_read_by_client_and_label(tmp_path):
  _write_picture(tmp_path / 'zoe' / 'dog' / '1.png', _RED)
  _write_picture(tmp_path / 'zoe' / 'cat' / '2.JPG', _GREY, (9, 3))
  _write_picture(tmp_path / 'adam' / 'dog' / '1.jpeg', _GREY)
  _write_picture(tmp_path / 'adam' / 'bird' / '1.png', _GREY)
  (tmp_path / 'adam' / 'dog' / 'notes.txt').touch()
  (tmp_path / '.hidden').mkdir()
  (tmp_path / 'README').touch()
  data = own_data.from_image_folders(tmp_path, (2, 3))
  assert data.client_ids == ('adam', 'zoe')
  assert data.num_examples('zoe') == 2
  rows = data.rows('zoe')
  # The cat comes first, and the labels are bird, cat and dog.
  assert rows['y'].dtype == np.int32
  np.testing.assert_array_equal(rows['y'], [1, 2])
  assert rows['x'].dtype == np.float32
  grey = np.full([2, 3, 3], 51 / 255, np.float32)
  red = np.broadcast_to(np.array([1, 0, 0], np.float32), [2, 3, 3])
  np.testing.assert_allclose(rows['x'], [grey, red], rtol=1e-6)


def test_pictures_can_be_made_grey(tmp_path):
  _write_picture(tmp_path / 'a' / 'x' / '1.png', _GREY)
  _write_picture(tmp_path / 'a' / 'x' / '2.png', _RED)
  x = own_data.from_image_folders(tmp_path, (4, 6), channels=1).rows('a')['x']
  assert x.shape == (2, 4, 6)
  np.testing.assert_allclose(x[0], 51 / 255, rtol=1e-6)
  assert 0.1 < x[1].min() == x[1].max() < 0.4  # Red is rather dark.
  with pytest.raises(ValueError, match='channels must be 1 or 3, found 4'):
    own_data.from_image_folders(tmp_path, (4, 6), channels=4)


def test_pictures_are_resized_as_a_whole(tmp_path):
  left_is_white = np.zeros([4, 8, 1], np.uint8)
  left_is_white[:, :4] = 255
  path = tmp_path / 'a' / 'x' / '1.png'
  path.parent.mkdir(parents=True)
  path.write_bytes(tf.io.encode_png(left_is_white).numpy())
  (x,) = own_data.from_image_folders(tmp_path, (2, 4), channels=1).rows('a')['x']
  assert x[:, 0].tolist() == [1, 1]
  assert x[:, 3].tolist() == [0, 0]
  assert 0 <= x.min() <= x.max() <= 1


def test_a_broken_picture_is_named_when_its_client_is_asked_for(tmp_path):
  _write_picture(tmp_path / 'a' / 'x' / '1.png', _RED)
  (tmp_path / 'b' / 'x').mkdir(parents=True)
  (tmp_path / 'b' / 'x' / 'bad.png').write_bytes(b'no picture')
  data = own_data.from_image_folders(tmp_path, (4, 4))
  assert data.num_examples('a') == len(data.rows('a')['y'])
  with pytest.raises(ValueError, match=r'b/x/bad\.png cannot be read as a picture'):
    data.rows('b')


def test_folders_without_pictures_are_named(tmp_path):
  with pytest.raises(ValueError, match='gone is not a folder'):
    own_data.from_image_folders(tmp_path / 'gone', (4, 4))
  with pytest.raises(ValueError, match='has no folders'):
    own_data.from_image_folders(tmp_path, (4, 4))
  _write_picture(tmp_path / 'a' / '1.png', _RED)
  with pytest.raises(ValueError, match=r'a has no pictures, where a/<label>/\*\.png'):
    own_data.from_image_folders(tmp_path, (4, 4))


def test_inputs_are_standardized_over_all_training_examples():
  generator = np.random.default_rng(0)
  x = generator.normal([5, -2, 7], [3, 0.1, 0], [40, 3])
  ids = generator.integers(0, 3, 40)
  train = own_data.from_arrays(ids, x=x, y=np.zeros(40, int))
  test = own_data.from_arrays(['t'], x=x[:1], y=[0])
  new_train, new_test = own_data.standardized(train, test)
  new_x = new_train.all_rows()['x']
  assert new_x.dtype == np.float32
  np.testing.assert_allclose(new_x.mean(axis=0), 0, atol=1e-6)
  np.testing.assert_allclose(new_x.std(axis=0), [1, 1, 0], rtol=1e-6)
  expected = (x[0] - x.mean(axis=0))[:2] / x.std(axis=0)[:2]
  np.testing.assert_allclose(new_test.rows('t')['x'][0, :2], expected, rtol=1e-4)
  assert list(new_test.rows('t')) == ['x', 'y']
  assert new_train.num_examples('0') == train.num_examples('0')
  np.testing.assert_allclose(train.all_rows()['x'].mean(), x.mean(), rtol=1e-6)


def _numbered(*sizes):
  """Clients of so many rows, no two alike."""
  ids = np.repeat(np.arange(len(sizes)), sizes)
  numbers = np.arange(sum(sizes))
  return own_data.from_arrays(ids, x=numbers + 0.5, y=numbers)


def test_held_out_rows_and_the_others_are_all_rows():
  data = _numbered(7, 1, 12)
  train, test = own_data.hold_out(data, 0.25, seed=3)
  assert train.client_ids == test.client_ids == data.client_ids
  for client_id in data.client_ids:
    parts = [part.rows(client_id) for part in (train, test)]
    y = np.concatenate([part['y'] for part in parts])
    assert sorted(y) == data.rows(client_id)['y'].tolist()
    np.testing.assert_array_equal(
      np.concatenate([part['x'] for part in parts]), y + 0.5
    )


@pytest.mark.parametrize(
  ('share', 'sizes', 'num_test'),
  [
    (0.2, (1, 2, 3, 7, 8, 100), (0, 0, 1, 1, 2, 20)),
    (0.5, (1, 2, 4), (0, 1, 2)),
    (0.9, (1, 10), (1, 9)),
  ],
)
def test_the_share_held_out_is_rounded(share, sizes, num_test):
  train, test = own_data.hold_out(_numbered(*sizes), share, seed=0)
  for data, expected in (
    (test, num_test),
    (train, [n - t for n, t in zip(sizes, num_test, strict=True)]),
  ):
    counted = [data.num_examples(client_id) for client_id in data.client_ids]
    loaded = [len(data.rows(client_id)['y']) for client_id in data.client_ids]
    assert counted == loaded == list(expected)


def test_the_seed_alone_decides_what_is_held_out():
  def held_out(seed):
    return own_data.hold_out(_numbered(20, 20), 0.5, seed)[1].all_rows()['y'].tolist()

  assert held_out(1) == held_out(1) == held_out(np.int64(1))
  assert held_out(1) == held_out(np.random.SeedSequence(1))
  assert held_out(1) != held_out(2)
  # Clients of the same size are not split alike.
  first, second = np.split(np.array(held_out(1)), 2)
  assert sorted(first) != sorted(second - 20)


def test_holding_out_loads_nothing_but_what_is_asked_for():
  loaded = []

  def load(client_id):
    loaded.append(client_id)
    return {'x': np.arange(10.0), 'y': np.arange(10)}

  data = FederatedData('abc', load, lambda client_id: 10)
  train, test = own_data.hold_out(data, 0.2, seed=0)
  assert [train.num_examples('a'), test.num_examples('a')] == [8, 2]
  assert loaded == []
  test.rows('b')
  assert loaded == ['b']


@pytest.mark.parametrize('share', [0, 1, -0.1, 1.5, float('nan')])
def test_a_share_that_is_none_or_all_is_refused(share):
  with pytest.raises(ValueError, match='share must be above 0 and below 1'):
    own_data.hold_out(_numbered(3), share, seed=0)
