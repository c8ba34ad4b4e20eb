"""Whether the files that a task needs are there or can be had.

Asked before anything slow happens: importing this module does not import TensorFlow.
"""

from collections.abc import Sequence
import pathlib
import threading
import urllib.error
import urllib.request

from tasks import image_sources, tfds_files

_TFDS_DATA = 'https://storage.googleapis.com/tfds-data'
_TFF_DATA = 'https://storage.googleapis.com/tff-datasets-public'
_TIMEOUT_SECONDS = 3
_MOVIELENS = 'movielens/1m-ratings'  # In TFDS.
_WIKIPEDIA = 'wikipedia/20201201.en'  # In TFDS.
_WIKIPEDIA_FOLDERS = ('wikipedia', 'wikitext-2')  # With its text.


def directory(data_dir: str | None) -> pathlib.Path:
  """Where data are looked for and kept: `data_dir`, or TFF's own cache directory.

  Raises:
    ValueError: If `data_dir` is given and not there.
  """
  if data_dir is None:
    return pathlib.Path.home() / '.tff'
  path = pathlib.Path(data_dir).expanduser()
  if not path.is_dir():
    raise ValueError(f'--data_dir={data_dir} is not a directory.')
  return path


def tfds_directory(data_dir: str | None) -> pathlib.Path:
  """Where TFDS keeps its data: `data_dir`, or its own default directory.

  Raises:
    ValueError: If `data_dir` is given and not there.
  """
  return tfds_files.default_directory() if data_dir is None else directory(data_dir)


def emnist(data_dir: str | None) -> None:
  """Checks for EMNIST by writer."""
  require_tff_file(directory(data_dir), 'emnist_all.sqlite')


def cifar100(data_dir: str | None) -> None:
  """Checks for CIFAR-100 by client."""
  require_tff_file(directory(data_dir), 'cifar100.sqlite')


def celeba(data_dir: str | None) -> None:
  """Checks for CelebA by celebrity."""
  require_tff_file(directory(data_dir), 'celeba.sqlite')


def shakespeare(data_dir: str | None) -> None:
  """Checks for Shakespeare by role."""
  require_tff_file(directory(data_dir), 'shakespeare.sqlite')


def stackoverflow_word(data_dir: str | None) -> None:
  """Checks for Stack Overflow by user, and the table of its words."""
  where = directory(data_dir)
  require_tff_file(where, 'stackoverflow.sqlite')
  require_count_table(where, 'word')


def stackoverflow_tag(data_dir: str | None) -> None:
  """Checks for Stack Overflow by user, and the tables of its words and tags."""
  stackoverflow_word(data_dir)
  require_count_table(directory(data_dir), 'tag')


def stackoverflow_wikipedia(data_dir: str | None) -> None:
  """Checks for Stack Overflow by user, and for Wikipedia."""
  require_tff_file(directory(data_dir), 'stackoverflow.sqlite')
  if not prepared_wikipedia(data_dir):
    wikipedia_texts(data_dir)


def prepared_wikipedia(data_dir: str | None) -> pathlib.Path | None:
  """Finds Wikipedia as TFDS has prepared it, in `data_dir` or TFDS's own directory."""
  places = (directory(data_dir), tfds_files.default_directory())
  found = (tfds_files.prepared(_WIKIPEDIA, place) for place in places)
  return next(filter(None, found), None)


def wikipedia_texts(data_dir: str | None) -> list[pathlib.Path]:
  """Finds files with the text of Wikipedia, in the order of their names.

  Raises:
    ValueError: If there are none for training; nothing downloads them.
  """
  where = directory(data_dir)
  for folder in _WIKIPEDIA_FOLDERS:
    paths = sorted(
      path
      for pattern in ('*.txt', '*.tokens')
      for path in (where / folder).glob(pattern)
    )
    if not all(map(is_for_testing, paths)):
      return paths
  folders = ' or '.join(str(where / folder) for folder in _WIKIPEDIA_FOLDERS)
  raise ValueError(
    f'The text of Wikipedia cannot be found, and is not downloaded: put it into '
    f'{folders}, as files *.txt or *.tokens of which those with "test" in their names '
    f'are for evaluation, or have TFDS prepare {_WIKIPEDIA} in {where} or '
    f'{tfds_files.default_directory()}. Another directory is named with --data_dir; '
    '--task=digits_logistic needs no download.'
  )


def is_for_testing(path: pathlib.Path) -> bool:
  """Whether the text in a file is for evaluation, by the file's name."""
  return 'test' in path.name.lower()


def mnist(data_dir: str | None, partitioner: str) -> None:
  """Checks for MNIST, or for EMNIST where the clients are the writers."""
  if partitioner == 'writer':
    emnist(data_dir)
  else:
    require_labelled_images(image_sources.MNIST, data_dir)


def emnist_balanced(data_dir: str | None) -> None:
  """Checks for the balanced split of EMNIST."""
  require_labelled_images(image_sources.EMNIST_BALANCED, data_dir)


