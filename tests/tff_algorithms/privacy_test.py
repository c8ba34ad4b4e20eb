"""Tests of what rounds spend of privacy."""

import math

import dp_accounting
import numpy as np
import pytest

from tff_algorithms import privacy

_ARGUMENTS = dict(noise_multiplier=1.0, sampling_probability=0.01, delta=1e-5)


def _epsilon(num_rounds=100, **changes):
  return privacy.epsilon(num_rounds, **(_ARGUMENTS | changes))


def test_it_grows_with_the_rounds():
  spent = [_epsilon(n) for n in (1, 10, 100, 1000)]
  assert spent == sorted(set(spent))
  assert spent[0] > 0


def test_noise_and_rarer_clients_and_a_larger_delta_save_some():
  assert _epsilon(noise_multiplier=2.0) < _epsilon()
  assert _epsilon(sampling_probability=0.001) < _epsilon()
  assert _epsilon(delta=1e-3) < _epsilon()


def test_nothing_is_spent_in_no_round_and_everything_without_noise():
  assert _epsilon(0) == 0
  assert _epsilon(0, noise_multiplier=0.0) == 0
  assert _epsilon(1, noise_multiplier=0.0) == math.inf


def test_it_is_what_the_accountant_says_of_the_rounds_one_by_one():
  accountant = dp_accounting.rdp.RdpAccountant()
  event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
  for _ in range(20):
    accountant.compose(event)
  np.testing.assert_allclose(_epsilon(20), accountant.get_epsilon(1e-5), rtol=1e-9)


@pytest.mark.parametrize('noise_multiplier', [0.7, 1.1, 4.0])
def test_it_is_no_less_than_what_the_losses_distribution_gives(noise_multiplier):
  accountant = dp_accounting.pld.PLDAccountant()
  event = dp_accounting.GaussianDpEvent(noise_multiplier)
  accountant.compose(dp_accounting.PoissonSampledDpEvent(0.01, event), 50)
  tight = accountant.get_epsilon(1e-5)
  assert tight <= _epsilon(50, noise_multiplier=noise_multiplier) < 2.5 * tight + 0.1


def test_where_all_clients_always_come_it_is_that_of_a_gaussian_mechanism():
  # Renyi divergence T a / (2 sigma^2) of order a, and Canonne et al. 2020 from there.
  rounds, sigma, delta = 10, 8.0, 1e-5
  a = np.arange(2, 256)
  divergence = rounds * a / (2 * sigma**2)
  bounds = divergence + np.log1p(-1 / a) - np.log(delta * a) / (a - 1)
  spent = _epsilon(rounds, noise_multiplier=sigma, sampling_probability=1.0)
  np.testing.assert_allclose(spent, bounds.min(), rtol=1e-2)
