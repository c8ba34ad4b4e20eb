"""What all tests share."""

from collections.abc import Iterator
import os
import pathlib

# TensorFlow reads it when it is imported, so it is set before any test module.
os.environ.setdefault('TF_CPP_MIN_LOG_LEVEL', '1')

import hypothesis
import pytest

from training_loops import runtimes

# The same examples in every run: a failure is a finding of the change at hand. No
# deadline: the first example traces TensorFlow functions.
hypothesis.settings.register_profile('tests', derandomize=True, deadline=None)
hypothesis.settings.load_profile('tests')


def pytest_addoption(parser: pytest.Parser) -> None:
  """Adds `--part`."""
  parser.addoption(
    '--part', default='1/1', help='Every n-th file of tests, from the k-th.'
  )


def pytest_collection_modifyitems(
  config: pytest.Config, items: list[pytest.Item]
) -> None:
  """Leaves the tests of a part: see the Makefile."""
  k, n = map(int, config.getoption('part').split('/'))
  files = sorted({item.path for item in items})
  chosen = set(files[k - 1 :: n])
  config.hook.pytest_deselected(items=[i for i in items if i.path not in chosen])
  items[:] = [item for item in items if item.path in chosen]


@pytest.fixture(scope='session')
def runtime():
  """TFF's C++ runtime as the default context, one worker for each test process.

  A test that calls a TFF computation requests it; without it TFF would start a worker
  that outlives the tests.
  """
  local = runtimes.create('local')
  local.launch()
  with local:
    yield local


@pytest.fixture(params=['local', 'in_process'])
def each_runtime(request, runtime) -> Iterator[None]:
  """Both runtimes of one machine in turn, for tests of what must hold on either."""
  if request.param == 'local':
    yield
    return
  with runtimes.create('in_process', num_threads=2):
    yield
  runtime.start()


@pytest.fixture(scope='session', autouse=True)
def client_data_dir(tmp_path_factory) -> pathlib.Path:
  """Where clients' rows stay for other runs: of the tests, and not in one's home."""
  path = tmp_path_factory.mktemp('client_data')
  os.environ['TFF_ALGORITHMS_CLIENT_DATA_DIR'] = str(path)
  return path


@pytest.fixture(scope='session')
def data_dir() -> pathlib.Path:
  """The directory of downloaded data sets; tests that need them are skipped without."""
  directory = os.environ.get('TFF_ALGORITHMS_DATA_DIR')
  if not directory:
    pytest.skip('needs real data: TFF_ALGORITHMS_DATA_DIR is not set')
  return pathlib.Path(str(directory))


@pytest.fixture(scope='session')
def tff_cache(tmp_path_factory) -> pathlib.Path:
  """A directory with the files of TFF's data sets, real ones where they are."""
  from tests.tasks import tff_data

  directory = os.environ.get('TFF_ALGORITHMS_DATA_DIR')
  if directory:
    return pathlib.Path(directory)
  made = tmp_path_factory.mktemp('tff_cache')
  tff_data.write_all(made)
  return made


@pytest.fixture(scope='session')
def without_tensorflow(tmp_path_factory) -> dict[str, str]:
  """An environment in which importing TensorFlow, which takes seconds, fails."""
  path = tmp_path_factory.mktemp('without')
  for name in ('tensorflow', 'tensorflow_federated'):
    (path / f'{name}.py').write_text("raise ImportError('It was imported.')")
  return {**os.environ, 'PYTHONPATH': str(path)}
