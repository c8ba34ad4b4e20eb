"""Tests of the states of clients on disk."""

import collections
import contextlib
import functools
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple

import hypothesis
from hypothesis import stateful
from hypothesis import strategies as st
import numpy as np
import pytest
import tree

from tff_algorithms.client_states import ClientState
from training_loops import client_state_store
from training_loops.client_state_store import ClientStateStore
from training_loops.options import UserError

_FIRST = {'n': np.int64(0), 'x': np.zeros([3, 2], np.float32)}
_MADE_FOR = {'algorithm': 'scaffold', 'task': 'digits_logistic'}


def _store(path: pathlib.Path, first: Any = None, **made_for) -> ClientStateStore:
  first = _FIRST if first is None else first
  return ClientStateStore(path, first, {**_MADE_FOR, **made_for})


def _state(value: float, size: int | None = None) -> dict[str, Any]:
  """A state like the first, or like `_wide_first`, that is told apart by its value."""
  shape = (3, 2) if size is None else (size,)
  return {'n': np.int64(2**40 + int(value)), 'x': np.full(shape, value, np.float32)}


def _wide_first(size: int) -> dict[str, Any]:
  return {'n': np.int64(0), 'x': np.zeros([size], np.float32)}


def _write(store: ClientStateStore, values: dict[str, float], size=None) -> None:
  store.write([ClientState(c.encode(), _state(v, size)) for c, v in values.items()])


def _read(store: ClientStateStore, client_ids) -> dict[str, float]:
  """Values by client; 0 for a client that was never seen."""
  found = {}
  for client_id, state in store.read(list(client_ids)):
    assert state['n'] == (2**40 + int(state['x'].flat[0]) if state['n'] else 0)
    assert (state['x'] == state['x'].flat[0]).all()
    found[client_id.decode()] = float(state['x'].flat[0])
  return found


def _assert_same(a, b):
  tree.assert_same_structure(a, b)
  for x, y in zip(tree.flatten(a), tree.flatten(b), strict=True):
    x, y = np.asarray(x), np.asarray(y)
    assert (x.dtype, x.shape, x.tobytes()) == (y.dtype, y.shape, y.tobytes())


def _data(path: pathlib.Path) -> pathlib.Path:
  """The file of slots beside that of SQLite."""
  return path.with_suffix('.data')


def _contents(path: pathlib.Path) -> tuple[bytes, bytes]:
  return path.read_bytes(), _data(path).read_bytes()


def _are_alone(path: pathlib.Path) -> bool:
  """Whether nothing is beside the two files."""
  return set(path.parent.iterdir()) == {path, _data(path)}


def _put_back(path: pathlib.Path, contents: tuple[bytes, bytes]) -> None:
  path.write_bytes(contents[0])
  _data(path).write_bytes(contents[1])


class _SmallPages(sqlite3.Connection):
  """Hardly any page is in memory, so that they are on disk before a commit."""

  page_bytes = 512

  def __init__(self, *arguments, **options):
    super().__init__(*arguments, **options)
    super().execute(f'PRAGMA page_size = {self.page_bytes}')
    super().execute('PRAGMA cache_size = -1')


def _with_small_pages(patch: pytest.MonkeyPatch) -> None:
  connect = functools.partial(sqlite3.connect, factory=_SmallPages)
  patch.setattr(client_state_store.sqlite3, 'connect', connect)


def _num_rows(path: pathlib.Path) -> int:
  connection = sqlite3.connect(path)
  try:
    return connection.execute('SELECT count(*) FROM states').fetchone()[0]
  finally:
    connection.close()


@pytest.fixture
def path(tmp_path):
  return tmp_path / 'run' / 'client_states.sqlite'


@pytest.fixture
def opened(path):
  """Opens the file at a round; closed at the end of the test."""
  stores = []
  path.parent.mkdir()

  def open_at(round_num, record, **options):
    store = _store(path, **options)
    stores.append(store)
    store.restore(round_num, record)
    return store

  yield open_at
  for store in stores:
    store.close()


def _committed(path: pathlib.Path, size=None) -> tuple[dict, dict]:
  """A file of rounds 2 and 4, closed; the records of both."""
  path.parent.mkdir(exist_ok=True)
  store = _store(path, None if size is None else _wide_first(size))
  store.restore(0, None)
  _write(store, {f'c{i}': 1 + i for i in range(6)}, size)
  before = store.commit(2)
  _write(store, {f'c{i}': 101 + i for i in range(3, 9)}, size)
  record = store.commit(4)
  store.close()
  return before, record


_AFTER_2 = {f'c{i}': 1.0 + i for i in range(6)} | {f'c{i}': 0.0 for i in range(6, 9)}
_AFTER_4 = _AFTER_2 | {f'c{i}': 101.0 + i for i in range(3, 9)}


# What is kept.


class _Nested(NamedTuple):
  a: Any
  b: Any


def test_any_structure_comes_back_bit_by_bit_also_after_reopening(opened):
  first = _Nested(
    a=[np.zeros([2, 3], np.float32), (np.float64(0), np.zeros([0, 4]))],
    b=collections.OrderedDict(z=np.zeros([2], bool), k=np.uint8(0), e=()),
  )
  special = np.array([[np.nan, -0.0, np.inf], [1e-45, -1, 2]], np.float32)
  state = _Nested(
    a=[special, (np.float64(0.1), np.zeros([0, 4]))],
    b=collections.OrderedDict(z=np.array([True, False]), k=np.uint8(255), e=()),
  )
  store = opened(0, None, first=first)
  store.write([ClientState(b'c', state)])
  _assert_same(store.read(['c'])[0].value, state)
  record = store.commit(1)
  store.close()
  store = opened(1, record, first=first)
  _assert_same(store.read(['c'])[0].value, state)
  _assert_same(store.read(['d'])[0].value, first)


