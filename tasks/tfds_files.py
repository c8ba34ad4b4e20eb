"""Where data sets of TFDS are on disk.

Asked before anything slow happens: importing this module imports neither TensorFlow nor
TFDS.

TFDS keeps a data set that it has prepared in `<name>/<config>/<version>/`, where a
data set of one configuration goes without `<config>/`.
"""

import fnmatch
import json
import os
import pathlib
import re

INFO_FILE = 'dataset_info.json'  # What has it is complete.


def default_directory() -> pathlib.Path:
  """Where TFDS keeps its data if it is not told."""
  default = os.environ.get('TFDS_DATA_DIR', '~/tensorflow_datasets')
  return pathlib.Path(default).expanduser()


def prepared(tfds_name: str, directory: pathlib.Path) -> pathlib.Path | None:
  """The directory of a data set that is prepared, in the newest version there is.

  Args:
    tfds_name: As for `tfds.load`: `name`, `name/config`, `name/config:version`.
    directory: Where TFDS keeps its data.

  Returns:
    The directory, or None if the data set is not prepared.
  """
  name, _, version = tfds_name.partition(':')
  home = directory / name
  found = _versions(home, version or '*')
  if not found and (default_config := _default_config(home)):
    found = _versions(home / default_config, version or '*')
  return max(
    found, key=lambda path: [int(n) for n in path.name.split('.')], default=None
  )


def _versions(home: pathlib.Path, pattern: str) -> list[pathlib.Path]:
  """The directories of complete versions; a pattern is such as `3.*.*`."""
  return [
    info.parent
    for info in home.glob(f'*/{INFO_FILE}')
    if re.fullmatch(r'\d+\.\d+\.\d+', info.parent.name)
    and fnmatch.fnmatchcase(info.parent.name, pattern)
  ]


def _default_config(home: pathlib.Path) -> str | None:
  """Which configuration TFDS takes if none is named, where it has noted that."""
  try:
    return json.loads((home / '.config' / 'metadata.json').read_text()).get(
      'default_config_name'
    )
  except (OSError, ValueError):
    return None