def movielens(data_dir: str | None) -> pathlib.Path:
  """Finds the ratings of MovieLens 1M, which nothing downloads.

  Returns:
    The file `ratings.dat`, or else the directory in which TFDS has prepared them.

  Raises:
    ValueError: If neither is there.
  """
  where = directory(data_dir)
  for path in (where / 'ml-1m' / 'ratings.dat', where / 'ratings.dat'):
    if path.is_file():
      return path
  places = (where, tfds_files.default_directory())
  for place in places:
    if prepared := tfds_files.prepared(_MOVIELENS, place):
      return prepared
  raise ValueError(
    f'ml-1m/ratings.dat cannot be found in {where}, and is not downloaded: unpack '
    'ml-1m.zip of MovieLens 1M there, from grouplens.org/datasets/movielens/1m, or '
    f'have TFDS prepare {_MOVIELENS} in {" or ".join(map(str, places))}. Another '
    'directory is named with --data_dir; --task=digits_logistic needs no download.'
  )


def concrete(data_dir: str | None) -> pathlib.Path:
  """Finds the table of concrete's strength, which nothing downloads."""
  name = 'Concrete_Data.csv'
  where = directory(data_dir)
  for path in (where / 'concrete' / name, where / name):
    if path.is_file():
      return path
  raise ValueError(
    f'{name} cannot be found in {where}, and is not downloaded: save the table of '
    'Concrete Compressive Strength, from the UCI Machine Learning Repository, as CSV '
    'under this name, and name its directory with --data_dir; --task=digits_logistic '
    'needs no download.'
  )


def tfds(data_dir: str | None, tfds_name: str | None) -> None:
  """Checks for a data set of TFDS.

  Args:
    data_dir: Where TFDS keeps its data; its own default directory if None.
    tfds_name: As for `tfds.load`: `name`, `name/config`, `name/config:version`.

  Raises:
    ValueError: If it is neither prepared nor can be downloaded, or not named.
  """
  if not tfds_name:
    raise ValueError('Name a data set of TFDS with --tfds_name, such as cifar10.')
  where = tfds_directory(data_dir)
  if not tfds_files.prepared(tfds_name, where) and not is_reachable(_TFDS_DATA):
    name, _, version = tfds_name.partition(':')
    file_name = f'{name}/{version or "*"}/{tfds_files.INFO_FILE}'
    raise ValueError(missing([file_name], where))


def require_labelled_images(source: image_sources.Source, data_dir: str | None) -> None:
  """Returns if the data are there, as files or from TFDS, or else can be downloaded.

  Raises:
    ValueError: If neither.
  """
  where = directory(data_dir)
  if (
    not image_sources.find(source, where)
    and not tfds_files.prepared(source.tfds_name, tfds_directory(data_dir))
    and not is_reachable(_TFDS_DATA)
  ):
    raise ValueError(missing(source.file_names, where))


def require_tff_file(where: pathlib.Path, name: str) -> None:
  """Returns if a file of TFF's is there, or else can be downloaded.

  Raises:
    ValueError: If neither.
  """
  if not (where / name).exists() and not is_reachable(f'{_TFF_DATA}/{name}.lzma'):
    raise ValueError(missing([name], where))


def count_table(where: pathlib.Path, kind: str) -> pathlib.Path:
  """Where the table of Stack Overflow's words or tags (`kind`) is kept."""
  return where / 'datasets' / f'stackoverflow.{kind}_count'


def require_count_table(where: pathlib.Path, kind: str) -> None:
  """Returns if such a table is there, or else can be downloaded.

  Raises:
    ValueError: If neither.
  """
  path = count_table(where, kind)
  if not path.exists() and not is_reachable(f'{_TFF_DATA}/{path.name}.tar.bz2'):
    raise ValueError(missing([path.name], path.parent))


def missing(names: Sequence[str], where: pathlib.Path) -> str:
  """What to tell a user whose data are not there and cannot be downloaded."""
  return (
    f'{", ".join(names)} cannot be found in {where}, nor downloaded: there is no '
    'network. Name the directory that has it with --data_dir; '
    '--task=digits_logistic needs no download.'
  )


def failed(name: str, where: pathlib.Path, reason: object) -> str:
  """What to tell a user whose download failed."""
  return (
    f'{name} could not be downloaded to {where} ({reason}). Try again, or name a '
    'directory that has it with --data_dir; --task=digits_logistic needs no download.'
  )


def is_reachable(url: str) -> bool:
  """Whether something answers at the address, within a few seconds."""
  answers = []

  def ask():
    request = urllib.request.Request(url, method='HEAD')
    try:
      with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS):
        answers.append(True)
    except urllib.error.HTTPError:
      answers.append(True)  # A server refused this address: there is a network.
    except OSError:
      pass

  # Looking up a name can take longer than any timeout that can be set for it.
  thread = threading.Thread(target=ask, daemon=True)
  thread.start()
  thread.join(_TIMEOUT_SECONDS)
  return bool(answers)