@pytest.mark.parametrize(
  'first', [(), {'x': np.zeros([0], np.float32)}, np.float32(0), [np.zeros([2, 0, 3])]]
)
def test_states_without_any_number_and_single_ones_are_kept_too(opened, first):
  store = opened(0, None, first=first)
  store.write([ClientState(b'c', first)])
  _assert_same(store.read(['c'])[0].value, first)
  assert store.commit(1)['num_clients'] == 1


def test_an_array_is_kept_by_its_numbers_not_by_how_they_lie_in_memory(opened):
  value = np.arange(6, dtype=np.float32).reshape(2, 3)
  for x in (np.asfortranarray(value.T), value.T, np.repeat(value, 2, axis=0)[::2].T):
    store = opened(0, None)
    store.write([ClientState(b'c', {'n': np.int64(1), 'x': x})])
    assert (store.read(['c'])[0].value['x'] == value.T).all()
    store.close()


def test_numbers_in_another_byte_order_are_refused_or_kept_as_the_numbers_they_are(
  opened,
):
  x = np.arange(6, dtype='>f4').reshape(3, 2)
  store = opened(0, None)
  with contextlib.suppress(ValueError):
    store.write([ClientState(b'c', {'n': np.int64(1), 'x': x})])
    assert (store.read(['c'])[0].value['x'] == x).all()


_IDS = ['', ' ', 'a', 'A', 'a ', 'a\0', 'a\0b', 'é', 'e\u0301', '客户', '🙂', '%_']
_IDS += ["';--", '1', '01', '1.0', 'x' * 10_000, '\ufeffa', '\n', 'NULL', '\U0010ffff']


def test_a_client_is_told_by_every_character_of_its_id(opened):
  expected = {c: 1.0 + i for i, c in enumerate(_IDS)}
  store = opened(0, None)
  _write(store, expected)
  assert _read(store, _IDS) == expected
  record = store.commit(1)
  assert record['num_clients'] == len(_IDS)
  store.close()
  store = opened(1, record)
  assert _read(store, reversed(_IDS)) == expected
  assert [state.client_id.decode() for state in store.read(_IDS)] == _IDS


def test_a_client_never_seen_gets_the_first_state_and_is_not_stored(opened, path):
  store = opened(0, None)
  _write(store, {'a': 7})
  assert _read(store, ['b', 'a', 'c']) == {'b': 0, 'a': 7, 'c': 0}
  assert store.commit(1)['num_clients'] == 1
  store.close()
  assert _num_rows(path) == 1


def test_a_client_that_keeps_zeros_is_not_one_never_seen(opened):
  store = opened(0, None)
  store.write([ClientState(b'a', _FIRST)])
  assert store.commit(1)['num_clients'] == 1


def test_the_last_state_written_is_the_one_read(opened):
  store = opened(0, None)
  for value in (1, 2, 3):
    _write(store, {'a': value, f'b{value}': value})
    if value == 2:
      store.commit(2)
  assert _read(store, ['a', 'b1', 'b2', 'b3']) == {'a': 3, 'b1': 1, 'b2': 2, 'b3': 3}


def test_a_client_twice_in_a_cohort_is_refused_and_nothing_is_written(opened):
  store = opened(0, None)
  _write(store, {'a': 1})
  with pytest.raises(ValueError, match='Client a is twice'):
    store.read(['a', 'b', 'a'])
  states = [ClientState(c, _state(9)) for c in (b'b', b'a', b'a')]
  with pytest.raises(ValueError, match='Client a is twice'):
    store.write(states)
  assert _read(store, ['a', 'b']) == {'a': 1, 'b': 0}


@pytest.mark.parametrize(
  'value',
  [
    {'n': np.int64(1), 'x': np.zeros([2, 3], np.float32)},
    {'n': np.int64(1), 'x': np.zeros([3, 2], np.float64)},
    {'n': np.int32(1), 'x': np.zeros([3, 2], np.float32)},
    {'n': np.int64(1)},
    {'n': np.int64(1), 'y': np.zeros([3, 2], np.float32)},
    {'n': np.int64(1), 'x': {'y': np.zeros([3, 2], np.float32)}},
  ],
)
def test_a_state_that_is_not_like_the_first_is_refused_and_none_is_written(
  opened, value
):
  store = opened(0, None)
  with pytest.raises(ValueError, match='state of client b'):
    store.write([ClientState(b'a', _state(1)), ClientState(b'b', value)])
  assert _read(store, ['a', 'b']) == {'a': 0, 'b': 0}


def test_only_the_states_of_the_last_two_commits_take_room(opened, path):
  store = opened(0, None)
  for round_num in range(1, 30):
    _write(store, {'a': round_num, f'b{round_num % 4}': round_num})
    _write(store, {'a': -round_num})
    store.commit(round_num)
  # Of a and of the client of the last round two each, one of the others.
  store.close()
  assert _num_rows(path) == 7
  # Beside them a round's: written before it is known what its commit lets go of.
  assert _data(path).stat().st_size <= (7 + 3) * 4096


def test_a_record_depends_on_the_states_alone_not_on_how_they_came(opened, path):
  store = opened(0, None)
  _write(store, {'a': 1, 'b': 2})
  store.commit(1)
  _write(store, {'a': 3})
  a = store.commit(2)
  store.close()
  path.unlink()
  _data(path).unlink()
  store = opened(0, None)
  _write(store, {'b': 2})
  _write(store, {'a': 3})
  b = store.commit(7)
  assert a == b
  assert json.loads(json.dumps(a)) == a
  _write(store, {'a': 4})
  assert store.commit(8) != a


