"""Tests of files of slots."""

import errno
import os
import threading

import pytest

from training_loops import slot_file
from training_loops.slot_file import SlotFile


@pytest.fixture
def path(tmp_path):
  return tmp_path / 'a.data'


@pytest.fixture
def opened(path):
  """Opens the file; closed at the end of the test."""
  files = []

  def open_file(num_bytes=10, used=(), can_create=True):
    files.append(SlotFile(path, num_bytes, used, can_create))
    return files[-1]

  yield open_file
  for file in files:
    file.close()


@pytest.mark.parametrize('num_bytes', [0, 1, 4095, 4096, 4097, 100_000])
def test_contents_of_any_size_come_back(opened, num_bytes):
  file = opened(num_bytes)
  contents = [bytes([i]) * num_bytes for i in range(1, 6)]
  slots = [file.write(content) for content in contents]
  assert len(set(slots)) == 5
  assert [file.read(slot) for slot in slots] == contents
  again = opened(num_bytes, slots, can_create=False)
  assert [again.read(slot) for slot in slots] == contents


def test_a_slot_in_use_is_not_written_to_and_a_free_one_is(opened, path):
  file = opened()
  slots = [file.write(b'%010d' % i) for i in range(4)]
  size = path.stat().st_size
  file.free([slots[2]])
  assert file.write(b'x' * 10) == slots[2]
  assert path.stat().st_size == size
  assert file.write(b'y' * 10) not in slots
  assert [file.read(slot) for slot in slots] == [
    b'0000000000',
    b'0000000001',
    b'x' * 10,
    b'0000000003',
  ]


def test_opened_again_it_writes_to_what_is_not_in_use(opened):
  file = opened()
  slots = [file.write(b'%010d' % i) for i in range(5)]
  again = opened(used=[slots[0], slots[3]])
  written = {again.write(b'z' * 10) for _ in range(3)}
  assert not written & {slots[0], slots[3]}
  assert again.read(slots[3]) == b'0000000003'


def test_a_content_that_is_shorter_than_the_one_before_leaves_nothing_of_it(opened):
  file = opened(4096)
  slot = file.write(b'a' * 4096)
  file.free([slot])
  assert file.write(b'b') == slot
  assert file.read(slot) == b'b' + b'\0' * 4095


def test_a_missing_file_is_an_error_unless_it_may_be_made(opened, path):
  with pytest.raises(FileNotFoundError):
    opened(can_create=False)
  assert not path.exists()
  opened()
  assert path.exists()


def test_a_slot_that_is_in_use_twice_is_refused(opened):
  file = opened()
  for _ in range(3):
    file.write(b'0123456789')
  with pytest.raises(ValueError, match='slot 1 is in use twice'):
    opened(used=[0, 1, 2, 1])


def test_a_missing_file_is_not_made_if_something_should_be_in_it(opened, path):
  with pytest.raises(FileNotFoundError):
    opened(used=[0])
  assert not path.exists()


@pytest.mark.parametrize('used', [[0, 3], [-1], [10**15]])
def test_too_short_for_what_is_in_use_it_is_refused(opened, used):
  file = opened()
  for _ in range(3):
    file.write(b'0123456789')
  with pytest.raises(ValueError, match='a part of it is missing'):
    opened(used=used)


def test_what_the_kernel_takes_or_gives_in_parts_is_whole(opened, monkeypatch):
  file, content = opened(10_000), os.urandom(10_000)
  pwrite, pread = os.pwrite, os.pread
  monkeypatch.setattr(
    os, 'pwritev', lambda d, parts, o: pwrite(d, b''.join(parts)[:999], o)
  )
  monkeypatch.setattr(os, 'pread', lambda d, size, o: pread(d, min(size, 777), o))
  slots = [file.write(b'0' * 10_000), file.write(content), file.write(b'1' * 10_000)]
  assert file.read(slots[1]) == content


def test_an_error_names_the_file_and_the_slot_is_nobodys(opened, path, monkeypatch):
  file = opened()
  kept = file.write(b'0123456789')

  def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

  with (
    monkeypatch.context() as patch,
    pytest.raises(OSError, match='No space') as error,
  ):
    patch.setattr(os, 'pwritev', full)
    file.write(b'x' * 10)
  assert str(path) in str(error.value)
  assert file.write(b'y' * 10) != kept
  assert file.read(kept) == b'0123456789'


def test_what_is_much_goes_to_the_disk_in_the_background_once_at_a_time(
  opened, monkeypatch
):
  monkeypatch.setattr(slot_file, '_BYTES_IN_WAITING', 2 * 4096)
  threads, goes_on = [], threading.Event()

  def fdatasync(descriptor):
    threads.append(threading.current_thread())
    if threads[-1] is not threading.main_thread():
      assert goes_on.wait(60)

  monkeypatch.setattr(os, 'fdatasync', fdatasync)
  file = opened()
  for _ in range(20):  # None waits for it.
    file.write(b'0123456789')
  goes_on.set()
  file.sync()
  assert len(threads) == 2
  assert [thread is threading.main_thread() for thread in threads] == [False, True]


@pytest.mark.parametrize('in_background', [True, False])
def test_what_could_not_be_written_is_an_error_of_every_sync_from_then_on(
  opened, path, monkeypatch, in_background
):
  monkeypatch.setattr(slot_file, '_BYTES_IN_WAITING', 4096)
  fdatasync, told = os.fdatasync, []

  def broken(descriptor):
    """As the kernel's, which tells of an error once."""
    is_main = threading.current_thread() is threading.main_thread()
    if is_main is not in_background and not told:
      told.append(1)
      raise OSError(errno.EIO, os.strerror(errno.EIO))
    fdatasync(descriptor)

  monkeypatch.setattr(os, 'fdatasync', broken)
  file = opened()
  before = set(threading.enumerate())
  file.write(b'0123456789')
  for thread in set(threading.enumerate()) - before:
    thread.join(timeout=60)
  for _ in range(3):
    with pytest.raises(OSError, match='Input/output error') as error:
      file.sync()
    assert str(path) in str(error.value)
  assert told
