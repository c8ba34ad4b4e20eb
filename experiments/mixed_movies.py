"""Figures 3, 6 and 12 and Table 2 of the mixed FL paper: movies spread out.

Augenstein et al. 2022, sections 4.3, B.2.3, B.3 and B.4.4.
"""

from typing import Any

from experiments import experiment
from experiments.experiment import Comparison, Entry, Picture, flagfile

_TITLE = 'Mixed FL paper, Figures 3, 6 and 12, Table 2: movie recommendation'

_TEXT = """
To be written.
"""

_NAMES = {
  'parallel_training': 'PT',
  'one_way_gradient_transfer': '1-w GT',
  'two_way_gradient_transfer': '2-w GT',
}
_FLAGS: dict[str, dict[str, Any]] = {
  name: flagfile(f'movielens_{algorithm}_small') for algorithm, name in _NAMES.items()
}
_SHARED = ('task', 'clients_per_round', 'rounds', 'rounds_per_eval')
_COMMON = {flag: _FLAGS['PT'][flag] for flag in _SHARED}
_CLIENTS = {
  flag: _FLAGS['PT'][flag]
  for flag in (
    'batch_size',
    'client_epochs',
    'max_client_steps',
    'client_learning_rate',
  )
}


def _own(name: str, **more: Any) -> Entry:
  flags = _FLAGS[name] | more
  return Entry({flag: flags[flag] for flag in flags if flag not in _SHARED})


def _baseline(**more: Any) -> Entry:
  return Entry({'algorithm': 'fed_avg', 'spreadout': 'clients', **_CLIENTS, **more})


_ADAM = {'server_optimizer': 'adam', 'server_learning_rate': 0.01}

_METHODS = {'baseline': _baseline(), **{name: _own(name) for name in _FLAGS}}
_WITH_ADAM = {
  'baseline, Adam': _baseline(**_ADAM),
  '1-w GT, Adam': _own('1-w GT', **_ADAM),
}

_COMPARISONS = [
  Comparison(
    name='methods',
    title='The next movie',
    flags=_COMMON,
    entries=_METHODS | _WITH_ADAM,
    metric='eval/recall_at_10',
    target='baseline',
    pictures={
      'figures_3_6.png': Picture(['eval/loss', 'eval/recall_at_10'], list(_METHODS)),
      'figure_12.png': Picture(
        ['eval/loss', 'eval/recall_at_10'], ['baseline', '1-w GT', *_WITH_ADAM]
      ),
    },
    published='mixed_movies.csv',
    published_clients=3865,
  )
]

if __name__ == '__main__':
  experiment.main(__file__, _TITLE, _TEXT, _COMPARISONS)