_MEMORY_SCRIPT = """
import pathlib
import sys
import numpy as np
from tff_algorithms.client_states import ClientState
from training_loops.client_state_store import ClientStateStore

def peak():
  for line in pathlib.Path('/proc/self/status').read_text().splitlines():
    if line.startswith('VmHWM:'):
      return int(line.split()[1]) / 1024

store = ClientStateStore(pathlib.Path(sys.argv[1]), np.zeros([1 << 18], np.float32), {})
store.restore(0, None)
before = peak()
for round_num in (1, 2):
  for i in range(250):
    value = np.full([1 << 18], i + round_num, np.float32)
    store.write([ClientState(b'%d' % i, value)])
  record = store.commit(round_num)
store.close()
store.restore(2, record)
for i in range(250):
  assert store.read([str(i)])[0].value[-1] == i + 2
print(peak() - before)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_states(tmp_path):
  """500 MB are written and 250 read."""
  done = subprocess.run(
    [sys.executable, '-c', _MEMORY_SCRIPT, str(tmp_path / 'a.sqlite')],
    capture_output=True,
    text=True,
    timeout=300,
  )
  assert done.stderr == ''
  assert float(done.stdout) < 32


# Rounds.


def test_what_was_not_committed_is_gone_when_it_is_opened_again(opened, path):
  _, record = _committed(path)
  store = opened(4, record)
  _write(store, {'c0': 50, 'new': 51})
  store.close()
  store = opened(4, record)
  assert _read(store, [*_AFTER_4, 'new']) == {**_AFTER_4, 'new': 0}


@pytest.fixture
def made(path):
  """The records of rounds 2 and 4 of a file that is there."""
  return _committed(path)


@pytest.fixture
def reopened(made, path):
  """Opens the file of `made` at a round; closed at the end of the test."""
  stores = []

  def open_at(round_num, record, *arguments, **options):
    store = _store(path, *arguments, **options)
    stores.append(store)
    store.restore(round_num, record)
    return store

  yield open_at
  for store in stores:
    store.close()


def test_it_can_be_opened_at_either_of_the_last_two_commits(made, reopened):
  before, record = made
  store = reopened(4, record)
  assert _read(store, _AFTER_4) == _AFTER_4
  store.close()
  store = reopened(2, before)
  assert _read(store, _AFTER_2) == _AFTER_2
  store.close()  # Without a commit nothing has been taken back for good.
  assert _read(reopened(4, record), _AFTER_4) == _AFTER_4


def test_a_round_is_done_again_after_falling_back(made, reopened):
  before, record = made
  store = reopened(2, before)
  _write(store, {'c0': 70, 'c3': 71})
  again = store.commit(4)
  assert again != record
  store.close()
  after = {**_AFTER_2, 'c0': 70, 'c3': 71}
  store = reopened(4, again)
  assert _read(store, _AFTER_4) == after
  store.close()
  assert _read(reopened(2, before), _AFTER_4) == _AFTER_2


def test_the_same_states_after_falling_back_give_the_same_record(made, reopened):
  before, record = made
  store = reopened(2, before)
  _write(store, {f'c{i}': 101 + i for i in range(3, 9)})
  assert store.commit(4) == record


@pytest.mark.parametrize('round_num', [0, 1, 3, 5])
def test_another_round_than_the_last_two_is_refused_and_nothing_changes(
  made, reopened, path, round_num
):
  contents = _contents(path)
  with pytest.raises(UserError, match=r'after round 2 and 4.* after round') as error:
    reopened(round_num, made[1] if round_num else None).close()
  assert str(path) in str(error.value)
  assert _contents(path) == contents
  assert _are_alone(path)


def test_a_record_that_does_not_fit_is_refused_and_nothing_changes(
  made, reopened, path
):
  before, record = made
  contents = _contents(path)
  # The second one goes back first: what it takes back must stay.
  for round_num, wrong in ((4, before), (2, record), (4, {})):
    store = _store(path)
    with pytest.raises(UserError, match='does not have the states') as error:
      store.restore(round_num, wrong)
    assert str(path) in str(error.value)
    store.close()
    assert _contents(path) == contents
    assert _are_alone(path)
  assert _read(reopened(4, record), _AFTER_4) == _AFTER_4


def test_a_store_that_was_refused_lets_go_of_the_file(made, reopened, path):
  """A run that is refused in a notebook is not closed: its error is kept, and it."""
  before, record = made
  store = _store(path)
  with pytest.raises(UserError):
    store.restore(4, before)
  assert _are_alone(path)
  assert _read(reopened(4, record), _AFTER_4) == _AFTER_4
  store.close()


def test_a_round_committed_twice_is_one_round(made, reopened):
  """An interrupt between a commit and its checkpoint makes the round be saved again."""
  _, record = made
  store = reopened(4, record)
  _write(store, {'c0': 60})
  a = store.commit(6)
  _write(store, {'c0': 60})
  assert store.commit(6) == a
  assert store.commit(6) == a
  store.close()
  store = reopened(6, a)
  assert _read(store, _AFTER_4) == {**_AFTER_4, 'c0': 60}
  store.close()
  assert _read(reopened(4, record), _AFTER_4) == _AFTER_4


def test_a_commit_without_anything_new_keeps_what_there_is(made, reopened):
  _, record = made
  store = reopened(4, record)
  for round_num in (6, 8, 10):
    assert store.commit(round_num) == record
  store.close()
  assert _read(reopened(8, record), _AFTER_4) == _AFTER_4


def test_a_commit_does_not_look_at_clients_without_a_new_state(tmp_path, monkeypatch):
  connections = []

  class Connection(sqlite3.Connection):
    def __init__(self, *arguments, **options):
      super().__init__(*arguments, **options)
      connections.append(self)

  connect = functools.partial(sqlite3.connect, factory=Connection)
  monkeypatch.setattr(client_state_store.sqlite3, 'connect', connect)
  num_steps = {}
  for num_clients in (50, 5000):
    store = _store(tmp_path / str(num_clients))
    store.restore(0, None)
    for round_num in (1, 2, 3):  # The second and third let go of what came before.
      _write(store, {f'c{i}': round_num for i in range(num_clients)})
      store.commit(round_num)
    _write(store, {'c7': 10})
    store.commit(4)
    counted = []
    connections[-1].set_progress_handler(lambda c=counted: c.append(1), 1)
    _write(store, {'c8': 10})
    store.commit(5)
    num_steps[num_clients] = len(counted)
    store.close()
  # SQLite's own steps: a search in a larger index takes no more of them.
  assert num_steps[5000] < 1.2 * num_steps[50], num_steps


# Files that are not what they were.


@pytest.fixture(params=['sqlite', 'data'])
def victim(request, path):
  """The one that is damaged of the two files."""
  return path.with_suffix(f'.{request.param}')


def test_a_missing_file_is_named_and_none_is_made(made, path, victim):
  victim.unlink()
  before = list(path.parent.iterdir())
  with pytest.raises(UserError, match=r'is missing.*round 4') as error:
    _store(path).restore(4, made[1])
  assert str(victim) in str(error.value)
  assert list(path.parent.iterdir()) == before


def _refusal(path, record, victim, size=None) -> str | None:
  """Why a file is refused at round 4, which names the victim; None if it is not.

  The files of the directory are as before then.
  """
  before = _hashes(path.parent)
  store = _store(path, None if size is None else _wide_first(size))
  try:
    store.restore(4, record)
    return None
  except UserError as error:
    message = str(error)
  finally:
    store.close()
  assert str(victim) in message
  assert _hashes(path.parent) == before
  return message


def _hashes(directory: pathlib.Path) -> dict[str, str]:
  files = directory.iterdir()
  return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.mark.parametrize(
  'content',
  [b'', b'\0', b'x' * 100, b'\0' * 65536, b'SQLite format 3\0', b'{"a": 1}\n' * 9999],
  ids=['empty', 'zero', 'short', 'zeros', 'magic', 'text'],
)
def test_a_file_overwritten_with_something_else_is_named_and_left_alone(
  made, path, victim, content
):
  victim.write_bytes(content)
  assert _refusal(path, made[1], victim)


def test_another_database_is_named_and_left_alone(made, path):
  path.unlink()
  connection = sqlite3.connect(path)
  connection.execute('CREATE TABLE states (client TEXT)')
  connection.close()
  assert _refusal(path, made[1], path)


@pytest.mark.parametrize('size', [None, 15_000])
def test_truncated_anywhere_it_is_found_at_start(path, victim, size):
  """With states smaller than a block, and larger."""
  _, record = _committed(path, size)
  content = victim.read_bytes()
  assert _refusal(path, record, victim, size) is None
  generator = random.Random(0)
  pages = range(0, len(content), 1 << 12)
  # An emptied file is in the test above.
  lengths = {*range(2, 130), 200, 512, 1000, 4095, 4096, 4097}
  ends = generator.sample(pages, min(30, len(pages)))
  lengths |= {p + d for p in ends for d in (-1000, -9, -1, 0, 1, 9, 1000) if p + d > 1}
  lengths |= {len(content) - d for d in (1, 2, 3, 4, 8, 50, 1000, 3000, 30_000)}
  lengths |= {generator.randrange(len(content)) for _ in range(30)}
  unnoticed = []
  for length in sorted(lengths):
    if 1 < length < len(content):
      victim.write_bytes(content[:length])
      if _refusal(path, record, victim, size) is None:
        unnoticed.append(length - len(content))
  assert not unnoticed
  victim.write_bytes(content)
  assert _refusal(path, record, victim, size) is None


def _effect(path, record, size=None) -> str:
  """What damage does: harmless, found, or wrong; or the error that names no file."""
  store = _store(path, None if size is None else _wide_first(size))
  try:
    store.restore(4, record)
    for client_id, value in _AFTER_4.items():
      ((_, state),) = store.read([client_id])
      wanted = _state(value, size)
      if not value:
        wanted = tree.map_structure(np.zeros_like, wanted)
      if any((state[name] != wanted[name]).any() for name in wanted):
        return 'wrong'
    return 'harmless'
  except Exception as error:
    stem = str(path.with_suffix(''))
    is_named = isinstance(error, UserError | OSError) and stem in str(error)
    return 'found' if is_named else type(error).__name__
  finally:
    store.close()


@pytest.mark.parametrize('size', [None, 15_000])
def test_with_a_page_of_zeros_or_with_another_page_no_other_state_is_read(
  path, victim, size
):
  _, record = _committed(path, size)
  content = victim.read_bytes()
  page = 1 << 12
  effects = set()
  for start in range(0, len(content), page):
    for other in (b'\0' * page, content[start - page : start] or content[-page:]):
      victim.write_bytes(content[:start] + other + content[start + page :])
      effects.add(_effect(path, record, size))
  assert effects in ({'found'}, {'found', 'harmless'})


@pytest.mark.parametrize('size', [None, 15_000])
def test_a_flipped_byte_in_a_state_is_found(path, size):
  _, record = _committed(path, size)
  victim = _data(path)
  content = victim.read_bytes()
  num_bytes = _state(1, size)['x'].nbytes
  for value in filter(None, _AFTER_4.values()):
    start = content.index(_state(value, size)['x'].tobytes())
    for offset in (0, 1, num_bytes // 2, num_bytes - 1):
      victim.write_bytes(_flipped(content, start + offset, 1))
      assert _effect(path, record, size) == 'found', (value, offset)


def _flipped(content: bytes, place: int, bits: int) -> bytes:
  return content[:place] + bytes([content[place] ^ bits]) + content[place + 1 :]


@pytest.mark.slow
def test_a_flipped_byte_anywhere_is_found_or_does_no_harm(path, victim, monkeypatch):
  _with_small_pages(monkeypatch)  # A small file.
  _, record = _committed(path)
  content = victim.read_bytes()
  # Of the many zeros only some; of what means something, all.
  places = [i for i, byte in enumerate(content) if byte]
  places += random.Random(0).sample(range(len(content)), 100)
  effects = collections.defaultdict(list)
  for place in places:
    for bits in (1, 8, 128):
      victim.write_bytes(_flipped(content, place, bits))
      effects[_effect(path, record)].append((place, bits))
  assert len(effects.pop('found')) > {'.sqlite': 1000, '.data': 300}[victim.suffix]
  effects.pop('harmless')
  assert 'wrong' not in effects, effects['wrong']
  assert not {kind: found[:3] for kind, found in effects.items()}


def test_damage_is_named_with_the_client_and_with_what_to_do(made, path, reopened):
  content = bytearray(_data(path).read_bytes())
  content[content.index(_state(103 + 1)['x'].tobytes())] ^= 1
  _data(path).write_bytes(content)
  with pytest.raises(UserError, match=r'damaged.*client c3 .*Put back') as error:
    reopened(4, made[1])
  assert str(_data(path)) in str(error.value)


def test_damage_while_it_is_open_is_found_when_the_state_is_read(made, path, reopened):
  store = reopened(4, made[1])
  place = _data(path).read_bytes().index(_state(103 + 1)['x'].tobytes())
  with open(_data(path), 'r+b') as file:
    file.seek(place)
    file.write(b'\xff')
  assert _read(store, ['c0', 'c4']) == {'c0': 1, 'c4': 105}
  with pytest.raises(UserError, match=r'damaged.*client c3 .*Put back'):
    store.read(['c0', 'c3'])


def test_cut_while_it_is_open_it_is_found_when_a_state_is_read(made, path, reopened):
  store = reopened(4, made[1])
  os.truncate(_data(path), 4096)
  with pytest.raises(UserError, match=r'damaged.*client c8 .*Put back'):
    store.read(['c8'])


@pytest.mark.parametrize(
  ('arguments', 'options', 'message'),
  [
    ((), {'algorithm': 'fed_dyn'}, 'its algorithm is scaffold.* fed_dyn'),
    ((), {'task': 'digits_mlp'}, 'its task is digits_logistic.* digits_mlp'),
    (({'n': np.int64(0), 'x': np.zeros([2, 3], np.float32)},), {}, 'its state is'),
    (({'n': np.int64(0), 'x': np.zeros([3, 2])},), {}, 'its state is .*float64'),
    (({'n': np.int64(0), 'y': np.zeros([3, 2], np.float32)},), {}, 'its state is'),
  ],
)
def test_a_store_of_another_run_is_refused_and_left_alone(
  made, reopened, path, arguments, options, message
):
  contents = _contents(path)
  for round_num, record in ((4, made[1]), (0, None)):
    with pytest.raises(UserError, match=f'another run: {message}') as error:
      reopened(round_num, record, *arguments, **options)
    assert str(path) in str(error.value)
    del error
  assert _contents(path) == contents
  assert _are_alone(path)
  assert _read(reopened(4, made[1]), _AFTER_4) == _AFTER_4


def test_where_no_file_can_be_made_the_error_names_it(tmp_path):
  path = tmp_path / 'missing' / 'a.sqlite'
  with pytest.raises(OSError, match='unable to open') as error:
    _store(path).restore(0, None)
  assert str(path) in str(error.value)


# A full disk.


@pytest.mark.parametrize('num_pages', [0, 1, 2, 5, 10])
def test_a_full_disk_is_an_error_that_names_the_file_and_nothing_is_lost(
  made, reopened, path, num_pages
):
  """Sooner or later, in a write or in a commit."""
  store = reopened(4, made[1])
  connection = store._connection
  ((now,),) = connection.execute('PRAGMA page_count')
  connection.execute(f'PRAGMA max_page_count = {now + num_pages}')
  records = {4: made[1]}
  with pytest.raises(OSError, match='full') as error:
    for i in range(100):
      _write(store, {f'{i}{"x" * 50_000}': i})
      if i % 5 == 4:
        records[6 + i] = store.commit(6 + i)
  assert str(path) in str(error.value)
  del error
  store.close()
  rounds = _rounds(path)
  store = _store(path)
  store.restore(rounds[-1], records[rounds[-1]])
  assert _read(store, _AFTER_4) == _AFTER_4
  committed = {f'{i}{"x" * 50_000}': float(i) for i in range(rounds[-1] - 5)}
  assert _read(store, committed) == committed
  store.close()


def _rounds(path) -> list[int]:
  connection = sqlite3.connect(path)
  try:
    rows = connection.execute('SELECT round FROM rounds ORDER BY round').fetchall()
    return [row[0] for row in rows]
  finally:
    connection.close()


_FULL_SCRIPT = """
import json
import pathlib
import resource
import sys
import numpy as np
from tff_algorithms.client_states import ClientState
from training_loops import client_state_store

