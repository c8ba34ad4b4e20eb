"""Ways to split a centralized data set over clients."""

import numpy as np


def dirichlet(
  labels: np.ndarray,
  num_clients: int,
  alpha: float,
  seed: int | np.random.SeedSequence,
) -> list[np.ndarray]:
  """Splits examples over clients with skewed labels and unequal sizes.

  The examples of each label are dealt out in shares drawn from the symmetric Dirichlet
  distribution of concentration alpha over the clients (Yurochkin et al. 2019): a small
  alpha gives each label to few clients, a large one gives all clients the same mix.
  Every example goes to exactly one client. A client that would be left without any is
  given one example of the client that then has most.

  Args:
    labels: The label of each example, `[num_examples]` integers.
    num_clients: Among how many clients to split, at most the number of examples.
    alpha: The concentration, at least 1e-6.
    seed: Determines the split, for one version of numpy.

  Returns:
    For each client the indices of its examples, ascending.
  """
  labels = np.asarray(labels)
  if not 1 <= num_clients <= len(labels):
    raise ValueError(
      f'num_clients must be from 1 to the number of examples, {len(labels)}; '
      f'found {num_clients}.'
    )
  # Below, numpy's sampler may never end.
  if not alpha >= 1e-6 or not np.isfinite(alpha):
    raise ValueError(f'alpha must be finite and at least 1e-6, found {alpha}.')
  generator = np.random.Generator(np.random.PCG64(seed))
  clients: list[list[int]] = [[] for _ in range(num_clients)]
  for label in np.unique(labels):
    indices = generator.permutation(np.flatnonzero(labels == label))
    shares = generator.dirichlet(np.full(num_clients, alpha))
    cuts = np.round(np.cumsum(shares)[:-1] * len(indices)).astype(int)
    for client, part in zip(clients, np.split(indices, cuts), strict=True):
      client.extend(part)
  for client in clients:
    if not client:
      richest = max(clients, key=len)
      client.append(richest.pop(generator.integers(len(richest))))
  return [np.sort(np.array(client)) for client in clients]
