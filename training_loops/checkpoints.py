"""Checkpoints: one file each, checked by SHA-256, the last two and the best kept.

A file is three lines of text (what it is, the hash of the rest, a JSON header), then
the bytes of all arrays. The header holds the caller's record and says of each array
its path in the saved structure, its dtype and its shape. Nothing is pickled: what is
read is compared with a template and can only be arrays.
"""

from collections.abc import Iterator, Mapping
import dataclasses
import hashlib
import json
import logging
import math
import pathlib
import re
from typing import Any

import numpy as np
import tree

from training_loops import files

_MAGIC = b'tff-algorithms checkpoint 1\n'
_NAME = re.compile(r'round_(\d+)\.ckpt')

_logger = logging.getLogger(__name__)


class DamagedError(Exception):
  """A file that is no whole checkpoint."""


class MismatchError(Exception):
  """A checkpoint of another structure than the one wanted."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
  """What a file held.

  Attributes:
    record: The caller's JSON-like data.
    arrays: The saved structure's leaves, by path.
  """

  record: Mapping[str, Any]
  arrays: Mapping[str, np.ndarray]

  def restore(self, template: Any) -> Any:
    """The saved structure, in the shape of another one like it.

    Raises:
      MismatchError: If the template has other paths, dtypes or shapes.
    """
    wanted = _leaves(template)
    for path in wanted.keys() ^ self.arrays.keys():
      raise MismatchError(f'{path} is on one side only')
    for path, leaf in wanted.items():
      saved = self.arrays[path]
      if (saved.dtype, saved.shape) != (leaf.dtype, leaf.shape):
        raise MismatchError(
          f'{path} is {saved.dtype.name}{list(saved.shape)} in the checkpoint, '
          f'not {leaf.dtype.name}{list(leaf.shape)}'
        )
    return tree.map_structure_with_path(
      lambda path, _: self.arrays[_name(path)], template
    )


def _name(path: tuple) -> str:
  return '/'.join(map(str, path))


def _leaves(structure: Any) -> dict[str, np.ndarray]:
  return {
    _name(path): np.asarray(leaf) for path, leaf in tree.flatten_with_path(structure)
  }


def write(path: pathlib.Path, structure: Any, record: Mapping[str, Any]) -> None:
  """Writes a checkpoint in the place of whatever is there.

  Args:
    path: The file.
    structure: Any structure of numeric arrays that `tree` walks through.
    record: JSON-like data.
  """
  arrays = _leaves(structure)
  for name, array in arrays.items():
    if array.dtype.hasobject:
      raise TypeError(f'{name} is no numeric array.')
  header = {
    'record': record,
    'arrays': [[name, a.dtype.name, list(a.shape)] for name, a in arrays.items()],
  }
  parts = [json.dumps(header).encode() + b'\n']
  parts.extend(np.ascontiguousarray(array).tobytes() for array in arrays.values())
  digest = hashlib.sha256()
  for part in parts:
    digest.update(part)
  with files.replacing(path) as file:
    file.write(_MAGIC)
    file.write(digest.hexdigest().encode() + b'\n')
    for part in parts:
      file.write(part)


def read(path: pathlib.Path) -> Checkpoint:
  """Reads a checkpoint.

  Raises:
    DamagedError: If the file is not what was written.
  """
  content = path.read_bytes()
  start = len(_MAGIC) + hashlib.sha256().digest_size * 2 + 1
  if not content.startswith(_MAGIC):
    raise DamagedError(f'{path} is no checkpoint.')
  body = memoryview(content)[start:]
  digest = hashlib.sha256(body).hexdigest().encode() + b'\n'
  if content[len(_MAGIC) : start] != digest:
    raise DamagedError(f'{path} is damaged: its SHA-256 does not fit.')
  offset = content.index(b'\n', start) + 1
  header = json.loads(content[start:offset])
  arrays = {}
  for name, dtype, shape in header['arrays']:
    flat = np.frombuffer(content, dtype, math.prod(shape), offset)
    arrays[name] = flat.reshape(shape).copy()
    offset += flat.nbytes
  return Checkpoint(header['record'], arrays)


class Store:
  """A directory of checkpoints, one a round at most."""

  def __init__(self, directory: pathlib.Path):
    self._directory = directory

  def _path(self, round_num: int) -> pathlib.Path:
    return self._directory / f'round_{round_num:08d}.ckpt'

  def _rounds(self) -> list[int]:
    if not self._directory.is_dir():
      return []
    matches = (_NAME.fullmatch(path.name) for path in self._directory.iterdir())
    return sorted(int(match[1]) for match in matches if match)

  def save(
    self, round_num: int, structure: Any, record: Mapping[str, Any], best_round: int
  ) -> None:
    """Saves a round, then removes all but the last two and the best."""
    if not self._directory.is_dir():
      self._directory.mkdir()
      files.sync_directory(self._directory.parent)
    write(self._path(round_num), structure, record)
    rounds = self._rounds()
    for old in set(rounds) - {*rounds[-2:], best_round}:
      self._path(old).unlink()

  def read(self, round_num: int) -> Checkpoint:
    """Reads that round's checkpoint.

    Raises:
      DamagedError: If it is not whole.
    """
    return read(self._path(round_num))

  def newest_first(self) -> Iterator[Checkpoint]:
    """The checkpoints that are whole; damaged ones are named in the log."""
    for round_num in reversed(self._rounds()):
      try:
        yield self.read(round_num)
      except DamagedError as error:
        _logger.warning('%s Trying the one before it.', error)

  def remove_after(self, round_num: int) -> None:
    """Removes what lies after a round that is continued from: damaged ones."""
    for later in self._rounds():
      if later > round_num:
        self._path(later).unlink()
