"""The tasks by name: what each is, which options it takes, where it is made.

To add one: write its entry in `_TASKS`. A task's module is imported when the task is
loaded, not before. A function of a user's own is a task too, by its dotted name.
"""

from collections.abc import Mapping
import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import types
import typing
from typing import Any

from tasks import downloads, partitions
from tasks.partitions import Choice

if typing.TYPE_CHECKING:
  from tasks.task import Task


@dataclasses.dataclass(frozen=True)
class _Entry:
  """How to describe and make a task.

  Attributes:
    description: What it is, in one line.
    home: `module.function`; the function takes (name, seed) and the options. In place
      of the choice of a partitioner it takes `partition`, see `partitions.bound`.
    options: The options that it takes, by name, with their defaults or a `Choice`.
    check: A function of `downloads` that makes sure that the files are there or can be
      had; it takes some of the options by name. None where no files are needed.
  """

  description: str
  home: str
  options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  check: str | None = None


_DATA_DIR = {'data_dir': None}


def _digits(model: str, function: str) -> _Entry:
  return _Entry(
    f'Handwritten digits (8x8, bundled with scikit-learn), {model}.',
    f'tasks.digits.{function}',
    {'partitioner': partitions.choice('dirichlet', 50)},
  )


def _emnist(model: str, function: str) -> _Entry:
  return _Entry(
    f'Characters by writer (EMNIST-62), {model}.',
    f'tasks.emnist.{function}',
    _DATA_DIR,
    'emnist',
  )


def _mnist(model: str, function: str) -> _Entry:
  return _Entry(
    f'Digits by writer, or MNIST over a partitioner, {model}.',
    f'tasks.mnist.{function}',
    {
      **_DATA_DIR,
      'partitioner': partitions.choice('writer', 100, by_nature='writer'),
    },
    'mnist',
  )


_CIFAR_MODEL = {'cifar_model': Choice('resnet18', {'resnet18': {}, 'cnn': {}})}

_SELECTION = {
  'selection': Choice(
    'simulated', {'simulated': {}, 'federated_select': {}, 'none': {}}
  )
}

_TASKS = {
  'digits_logistic': _digits('logistic regression', 'logistic'),
  'digits_mlp': _digits('one hidden layer of 64', 'mlp'),
  'digits_mixed': _digits('server has 5 to 9, logistic', 'mixed'),
  'digits_gan': _Entry(
    'Handwritten digits (8x8, bundled with scikit-learn), adversarial network.',
    'tasks.digits_gan.gan',
    {'partitioner': partitions.choice('dirichlet', 50)},
  ),
  'emnist_logistic': _emnist('logistic regression', 'logistic'),
  'emnist_mlp': _emnist('two hidden layers of 300 and 100', 'mlp'),
  'emnist_cnn': _emnist('CNN with dropout', 'cnn'),
  'emnist_autoencoder': _emnist('autoencoder', 'autoencoder'),
  'mnist_mlp': _mnist('two hidden layers of 300 and 100', 'mlp'),
  'mnist_cnn': _mnist('small CNN', 'cnn'),
  'emnist_balanced_logistic': _Entry(
    'EMNIST balanced (47 classes) over a partitioner, logistic regression.',
    'tasks.emnist_balanced.logistic',
    {**_DATA_DIR, 'partitioner': partitions.choice('similarity', 400)},
    'emnist_balanced',
  ),
  'cifar100': _Entry(
    'CIFAR-100 by Pachinko allocation, ResNet-18 with group norm or a small CNN.',
    'tasks.cifar100.by_client',
    {**_DATA_DIR, **_CIFAR_MODEL},
    'cifar100',
  ),
  'cifar100_dirichlet': _Entry(
    'CIFAR-100 over a partitioner, ResNet-18 with group norm or a small CNN.',
    'tasks.cifar100.partitioned',
    {
      **_DATA_DIR,
      **_CIFAR_MODEL,
      'partitioner': partitions.choice('dirichlet', 100, has_coarse_labels=True),
    },
    'cifar100',
  ),
  'celeba_smile': _Entry(
    'Smiles by celebrity (CelebA), unsmiling faces central, one hidden layer of 64.',
    'tasks.celeba.smile',
    _DATA_DIR,
    'celeba',
  ),
  'shakespeare': _Entry(
    'The next character, by role, LSTM of 256.',
    'tasks.shakespeare.next_character',
    {**_DATA_DIR, 'lstm_layers': 1},
    'shakespeare',
  ),
  'stackoverflow_word': _Entry(
    'The next word, by user, LSTM of 670.',
    'tasks.stackoverflow.next_word',
    {**_DATA_DIR, 'vocabulary_size': 10_000, 'max_client_examples': None},
    'stackoverflow_word',
  ),
  'stackoverflow_tag': _Entry(
    'The tags of a question, by user, logistic regression.',
    'tasks.stackoverflow.tags',
    {
      **_DATA_DIR,
      'vocabulary_size': 10_000,
      'num_tags': 500,
      'max_client_examples': None,
    },
    'stackoverflow_tag',
  ),
  'stackoverflow_wikipedia_char': _Entry(
    'The next character, by user, with Wikipedia central, GRU of 1024.',
    'tasks.stackoverflow_wikipedia.next_character',
    {
      **_DATA_DIR,
      'embedding_size': 256,
      'gru_units': 1024,
      'max_client_examples': None,
      'max_central_examples': 200_000,
    },
    'stackoverflow_wikipedia',
  ),
  'movielens': _Entry(
    'The next movie, by user (MovieLens 1M), dual encoder.',
    'tasks.movielens.next_movie',
    {
      **_DATA_DIR,
      'spreadout': Choice('server', {'server': _SELECTION, 'clients': {}}),
    },
    'movielens',
  ),
  'concrete_linear': _Entry(
    'The strength of concrete (UCI), linear regression.',
    'tasks.concrete.linear',
    {**_DATA_DIR, 'partitioner': partitions.choice('similarity', 10)},
    'concrete',
  ),
  'concrete_robust': _Entry(
    'The strength of concrete (UCI), regression against an adversary.',
    'tasks.concrete.robust',
    {**_DATA_DIR, 'partitioner': partitions.choice('similarity', 10)},
    'concrete',
  ),
  'quadratics': _Entry(
    'Generated: quadratics with chosen dissimilarities and a known optimum.',
    'tasks.quadratics.quadratics',
    {
      'num_clients': 20,
      'dimension': 20,
      'gradient_dissimilarity': 1.0,
      'hessian_dissimilarity': 0.5,
      'smoothness': 2.0,
      'convexity': 0.1,
    },
  ),
  'quadratic_game': _Entry(
    'Generated: a quadratic saddle-point problem with a known optimum.',
    'tasks.quadratic_game.quadratic_game',
    {
      'num_clients': 10,
      'dimension': 10,
      'heterogeneity': 5.0,
      'threshold': Choice('raise', {'raise': {}, 'redraw': {}}),
      'coupling': 0.5,
      'initial_value': 1.0,
      'precision': Choice('float64', {'float64': {}, 'float32': {}}),
    },
  ),
  'tfds': _Entry(
    'Any classification data set of TensorFlow Datasets, over a partitioner.',
    'tasks.tfds_task.classification',
    {
      **_DATA_DIR,
      'tfds_name': None,
      'tfds_model': Choice('logistic', {'logistic': {}, 'mlp': {}, 'cnn': {}}),
      'image_size': None,
      'partitioner': partitions.choice('dirichlet', 100),
    },
    'tfds',
  ),
}


