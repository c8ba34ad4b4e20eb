"""A file of slots of one size, each with a content or free.

What a slot has is never written over while it is in use. So whoever keeps the slots'
numbers in a data base, which takes back what was not committed, has contents that go
back with it: new ones go into slots that are free, `sync` comes before the commit, and
what the commit has done away with is freed after it.
"""

from collections.abc import Iterable, Iterator
import concurrent.futures
import contextlib
import os
import pathlib

# Slots begin where blocks of the disk do: no block is read to write a part of it.
_BLOCK_BYTES = 1 << 12
# What is written goes to the disk in the background from so much on.
_BYTES_IN_WAITING = 1 << 26


class SlotFile:
  """The file, open."""

  def __init__(
    self, path: pathlib.Path, num_bytes: int, used: Iterable[int], can_create: bool
  ):
    """Opens the file.

    Args:
      path: The file.
      num_bytes: The size of a content.
      used: The slots that are in use.
      can_create: Whether it may be missing.

    Raises:
      FileNotFoundError: If it is missing, and may not be.
      ValueError: If it is too short for the slots in use.
    """
    self._path = path
    self._num_bytes = num_bytes
    self._slot_bytes = _BLOCK_BYTES * max(1, -(-num_bytes // _BLOCK_BYTES))
    in_use = set(used)
    self._num_slots = max(in_use, default=-1) + 1
    flags = os.O_RDWR | (os.O_CREAT if can_create else 0)
    self._descriptor = os.open(path, flags, 0o666)
    size = os.fstat(self._descriptor).st_size
    if min(in_use, default=0) < 0 or size < self._num_slots * self._slot_bytes:
      os.close(self._descriptor)
      raise ValueError('a part of it is missing')
    self._free = sorted(set(range(self._num_slots)) - in_use, reverse=True)
    self._thread = concurrent.futures.ThreadPoolExecutor(max_workers=1)
    self._syncing: concurrent.futures.Future | None = None
    self._num_waiting = 0

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
    if self._syncing is None or self._syncing.done():
      self._finish_sync()
      self._num_waiting = 0
      self._syncing = self._thread.submit(os.fdatasync, self._descriptor)

  def _finish_sync(self) -> None:
    """Waits for what is going on in the background; its errors are not forgotten."""
    if self._syncing is not None:
      self._syncing.result()
      self._syncing = None

  def sync(self) -> None:
    """Returns when all that was written is on the disk."""
    with self._named_errors():
      self._finish_sync()
      os.fdatasync(self._descriptor)
      self._num_waiting = 0

  def close(self) -> None:
    """Closes the file."""
    self._thread.shutdown()
    os.close(self._descriptor)

  @contextlib.contextmanager
  def _named_errors(self) -> Iterator[None]:
    try:
      yield
    except OSError as error:
      error.filename = str(self._path)
      raise
