"""The differential privacy that rounds with a Gaussian mechanism have spent."""

import dp_accounting


def epsilon(
  num_rounds: int,
  *,
  noise_multiplier: float,
  sampling_probability: float,
  delta: float,
) -> float:
  """epsilon of (epsilon, delta)-differential privacy of a client, by Renyi accounting.

  The rounds are counted as if every client came with the same probability, on its own
  (Poisson sampling). Cohorts of a fixed size are not quite that.

  Args:
    num_rounds: How many rounds there have been.
    noise_multiplier: The standard deviation of the noise over the clip norm.
    sampling_probability: With which a client is in a round.
    delta: delta.
  """
  if num_rounds == 0:
    return 0.0
  if noise_multiplier == 0:
    return float('inf')
  round_event = dp_accounting.PoissonSampledDpEvent(
    sampling_probability, dp_accounting.GaussianDpEvent(noise_multiplier)
  )
  accountant = dp_accounting.rdp.RdpAccountant()
  accountant.compose(round_event, num_rounds)
  return float(accountant.get_epsilon(delta))