path, made_for, round_num, record, room = map(json.loads, sys.argv[1:])
first = {'n': np.int64(0), 'x': np.zeros([15_000], np.float32)}
store = client_state_store.ClientStateStore(pathlib.Path(path), first, made_for)
store.restore(round_num, record)
limit = pathlib.Path(path).with_suffix('.data').stat().st_size + room
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
  for i in range(100):
    state = {'n': np.int64(1), 'x': np.full([15_000], i, np.float32)}
    store.write([ClientState(b'c%d' % i, state)])
  store.commit(round_num + 2)
except OSError as error:
  print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize('room', [0, 30_000, 400_000])
def test_a_file_that_may_not_grow_is_named_and_nothing_is_lost(path, room):
  """The kernel refuses what is written: at once, within a state, or later."""
  _, record = _committed(path, 15_000)
  arguments = [str(path), _MADE_FOR, 4, record, room]
  done = subprocess.run(
    [sys.executable, '-c', _FULL_SCRIPT, *map(json.dumps, arguments)],
    capture_output=True,
    text=True,
    timeout=60,
  )
  assert done.stderr == ''
  assert str(_data(path)) in done.stdout
  store = _store(path, _wide_first(15_000))
  store.restore(4, record)
  assert _read(store, _AFTER_4) == _AFTER_4
  _write(store, {'c1': 9}, 15_000)
  assert store.commit(6)['num_clients'] == 9
  store.close()


