"""The SQLite files of TFF's own data sets: fetched by its loaders, read by ours."""

from collections.abc import Callable
import os
import pathlib
import tempfile
from typing import Any

from tasks import downloads


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
    with tempfile.TemporaryDirectory(dir=directory) as unfinished:
      try:
        load_data(cache_dir=unfinished)
      except OSError as error:
        raise ValueError(f'{downloads.missing([name], directory)} ({error})') from error
      os.replace(pathlib.Path(unfinished, name), path)
  return path
