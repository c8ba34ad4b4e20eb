"""Figures 1a, 2a, 7, 8 and 9 of the mixed FL paper: smiles here, none there.

Augenstein et al. 2022, sections 4.1, B.2.1, B.4.1 and B.4.2.
"""

from typing import Any

from experiments import experiment, mixed_fl
from experiments.experiment import Comparison, Entry, Picture

_TITLE = 'Mixed FL paper, Figures 1a, 2a, 7, 8 and 9: smile classification'

_TEXT = """
The clients hold smiling faces, the server unsmiling ones (Augenstein et al. 2022,
sections 4.1, B.2.1, B.4.1 and B.4.2), with the flags of
`experiments/flagfiles/celeba_smile_*_small.flags`: the paper's rates, batches and steps
(Tables 5 and 6), 20 clients a round where it has 100, and central batches to match.

- **The data are a part of CelebA**: 79 clients of 24 smiling faces where the paper has
  2,802 of about 32, and faces that were cut out by a detector. What a network of one
  hidden layer can learn of them in 500 rounds is an AUC of 0.73, far below the paper's
  0.95.
- The oracle takes as many steps a round as the others, at the same rate, on batches of
  both kinds of faces.

What came out, beside the paper's figures:

- **Figure 1a.** FL alone learns to say "smiling" to everything, as it must: an AUC of
  0.5. All mixed algorithms learn both kinds.
- **Figure 2a.** 1-way transfer is ahead of parallel training throughout, as in the
  paper: it is after 187 rounds where parallel training ends after 500. The gradients of
  clients and server are nearly opposite here ([G~ is
  large](../mixed_dissimilarity/README.md)), which is what the paper's bound says
  parallel training suffers from; its loss stays above all others'.
- **2-way transfer at the same rate is not as in the paper**, where it is level with
  1-way: here it jumps about and ends last. From its second round on its step is about
  twice the others', and the paper too finds it the first to diverge as the rate grows.
  With half the rate, as the paper has for its language model, it is calmer and level
  with parallel training, still behind 1-way transfer. The gradients that it transfers
  are of the round before and of few faces: with central batches of 500 (Figure 8) it is
  the best of all runs here.
- **Figures 7 and 8.** 1-way transfer gains from larger central batches up to 100 and
  nothing after that; the paper finds the same with 25. 2-way transfer's four curves are
  more about its instability than about the batch. One seed.
- **Figure 9.** More steps at a lower rate never hurt 1-way transfer and parallel
  training by their AUC, and help the former, as in the paper; 2-way transfer starts
  best of all with K = 4 and then loses it. With K = 1 parallel training and 1-way
  transfer are the same, as they must be. One seed.
"""

_FLAGS = mixed_fl.small_flags('celeba_smile')
# What the algorithms have in common, which the others are run with too.
_COMMON = {
  flag: _FLAGS['PT'][flag]
  for flag in ('task', 'clients_per_round', 'rounds', 'rounds_per_eval')
}
_CLIENTS = {
  flag: _FLAGS['PT'][flag]
  for flag in ('batch_size', 'max_client_steps', 'client_learning_rate')
}
_CENTRAL = {
  'central_learning_rate': _CLIENTS['client_learning_rate'],
  'central_steps': _CLIENTS['max_client_steps'],
}


def _own(name: str, **more: Any) -> Entry:
  return mixed_fl.own(_FLAGS[name], _COMMON, **more)


def _sizes(name: str, sizes: tuple[int, ...]) -> dict[str, Entry]:
  return {f'{name}, {size}': _own(name, central_batch_size=size) for size in sizes}


def _trades(name: str) -> dict[str, Entry]:
  """eta times K is the same in all; 1-w GT's one batch is of as many as the others'."""
  entries = {}
  for k, eta in ((1, 0.02), (2, 0.01), (4, 0.005)):
    central: dict[str, Any] = {'central_steps': k}
    if name == '1-w GT':
      central = {'central_batch_size': 100 * k}
    more = {'max_client_steps': k, 'client_learning_rate': eta, **central}
    entries[f'{name}, K = {k}, eta = {eta}'] = _own(name, **more)
  return entries


_METHODS = {
  'only FL': Entry({'algorithm': 'fed_avg', **_CLIENTS}),
  **{name: _own(name) for name in _FLAGS},
  '2-w GT, half the rate': _own('2-w GT', client_learning_rate=0.005),
  'oracle': Entry(
    {'algorithm': 'centralized_oracle', 'central_batch_size': 200, **_CENTRAL}
  ),
}

_COMPARISONS = [
  Comparison(
    name='methods',
    title='Figures 1a and 2a: the methods',
    flags=_COMMON,
    entries=_METHODS,
    num_seeds=3,
    metric='eval/auc',
    target='PT',
    pictures={
      'figure_2a.png': Picture(
        ['eval/loss'], [name for name in _METHODS if name != 'only FL']
      )
    },
    published='mixed_smile.csv',
    published_clients=2802,
  ),
  Comparison(
    name='central_batch_size',
    title='Figures 7 and 8: central batch sizes',
    flags=_COMMON,
    entries=_sizes('1-w GT', (5, 25, 100, 500)) | _sizes('2-w GT', (5, 25, 100, 500)),
    metric='eval/auc',
    panels={
      'Figure 7: 1-w GT': [f'1-w GT, {size}' for size in (5, 25, 100, 500)],
      'Figure 8: 2-w GT': [f'2-w GT, {size}' for size in (5, 25, 100, 500)],
    },
    published_clients=2802,
  ),
  Comparison(
    name='rate_for_steps',
    title='Figure 9: a lower rate for more steps',
    flags=_COMMON,
    entries=_trades('PT') | _trades('1-w GT') | _trades('2-w GT'),
    metric='eval/auc',
    panels={name: list(_trades(name)) for name in _FLAGS},
    published_clients=2802,
  ),
]

if __name__ == '__main__':
  experiment.main(__file__, _TITLE, _TEXT, _COMPARISONS)
