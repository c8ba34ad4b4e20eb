"""What a run was made with: versions and the commit."""

from importlib import metadata
import pathlib
import platform
import subprocess
import tomllib

_SOURCE = pathlib.Path(__file__).resolve()
_PACKAGES = ('tensorflow-cpu', 'tensorflow', 'tensorflow-federated', 'numpy')
_PROJECT = 'tff-algorithms'


def versions() -> dict[str, str]:
  """The versions of Python and of the packages that determine a run's numbers."""
  found = {'python': platform.python_version()}
  for package in (*_PACKAGES, _PROJECT):
    try:
      found[package] = metadata.version(package)
    except metadata.PackageNotFoundError:
      continue  # Another build of TensorFlow, or a source tree that is not installed.
  project_file = _SOURCE.parents[1] / 'pyproject.toml'
  if _PROJECT not in found and project_file.exists():
    found[_PROJECT] = tomllib.loads(project_file.read_text())['project']['version']
  return found


def git_commit() -> str | None:
  """The commit of these sources, `-dirty` if changed; None outside a repository."""

  def git(*arguments: str) -> str:
    command = ['git', '-C', str(_SOURCE.parent), *arguments]
    return subprocess.run(
      command, check=True, capture_output=True, text=True, timeout=10
    ).stdout.strip()

  try:
    git('ls-files', '--error-unmatch', _SOURCE.name)  # Not some other repository.
    return git('describe', '--always', '--dirty', '--abbrev=40', '--exclude=*')
  except (OSError, subprocess.SubprocessError):
    return None