def names() -> tuple[str, ...]:
  """The names of all tasks."""
  return tuple(_TASKS)


def describe() -> dict[str, str]:
  """The names of all tasks, with a line on each."""
  return {name: entry.description for name, entry in _TASKS.items()}


def options(name: str) -> Mapping[str, Any]:
  """The options of a task, by name, with their defaults; some are a `Choice`.

  Raises:
    ValueError: If there is no task of that name.
  """
  return types.MappingProxyType(dict(_entry(name).options))


def check(name: str, **given: Any) -> None:
  """Makes sure, in seconds, that `load` will find its files or can download them.

  Args:
    name: As in `load`.
    **given: As in `load`.

  Raises:
    ValueError: If it cannot, or the task does not take these options.
  """
  entry = _entry(name)
  values = _resolved(name, entry.options, given)
  if entry.check:
    function = getattr(downloads, entry.check)
    function(**{key: values[key] for key in inspect.signature(function).parameters})


def load(name: str, seed: int, **given: Any) -> 'Task':
  """Makes a task.

  Args:
    name: One of `names()`, or `module.function` of one's own, called with (name, seed).
    seed: What the partition of the data over clients is drawn from; the same seed
      gives the same task.
    **given: Values for some of `options(name)`, or of the choices among them.

  Raises:
    ValueError: If there is no task of that name, it does not take one of the options,
      or not that value, or its data cannot be had.
  """
  entry = _entry(name)
  values = _resolved(name, entry.options, given)
  if 'partitioner' in entry.options:
    chosen = values.pop('partitioner')
    brought = entry.options['partitioner'].branches[chosen]
    own = {option: values.pop(option) for option in brought}
    values['partition'] = partitions.bound(chosen, **own)
  module, _, function = entry.home.rpartition('.')
  make = getattr(importlib.import_module(module), function, None)
  if not callable(make):
    raise ValueError(f'{module} has no function {function!r}.')
  try:
    inspect.signature(make).bind(name, seed, **values)
  except TypeError as error:
    raise ValueError(f'{name} is not a function of (name, seed): {error}.') from None
  task = make(name, seed, **values)

  from tasks.task import Task

  if not isinstance(task, Task):
    raise ValueError(f'{name} returned {task!r}, where a Task is expected.')
  return task


def _entry(name: str) -> _Entry:
  if '.' in name:
    check_own(name)
    return _Entry('', name)
  if name not in _TASKS:
    near = difflib.get_close_matches(name, _TASKS, n=3)
    hint = f' Did you mean {" or ".join(near)}?' if near else ''
    raise ValueError(f'Unknown task {name!r}; known are {", ".join(_TASKS)}.{hint}')
  return _TASKS[name]


def check_own(name: str) -> None:
  """Makes sure that the module of a user's own task is there; it is not imported.

  Raises:
    ValueError: If it is not.
  """
  module, _, function = name.rpartition('.')
  try:
    found = function.isidentifier() and importlib.util.find_spec(module)
  except (ImportError, ValueError):
    found = None
  if not found:
    raise ValueError(f'no module {module!r} with a function {function!r} can be found')


def _resolved(
  name: str, tree: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, Any]:
  """The value of every option on the branches taken."""
  values = {}

  def take(branch):
    for option, default in branch.items():
      if isinstance(default, Choice):
        values[option] = value = given.get(option, default.default)
        if value not in default.branches:
          known = ', '.join(default.branches)
          raise ValueError(f'{option} must be one of {known}; found {value!r}.')
        take(default.branches[value])
      else:
        values[option] = given.get(option, default)

  take(tree)
  foreign = sorted(set(given) - set(values))
  if foreign:
    raise ValueError(
      f'Task {name!r} does not take {", ".join(foreign)}; '
      f'it takes {", ".join(values) or "no options"}.'
    )
  return values
