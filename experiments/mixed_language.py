"""Figures 1b, 2b, 5 and 13 of the mixed FL paper: a model of two kinds of text.

Augenstein et al. 2022, sections 4.2, B.2.2 and B.4.5.
"""

from typing import Any

from experiments import experiment
from experiments.experiment import Comparison, Entry, Picture, flagfile

_TITLE = 'Mixed FL paper, Figures 1b, 2b, 5 and 13: a language model'

_TEXT = """
To be written.
"""

_NAMES = {
  'parallel_training': 'PT',
  'one_way_gradient_transfer': '1-w GT',
  'two_way_gradient_transfer': '2-w GT',
}
_FLAGS: dict[str, dict[str, Any]] = {
  name: flagfile(f'stackoverflow_wikipedia_char_{algorithm}_small')
  for algorithm, name in _NAMES.items()
}
_SHARED = (
  'task',
  'embedding_size',
  'gru_units',
  'clients_per_round',
  'rounds',
  'rounds_per_eval',
  'max_eval_examples',
)
_COMMON = {flag: _FLAGS['PT'][flag] for flag in _SHARED}
_CLIENTS = {
  flag: _FLAGS['PT'][flag]
  for flag in ('batch_size', 'max_client_steps', 'client_learning_rate', 'aggregator')
}
_CENTRAL = {
  'central_learning_rate': _CLIENTS['client_learning_rate'],
  'central_steps': _FLAGS['PT']['central_steps'],
  'central_batch_size': _FLAGS['PT']['central_batch_size'],
}
# The rounds of each half of transfer learning.
_SWITCH = int(_COMMON['rounds']) // 2


def _own(name: str) -> Entry:
  flags = _FLAGS[name]
  return Entry({flag: flags[flag] for flag in flags if flag not in _SHARED})


def _transfer(order: str) -> Entry:
  return Entry(
    {
      'algorithm': 'transfer_learning',
      'transfer_order': order,
      'transfer_round': _SWITCH,
      **_CLIENTS,
      **_CENTRAL,
    }
  )


_PARTS = ('eval/accuracy', 'eval/stackoverflow_accuracy', 'eval/wikipedia_accuracy')

_METHODS = {
  'only FL': Entry({'algorithm': 'fed_avg', **_CLIENTS}),
  **{name: _own(name) for name in _FLAGS},
  'oracle': Entry({'algorithm': 'centralized_oracle', **_CENTRAL}),
}
_TRANSFERS = {
  'central, then federated': _transfer('central_first'),
  'federated, then central': _transfer('federated_first'),
}

_COMPARISONS = [
  Comparison(
    name='methods',
    title='Text of two kinds',
    flags=_COMMON,
    entries=_METHODS | _TRANSFERS,
    target='only FL',
    pictures={
      'figures_1b_2b.png': Picture(['eval/accuracy', 'eval/loss'], list(_METHODS)),
      'figure_5.png': Picture(_PARTS[1:], list(_METHODS)),
      'figure_13.png': Picture(_PARTS, ['PT', *_TRANSFERS]),
    },
    published='mixed_language.csv',
    published_clients=342477,
  )
]

if __name__ == '__main__':
  experiment.main(__file__, _TITLE, _TEXT, _COMPARISONS)
