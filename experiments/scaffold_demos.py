"""The two quick demos of SCAFFOLD's slides: linear regression, and scalar quadratics.

Kale et al., "Optimization algorithms for heterogeneous clients in Federated Learning".
"""

from experiments import experiment
from experiments.experiment import Comparison, Entry, Overview

_TITLE = "SCAFFOLD's slides: two quick demos"

_TEXT = """
The two demos of the slides on SCAFFOLD (Kale et al., "Optimization algorithms for
heterogeneous clients in Federated Learning"), with full batches and without sampling:
every client is in every round, and nothing is random. SGD is one step a round with the
mean of the clients' gradients, `--algorithm=server_only`.

**Linear regression on the concrete data**: 10 clients, sorted by strength, K = 10 local
steps. The slides name neither the rates nor how the clients are made.

- SGD at 0.3 is slow: L = 2.3, and the curvature goes down to 0.03.
- FedAvg at SGD's rate stops far from the optimum, as the slides have it; it needs a
  smaller rate, with which it gets nearer, and is slow.
- SCAFFOLD takes SGD's rate, and is faster than SGD, as the slides have it: a hundredth
  is reached in 50 rounds, where SGD needs more than 400.
- It levels off at 0.0024 because that is how far two optima are apart: SCAFFOLD's is of
  the mean over clients, who have 82 or 83 rows each, the task's that of all rows.

**Scalar quadratics**: 20 clients, chosen dissimilarity G of gradients. The slides say
that K = 2 is twice as fast and K = 10 four times, whatever G, but not for which L and
delta. Here L = 1 and mu = delta = 0.1, chosen so that their rate,
mu K / (L + (mu + delta) K), is 4.0 times that of K = 1 for K = 10 (and 1.7 times for
K = 2). All take SGD's own step, 1 / L. The loss is f - f*.

- K = 1 is SGD, K = 2 needs half of its rounds, as in the slides, and K = 10 30 % with
  G = 1, 35 and 41 % with G = 10 and 100, where the slides have a quarter.
- The difference is the beginning: all c_i are 0 at first, so that the first round is
  that of FedAvg, and takes x the farther away the larger G is. That is 2 to 4 rounds
  more with G = 10 and 100; from there on it is as fast as with G = 1. Begun with
  c_i = grad f_i, whatever G, it takes 7 rounds to 1e-6 where SGD takes 26, 3.7 times
  (`tests/tff_algorithms/scaffold_convergence_test.py`).
- FedAvg stops where its drift is as large as its progress, the farther away the larger
  G is.
"""


def _concrete(algorithm: str, rate: float) -> Entry:
  return Entry(
    {
      'algorithm': algorithm,
      'client_learning_rate': rate,
      'client_epochs': 10,
      'client_weighting': 'uniform',
      # No client has so many rows: a step is a full batch, an epoch a step.
      'batch_size': 100,
    }
  )


def _sgd(rate: float) -> Entry:
  return Entry(
    {
      'algorithm': 'server_only',
      'server_learning_rate': rate,
      'client_weighting': 'uniform',
    }
  )


def _quadratic(algorithm: str, k: int) -> Entry:
  return Entry(
    {
      'algorithm': algorithm,
      'client_learning_rate': 1.0,
      'client_epochs': k,  # A client is a single row.
      'client_weighting': 'uniform',
    }
  )


def _quadratics(big_g: float) -> Comparison:
  return Comparison(
    name=f'quadratics_{big_g:g}',
    title=f'Scalar quadratics, G = {big_g:g}',
    flags={
      'task': 'quadratics',
      'num_clients': 20,
      'dimension': 1,
      'smoothness': 1.0,
      'convexity': 0.1,
      'gradient_dissimilarity': big_g,
      'hessian_dissimilarity': 0.1,
      'clients_per_round': 20,
      'rounds': 60,
      'rounds_per_eval': 1,
    },
    entries={
      'SGD': _sgd(1.0),
      'FedAvg, K = 2': _quadratic('fed_avg', 2),
      'FedAvg, K = 10': _quadratic('fed_avg', 10),
      'SCAFFOLD, K = 1': _quadratic('scaffold', 1),
      'SCAFFOLD, K = 2': _quadratic('scaffold', 2),
      'SCAFFOLD, K = 10': _quadratic('scaffold', 10),
    },
    metric='eval/loss',
    target=1e-8,
  )


_COMPARISONS = [
  Comparison(
    name='concrete_linear',
    title='Linear regression on the concrete data',
    flags={
      'task': 'concrete_linear',
      'partitioner': 'similarity',
      'num_clients': 10,
      'similarity': 0.0,
      'clients_per_round': 10,
      'rounds': 400,
      'rounds_per_eval': 2,
    },
    entries={
      'SGD, 0.3': _sgd(0.3),
      'FedAvg, 0.3': _concrete('fed_avg', 0.3),
      'FedAvg, 0.03': _concrete('fed_avg', 0.03),
      'FedAvg, 0.003': _concrete('fed_avg', 0.003),
      'SCAFFOLD, 0.3': _concrete('scaffold', 0.3),
    },
    metric='eval/distance_to_optimum',
    target=0.01,
  ),
  *(_quadratics(big_g) for big_g in (1.0, 10.0, 100.0)),
]

_OVERVIEWS = [
  Overview(
    'Scalar quadratics: f - f*',
    'quadratics.png',
    {f'G = {big_g}': f'quadratics_{big_g}' for big_g in (1, 10, 100)},
  )
]

if __name__ == '__main__':
  experiment.main(__file__, _TITLE, _TEXT, _COMPARISONS, _OVERVIEWS)