# Interrupts and kills.


class _Stopped(sqlite3.Connection):
  """A connection in which an interrupt comes before or after some statement."""

  left = 10**9
  before = True

  def execute(self, *arguments):
    cls = type(self)
    cls.left -= 1
    if cls.left == 0 and cls.before:
      raise KeyboardInterrupt
    cursor = super().execute(*arguments)
    if cls.left == 0:
      raise KeyboardInterrupt
    return cursor


@pytest.fixture
def stopped(monkeypatch):
  """Connections with interrupts; set `left` and `before`."""
  connection = type('Stopped', (_Stopped,), {})
  connect = functools.partial(sqlite3.connect, factory=connection)
  monkeypatch.setattr(client_state_store.sqlite3, 'connect', connect)
  return connection


@pytest.mark.parametrize('before', [True, False])
def test_interrupted_between_statements_and_saved_all_the_same_nothing_is_lost(
  made, stopped, path, before
):
  """As a run does it: what was completed is written again, and committed."""
  contents = _contents(path)
  # c4 is last in the one and not in the other: what it had must not become another's.
  uncommitted, last = {'c0': 40, 'new': 42, 'c4': 41}, {'c1': 50, 'c4': 51, 'd': 52}
  expected = {**_AFTER_4, **uncommitted, **last}
  num_interrupts, is_interrupted = 0, True
  while is_interrupted:
    _put_back(path, contents)
    store = _store(path)
    store.restore(4, made[1])
    _write(store, uncommitted)
    stopped.left, stopped.before = num_interrupts + 1, before
    try:
      _write(store, last)
      store.commit(6)
      is_interrupted = False
    except KeyboardInterrupt:
      num_interrupts += 1
    stopped.left = 10**9
    _write(store, last)
    record = store.commit(6)
    store.close()
    store = _store(path)
    store.restore(6, record)
    assert _read(store, expected) == expected, num_interrupts
    store.close()
    store.restore(4, made[1])
    assert _read(store, expected) == {**_AFTER_4, 'new': 0, 'd': 0}, num_interrupts
    store.close()
  assert num_interrupts > 8


