"""Tests of drawing the clients of a round."""

import collections
import hashlib
import itertools
import statistics
import subprocess
import sys

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

from training_loops import sampling
from training_loops.sampling import Participant, Sampler

_CLIENTS = [f'client_{i:03d}' for i in range(50)]

_REALISTIC = {
  'dropout_rate': 0.3,
  'straggler_rate': 0.4,
  'straggler_steps': 5,
  'rounds_per_day': 24,
  'available_share': 0.5,
}


def _uniform_cohort(client_ids, size, *, seed, round_num):
  sampler = sampling.Sampler(client_ids=client_ids, clients_per_round=size, seed=seed)
  return [participant.client_id for participant in sampler.draw(round_num)]


def _num_examples(client_id):
  return int(client_id[-3:])


_SAMPLINGS = {
  'uniform': {},
  'by_examples': {'sampling': 'by_examples', 'num_examples': _num_examples},
  'log_normal': {'sampling': 'log_normal', 'sampling_variance': 2.0},
}
every_sampling = pytest.mark.parametrize('name', _SAMPLINGS)


def _sampler(client_ids=_CLIENTS, clients_per_round=10, seed=0, **options):
  return Sampler(
    client_ids=client_ids, clients_per_round=clients_per_round, seed=seed, **options
  )


def _ids(participants):
  return [participant.client_id for participant in participants]


def _assert_binomial(count, trials, probability):
  """Within five standard deviations, which one seed in two million is not."""
  deviation = (trials * probability * (1 - probability)) ** 0.5
  assert abs(count - trials * probability) < 5 * deviation


