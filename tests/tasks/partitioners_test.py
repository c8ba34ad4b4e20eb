"""Partitioners: their laws as properties, and what theory says of their draws."""

import hashlib
import itertools
import math

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
import tensorflow_federated as tff

from tasks import partitioners

_LABELS = np.random.default_rng(0).integers(10, size=1000)
_BALANCED = np.repeat(np.arange(10), 100)


def _pachinko(labels, num_clients, seed, **arguments):
  """Pachinko with two labels below each coarse one, by default with all examples."""
  most = len(labels) // max(num_clients, 1)
  arguments = {'examples_per_client': most} | arguments
  return partitioners.pachinko(
    labels, np.asarray(labels) // 2, num_clients, seed, **arguments
  )


# Each way with arguments for the labels above.
_WAYS = {
  partitioners.iid: {},
  partitioners.log_normal: {'variance': 0.5},
  partitioners.dirichlet: {'alpha': 0.3},
  partitioners.dirichlet_log_normal: {'alpha': 0.3, 'variance': 0.5},
  _pachinko: {},
  partitioners.similarity: {'similarity': 10},
  partitioners.shards: {'shards_per_client': 2},
}
_all_ways = pytest.mark.parametrize(
  ('way', 'arguments'), _WAYS.items(), ids=[way.__name__ for way in _WAYS]
)


@st.composite
def _problems(draw):
  """Labels, how many clients, a seed."""
  labels = draw(st.lists(st.integers(-2, 6), min_size=1, max_size=60))
  return labels, draw(st.integers(1, len(labels))), draw(st.integers(0, 2**32))


_concentrations = st.sampled_from([1e-6, 1e-3, 0.1, 1.0, 1e6])
_variances = st.sampled_from([0, 0.5, 10.0, 1e8])


def _counts(parts, labels):
  """How many examples of each label each client has, `[num_clients, num_labels]`."""
  return np.array([np.bincount(labels[part], minlength=10) for part in parts])


def _num_labels(parts, labels):
  return np.array([len(np.unique(labels[part])) for part in parts])


def _top_share(parts, labels):
  """The share of each client's most frequent label; their weighted mean."""
  return _counts(parts, labels).max(axis=1).sum() / len(labels)


def _assert_is_split(parts, num_examples, num_clients):
  """Each example goes to one client, each client has some, in ascending order."""
  assert len(parts) == num_clients
  assert min(map(len, parts)) >= 1
  np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(num_examples))
  assert all((np.diff(part) > 0).all() for part in parts)


def _assert_equal_sizes(parts, tolerance=1):
  sizes = [len(part) for part in parts]
  assert max(sizes) - min(sizes) <= tolerance


@given(_problems())
def test_iid_is_a_split_into_equal_parts(problem):
  labels, num_clients, seed = problem
  parts = partitioners.iid(labels, num_clients, seed)
  _assert_is_split(parts, len(labels), num_clients)
  _assert_equal_sizes(parts)


@given(_problems(), _variances)
def test_log_normal_is_a_split(problem, variance):
  labels, num_clients, seed = problem
  parts = partitioners.log_normal(labels, num_clients, variance, seed)
  _assert_is_split(parts, len(labels), num_clients)
  if not variance:
    _assert_equal_sizes(parts)


@given(_problems(), _concentrations)
def test_dirichlet_is_a_split(problem, alpha):
  labels, num_clients, seed = problem
  parts = partitioners.dirichlet(labels, num_clients, alpha, seed)
  _assert_is_split(parts, len(labels), num_clients)


@given(_problems(), _concentrations, _variances)
def test_dirichlet_log_normal_is_a_split_with_the_sizes_of_log_normal(
  problem, alpha, variance
):
  labels, num_clients, seed = problem
  parts = partitioners.dirichlet_log_normal(labels, num_clients, alpha, variance, seed)
  _assert_is_split(parts, len(labels), num_clients)
  sized = partitioners.log_normal(labels, num_clients, variance, seed)
  assert [len(part) for part in parts] == [len(part) for part in sized]


