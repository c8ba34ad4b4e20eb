"""Data sets of labelled images: how their files are called and where they may be.

Importing this module imports nothing slow.
"""

import dataclasses
import pathlib


@dataclasses.dataclass(frozen=True)
class Source:
  """A data set of labelled images in four files, which TFDS has as well.

  Attributes:
    tfds_name: The name that TFDS knows it by.
    num_classes: The labels are the integers below.
    prefixes: What the names of the files for training and for testing begin with.
    folders: Where in the directory of data the files may be.
  """

  tfds_name: str
  num_classes: int
  prefixes: tuple[str, str]
  folders: tuple[str, ...]

  @property
  def file_names(self) -> tuple[str, ...]:
    """Images and labels for training, images and labels for testing."""
    return tuple(
      f'{prefix}-{kind}-ubyte'
      for prefix in self.prefixes
      for kind in ('images-idx3', 'labels-idx1')
    )


MNIST = Source('mnist', 10, ('train', 't10k'), ('mnist', '.'))
EMNIST_BALANCED = Source(
  'emnist/balanced',
  47,
  ('emnist-balanced-train', 'emnist-balanced-test'),
  # NIST's archive unpacks to `gzip`.
  ('emnist-balanced', 'emnist_balanced', 'gzip', '.'),
)


def find(source: Source, directory: pathlib.Path) -> list[pathlib.Path] | None:
  """The paths of the four files, in the order of `file_names`.

  Args:
    source: The data set.
    directory: The directory of data.

  Returns:
    The paths, or None unless all four are in one folder.
  """
  for folder in source.folders:
    paths = [
      path for name in source.file_names if (path := _find(directory / folder, name))
    ]
    if len(paths) == len(source.file_names):
      return paths
  return None


def _find(folder: pathlib.Path, name: str) -> pathlib.Path | None:
  for spelling in (name, name.replace('-idx', '.idx')):  # Both are in use.
    for path in (folder / spelling, folder / f'{spelling}.gz'):
      if path.is_file():
        return path
  return None
