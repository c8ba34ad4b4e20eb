"""Which clients take part in a round, and how.

All of it is a function of the seed, the round and the client, so that a continued run
and another machine see the same rounds. What changes from round to round is made of the
raw bits of numpy's PCG64, which numpy promises not to change, where it does not promise
the same of its `choice`; what a client keeps is a hash of its id.

Importing this module does not import TensorFlow.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import hashlib
import math
import statistics
from typing import NamedTuple

import numpy as np

SAMPLINGS = ('uniform', 'by_examples', 'log_normal')

# What a round's bits are for, beside the cohort: no two uses share any.
_DROPOUT, _STRAGGLERS = 0, 1


def subset(num_rows: int, size: int, *, seed: int) -> np.ndarray:
  """The indices of a fixed random subset of rows, in ascending order."""
  keys = np.random.PCG64(np.random.SeedSequence(seed)).random_raw(num_rows)
  return np.sort(np.argsort(keys, kind='stable')[:size])


class Participant(NamedTuple):
  """A client in one round.

  Attributes:
    client_id: The client.
    max_steps: Where its local steps are cut in this round, or None.
  """

  client_id: str
  max_steps: int | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampler:
  """Draws the clients of each round.

  A round's cohort is drawn without replacement among the clients that are available;
  then some drop out, and some of the others are stragglers. A client drops out, or is a
  straggler, whoever else is in the round: the options do not disturb each other's
  draws, and with all of them off a round is a plain uniform cohort.

  With an `available_share` below 1 every client has a time zone of its own, uniform
  over the day, and is available for the first such share of its day. When fewer are
  available than are to be drawn, all of them come; when fewer than `fewest` are, also
  those whose days begin next.

  Attributes:
    client_ids: All the clients.
    clients_per_round: How many to draw, at most all.
    seed: The run's seed.
    sampling: How probable a client is to be drawn next, of those not yet drawn.
      'uniform': all alike; 'by_examples': in proportion to the number of its examples,
      so never without any; 'log_normal': in proportion to a number of its own, which it
      keeps for the whole run and whose logarithm is normal.
    num_examples: Client id -> how many examples it has, for 'by_examples'.
    sampling_variance: For 'log_normal', the variance of the logarithm.
    dropout_rate: How probable a drawn client is to drop out of the round. Of a cohort
      that drops out as a whole the `fewest` stay.
    straggler_rate: How probable a client of the round is to be a straggler.
    straggler_steps: How many local steps a straggler takes at most.
    rounds_per_day: After how many rounds it is the same time again.
    available_share: For which share of its day a client is available.
    fewest: How many clients a round has at least, at most all.

  Raises:
    ValueError: If an option is out of its range or lacks what it needs, or there are
      too few clients.
  """

  client_ids: Sequence[str]
  clients_per_round: int
  seed: int
  sampling: str = 'uniform'
  num_examples: Callable[[str], int] | None = None
  sampling_variance: float | None = None
  dropout_rate: float = 0.0
  straggler_rate: float = 0.0
  straggler_steps: int | None = None
  rounds_per_day: int | None = None
  available_share: float = 1.0
  fewest: int = 1

  def __post_init__(self):
    self._check_options()
    if self.clients_per_round > len(self._drawable):
      kind = ' that have examples' if self.sampling == 'by_examples' else ''
      raise ValueError(
        f'{self.clients_per_round} of {len(self._drawable)} clients{kind} cannot be '
        'drawn.'
      )

  def draw(self, round_num: int) -> list[Participant]:
    """The clients of a round, `fewest` at least."""
    present = self._draw_cohort(round_num)
    if self.dropout_rate:
      luck = self._round_uniforms(round_num, _DROPOUT)[present]
      last_to_go = np.sort(luck)[-min(self.fewest, len(luck))]
      present = present[luck >= min(self.dropout_rate, last_to_go)]  # Somebody stays.
    is_straggler = np.zeros(len(present), bool)
    if self.straggler_rate:
      luck = self._round_uniforms(round_num, _STRAGGLERS)[present]
      is_straggler = luck < self.straggler_rate
    return [
      Participant(self.client_ids[i], self.straggler_steps if slow else None)
      for i, slow in zip(present, is_straggler, strict=True)
    ]

  def _check_options(self) -> None:
    rules = {
      f'sampling must be one of {", ".join(SAMPLINGS)}': self.sampling in SAMPLINGS,
      'fewest must be at least 1': self.fewest >= 1,
      f'clients_per_round must be at least {self.fewest}': (
        self.clients_per_round >= self.fewest
      ),
      'dropout_rate must be from 0 to below 1': 0 <= self.dropout_rate < 1,
      'straggler_rate must be from 0 to 1': 0 <= self.straggler_rate <= 1,
      'available_share must be above 0 and at most 1': 0 < self.available_share <= 1,
      "sampling='by_examples' needs num_examples": (
        self.sampling != 'by_examples' or self.num_examples is not None
      ),
      "sampling='log_normal' needs a sampling_variance of at least 0": (
        self.sampling != 'log_normal' or _is_at_least(self.sampling_variance, 0)
      ),
      'straggler_rate needs straggler_steps of at least 1': (
        self.straggler_rate == 0 or _is_at_least(self.straggler_steps, 1)
      ),
      'available_share needs rounds_per_day of at least 1': (
        self.available_share == 1 or _is_at_least(self.rounds_per_day, 1)
      ),
    }
    for rule, holds in rules.items():
      if not holds:
        raise ValueError(f'{rule}.')

  def _draw_cohort(self, round_num: int) -> np.ndarray:
    """The indices of the clients drawn, in the order of the draw."""
    candidates = self._available(round_num)
    keys = _round_bits(self.seed, round_num, len(self.client_ids))
    if self._log_weights is not None:
      # The least of exponential times with these rates are a weighted draw without
      # replacement (Efraimidis and Spirakis 2006).
      keys = np.log(-np.log1p(-_uniforms(keys))) - self._log_weights
    return candidates[_least(keys[candidates], self.clients_per_round)]

  def _available(self, round_num: int) -> np.ndarray:
    """The indices of the clients that may be drawn in a round, ascending."""
    if self._time_zones is None:
      return self._drawable
    assert self.rounds_per_day is not None  # As checked.
    time = round_num % self.rounds_per_day / self.rounds_per_day
    local_times = (self._time_zones[self._drawable] + time) % 1.0
    available = self._drawable[local_times < self.available_share]
    if len(available) >= self.fewest:
      return available
    # The times of those available are the lowest: their days have just begun.
    next_up = np.argsort(-local_times, kind='stable')[: self.fewest - len(available)]
    return np.sort(np.concatenate([available, self._drawable[next_up]]))

  def _round_uniforms(self, round_num: int, purpose: int) -> np.ndarray:
    return _uniforms(_round_bits(self.seed, round_num, len(self.client_ids), purpose))

  @functools.cached_property
  def _drawable(self) -> np.ndarray:
    """The indices of the clients that are drawn at all, ascending."""
    if self._log_weights is None:
      return np.arange(len(self.client_ids))
    return np.flatnonzero(np.isfinite(self._log_weights))

  @functools.cached_property
  def _log_weights(self) -> np.ndarray | None:
    """The logarithm of each client's weight in the draw; None if all are alike."""
    if self.sampling == 'uniform':
      return None
    if self.sampling == 'by_examples':
      assert self.num_examples is not None  # As checked.
      sizes = np.array([self.num_examples(c) for c in self.client_ids], np.float64)
      with np.errstate(divide='ignore'):
        return np.log(sizes)
    quantile = statistics.NormalDist().inv_cdf
    normal = [quantile(u) for u in self._id_uniforms('propensity')]
    return np.sqrt(self.sampling_variance) * np.array(normal)

  @functools.cached_property
  def _time_zones(self) -> np.ndarray | None:
    """The time of day of each client at round 0, from 0 to 1; None if all are up."""
    return None if self.available_share == 1 else self._id_uniforms('time zone')

  def _id_uniforms(self, purpose: str) -> np.ndarray:
    """A number for each client, whoever the others are."""
    make = functools.partial(
      hashlib.blake2b,
      digest_size=8,
      key=str(self.seed).encode(),
      person=purpose.encode(),
    )
    digests = b''.join(make(c.encode()).digest() for c in self.client_ids)
    return _uniforms(np.frombuffer(digests, '<u8'))


def _is_at_least(value: float | None, least: float) -> bool:
  return value is not None and least <= value < math.inf


def _round_bits(seed: int, round_num: int, size: int, *purpose: int) -> np.ndarray:
  """64 random bits for each client, other ones for each purpose."""
  entropy = np.random.SeedSequence((seed, round_num), spawn_key=purpose)
  return np.random.PCG64(entropy).random_raw(size)


def _uniforms(bits: np.ndarray) -> np.ndarray:
  """Numbers between 0 and 1, neither included, of 64 random bits each."""
  return ((bits >> np.uint64(12)) + 0.5) * 2.0**-52


def _least(keys: np.ndarray, size: int) -> np.ndarray:
  """The places of the least keys, ascending by key; all if there are fewer."""
  if size < len(keys):
    # As the sort below would choose, without sorting hundreds of thousands.
    places = np.flatnonzero(keys <= np.partition(keys, size - 1)[size - 1])
  else:
    places = np.arange(len(keys))
  return places[np.argsort(keys[places], kind='stable')[:size]]
