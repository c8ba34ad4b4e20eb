"""A file of slots of one size, each with a content or free.

What a slot has is never written over while it is in use. So whoever keeps the slots'
numbers in a data base, which takes back what was not committed, has contents that go
back with it: new ones go into slots that are free, `sync` comes before the commit, and
what the commit has done away with is freed after it.
"""

from collections.abc import Iterable, Iterator, Sequence
import contextlib
import os
import pathlib
import threading

# Slots begin where blocks of the disk do: no block is read to write a part of it.
_BLOCK_BYTES = 1 << 12
# What is written goes to the disk in the background from so much on.
_BYTES_IN_WAITING = 1 << 26


class SlotFile:
  """The file, open."""

  def __init__(
    self, path: pathlib.Path, num_bytes: int, used: Sequence[int], can_create: bool
  ):
    """Opens the file.

    Args:
      path: The file.
      num_bytes: The size of a content.
      used: The slots that are in use.
      can_create: Whether it may be missing, if none is.

    Raises:
      FileNotFoundError: If it is missing, and may not be.
      ValueError: If it is too short for the slots in use, or one is in use twice.
    """
    self._path = path
    self._num_bytes = num_bytes
    self._slot_bytes = _BLOCK_BYTES * max(1, -(-num_bytes // _BLOCK_BYTES))
    self._num_slots = max(used, default=-1) + 1
    flags = os.O_RDWR | (os.O_CREAT if can_create and not used else 0)
    self._descriptor = os.open(path, flags, 0o666)
    try:
      size = os.fstat(self._descriptor).st_size
      if min(used, default=0) < 0 or size < self._num_slots * self._slot_bytes:
        raise ValueError('a part of it is missing')
      self._free = _others(used, self._num_slots)
    except BaseException:
      os.close(self._descriptor)
      raise
    self._num_waiting = 0
    self._syncing: threading.Thread | None = None
    self._sync_lock = threading.Lock()
    self._sync_error: OSError | None = None

  def read(self, slot: int) -> bytes:
    """The content of a slot, or as much of it as there is."""
    offset, end = slot * self._slot_bytes, slot * self._slot_bytes + self._num_bytes
    parts = []
    with self._named_errors():
      # Once for nearly all: the kernel gives 2 GB at a time.
      while part := os.pread(self._descriptor, end - offset, offset):
        parts.append(part)
        offset += len(part)
    return parts[0] if len(parts) == 1 else b''.join(parts)

  def write(self, content: bytes) -> int:
    """Writes a content to a slot that was free, and returns the slot.

    One that is too short has zeros at its end.

    Raises:
      OSError: If there is no room for it.
    """
    # Taken first: an interrupt leaves a slot behind that nobody has, and not one that
    # two have.
    if self._free:
      slot = self._free.pop()
    else:
      slot, self._num_slots = self._num_slots, self._num_slots + 1
    offset, end = slot * self._slot_bytes, (slot + 1) * self._slot_bytes
    left = memoryview(content)
    with self._named_errors():
      while offset < end:  # Once for nearly all, here too.
        padding = bytes(end - offset - len(left))
        written = os.pwritev(self._descriptor, [left, padding], offset)
        left = left[written:]
        offset += written
      self._num_waiting += self._slot_bytes
      if self._num_waiting >= _BYTES_IN_WAITING:
        self._begin_sync()
    return slot

  def free(self, slots: Iterable[int]) -> None:
    """Lets slots be written to again."""
    self._free.extend(slots)

  def _begin_sync(self) -> None:
    if self._syncing is None or not self._syncing.is_alive():
      self._num_waiting = 0
      self._syncing = threading.Thread(target=self._sync, daemon=True)
      self._syncing.start()

  def _sync(self) -> None:
    with self._sync_lock:
      try:
        os.fdatasync(self._descriptor)
      except OSError as error:
        # For good: the kernel tells it once, and then takes what is lost for written.
        self._sync_error = error

  def sync(self) -> None:
    """Returns when all that was written is on the disk.

    Raises:
      OSError: If something could not be written, now or at an earlier time.
    """
    self._sync()
    if self._sync_error:
      with self._named_errors():
        raise self._sync_error

  def close(self) -> None:
    """Closes the file."""
    with self._sync_lock:
      os.close(self._descriptor)
      self._descriptor = -1  # Nobody's, should a thread come late.

  @contextlib.contextmanager
  def _named_errors(self) -> Iterator[None]:
    try:
      yield
    except OSError as error:
      error.filename = str(self._path)
      raise


def _others(used: Iterable[int], num_slots: int) -> list[int]:
  """The slots that are not in use, the last first."""
  is_used = bytearray(num_slots)
  for slot in used:
    if is_used[slot]:
      raise ValueError(f'slot {slot} is in use twice')
    is_used[slot] = True
  return [slot for slot in reversed(range(num_slots)) if not is_used[slot]]