@pytest.mark.parametrize('before', [True, False])
@pytest.mark.parametrize('name', ['pwritev', 'fdatasync'])
def test_interrupted_around_what_it_writes_and_saved_all_the_same_nothing_is_lost(
  made, path, monkeypatch, before, name
):
  contents, original = _contents(path), getattr(os, name)
  for at_call in range(1, 3 if name == 'pwritev' else 2):
    _put_back(path, contents)
    store = _store(path)
    store.restore(4, made[1])
    calls = []

    def interrupted(*arguments, at_call=at_call, calls=calls):
      calls.append(1)
      if len(calls) == at_call and before:
        raise KeyboardInterrupt
      result = original(*arguments)
      if len(calls) == at_call:
        raise KeyboardInterrupt
      return result

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
      patch.setattr(os, name, interrupted)
      _write(store, {'c0': 40, 'c4': 41})
      store.commit(6)
    for round_num in (6, 8, 10):  # So that every slot that is free is written to.
      _write(store, {f'c{i}': 100 * round_num + i for i in range(9)})
      _write(store, {'c0': 40, 'c4': 41})
      record = store.commit(round_num)
    expected = {f'c{i}': 1000.0 + i for i in range(9)} | {'c0': 40, 'c4': 41}
    assert _read(store, expected) == expected
    store.close()
    store.restore(10, record)
    assert _read(store, expected) == expected
    store.close()


def test_a_commit_interrupted_anywhere_and_done_again_frees_nothing_that_is_in_use(
  tmp_path, stopped
):
  """The client that matters is not in the round whose commit is interrupted."""
  num_interrupts, is_interrupted = 0, True
  while is_interrupted:
    path = tmp_path / f'{num_interrupts}.sqlite'
    store = _store(path)
    store.restore(0, None)
    _write(store, {'a': 1, 'b': 1})
    store.commit(1)
    _write(store, {'a': 2})
    store.commit(2)
    _write(store, {'b': 3, 'c': 3})
    stopped.left, stopped.before = num_interrupts + 1, True
    try:
      store.commit(3)
      is_interrupted = False
    except KeyboardInterrupt:
      num_interrupts += 1
    stopped.left = 10**9
    store.commit(3)
    expected = {'a': 2.0, 'b': 3.0, 'c': 3.0}
    for round_num in range(4, 12):
      new = {f'd{round_num}': float(round_num), 'abc'[round_num % 3]: float(round_num)}
      _write(store, new)
      expected |= new
      record = store.commit(round_num)
      assert _read(store, expected) == expected, (num_interrupts, round_num)
      slots = _slots(path)
      assert len(set(slots)) == len(slots), (num_interrupts, round_num)
    store.close()
    store.restore(11, record)
    assert _read(store, expected) == expected
    store.close()
  assert num_interrupts > 8


