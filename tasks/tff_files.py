"""The SQLite files of TFF's own data sets: fetched by its loaders, read by ours."""

from collections.abc import Callable
import os
import pathlib
import struct
from typing import Any

from tasks import downloads, scratch


def fetch(
  data_dir: str | None, name: str, load_data: Callable[..., Any]
) -> pathlib.Path:
  """The path of a file, which TFF's loader downloads if it is not there.

  Args:
    data_dir: TFF's cache directory; its default if None.
    name: The name that the loader gives the file.
    load_data: The loader, which takes `cache_dir`.

  Raises:
    ValueError: If the file is neither there nor can be downloaded.
  """
  directory = downloads.directory(data_dir)
  path = directory / name
  if not path.exists():
    downloads.require_tff_file(directory, name)
    directory.mkdir(parents=True, exist_ok=True)
    # TFF takes whatever has the right name for the whole file: a download that was
    # broken off must not leave one.
    with scratch.directory(directory) as unfinished:
      downloaded = unfinished / name
      try:
        load_data(cache_dir=str(unfinished))
      # Whatever the network, the archive, the file system and SQLite come up with.
      except Exception as error:
        raise ValueError(downloads.failed(name, directory, error)) from error
      if not _is_whole(downloaded):
        raise ValueError(downloads.failed(name, directory, 'it broke off'))
      os.replace(downloaded, path)
  return path


def _is_whole(path: pathlib.Path) -> bool:
  """Whether a SQLite file is as long as it says; TFF does not notice if it is not."""
  with open(path, 'rb') as file:
    header = file.read(32)
  page_size, num_pages = struct.unpack('>16xH10xI', header)
  page_size = 65536 if page_size == 1 else page_size  # Which has no room in 16 bits.
  return path.stat().st_size == page_size * num_pages
