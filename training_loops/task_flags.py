"""The options of the tasks as flags.

Importing this module does not import TensorFlow.
"""

from collections.abc import Callable, Mapping, Sequence
import functools
from typing import Any

import tasks
from training_loops.options import Option, choice, integer, number, path, text

_positive = functools.partial(number, above=0)
_non_negative = functools.partial(number, at_least=0)
_percent = functools.partial(number, at_least=0, at_most=100)
_dirichlet = functools.partial(number, at_least=1e-6)
_directory = functools.partial(path, is_free=True)

# How an option is given, by its name: the kind of flag, and a sentence on it.
_FLAGS: dict[str, tuple[Callable[[str, Any, str], Option], str]] = {
  'data_dir': (_directory, "Where the data are; TFF's cache by default."),
  'num_clients': (integer, 'Clients that the data are split over.'),
  'dirichlet_alpha': (_dirichlet, 'Evenness of the labels over clients.'),
  'size_variance': (_non_negative, "Unevenness of the clients' sizes."),
  'similarity': (_percent, 'Percent of the examples dealt out at random.'),
  'shards_per_client': (integer, 'Pieces of the sorted examples for a client.'),
  'examples_per_client': (integer, 'Examples for a client.'),
  'lstm_layers': (integer, 'Layers of the LSTM, 1 or 2.'),
  'vocabulary_size': (integer, 'Most frequent words that are told apart.'),
  'num_tags': (integer, 'Most frequent tags that are predicted.'),
  'max_client_examples': (integer, 'Most examples that a client trains on.'),
  'max_central_examples': (integer, 'Most examples that the server trains on.'),
  'embedding_size': (integer, 'Length of an embedded vector.'),
  'gru_units': (integer, 'Units of the GRU.'),
  'dimension': (integer, 'Dimension of the weights.'),
  'gradient_dissimilarity': (_non_negative, 'G: of the gradients at the optimum.'),
  'hessian_dissimilarity': (_non_negative, 'Delta: of the Hessians.'),
  'smoothness': (_positive, 'L: largest eigenvalue of a Hessian.'),
  'convexity': (_non_negative, 'Mu: least eigenvalue of a Hessian.'),
  'heterogeneity': (_non_negative, 's: how unlike the clients are.'),
  'coupling': (number, 'h: of the minimising and the maximising weights, not 0.'),
  'initial_value': (number, 'What every weight starts at.'),
  'tfds_name': (text, 'The data set in TensorFlow Datasets.'),
  'image_size': (integer, 'Side in pixels that pictures are brought to.'),
}
# The same for an option that is a choice.
_CHOICES = {
  'partitioner': 'How examples are dealt out over clients.',
  'cifar_model': 'The model.',
  'threshold': 'How entries of the a_i are made at least 1.',
  'precision': 'Of rows and weights.',
  'tfds_model': 'The model.',
  'selection': 'Whether a client is sent only the rows of the table that it needs.',
  'spreadout': 'Who computes the regularizer that keeps movies apart.',
}


@functools.cache
def branches() -> Mapping[str, Sequence[Option]]:
  """The names of all tasks, with the flags of each."""
  return {name: _options(tasks.options(name)) for name in tasks.names()}


def _options(tree: Mapping[str, Any]) -> list[Option]:
  return [_option(name, default) for name, default in tree.items()]


def _option(name: str, default: Any) -> Option:
  if isinstance(default, tasks.Choice):
    brought = {value: _options(own) for value, own in default.branches.items()}
    return choice(name, default.default, _CHOICES[name], brought)
  make, sentence = _FLAGS[name]
  return make(name, default, sentence)