def _slots(path) -> list[int]:
  connection = sqlite3.connect(path)
  try:
    return [slot for (slot,) in connection.execute('SELECT slot FROM states')]
  finally:
    connection.close()


@pytest.mark.parametrize('use', ['write', 'commit'])
@pytest.mark.parametrize('round_num', [2, 4])
def test_what_sqlite_has_taken_back_by_itself_is_not_saved_without(
  made, path, reopened, use, round_num
):
  """As it may after an error of the disk: the rest would be saved as if it were all."""
  store = reopened(round_num, made[round_num // 4])
  _write(store, {'c0': 40})
  store._connection.execute('ROLLBACK')
  for _ in range(2):
    with pytest.raises(OSError, match='since the last commit is gone') as error:
      if use == 'write':
        _write(store, {'c1': 41})
      store.commit(6)
    assert str(path) in str(error.value)
  store.close()
  store.restore(4, made[1])
  assert _read(store, _AFTER_4) == _AFTER_4
  _write(store, {'c0': 40})
  store.commit(6)


def test_fallen_back_and_killed_before_a_commit_what_was_taken_back_is_still_there(
  made, reopened, path, tmp_path
):
  """It might be the newer checkpoint after all that the next start finds."""
  before, record = made
  store = reopened(2, before)
  _write(store, {f'd{i}': 70 + i for i in range(20)})
  copy = shutil.copytree(path.parent, tmp_path / 'killed') / path.name
  store = _store(copy)
  store.restore(4, record)
  assert _read(store, _AFTER_4) == _AFTER_4
  store.close()


def test_it_says_that_it_is_not_open(path):
  store = _store(path)
  for use in (lambda: store.get('a'), lambda: store.commit(1)):
    with pytest.raises(RuntimeError, match='call restore first'):
      use()


def test_a_round_without_a_record_is_not_taken_on_trust(made, path):
  store = _store(path)
  with pytest.raises(UserError, match='does not have the states'):
    store.restore(4, None)


def test_wrong_use_is_not_told_as_damage(made, path):
  store = _store(path)
  store.restore(4, made[1])
  with pytest.raises(UnicodeEncodeError):
    store.get('\ud800')
  store.close()


def test_interrupted_between_statements_and_ended_it_is_the_last_commit(
  made, stopped, path
):
  num_interrupts, is_interrupted = 0, True
  while is_interrupted:
    stopped.left = num_interrupts + 1
    store = _store(path)
    try:
      store.restore(4, made[1])
      _write(store, {'c0': 40, 'c4': 41})
      store.commit(4)
      is_interrupted = False
    except KeyboardInterrupt:
      num_interrupts += 1
    stopped.left = 10**9
    store.close()
    if is_interrupted:
      store.restore(4, made[1])
      assert _read(store, _AFTER_4) == _AFTER_4, num_interrupts
      store.close()
  assert num_interrupts > 15


def test_interrupted_while_it_is_made_it_is_made_the_next_time(stopped, path):
  path.parent.mkdir()
  for left in range(1, 12):
    path.unlink(missing_ok=True)
    store = _store(path)
    stopped.left = left
    with pytest.raises(KeyboardInterrupt):
      store.restore(0, None)
    stopped.left = 10**9
    store.close()
    store.restore(0, None)
    _write(store, {'a': 1})
    assert store.commit(1)['num_clients'] == 1
    store.close()


class _Machine(stateful.RuleBasedStateMachine):
  """A store beside a plain dict, killed and restored now and then.

  A kill is a copy of the files as they are at that instant: what a process that dies
  then leaves behind.
  """

  clients = st.sampled_from(['a', 'b', 'c', 'd', 'ä', '', 'z' * 700])

  def __init__(self):
    super().__init__()
    self._patch = pytest.MonkeyPatch()
    _with_small_pages(self._patch)
    self._directory = tempfile.TemporaryDirectory()
    self._num_kills = 0
    self._store = None
    # By round: what is on disk, for good, and what would be with another commit.
    self._durable: dict[int, tuple[Any, dict[str, float]]] = {0: (None, {})}
    self._pending = dict(self._durable)
    self._round = 0
    self._now: dict[str, float] = {}
    self._open(0)

  def teardown(self):
    self._store.close()
    self._directory.cleanup()
    self._patch.undo()

  @property
  def _path(self):
    return pathlib.Path(self._directory.name) / str(self._num_kills) / 'a.sqlite'

  def _open(self, round_num):
    self._path.parent.mkdir(exist_ok=True)
    self._store = _store(self._path, _wide_first(300))
    record, states = self._durable[round_num]
    self._store.restore(round_num, record)
    self._pending = {r: v for r, v in self._durable.items() if r <= round_num}
    self._round, self._now = round_num, dict(states)
    self._compare()

  def _compare(self):
    expected = {c: self._now.get(c, 0.0) for c in ('a', 'b', 'c', 'd', 'ä', 'z' * 700)}
    assert _read(self._store, expected) == expected

  @stateful.rule(
    values=st.dictionaries(clients, st.integers(1, 1000).map(float), max_size=5)
  )
  def write(self, values):
    _write(self._store, values, 300)
    self._now.update(values)

  @stateful.rule(client_ids=st.lists(clients, unique=True))
  def read(self, client_ids):
    expected = {c: self._now.get(c, 0.0) for c in client_ids}
    assert _read(self._store, client_ids) == expected

  @stateful.rule(rounds=st.integers(0, 3))
  def commit(self, rounds):
    """Zero rounds on: the same once more, as after an interrupt."""
    self._round += rounds or (self._round == 0)
    record = self._store.commit(self._round)
    assert record['num_clients'] == len(self._now)
    self._pending[self._round] = record, dict(self._now)
    self._pending = dict(sorted(self._pending.items())[-2:])
    self._durable = dict(self._pending)

  @stateful.rule(which=st.integers(0, 1), is_killed=st.booleans())
  def restore(self, which, is_killed):
    """To the last commit or the one before, after a kill or an orderly end."""
    if is_killed:
      old = self._path.parent
      self._num_kills += 1
      shutil.copytree(old, self._path.parent)
    self._store.close()
    rounds = sorted(self._durable)
    self._open(rounds[-1 - min(which, len(rounds) - 1)])

  @stateful.rule(round_num=st.integers(0, 20))
  def refuse(self, round_num):
    """Of any other round; what was not committed is gone as by any other end."""
    if round_num in self._durable:
      return
    self._store.close()
    with pytest.raises(UserError, match='would continue'):
      self._store.restore(round_num, None)
    self._store.close()
    self._open(max(self._durable))

  @stateful.invariant()
  def is_as_the_dict(self):
    self._compare()


def _case(max_examples, max_steps):
  case = type('Machine', (_Machine,), {}).TestCase
  case.settings = hypothesis.settings(
    max_examples=max_examples, stateful_step_count=max_steps
  )
  return case


test_whatever_happens_it_is_as_a_dict_that_is_rolled_back = _case(8, 20)
test_whatever_happens_for_longer_it_is_as_a_dict_that_is_rolled_back = pytest.mark.slow(
  _case(30, 30)
)


# Each commit is told on a line of its own; the timer's signal kills at any instant,
# also within a statement.
_KILL_SCRIPT = """
import functools
import json
import pathlib
import signal
import sqlite3
import sys
import numpy as np
from tff_algorithms.client_states import ClientState
from training_loops import client_state_store

path, made_for, round_num, record, seconds = map(json.loads, sys.argv[1:])

class Connection(sqlite3.Connection):  # So that pages are on disk before a commit.
  def __init__(self, *arguments, **options):
    super().__init__(*arguments, **options)
    self.execute('PRAGMA cache_size = -8')

sqlite3.connect = functools.partial(sqlite3.connect, factory=Connection)
first = {'n': np.int64(0), 'x': np.zeros([3000], np.float32)}
store = client_state_store.ClientStateStore(pathlib.Path(path), first, made_for)
store.restore(round_num, record)
signal.setitimer(signal.ITIMER_REAL, seconds)
while True:
  round_num += 1
  for client in {round_num % 7, round_num % 11, round_num}:
    state = {
      'n': np.int64(2**40 + round_num), 'x': np.full([3000], round_num, np.float32)
    }
    store.write([ClientState(b'c%d' % client, state)])
  if round_num % 2 == 0:
    # As a checkpoint: the round, and what it needs.
    record = store.commit(round_num)
    print(json.dumps([round_num, record]), flush=True)
"""


def _after(round_num: int) -> dict[str, float]:
  values: dict[str, float] = {}
  for r in range(1, round_num + 1):
    values |= {f'c{c}': float(r) for c in {r % 7, r % 11, r}}
  return values


@pytest.mark.slow
def test_killed_at_random_instants_it_is_always_as_at_the_last_commit(path):
  path.parent.mkdir()
  generator = random.Random(0)
  first = _wide_first(3000)
  told: list[Any] = [[0, None], [0, None]]
  num_journals = 0
  num_legs = 0
  # At least so often that it was disturbed in what it did.
  while num_legs < 15 or len(told) <= 5 or num_journals <= 1:
    # The longer, the more of them there were: however slow the machine, it gets on.
    num_legs += 1
    longest = 0.1 * (1 + num_legs // 15)
    arguments = [str(path), _MADE_FOR, *told[-1], generator.uniform(1e-4, longest)]
    done = subprocess.run(
      [sys.executable, '-c', _KILL_SCRIPT, *map(json.dumps, arguments)],
      capture_output=True,
      text=True,
      timeout=60,
    )
    assert (done.returncode, done.stderr) == (-signal.SIGALRM, '')
    num_journals += path.with_name(f'{path.name}-journal').exists()
    told += [json.loads(line) for line in done.stdout.splitlines()]
    # It may have died between a commit and telling so.
    assert _copied_rounds(path)[-1] - told[-1][0] in (0, 2)
    assert told[-1][0] in _copied_rounds(path)
    store = _store(path, first)
    # Sometimes the last checkpoint is damaged, too.
    if len(told) > 3 and told[-2][0] in _rounds(path) and generator.random() < 0.3:
      told.pop()
    store.restore(*told[-1])
    expected = _after(told[-1][0])
    assert _read(store, expected) == expected
    store.close()


def _copied_rounds(path) -> list[int]:
  """The rounds in a file that is left as it is, with its journal."""
  with tempfile.TemporaryDirectory() as directory:
    copy = shutil.copytree(path.parent, pathlib.Path(directory) / 'a')
    return _rounds(copy / path.name)
