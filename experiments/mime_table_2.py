"""Table 2 of the Mime paper, column EMNIST logistic: 12 methods, equal communication.

Karimireddy et al. 2021, section 5.3 and appendix C: every method may send 40 times the
model in a round, down and up together, for 1,000 rounds.
"""

from typing import Any

from experiments import experiment
from experiments.experiment import Comparison, Entry

_TITLE = 'Mime paper, Table 2: twelve methods at equal communication'

_TEXT = """
Three algorithms with four base optimizers, in the setting of the Mime paper
(Karimireddy et al. 2021, section 5.3 and appendix C): batches of 10, one local epoch,
1,000 rounds, and in every round 40 times the size of the model, down and up together.

- **Clients a round** (the paper's Table 4): FedAvg has 20, at 2x each. Mime and
  MimeLite split theirs: one client sends a gradient (2x), another is sent the model,
  the state of the optimizer and, in Mime, c, and sends its update: 5x to 7x a pair, so
  8, 6 or 5 pairs. MimeSGD is not in Table 4; by its rule it has 8. MimeLiteSGD uses no
  gradient, so that it is FedAvgSGD with 20 clients; it is run as MimeLite all the
  same, and its bytes are those of the gradients too.
- Mime corrects with this round's c.
- **Rates**: the paper's light sweep, nine client rates from 1 down to 1e-4, the
  server's rate 1 throughout; the best accuracy in 100 rounds, with seed 0.
- **Momentum** is the averaged form with beta = 0.9. **AdaGrad** divides by the root of
  the old v, which starts at 0.1. **Adam** is TFF's, in which a step's own gradient goes
  into v first, as in the paper's own code: Table 5's form divides by epsilon alone
  where v is still 0 ([deviations](../../deviations.md)). Epsilon is 1e-7 (C.4).
- The best value is the one with the highest accuracy on the test data in any round, as
  the paper tunes too, and its seed is that of the final runs.

What came out, beside the paper's table:

- All but one end within three points of each other, at 53 to 56 %: FedAvgAdam is
  the exception, at 44 %, and it is the one that the paper calls unstable (most so on
  its other data sets). The level is that of other data.
- Within a base optimizer the paper has Mime ahead or level everywhere but with AdaGrad.
  So it is here: ahead of FedAvg with SGD, momentum and Adam, by 2, 3 and 11 points, and
  behind by 1 with AdaGrad, at a quarter to two fifths of FedAvg's clients a round.
- MimeLite is ahead of Mime with momentum and level elsewhere; the paper has the two
  within a point of each other. MimeLiteSGD is FedAvgSGD, to the last digit shown.
- One seed each, and rates found in 100 rounds: where they were found in 200
  ([three seeds](../server_optimizers/README.md)), FedAvgSGD ends at 54.8 % and
  FedAvgMom at 54.7 %, with lower rates. So one or two points say little, and Mime's
  lead over these two is no larger than that.
"""

# The paper's Adam divides by the root of the new v: FedJAX's form, and TFF's.
_BASE_OPTIMIZERS: dict[str, dict[str, Any]] = {
  'SGD': {'base_optimizer': 'sgd'},
  'Mom': {'base_optimizer': 'momentum', 'base_momentum': 0.9},
  'Adam': {'base_optimizer': 'tff_adam', 'base_epsilon': 1e-7},
  'Adagrad': {'base_optimizer': 'adagrad', 'base_epsilon': 1e-7},
}
_SERVER_OPTIMIZERS: dict[str, dict[str, Any]] = {
  'SGD': {'server_optimizer': 'sgd'},
  'Mom': {'server_optimizer': 'base_momentum', 'server_momentum': 0.9},
  'Adam': {'server_optimizer': 'adam', 'server_epsilon': 1e-7},
  'Adagrad': {'server_optimizer': 'base_adagrad', 'server_epsilon': 1e-7},
}
# Table 4, and for MimeSGD what follows from its rule: 40 / 5.
_NUM_PAIRS = {
  'MimeSGD': 8,
  'MimeLiteMom': 8,
  'MimeMom': 6,
  'MimeLiteAdam': 6,
  'MimeAdam': 5,
  'MimeLiteAdagrad': 8,
  'MimeAdagrad': 6,
}


def _fed_avg(base: str) -> Entry:
  flags = {'algorithm': 'fed_avg', **_SERVER_OPTIMIZERS[base], 'batch_size': 10}
  cohort = {'server_learning_rate': 1, 'clients_per_round': 20}
  return Entry({**flags, **cohort}, 'mime_light.yaml')


def _mime(algorithm: str, name: str, base: str) -> Entry:
  flags = {'algorithm': algorithm, **_BASE_OPTIMIZERS[base], 'batch_size': 10}
  # Nothing needs the gradients of MimeLite with SGD: its clients send updates alone.
  split = {'clients_per_round': 20}
  if name in _NUM_PAIRS:
    split = {'clients_per_round': 2 * _NUM_PAIRS[name], 'mime_split_cohort': True}
  return Entry({**flags, **split}, 'mime_light.yaml')


_ENTRIES = {}
for _base in _BASE_OPTIMIZERS:
  _ENTRIES[f'FedAvg{_base}'] = _fed_avg(_base)
  _ENTRIES[f'MimeLite{_base}'] = _mime('mime_lite', f'MimeLite{_base}', _base)
  _ENTRIES[f'Mime{_base}'] = _mime('mime', f'Mime{_base}', _base)

_COMPARISONS = [
  Comparison(
    name='emnist_logistic',
    title='Handwriting by writer, logistic regression',
    flags={'task': 'emnist_logistic', 'rounds': 1000},
    entries=_ENTRIES,
    tuning_rounds=100,
    num_seeds=1,
    published='mime_table_2.csv',
    published_clients=3400,
  )
]

if __name__ == '__main__':
  experiment.main(__file__, _TITLE, _TEXT, _COMPARISONS)
