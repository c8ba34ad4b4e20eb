"""Ways to split a centralized data set over clients.

| way | labels of a client | sizes |
|---|---|---|
| `iid` | as in the whole set | equal |
| `log_normal` | as in the whole set | log-normal |
| `dirichlet` | few, the fewer the smaller alpha | unequal, as they happen to be |
| `dirichlet_log_normal` | few, the fewer the smaller alpha | log-normal |
| `pachinko` | few, and these akin | equal, chosen |
| `similarity` | a share as in the whole set, the others one or two labels | equal |
| `shards` | one or two for each shard | equal |

Each takes the labels of all examples and returns the indices of each client's, so that
`x[indices], y[indices]` are its data. Every example goes to exactly one client, except
that `pachinko` may leave some over; no client is left without any; equal sizes differ
by at most one (by one for each shard in `shards`).

The seed alone determines a split, on any machine, for one version of numpy.
"""

from collections.abc import Callable, Iterable, Sequence
import math

import numpy as np

Seed = int | np.random.SeedSequence


def iid(labels: np.ndarray, num_clients: int, seed: Seed) -> list[np.ndarray]:
  """Splits examples over clients at random, in equal parts.

  Args:
    labels: The label of each example, `[num_examples]` integers.
    num_clients: Among how many clients to split, at most the number of examples.
    seed: Determines the split, for one version of numpy.

  Returns:
    For each client the indices of its examples, ascending.
  """
  labels = _checked_labels(labels, num_clients)
  order = _generator(seed).permutation(len(labels))
  return _ascending(np.array_split(order, num_clients))


def log_normal(
  labels: np.ndarray, num_clients: int, variance: float, seed: Seed
) -> list[np.ndarray]:
  """Splits examples over clients at random, in parts of log-normal sizes.

  This is how the data of Chen et al. 2023 (elastic aggregation) and Acar et al. 2021
  (FedDyn) are made unbalanced. Every example is used, so the sizes are log-normal draws
  times a common factor, rounded. A client that would be left without any example is
  given one of the client that then has most.

  Args:
    labels: The label of each example, `[num_examples]` integers.
    num_clients: Among how many clients to split, at most the number of examples.
    variance: The variance of the logarithm of a size; with 0 all sizes are equal.
    seed: Determines the split, for one version of numpy.

  Returns:
    For each client the indices of its examples, ascending.
  """
  labels = _checked_labels(labels, num_clients)
  return _ascending(
    _log_normal_parts(len(labels), num_clients, variance, _generator(seed))
  )


