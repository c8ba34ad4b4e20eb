"""FedAvg's server optimizers, FedProx and server-only training, each at its best rate.

The FedAvg rows of Table 2 of the Mime paper (Karimireddy et al. 2021), column EMNIST
logistic, in the setting of its appendix C: 20 clients a round, batches of 10, one local
epoch, 1,000 rounds; and the same on the embedded digits.
"""

from experiments import experiment
from experiments.experiment import Comparison, Entry

_TITLE = "FedAvg's server optimizers, FedProx and server-only training"

_TEXT = """
What the server does with the mean of the clients' updates: a plain step (SGD),
momentum, Adam or AdaGrad. Beside them FedProx and server-only training. The setting is
that of the Mime paper (Karimireddy et al. 2021, appendix C and Table 2): 20 clients a
round, batches of 10, one local epoch. Each algorithm has the learning rate that the
paper's light sweep finds for it: the best of nine values, from 1 down to 1e-4 by half
powers of ten, in runs of fewer rounds with one seed.

- For SGD and momentum servers and FedProx the client rate is searched for, at a server
  rate of 1, as in the paper.
- For Adam and AdaGrad servers the paper's rule leaves the server rate at 1; those rows
  say "at rate 1". Adam then moves each weight by about 1 in a round, unless the
  clients' updates are small against epsilon. The other rows search for the server rate
  among the same nine values, at the client rate that was found for the SGD server.
- Momentum and AdaGrad are the paper's pairs (U, V) with beta = 0.9 and a first
  accumulator of 0.1. Adam is TFF's, which steps with the updated second moment: the
  paper's pair divides by epsilon alone in the first round
  ([deviations](../../deviations.md)). Epsilon is 1e-3, as in the paper's appendix C.1.
- The best value is the one with the highest accuracy on the test data in any round, as
  the paper tunes too, and its seed is one of the three of the final runs: the figures
  are a little too good, for every algorithm alike.
- The accuracies whose rounds are counted were set with the curves in sight: on the
  handwriting 60 % was tried first, and no algorithm reached it.
- FedProx has rho = 0.1, the best of the paper's ablation. Server-only training takes
  one step a round, with the gradient over all data of the same 20 clients.
"""

_CLIENT_RATE = 'mime_light.yaml'
_SERVER_RATE = 'mime_light_server.yaml'
_SGD = 'FedAvg, SGD server'

_FED_AVG = {'algorithm': 'fed_avg', 'batch_size': 10}
_ADAM = {**_FED_AVG, 'server_optimizer': 'adam', 'server_epsilon': 1e-3}
_ADAGRAD = {**_FED_AVG, 'server_optimizer': 'base_adagrad', 'server_epsilon': 1e-3}
_AT_1 = {'server_learning_rate': 1}

_ENTRIES = {
  _SGD: Entry(_FED_AVG, _CLIENT_RATE),
  'FedAvg, momentum server': Entry(
    {**_FED_AVG, 'server_optimizer': 'base_momentum'}, _CLIENT_RATE
  ),
  'FedAvg, Adam server': Entry(_ADAM, _SERVER_RATE, like=_SGD),
  'FedAvg, AdaGrad server': Entry(_ADAGRAD, _SERVER_RATE, like=_SGD),
  'FedAvg, Adam server at rate 1': Entry({**_ADAM, **_AT_1}, _CLIENT_RATE),
  'FedAvg, AdaGrad server at rate 1': Entry({**_ADAGRAD, **_AT_1}, _CLIENT_RATE),
  'FedProx': Entry(
    {'algorithm': 'fed_prox', 'batch_size': 10, 'fed_prox_rho': 0.1}, _CLIENT_RATE
  ),
  'Server-only': Entry({'algorithm': 'server_only'}, _SERVER_RATE),
}

_COMPARISONS = [
  Comparison(
    name='digits',
    title='Digits over 50 clients, logistic regression',
    flags={'task': 'digits_logistic', 'clients_per_round': 20, 'rounds': 500},
    entries=_ENTRIES,
    tuning_rounds=100,
    num_seeds=3,
    target=0.95,
  ),
  Comparison(
    name='emnist',
    title='Handwriting by writer, logistic regression',
    flags={'task': 'emnist_logistic', 'clients_per_round': 20, 'rounds': 1000},
    entries=_ENTRIES,
    tuning_rounds=200,
    num_seeds=3,
    target=0.5,
    published='mime_table_2_emnist_logistic.csv',
    published_clients=3400,
  ),
]

if __name__ == '__main__':
  experiment.main(__file__, _TITLE, _TEXT, _COMPARISONS)
