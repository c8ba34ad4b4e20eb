"""Tests of drawing cohorts."""

import collections
import hashlib

import numpy as np
import pytest

from training_loops import sampling

_CLIENTS = [f'client_{i:03d}' for i in range(50)]


def test_a_cohort_has_the_size_asked_for_and_no_client_twice():
  for round_num in range(100):
    cohort = sampling.cohort(_CLIENTS, 10, seed=0, round_num=round_num)
    assert len(set(cohort)) == 10
    assert set(cohort) <= set(_CLIENTS)


def test_a_cohort_of_all_clients_is_all_clients():
  assert sorted(sampling.cohort(_CLIENTS, 50, seed=0, round_num=1)) == _CLIENTS


def test_every_client_is_drawn_equally_often():
  counts = collections.Counter(
    client
    for round_num in range(4000)
    for client in sampling.cohort(_CLIENTS, 10, seed=3, round_num=round_num)
  )
  # Of a binomial(4000, 1/5) each, the standard deviation is 25.
  assert min(counts.values()) > 800 - 5 * 25
  assert max(counts.values()) < 800 + 5 * 25
  assert len(counts) == 50


def test_the_cohort_depends_on_the_seed_and_the_round():
  cohorts = {
    tuple(sampling.cohort(_CLIENTS, 10, seed=seed, round_num=round_num))
    for seed in range(10)
    for round_num in range(10)
  }
  assert len(cohorts) == 100


def test_cohorts_are_the_same_on_any_machine():
  text = ' '.join(
    client
    for round_num in range(20)
    for client in sampling.cohort(_CLIENTS, 10, seed=1, round_num=round_num)
  )
  assert hashlib.sha256(text.encode()).hexdigest()[:16] == '5ef379abba8a1aba'


def test_more_clients_than_there_are_cannot_be_drawn():
  with pytest.raises(ValueError, match='51 of 50 clients'):
    sampling.cohort(_CLIENTS, 51, seed=0, round_num=0)


def test_a_subset_is_fixed_by_its_seed_and_ascending():
  first = sampling.subset(1000, 100, seed=0)
  assert len(set(first)) == 100
  assert (np.diff(first) > 0).all()
  assert (first == sampling.subset(1000, 100, seed=0)).all()
  assert (first != sampling.subset(1000, 100, seed=1)).any()
