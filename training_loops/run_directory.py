"""The output directory of a run: its files, its lock, and whom it belongs to."""

from collections.abc import Iterator, Mapping
import contextlib
import json
import os
import pathlib
from typing import Any

from training_loops import files, train_flags
from training_loops.options import UserError


class RunDirectory:
  """An output directory, which may not exist yet.

  Attributes:
    path: The directory.
  """

  def __init__(self, path: str | os.PathLike):
    self.path = pathlib.Path(path)

  @property
  def config_file(self) -> pathlib.Path:
    """All flags, versions and the commit; its presence makes a directory a run."""
    return self.path / 'config.json'

  @property
  def result_file(self) -> pathlib.Path:
    """Written last of all: the run is finished."""
    return self.path / 'result.json'

  @property
  def failure_file(self) -> pathlib.Path:
    """All that is known of why the run failed when it was last tried."""
    return self.path / 'failure.txt'

  @property
  def checkpoints(self) -> pathlib.Path:
    """Where the checkpoints are."""
    return self.path / 'checkpoints'

  @property
  def client_states(self) -> pathlib.Path:
    """What the clients keep, where they do; slots are beside it."""
    return self.path / 'client_states.sqlite'

  @property
  def log_file(self) -> pathlib.Path:
    """What was said, over all the times that the run was continued."""
    return self.path / 'train.log'

  def config(self) -> dict[str, Any]:
    """What the run was made with: `flags`, `versions`, `git_commit`.

    Raises:
      UserError: If the directory is no run.
    """
    try:
      config = json.loads(self.config_file.read_text())
      dict(config['flags'])
      return config
    except FileNotFoundError:
      raise UserError(f'{self.path} is no run: it has no config.json.') from None
    except (ValueError, KeyError, TypeError, OSError) as error:
      raise UserError(f'{self.config_file} cannot be read: {error}.') from None

  def flags(self) -> dict[str, Any]:
    """The flags that the run was made with.

    Raises:
      UserError: If the directory is no run.
    """
    return self.config()['flags']

  def finished_rounds(self) -> int:
    """After how many rounds the run was finished; 0 if it was not."""
    if not self.result_file.exists():
      return 0
    try:
      return int(json.loads(self.result_file.read_text())['rounds'])
    except (ValueError, KeyError, TypeError) as error:
      raise UserError(f'{self.result_file} cannot be read: {error}.') from None

  def check(self, flags: Mapping[str, Any]) -> None:
    """Makes sure that a run with these flags can be started or continued here.

    Nothing is written.

    Raises:
      UserError: If another run is or was made here, or nothing can be written.
    """
    files.check_writable(self.path)
    if not self.path.exists():
      return
    if files.lock_file(self.path).exists():
      with files.locked(self.path):
        pass
    if self.config_file.exists():
      self._compare(flags)
    elif any(not path.name.startswith('.') for path in self.path.iterdir()):
      raise UserError(f'{self.path} holds other files, and no run.')

  def _compare(self, flags: Mapping[str, Any]) -> None:
    old = self.flags()
    free = train_flags.free_names()
    differences = [
      f'--{name} (there {old.get(name, "unset")}, here {flags.get(name, "unset")})'
      for name in dict.fromkeys([*old, *flags])
      if name not in free and old.get(name, 'unset') != flags.get(name, 'unset')
    ]
    if differences:
      raise UserError(
        f'{self.path} was made with other flags: {", ".join(differences)}. '
        'Give those, or another --output_dir.'
      )

  @contextlib.contextmanager
  def opened(self, flags: Mapping[str, Any]) -> Iterator[None]:
    """Creates the directory if need be, and keeps other processes out of it."""
    self.check(flags)
    self.path.mkdir(parents=True, exist_ok=True)
    with files.locked(self.path):
      if self.config_file.exists():
        self._compare(flags)
      files.remove_leftovers(self.path)
      if self.checkpoints.is_dir():
        files.remove_leftovers(self.checkpoints)
      yield