def _hashed(client_id, seed, purpose):
  """The number between 0 and 1 that a client keeps, by its definition."""
  digest = hashlib.blake2b(
    client_id.encode(), digest_size=8, key=str(seed).encode(), person=purpose.encode()
  ).digest()
  return (int.from_bytes(digest, 'little') // 2**12 + 0.5) / 2**52


def test_a_cohort_has_the_size_asked_for_and_no_client_twice():
  for round_num in range(100):
    cohort = _uniform_cohort(_CLIENTS, 10, seed=0, round_num=round_num)
    assert len(set(cohort)) == 10
    assert set(cohort) <= set(_CLIENTS)


def test_a_cohort_of_all_clients_is_all_clients():
  assert sorted(_uniform_cohort(_CLIENTS, 50, seed=0, round_num=1)) == _CLIENTS


def test_every_client_is_drawn_equally_often():
  counts = collections.Counter(
    client
    for round_num in range(4000)
    for client in _uniform_cohort(_CLIENTS, 10, seed=3, round_num=round_num)
  )
  # Of a binomial(4000, 1/5) each, the standard deviation is 25.
  assert min(counts.values()) > 800 - 5 * 25
  assert max(counts.values()) < 800 + 5 * 25
  assert len(counts) == 50


def test_the_cohort_depends_on_the_seed_and_the_round():
  cohorts = {
    tuple(_uniform_cohort(_CLIENTS, 10, seed=seed, round_num=round_num))
    for seed in range(10)
    for round_num in range(10)
  }
  assert len(cohorts) == 100


def test_cohorts_are_the_same_on_any_machine():
  text = ' '.join(
    client
    for round_num in range(20)
    for client in _uniform_cohort(_CLIENTS, 10, seed=1, round_num=round_num)
  )
  assert hashlib.sha256(text.encode()).hexdigest()[:16] == '5ef379abba8a1aba'


def test_more_clients_than_there_are_cannot_be_drawn():
  with pytest.raises(ValueError, match='51 of 50 clients'):
    _uniform_cohort(_CLIENTS, 51, seed=0, round_num=0)


def test_a_subset_is_fixed_by_its_seed_and_ascending():
  first = sampling.subset(1000, 100, seed=0)
  assert len(set(first)) == 100
  assert (np.diff(first) > 0).all()
  assert (first == sampling.subset(1000, 100, seed=0)).all()
  assert (first != sampling.subset(1000, 100, seed=1)).any()


@hypothesis.given(
  seed=st.integers(0, 2**31 - 1),
  round_num=st.integers(0, 10**6),
  num_clients=st.integers(1, 2000),
  data=st.data(),
)
def test_with_all_options_off_the_clients_with_the_least_bits_come(
  seed, round_num, num_clients, data
):
  client_ids = [str(i) for i in range(num_clients)]
  size = data.draw(st.integers(1, num_clients))
  bits = np.random.PCG64(np.random.SeedSequence((seed, round_num))).random_raw(
    num_clients
  )
  assert _sampler(client_ids, size, seed).draw(round_num) == [
    Participant(str(i), None) for i in np.argsort(bits, kind='stable')[:size]
  ]


def test_options_off_do_not_ask_for_sizes():
  def fail(client_id):
    raise AssertionError(client_id)

  for name in ('uniform', 'log_normal'):
    options = {**_SAMPLINGS[name], 'num_examples': fail}
    assert len(_sampler(**options).draw(1)) == 10


@every_sampling
def test_a_round_does_not_depend_on_the_rounds_before_it(name):
  options = {**_SAMPLINGS[name], **_REALISTIC}
  sampler = _sampler(**options)
  for round_num in range(20):
    assert sampler.draw(round_num) == _sampler(**options).draw(round_num)


@every_sampling
def test_rounds_are_the_same_on_any_machine(name):
  pinned = {
    'uniform': '870cd3606e243bed',
    'by_examples': '3e31f090734dc57e',
    'log_normal': '7977e3ffb2588146',
  }
  sampler = _sampler(seed=1, **_SAMPLINGS[name], **_REALISTIC)
  text = ' '.join(
    f'{client_id}:{max_steps}'
    for round_num in range(20)
    for client_id, max_steps in sampler.draw(round_num)
  )
  assert hashlib.sha256(text.encode()).hexdigest()[:16] == pinned[name]


@pytest.mark.parametrize(
  'options',
  [
    {'sampling': 'by_examples', 'num_examples': lambda client_id: 7},
    {'sampling': 'log_normal', 'sampling_variance': 0.0},
    {'rounds_per_day': 24},
    {'straggler_steps': 3},
  ],
)
def test_clients_that_are_all_alike_are_drawn_uniformly(options):
  plain, other = _sampler(seed=4), _sampler(seed=4, **options)
  for round_num in range(100):
    assert other.draw(round_num) == plain.draw(round_num)


def test_by_examples_draws_one_after_the_other_in_proportion_to_their_sizes():
  sizes = {'a': 1, 'b': 2, 'c': 3, 'd': 6}
  sampler = _sampler(
    tuple(sizes), 2, 5, sampling='by_examples', num_examples=sizes.__getitem__
  )
  rounds = 5000
  counts = collections.Counter(tuple(_ids(sampler.draw(t))) for t in range(rounds))
  for first, second in itertools.permutations(sizes, 2):
    probability = sizes[first] / 12 * sizes[second] / (12 - sizes[first])
    _assert_binomial(counts[first, second], rounds, probability)


def test_by_examples_never_draws_a_client_without_examples():
  sampler = _sampler(clients_per_round=49, **_SAMPLINGS['by_examples'])
  for round_num in range(20):
    assert sorted(_ids(sampler.draw(round_num))) == _CLIENTS[1:]


def test_by_examples_cannot_draw_more_than_have_examples():
  with pytest.raises(ValueError, match='50 of 49 clients that have examples'):
    _sampler(clients_per_round=50, **_SAMPLINGS['by_examples'])


def test_log_normal_draws_by_propensities_that_clients_keep():
  rounds, seed, client_ids = 5000, 6, _CLIENTS[:8]
  sampler = _sampler(client_ids, 1, seed, **_SAMPLINGS['log_normal'])
  counts = collections.Counter(_ids(sampler.draw(t))[0] for t in range(rounds))
  quantile = statistics.NormalDist(0, 2.0**0.5).inv_cdf
  weights = np.exp([quantile(_hashed(c, seed, 'propensity')) for c in client_ids])
  for client_id, probability in zip(client_ids, weights / sum(weights), strict=True):
    _assert_binomial(counts[client_id], rounds, probability)


@hypothesis.given(
  seed=st.integers(0, 1000),
  round_num=st.integers(0, 1000),
  size=st.integers(1, 50),
  rates=st.tuples(*[st.floats(0, 1, exclude_max=True)] * 2).map(sorted),
)
def test_those_who_stay_are_of_the_same_cohort_and_fewer_with_a_higher_rate(
  seed, round_num, size, rates
):
  everyone, more, fewer = (
    _ids(_sampler(_CLIENTS, size, seed, dropout_rate=rate).draw(round_num))
    for rate in (0.0, *rates)
  )
  assert more == [client_id for client_id in everyone if client_id in more]
  assert fewer == [client_id for client_id in more if client_id in fewer]
  assert len(fewer) >= 1


def test_clients_drop_out_at_the_rate_asked_for():
  sampler = _sampler(dropout_rate=0.3)
  _assert_binomial(sum(len(sampler.draw(t)) for t in range(1000)), 10000, 0.7)


def test_dropping_out_has_nothing_to_do_with_the_place_in_the_cohort():
  whole, present = _sampler(), _sampler(dropout_rate=0.3)
  counts = np.zeros(10)
  for round_num in range(2000):
    stayed = _ids(present.draw(round_num))
    counts += [client_id in stayed for client_id in _ids(whole.draw(round_num))]
  for count in counts:
    _assert_binomial(count, 2000, 0.7)


def test_one_client_stays_when_all_drop_out():
  sampler = _sampler(clients_per_round=3, dropout_rate=1 - 1e-9)
  stayed = [_ids(sampler.draw(round_num)) for round_num in range(500)]
  assert {len(client_ids) for client_ids in stayed} == {1}
  assert len(set(map(tuple, stayed))) == len(_CLIENTS)


def test_as_many_stay_as_a_round_needs():
  sampler = _sampler(clients_per_round=3, dropout_rate=1 - 1e-9, fewest=2)
  stayed = [_ids(sampler.draw(round_num)) for round_num in range(500)]
  assert {len(client_ids) for client_ids in stayed} == {2}
  # Where more stay anyway, a round is what it was.
  few, one = (_sampler(dropout_rate=0.3, fewest=k) for k in (2, 1))
  for round_num in range(100):
    if len(one.draw(round_num)) >= 2:
      assert few.draw(round_num) == one.draw(round_num)


def test_stragglers_are_cut_at_the_rate_asked_for():
  sampler = _sampler(straggler_rate=0.2, straggler_steps=3)
  cuts = collections.Counter(
    participant.max_steps for t in range(1000) for participant in sampler.draw(t)
  )
  assert set(cuts) == {3, None}
  _assert_binomial(cuts[3], 10000, 0.2)


def test_all_may_be_stragglers():
  sampler = _sampler(straggler_rate=1.0, straggler_steps=1)
  assert {participant.max_steps for participant in sampler.draw(0)} == {1}


def test_stragglers_are_the_same_whoever_drops_out():
  options = {'straggler_rate': 0.5, 'straggler_steps': 2}
  whole, present = _sampler(**options), _sampler(dropout_rate=0.5, **options)
  num_present = num_stragglers = 0
  for round_num in range(500):
    stayed = present.draw(round_num)
    assert set(stayed) <= set(whole.draw(round_num))
    num_present += len(stayed)
    num_stragglers += sum(participant.max_steps == 2 for participant in stayed)
  # Those who stay are slow as often as any.
  _assert_binomial(num_stragglers, num_present, 0.5)


def test_every_client_is_available_once_a_day_for_its_share_of_it():
  sampler = _sampler(clients_per_round=50, rounds_per_day=16, available_share=0.25)
  days = np.array(
    [np.isin(_CLIENTS, _ids(sampler.draw(t))) for t in range(5, 5 + 2 * 16)]
  )
  np.testing.assert_array_equal(days[:16], days[16:])
  openings = days[:16] & ~np.roll(days[:16], 1, axis=0)
  np.testing.assert_array_equal(days[:16].sum(axis=0), 4)
  np.testing.assert_array_equal(openings.sum(axis=0), 1)


def test_time_zones_are_spread_over_the_day():
  client_ids = [str(i) for i in range(4000)]
  sampler = _sampler(client_ids, 4000, rounds_per_day=16, available_share=0.25)
  for round_num in range(16):
    _assert_binomial(len(sampler.draw(round_num)), 4000, 0.25)


def test_time_zones_are_those_of_the_definition_whoever_the_others_are():
  for client_ids in (_CLIENTS, _CLIENTS[::-3]):
    sampler = _sampler(
      client_ids, len(client_ids), 3, rounds_per_day=10, available_share=0.4
    )
    for t in range(30):
      assert set(_ids(sampler.draw(t))) == {
        client_id
        for client_id in client_ids
        if (_hashed(client_id, 3, 'time zone') + t / 10) % 1 < 0.4
      }


@every_sampling
def test_the_cohort_is_drawn_among_those_available(name):
  days = {'rounds_per_day': 12, 'available_share': 0.5}
  everyone = _sampler(clients_per_round=49, **_SAMPLINGS[name])
  awake = _sampler(clients_per_round=49, **_SAMPLINGS[name], **days)
  drawn = _sampler(clients_per_round=4, **_SAMPLINGS[name], **days)
  for round_num in range(24):
    available = set(_ids(awake.draw(round_num)))
    order = [c for c in _ids(everyone.draw(round_num)) if c in available]
    assert _ids(drawn.draw(round_num)) == order[:4]


def test_when_nobody_is_available_the_client_comes_whose_day_begins_next():
  client_ids, rounds_per_day = _CLIENTS[:5], 97
  sampler = _sampler(client_ids, 5, rounds_per_day=rounds_per_day, available_share=1e-6)
  zones = {client_id: _hashed(client_id, 0, 'time zone') for client_id in client_ids}
  for t in range(2 * rounds_per_day):
    wait = {c: -(zone + t / rounds_per_day) % 1 for c, zone in zones.items()}
    assert _ids(sampler.draw(t)) == [min(wait, key=wait.get)]


def test_when_too_few_are_available_those_come_too_whose_days_begin_next():
  client_ids, rounds_per_day = _CLIENTS[:5], 97
  options = {'rounds_per_day': rounds_per_day, 'available_share': 0.2}
  sampler = _sampler(client_ids, 5, fewest=2, **options)
  available = _sampler(client_ids, 5, **options)
  zones = {client_id: _hashed(client_id, 0, 'time zone') for client_id in client_ids}
  num_joined = 0
  for t in range(rounds_per_day):
    wait = {c: -(zone + t / rounds_per_day) % 1 for c, zone in zones.items()}
    is_up = [c for c in client_ids if (zones[c] + t / rounds_per_day) % 1 < 0.2]
    asleep = sorted(set(client_ids) - set(is_up), key=wait.get)
    expected = {*is_up, *asleep[: max(0, 2 - len(is_up))]}
    assert set(_ids(sampler.draw(t))) == expected
    num_joined += len(is_up) < 2
    if is_up:
      assert set(_ids(available.draw(t))) == set(is_up)
  assert num_joined


@pytest.mark.parametrize(
  ('options', 'message'),
  [
    ({'sampling': 'at_random'}, 'one of uniform, by_examples, log_normal'),
    ({'clients_per_round': 0}, 'clients_per_round must be at least 1'),
    ({'clients_per_round': 1, 'fewest': 2}, 'clients_per_round must be at least 2'),
    ({'fewest': 0}, 'fewest must be at least 1'),
    ({'dropout_rate': 1.0}, 'dropout_rate must be from 0 to below 1'),
    ({'dropout_rate': float('nan')}, 'dropout_rate must be from 0 to below 1'),
    ({'straggler_rate': -0.1}, 'straggler_rate must be from 0 to 1'),
    ({'straggler_rate': 0.1}, 'needs straggler_steps of at least 1'),
    ({'straggler_rate': 0.1, 'straggler_steps': 0}, 'needs straggler_steps'),
    ({'available_share': 0.0, 'rounds_per_day': 5}, 'available_share must be above 0'),
    ({'available_share': 0.5}, 'needs rounds_per_day of at least 1'),
    ({'available_share': 0.5, 'rounds_per_day': 0}, 'needs rounds_per_day'),
    ({'sampling': 'by_examples'}, 'needs num_examples'),
    ({'sampling': 'log_normal'}, 'needs a sampling_variance of at least 0'),
    ({'sampling': 'log_normal', 'sampling_variance': -1.0}, 'sampling_variance'),
    ({'sampling': 'log_normal', 'sampling_variance': float('inf')}, 'variance'),
  ],
)
def test_options_out_of_range_are_refused(options, message):
  with pytest.raises(ValueError, match=message):
    _sampler(**options)


def test_importing_it_does_not_import_tensorflow():
  code = 'import sys, training_loops.sampling; assert "tensorflow" not in sys.modules'
  subprocess.run([sys.executable, '-c', code], check=True)