def dirichlet(
  labels: np.ndarray, num_clients: int, alpha: float, seed: Seed
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
  labels = _checked_labels(labels, num_clients)
  _check_concentration('alpha', alpha)
  generator = _generator(seed)
  clients: list[list[int]] = [[] for _ in range(num_clients)]
  for pile in _piles(labels):
    indices = generator.permutation(pile)
    shares = generator.dirichlet(np.full(num_clients, alpha))
    for client, part in zip(clients, _cut(indices, shares), strict=True):
      client.extend(part)
  _fill_empty(clients, generator)
  return _ascending(clients)


def dirichlet_log_normal(
  labels: np.ndarray, num_clients: int, alpha: float, variance: float, seed: Seed
) -> list[np.ndarray]:
  """Splits examples over clients with skewed labels and log-normal sizes.

  The sizes are those of `log_normal` with the same seed. Each client has a mix of
  labels: a draw from the symmetric Dirichlet distribution of concentration alpha, times
  how frequent each label is in the whole set, so that a large alpha gives all clients
  the mix of the whole set, whether that is balanced or not. In a random order, one
  client after the other draws the label of each of its examples from its mix, then any
  of the examples of that label that are left. A label that is used up is removed from
  all mixes, which are normalized again; a client whose mix has nothing left (as happens
  when alpha is tiny) takes any example left. So the last clients have what others left.

  Args:
    labels: The label of each example, `[num_examples]` integers.
    num_clients: Among how many clients to split, at most the number of examples.
    alpha: The concentration, at least 1e-6.
    variance: The variance of the logarithm of a size; with 0 all sizes are equal.
    seed: Determines the split, for one version of numpy.

  Returns:
    For each client the indices of its examples, ascending.
  """
  labels = _checked_labels(labels, num_clients)
  _check_concentration('alpha', alpha)
  generator = _generator(seed)
  parts = _log_normal_parts(len(labels), num_clients, variance, generator)
  sizes = np.array([len(part) for part in parts])
  piles = [generator.permutation(pile) for pile in _piles(labels)]
  frequencies = np.array([len(pile) for pile in piles])
  draws = generator.dirichlet(np.full(len(piles), alpha), num_clients)

  def mixes(left):
    return _renormalized(draws * frequencies, left)

  turns = generator.permutation(num_clients)
  order = np.repeat(turns, sizes[turns])
  return _ascending(_deal(piles, mixes, order, num_clients, generator))


def pachinko(
  labels: np.ndarray,
  coarse_labels: np.ndarray,
  num_clients: int,
  seed: Seed,
  alpha: float = 0.1,
  beta: float = 10.0,
  examples_per_client: int = 100,
) -> list[np.ndarray]:
  """Splits examples whose labels form a tree of two levels, such as CIFAR-100's.

  The Pachinko allocation of Li and McCallum 2006, by which Reddi et al. 2021 made the
  federated CIFAR-100; the defaults are theirs. Each client has a multinomial over
  coarse labels, drawn from the symmetric Dirichlet distribution of concentration alpha,
  and for each coarse label one over its labels, of concentration beta. One client after
  the other draws, for each of its examples, a coarse label, then a label below it, then
  any of the examples of that label that are left. A label that is used up is removed,
  and so is a coarse label whose labels all are, and the rest is normalized again; where
  a multinomial has nothing left (as happens when alpha is tiny), any example left is
  as likely as any other.

  Args:
    labels: The label of each example, `[num_examples]` integers.
    coarse_labels: The coarse label of each example, `[num_examples]` integers. Examples
      of one label must have the same coarse label.
    num_clients: Among how many clients to split.
    seed: Determines the split, for one version of numpy.
    alpha: The concentration over coarse labels, at least 1e-6.
    beta: The concentration over the labels of a coarse label, at least 1e-6.
    examples_per_client: How many examples each client gets. Those of all clients
      together are at most the number of examples; what is left over goes to no client.

  Returns:
    For each client the indices of its examples, ascending.
  """
  labels = _checked_labels(labels, num_clients)
  _check_concentration('alpha', alpha)
  _check_concentration('beta', beta)
  if not 1 <= examples_per_client <= len(labels) // num_clients:
    raise ValueError(
      f'examples_per_client must be from 1 to {len(labels) // num_clients}, which is '
      f'what {len(labels)} examples suffice for with {num_clients} clients; found '
      f'{examples_per_client}.'
    )
  children = _children(labels, coarse_labels)
  generator = _generator(seed)
  piles = [generator.permutation(pile) for pile in _piles(labels)]
  coarse_draws = generator.dirichlet(np.full(len(children), alpha), num_clients)
  draws = [generator.dirichlet(np.full(len(c), beta), num_clients) for c in children]

  def mixes(left):
    coarse_left = np.array([left[child].sum() for child in children])
    coarse_mixes = _renormalized(coarse_draws, coarse_left)
    result = np.zeros([num_clients, len(left)])
    for i in np.flatnonzero(coarse_left):
      below = _renormalized(draws[i], left[children[i]])
      result[:, children[i]] = coarse_mixes[:, i, np.newaxis] * below
    return result

  order = np.repeat(np.arange(num_clients), examples_per_client)
  return _ascending(_deal(piles, mixes, order, num_clients, generator))


def similarity(
  labels: np.ndarray, num_clients: int, similarity: float, seed: Seed
) -> list[np.ndarray]:
  """Splits examples over clients that are more or less alike, in equal parts.

  As in the experiments of Karimireddy et al. 2020 (SCAFFOLD): a share of the examples,
  chosen at random, is dealt out like cards; the others are sorted by label, and each
  client in turn gets a block of them.

  Args:
    labels: The label of each example, `[num_examples]` integers.
    num_clients: Among how many clients to split, at most the number of examples.
    similarity: How much is dealt out at random, in percent: with 100 clients differ by
      chance alone, with 0 they share at most the labels at the borders of their blocks.
    seed: Determines the split, for one version of numpy.

  Returns:
    For each client the indices of its examples, ascending.
  """
  labels = _checked_labels(labels, num_clients)
  if not 0 <= similarity <= 100:
    raise ValueError(f'similarity must be a percentage, 0 to 100; found {similarity}.')
  order = _generator(seed).permutation(len(labels))
  num_sorted = len(labels) - round(len(labels) * similarity / 100)
  blocks = np.array_split(_sort_by_label(order[:num_sorted], labels), num_clients)
  cards = order[num_sorted:]
  # The first blocks may be longer by one, so the cards begin with the client after.
  return _ascending(
    np.concatenate([block, cards[(i - num_sorted) % num_clients :: num_clients]])
    for i, block in enumerate(blocks)
  )


def shards(
  labels: np.ndarray, num_clients: int, shards_per_client: int, seed: Seed
) -> list[np.ndarray]:
  """Splits examples over clients with few labels each.

  As in McMahan et al. 2017: the examples are sorted by label and cut into shards, equal
  up to one example, and each client gets so many of them at random.

  Args:
    labels: The label of each example, `[num_examples]` integers.
    num_clients: Among how many clients to split.
    shards_per_client: How many shards a client gets. Those of all clients together are
      at most the number of examples.
    seed: Determines the split, for one version of numpy.

  Returns:
    For each client the indices of its examples, ascending.
  """
  labels = _checked_labels(labels, num_clients)
  if not 1 <= shards_per_client <= len(labels) // num_clients:
    raise ValueError(
      f'shards_per_client must be from 1 to {len(labels) // num_clients}, or some of '
      f'the shards that {len(labels)} examples are cut into for {num_clients} clients '
      f'would be empty; found {shards_per_client}.'
    )
  generator = _generator(seed)
  order = _sort_by_label(generator.permutation(len(labels)), labels)
  pieces = np.array_split(order, num_clients * shards_per_client)
  hands = generator.permutation(len(pieces)).reshape(num_clients, shards_per_client)
  return _ascending(np.concatenate([pieces[i] for i in hand]) for hand in hands)


def _checked_labels(labels: np.ndarray, num_clients: int) -> np.ndarray:
  """The labels as an array, having checked that so many clients can have some."""
  labels = np.asarray(labels)
  if labels.ndim != 1 or labels.dtype.kind not in 'iub':
    raise ValueError(
      'labels must be one integer for each example (for other labels, give '
      'np.unique(labels, return_inverse=True)[1]); found an array of shape '
      f'{list(labels.shape)} and type {labels.dtype}.'
    )
  if not 1 <= num_clients <= len(labels):
    raise ValueError(
      f'num_clients must be from 1 to the number of examples, {len(labels)}; '
      f'found {num_clients}.'
    )
  return labels


def _check_concentration(name: str, value: float) -> None:
  # Below, numpy's sampler may never end.
  if not value >= 1e-6 or not np.isfinite(value):
    raise ValueError(f'{name} must be finite and at least 1e-6, found {value}.')


def _generator(seed: Seed) -> np.random.Generator:
  return np.random.Generator(np.random.PCG64(seed))


def _ascending(parts: Iterable[Sequence[int] | np.ndarray]) -> list[np.ndarray]:
  return [np.sort(np.array(part)) for part in parts]


def _sort_by_label(indices: np.ndarray, labels: np.ndarray) -> np.ndarray:
  """Sorts by label; the order within a label stays."""
  return indices[np.argsort(labels[indices], kind='stable')]


def _piles(labels: np.ndarray) -> list[np.ndarray]:
  """The indices of each label's examples, labels ascending."""
  return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def _cut(indices: np.ndarray, shares: np.ndarray) -> list[np.ndarray]:
  """Cuts into parts of these shares, rounded."""
  cuts = np.round(np.cumsum(shares)[:-1] * len(indices)).astype(int)
  return np.split(indices, cuts)


def _fill_empty(clients: list[list[int]], generator: np.random.Generator) -> None:
  """Gives each client without examples one of the client that then has most."""
  for client in clients:
    if not client:
      richest = max(clients, key=len)
      client.append(richest.pop(generator.integers(len(richest))))


def _log_normal_parts(
  num_examples: int,
  num_clients: int,
  variance: float,
  generator: np.random.Generator,
) -> list[list[int]]:
  """Parts of a random order, in log-normal sizes."""
  if not variance >= 0 or not np.isfinite(variance):
    raise ValueError(f'variance must be finite and at least 0, found {variance}.')
  logarithms = generator.normal(scale=math.sqrt(variance), size=num_clients)
  # The largest is 1, so a large variance does not overflow.
  sizes = np.exp(logarithms - logarithms.max())
  order = generator.permutation(num_examples)
  clients = [part.tolist() for part in _cut(order, sizes / sizes.sum())]
  _fill_empty(clients, generator)
  return clients


def _children(labels: np.ndarray, coarse_labels: np.ndarray) -> list[np.ndarray]:
  """For each coarse label, which of the labels, both ascending, are below it."""
  coarse_labels = np.asarray(coarse_labels)
  if coarse_labels.shape != labels.shape:
    raise ValueError(
      'coarse_labels must be one for each example, as labels are, in shape '
      f'{list(labels.shape)}; found {list(coarse_labels.shape)}.'
    )
  _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
  parents = coarse_labels[first]
  strays = np.flatnonzero(parents[inverse] != coarse_labels)
  if len(strays):
    i = strays[0]
    raise ValueError(
      f'coarse_labels must be a function of labels, but examples of label {labels[i]} '
      f'have both {parents[inverse[i]]} and {coarse_labels[i]}.'
    )
  return [np.flatnonzero(parents == coarse) for coarse in np.unique(parents)]


def _renormalized(mixes: np.ndarray, left: np.ndarray) -> np.ndarray:
  """Mixes over the labels of which examples are left, each of sum 1.

  Args:
    mixes: The weights of each client, `[num_clients, num_labels]`.
    left: How many examples are left of each label, of any at least one.

  Returns:
    The mixes of these labels. That of a client with no weight there is what is left.
  """
  mixes = np.where(left, mixes, 0.0)
  mixes = np.where(mixes.sum(axis=1, keepdims=True), mixes, left)
  return mixes / mixes.sum(axis=1, keepdims=True)


def _deal(
  piles: Sequence[np.ndarray],
  mixes: Callable[[np.ndarray], np.ndarray],
  order: np.ndarray,
  num_clients: int,
  generator: np.random.Generator,
) -> list[list[int]]:
  """Deals out examples one by one, each of a label drawn from the client's mix.

  Args:
    piles: The examples of each label, dealt out from the end.
    mixes: From how many examples are left of each label to the probabilities of the
      labels for each client, `[num_clients, num_labels]`.
    order: For each example to deal out, the client that gets it.
    num_clients: How many clients there are.
    generator: Draws the labels.

  Returns:
    The examples of each client.
  """
  clients: list[list[int]] = [[] for _ in range(num_clients)]
  left = np.array([len(pile) for pile in piles])
  cumulative = None
  for client, position in zip(order, generator.random(len(order)), strict=True):
    if cumulative is None:
      cumulative = np.cumsum(mixes(left), axis=1)
    bounds = cumulative[client]
    label = bounds.searchsorted(position * bounds[-1], side='right')
    left[label] -= 1
    clients[client].append(piles[label][left[label]])
    if not left[label]:
      cumulative = None
  return clients
