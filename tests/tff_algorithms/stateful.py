"""Running processes whose clients keep something, for their tests."""

import numpy as np
import tree

from tests.tff_algorithms import problems
from tff_algorithms import client_states


def run(process, rounds):
  """Runs a process over cohorts of (client id, rows).

  Returns:
    After every round: the weights, the first term's state at the server, what every
    client that has taken part keeps of that term, and the train metrics.
  """
  states = client_states.InMemoryClientStates(process)
  state = process.initialize()
  seen = set()
  all_weights, all_server, all_clients, all_metrics = [], [], [], []
  for cohort in rounds:
    ids = [client_id for client_id, _ in cohort]
    datasets = [problems.dataset(rows) for _, rows in cohort]
    output = process.next(state, datasets, states.read(ids))
    state = output.state
    states.write(output.client_states)
    seen.update(ids)
    all_weights.append(state.server.weights.trainable)
    all_server.append(state.server.terms[0])
    all_clients.append({c: _first_term(states, c) for c in sorted(seen)})
    all_metrics.append(output.metrics['client_work']['train'])
  return all_weights, all_server, all_clients, all_metrics


def _first_term(states, client_id):
  ((_, value),) = states.read([client_id])
  return next(iter(value.values()))


def mean_of_all(of_clients, num_clients, like):
  """The mean over all clients of what they keep, those never seen included."""
  total = tree.map_structure(lambda a: np.zeros_like(a, dtype=np.float64), like)
  for value in of_clients.values():
    total = tree.map_structure(lambda a, b: a + b, total, value)
  return tree.map_structure(lambda a: a / num_clients, total)


def sampled_rounds(num_rounds, sizes, per_round, seed=0, **how):
  """Cohorts drawn from clients c0, c1, ... with these numbers of rows."""
  rng = np.random.default_rng(seed)
  clients = {
    f'c{i}': problems.classification_rows(n, seed=i, **how) for i, n in enumerate(sizes)
  }
  return [
    [(c, clients[c]) for c in rng.choice(list(clients), per_round, replace=False)]
    for _ in range(num_rounds)
  ]