@given(_problems(), _concentrations, _concentrations, st.data())
def test_pachinko_gives_each_client_its_number_of_examples_and_none_twice(
  problem, alpha, beta, data
):
  labels, num_clients, seed = problem
  size = data.draw(st.integers(1, len(labels) // num_clients))
  parts = _pachinko(
    labels, num_clients, seed, alpha=alpha, beta=beta, examples_per_client=size
  )
  assert [len(part) for part in parts] == [size] * num_clients
  assert len(np.unique(np.concatenate(parts))) == size * num_clients
  assert all((np.diff(part) > 0).all() for part in parts)


@given(_problems(), st.floats(0, 100))
def test_similarity_is_a_split_into_equal_parts(problem, similarity):
  labels, num_clients, seed = problem
  parts = partitioners.similarity(labels, num_clients, similarity, seed)
  _assert_is_split(parts, len(labels), num_clients)
  _assert_equal_sizes(parts)


@given(_problems(), st.data())
def test_shards_is_a_split_with_labels_no_more_than_shards_and_borders(problem, data):
  labels, num_clients, seed = problem
  s = data.draw(st.integers(1, len(labels) // num_clients))
  parts = partitioners.shards(labels, num_clients, s, seed)
  _assert_is_split(parts, len(labels), num_clients)
  _assert_equal_sizes(parts, tolerance=s)
  # In sorted order, a label begins within a shard at most once for each label.
  borders = len(set(labels)) - 1
  assert _num_labels(parts, np.array(labels)).sum() <= num_clients * s + borders


@_all_ways
def test_depends_on_the_seed_alone(way, arguments):
  same = [
    way(_LABELS, 20, seed=seed, **arguments)
    for seed in (5, 5, np.random.SeedSequence(5))
  ]
  for parts in zip(*same, strict=True):
    np.testing.assert_array_equal(parts[0], parts[1])
    np.testing.assert_array_equal(parts[0], parts[2])
  other = way(_LABELS, 20, seed=6, **arguments)
  assert any(not np.array_equal(a, b) for a, b in zip(same[0], other, strict=True))


@_all_ways
def test_examples_of_one_label_are_dealt_out_at_random(way, arguments):
  parts = way(np.zeros(1000, int), 10, seed=0, **arguments)
  # A uniform index has a standard deviation of 1000 / sqrt(12).
  for part in parts:
    assert abs(part.mean() - 499.5) < 4 * 1000 / math.sqrt(12 * len(part))


def _digest(parts):
  lengths = [len(part) for part in parts]
  content = np.concatenate([*parts, lengths]).astype('<i8')
  return hashlib.sha256(content.tobytes()).hexdigest()


@pytest.mark.parametrize(
  ('way', 'digest'),
  [
    (
      partitioners.iid,
      '9e9cced22c2c0de2e0bd6c389252d612c7264e49b553d0dc928c9c81be8d6adf',
    ),
    (
      partitioners.log_normal,
      '4dfb5611174ca1cb366a9b3b7cbd6de7d3cddf8b32ea4a45d3c8051fe68d719a',
    ),
    (
      partitioners.dirichlet,
      '77e7495821a12d87cad2d0a0231e267c56edda787367c0176e3a47161188becb',
    ),
    (
      partitioners.dirichlet_log_normal,
      '8645efdba4e4a7369398d322c1b84062119e6be80d505af649a5f0c02ac6404c',
    ),
    (
      _pachinko,
      '9d36678fffa3717df210afbf19f68efe10be53396b31da45a1c8dcb010e51fad',
    ),
    (
      partitioners.similarity,
      '6e46ec5e301eafcc0c7c67a54fee7bf6a16485592df299abb7dbcb46ca7fd47d',
    ),
    (
      partitioners.shards,
      '0acda9ae5621d6d54b69c6c120729cf79ee653c9d9ebc91992fdc7c0faa6fee6',
    ),
  ],
  ids=[way.__name__ for way in _WAYS],
)
def test_a_seed_gives_the_same_split_on_any_machine(way, digest):
  assert _digest(way(_LABELS, 20, seed=1, **_WAYS[way])) == digest


def test_dirichlet_gives_empty_clients_the_same_examples_on_any_machine():
  parts = partitioners.dirichlet(_LABELS, 100, alpha=1e-3, seed=1)
  assert (
    _digest(parts) == 'a1c3769775ea3fdb5a34b5f283eca68808fb9226bbbcb96d21df9001e28a0ccd'
  )


@_all_ways
@pytest.mark.parametrize('num_clients', [0, 1001])
def test_refuses_clients_that_no_example_is_left_for(way, arguments, num_clients):
  with pytest.raises(ValueError, match=r'num_clients must be from 1 to .* 1000;'):
    way(_LABELS, num_clients, seed=0, **arguments)


@_all_ways
@pytest.mark.parametrize('labels', [np.eye(10), np.linspace(0, 1, 10)])
def test_refuses_labels_that_are_not_one_integer_each(way, arguments, labels):
  with pytest.raises(ValueError, match='labels must be one integer for each example'):
    way(labels, 2, seed=0, **arguments)


@pytest.mark.parametrize(
  ('way', 'wrong'),
  [
    (partitioners.log_normal, {'variance': -0.1}),
    (partitioners.log_normal, {'variance': float('inf')}),
    (partitioners.dirichlet, {'alpha': 0.0}),
    (partitioners.dirichlet, {'alpha': float('inf')}),
    (partitioners.dirichlet_log_normal, {'alpha': float('nan')}),
    (partitioners.dirichlet_log_normal, {'variance': float('nan')}),
    (_pachinko, {'alpha': 0.0}),
    (_pachinko, {'beta': 0.0}),
    (_pachinko, {'examples_per_client': 0}),
    (_pachinko, {'examples_per_client': 51}),
    (partitioners.similarity, {'similarity': 101}),
    (partitioners.similarity, {'similarity': float('nan')}),
    (partitioners.shards, {'shards_per_client': 0}),
    (partitioners.shards, {'shards_per_client': 51}),
  ],
)
def test_refuses_what_it_cannot_do(way, wrong):
  with pytest.raises(ValueError, match=f'{next(iter(wrong))} must be'):
    way(_LABELS, 20, seed=0, **(_WAYS[way] | wrong))


@pytest.mark.parametrize(
  ('coarse_labels', 'message'),
  [
    ([0, 0, 1], r'one for each example, .* shape \[4\]; found \[3\]'),
    ([0, 0, 1, 2], 'label 7 have both 1 and 2'),
  ],
)
def test_pachinko_refuses_coarse_labels_that_make_no_tree(coarse_labels, message):
  with pytest.raises(ValueError, match=message):
    partitioners.pachinko([5, 6, 7, 7], coarse_labels, 2, 0, examples_per_client=1)


def test_iid_clients_have_each_label_as_often_as_chance_has_it():
  counts = _counts(partitioners.iid(_BALANCED, 20, seed=0), _BALANCED)
  # For draws without replacement, the sum of squares below has this mean, and nearly
  # the variance of the chi-squared distribution.
  statistic = (np.square(counts - 5) / 5).sum()
  degrees = 19 * 9 * 1000 / 999
  assert abs(statistic - degrees) < 4 * math.sqrt(2 * degrees)


@pytest.mark.parametrize('variance', [0.1, 1.0])
def test_log_normal_sizes_have_the_variance_asked_for(variance):
  parts = partitioners.log_normal(np.zeros(10**6, int), 1000, variance, seed=0)
  logarithms = np.log([len(part) for part in parts])
  # The variance of so many normal draws has a standard deviation of 4.5%.
  assert logarithms.var() == pytest.approx(variance, rel=4 * math.sqrt(2 / 999))
  # They are symmetric about their mean, so this is a median too.
  deviation = math.sqrt(variance / 1000)
  assert abs(np.median(logarithms) - logarithms.mean()) < 4 * deviation


def test_log_normal_labels_are_those_of_the_whole_set():
  counts = _counts(partitioners.log_normal(_BALANCED, 5, 0.5, seed=0), _BALANCED)
  sizes = counts.sum(axis=1, keepdims=True)
  # Of so many examples of any labels a tenth has one, by the binomial distribution.
  deviations = np.sqrt(sizes * 0.1 * 0.9)
  assert (np.abs(counts - sizes / 10) < 4 * deviations).all()


def test_dirichlet_labels_are_the_more_skewed_the_smaller_alpha_is():
  # Alike clients have each of ten labels in a tenth of their examples.
  shares = [
    _top_share(partitioners.dirichlet(_LABELS, 10, alpha, seed=0), _LABELS)
    for alpha in (0.01, 0.3, 1e5)
  ]
  assert shares[0] > 0.6
  assert 0.2 < shares[1] < 0.6
  assert shares[2] < 0.15


def test_dirichlet_mean_share_of_a_client_is_the_same_for_all():
  sizes = np.array(
    [
      [len(part) for part in partitioners.dirichlet(_LABELS, 4, 1.0, s)]
      for s in range(200)
    ]
  )
  # A share of a label has variance 3/80, so a mean of ten labels and 200 draws has a
  # standard deviation of .0043 of 1,000 examples.
  np.testing.assert_allclose(sizes.mean(axis=0), 250, atol=4 * 4.3)


def test_dirichlet_log_normal_shares_are_as_uneven_as_alpha_says():
  labels = np.repeat([0, 1], 50_000)
  parts = partitioners.dirichlet_log_normal(labels, 2000, 1.0, 0.0, seed=0)
  distances = [abs(labels[part].mean() - 0.5) for part in parts]
  # With alpha = 1 any share of a label among two is as likely as any other, but for the
  # last clients, which hardly move a median. That of 2,000 draws uniform in [0, .5] has
  # a standard deviation of .25 / sqrt(2000).
  assert np.median(distances) == pytest.approx(0.25, abs=4 * 0.25 / math.sqrt(2000))


def test_dirichlet_log_normal_with_a_large_alpha_has_the_mix_of_an_unbalanced_set():
  shares = np.array([0.7, 0.2, 0.1])
  labels = np.repeat(np.arange(3), (10_000 * shares).astype(int))
  parts = partitioners.dirichlet_log_normal(labels, 10, 1e6, 0.0, seed=0)
  # The last client has what the 9,000 draws of the others left.
  deviations = np.sqrt(9000 * shares * (1 - shares))
  counts = _counts(parts, labels)[:, :3]
  assert (np.abs(counts - 1000 * shares) < 4 * deviations).all()


def test_dirichlet_log_normal_labels_are_few_for_a_small_alpha():
  shares = [
    _top_share(partitioners.dirichlet_log_normal(_LABELS, 10, a, 0.5, seed=0), _LABELS)
    for a in (0.01, 0.3, 1e5)
  ]
  assert shares[0] > 0.6
  assert 0.2 < shares[1] < 0.6
  # The most frequent of ten labels among 100 examples is about 16 of them by chance.
  assert shares[2] < 0.2


def test_dirichlet_log_normal_treats_all_clients_alike():
  labels = np.repeat([0, 1, 2], [140, 40, 20])
  means = np.mean(
    [
      _counts(partitioners.dirichlet_log_normal(labels, 5, 0.3, 0.0, s), labels)
      for s in range(300)
    ],
    axis=0,
  )
  # By symmetry all clients have the same mean. A count is at most 40 and so has a
  # standard deviation of at most 20.
  np.testing.assert_allclose(
    means[:, :3], [[28, 8, 4]] * 5, atol=4 * 20 / math.sqrt(300)
  )


def _probability_of_none(n, own, total):
  """That n draws of a Polya urn of this total weight never are of this own weight."""
  return math.prod((total - own + i) / (total + i) for i in range(n))


def _probability_of_draws(m, n, own, total):
  """That m of n draws of a Polya urn are of this own weight (beta-binomial)."""

  def log_beta(a, b):
    return math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)

  rest = total - own
  ratio = math.exp(log_beta(m + own, n - m + rest) - log_beta(own, rest))
  return math.comb(n, m) * ratio


def test_pachinko_has_as_many_labels_as_theory_says_where_none_is_used_up():
  labels = np.repeat(np.arange(100), 2000)
  coarse_labels = labels // 5
  parts = partitioners.pachinko(labels, coarse_labels, 100, seed=0)
  # A Dirichlet multinomial is a Polya urn: 20 coarse labels of weight .1, and 5 labels
  # of weight 10 below each.
  expected_coarse = 20 * (1 - _probability_of_none(100, 0.1, 2.0))
  expected_fine = 100 * (
    1
    - sum(
      _probability_of_draws(m, 100, 0.1, 2.0) * _probability_of_none(m, 10, 50)
      for m in range(101)
    )
  )
  for found, expected in (
    (_num_labels(parts, coarse_labels), expected_coarse),
    (_num_labels(parts, labels), expected_fine),
  ):
    assert abs(found.mean() - expected) < 4 * found.std() / math.sqrt(100)


def test_pachinko_labels_left_take_the_share_of_one_used_up_below_their_coarse_one():
  labels = np.repeat([0, 1, 2], [1, 5000, 5000])
  coarse_labels = np.array([0, 0, 1])[labels]
  part = partitioners.pachinko(
    labels, coarse_labels, 1, 0, alpha=1e6, beta=1e6, examples_per_client=4000
  )[0]
  # Half of the draws, by the binomial distribution.
  assert abs(coarse_labels[part].sum() - 2000) < 4 * math.sqrt(4000) / 2


def _naive_pachinko(coarse_of, per_label, num_clients, alpha, beta, size, generator):
  """The number of labels of each client, drawing and normalizing one by one."""
  left = np.full(len(coarse_of), per_label)
  coarse_labels = np.unique(coarse_of)
  result = []
  for _ in range(num_clients):
    coarse = generator.dirichlet(np.full(len(coarse_labels), alpha))
    fine = np.zeros(len(coarse_of))
    for c in coarse_labels:
      below = coarse_of == c
      fine[below] = generator.dirichlet(np.full(below.sum(), beta))
    drawn = set()
    for _ in range(size):
      p = coarse * [left[coarse_of == c].any() for c in coarse_labels]
      c = generator.choice(coarse_labels, p=p / p.sum())
      p = fine * (coarse_of == c) * (left > 0)
      label = generator.choice(len(coarse_of), p=p / p.sum())
      left[label] -= 1
      drawn.add(label)
    result.append(len(drawn))
  return result


def test_pachinko_is_what_drawing_one_by_one_gives_as_labels_are_used_up():
  coarse_of = np.array([0, 0, 0, 1, 1, 2, 2, 2, 2])  # By label.
  labels = np.repeat(np.arange(9), 20)
  ours, naive = [], []
  for seed in range(40):
    generator = np.random.default_rng(seed)
    parts = partitioners.pachinko(
      labels, coarse_of[labels], 12, seed, alpha=0.5, beta=2.0, examples_per_client=15
    )
    ours.append(_num_labels(parts, labels))
    naive.append(_naive_pachinko(coarse_of, 20, 12, 0.5, 2.0, 15, generator))
  # The last clients have fewer labels to choose from, so it is compared client by
  # client.
  deviations = np.sqrt((np.var(ours, axis=0) + np.var(naive, axis=0)) / 40)
  difference = np.mean(ours, axis=0) - np.mean(naive, axis=0)
  assert (np.abs(difference) < 4 * deviations).all()


@pytest.mark.slow
def test_pachinko_clients_have_as_many_labels_as_those_of_federated_cifar_100(data_dir):
  train, _ = tff.simulation.datasets.cifar100.load_data(cache_dir=str(data_dir))
  client_ids = train.client_ids[::2]  # A client takes a tenth of a second.
  theirs = []
  for client_id in client_ids:
    examples = train.create_tf_dataset_for_client(client_id).as_numpy_iterator()
    theirs.append(np.array([[e['label'], e['coarse_label']] for e in examples]))
  # Early clients have more labels than late ones, so clients are matched.
  clients = [int(client_id) for client_id in client_ids]
  labels = np.repeat(np.arange(100), 500)
  for level, level_labels in enumerate((labels, labels // 5)):
    found = [len(np.unique(part[:, level])) for part in theirs]
    means = []
    for seed in range(8):
      parts = partitioners.pachinko(labels, labels // 5, 500, seed)
      means.append(_num_labels(parts, level_labels)[clients].mean())
    # Theirs is one split as ours are, all of whose means have the same deviation.
    deviation = np.std(means, ddof=1) * math.sqrt(1 + 1 / 8)
    assert abs(np.mean(found) - np.mean(means)) < 4 * deviation


def test_similarity_of_0_gives_labels_in_order():
  parts = partitioners.similarity(_LABELS, 30, 0, seed=0)
  for part, following in itertools.pairwise(parts):
    assert _LABELS[part].max() <= _LABELS[following].min()


def test_clients_are_the_more_alike_the_larger_similarity_is():
  shares = [
    _top_share(partitioners.similarity(_BALANCED, 10, s, seed=0), _BALANCED)
    for s in (0, 50, 100)
  ]
  assert shares[0] == 1
  # Half of the examples are of one label, but where borders are moved by chance, and a
  # tenth of the others are.
  assert 0.4 < shares[1] < 0.6
  assert shares[2] < 0.25


def test_shards_of_equal_labels_have_one_label_each_and_come_at_random():
  parts = partitioners.shards(_BALANCED, 20, 2, seed=0)
  counts = _counts(parts, _BALANCED)
  assert set(counts.ravel()) <= {0, 25, 50}
  assert (counts.sum(axis=1) == 50).all()
  # In order, all clients would have two shards of one label.
  assert (counts == 25).any()
