"""What a sweep has tried: kept by Optuna in a data base that machines can share.

A trial is one run. Its parameters are the point of the search; its user attributes say
where it is made (`where`), why it did not succeed (`reason`) and how long it trained
(`seconds`). States, by Optuna's names: COMPLETE, the run is done; PRUNED, it was losing
or has diverged; FAIL, it died or was refused, or was interrupted, in which case a later
trial takes its place.

Importing this module does not import TensorFlow.
"""

from collections.abc import Iterator, Sequence
import contextlib
import datetime
import hashlib
import json
import math
import pathlib
import re
import time
from typing import Any
import warnings
import zlib

import optuna
import sqlalchemy

from training_loops import runtimes
from training_loops.options import UserError
from training_loops.sweep_files import Point, Range, Sweep

State = optuna.trial.TrialState

HEARTBEAT_SECONDS = 30
# After so long without a heartbeat a machine is taken for dead, and its runs are made
# again elsewhere.
_GRACE_SECONDS = 150
_OPEN_ATTEMPTS = 4


def sqlite_url(path: pathlib.Path) -> str:
  """The URL of a data base that is a file, whatever signs its name has."""
  url = sqlalchemy.URL.create('sqlite', database=str(path))
  return url.render_as_string(hide_password=False)


def points(sweep: Sweep) -> list[Point]:
  """The points of the search in order, as far as they do not depend on results."""
  if sweep.sampler == 'grid':
    return sweep.grid()
  if sweep.sampler == 'random':
    with _optuna():
      sampler = optuna.samplers.RandomSampler(seed=sweep.seed)
      study = optuna.create_study(sampler=sampler)
      drawn: list[Point] = []
      while len(drawn) < sweep.trials:  # As many as there are at most.
        point = _suggest(study.ask(), sweep)
        drawn += [] if point in drawn else [point]
      return drawn
  return []


def corners(sweep: Sweep) -> Iterator[Point]:
  """Points that contain each value and each end of a range of the search."""
  ends = [
    list(space) if isinstance(space, tuple) else [space.low, space.high]
    for space in sweep.search.values()
  ]
  for i in range(max(map(len, ends))):
    yield {
      name: values[min(i, len(values) - 1)]
      for name, values in zip(sweep.search, ends, strict=True)
    }


def _suggest(trial: optuna.trial.Trial, sweep: Sweep) -> Point:
  """What the trial's sampler chooses, or has chosen, for each flag of the search."""
  for name, space in sweep.search.items():
    if isinstance(space, tuple):
      trial.suggest_categorical(name, space)
    elif space.is_integer:
      trial.suggest_int(name, int(space.low), int(space.high), log=space.log)
    else:
      trial.suggest_float(name, space.low, space.high, log=space.log)
  return point_of(trial, sweep)


def point_of(
  trial: optuna.trial.Trial | optuna.trial.FrozenTrial, sweep: Sweep
) -> Point:
  """What was chosen for a trial; of drawn numbers six digits, which is plenty."""

  def as_given(name, value):
    is_drawn = isinstance(sweep.search[name], Range)
    return float(f'{value:.6g}') if is_drawn and isinstance(value, float) else value

  return {
    name: as_given(name, trial.params[name])
    for name in sweep.search
    if name in trial.params
  }


@contextlib.contextmanager
def _optuna() -> Iterator[None]:
  """Without Optuna's own lines and remarks; a data base that fails ends the program."""
  verbosity = optuna.logging.get_verbosity()
  optuna.logging.set_verbosity(optuna.logging.ERROR)
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      yield
  except (optuna.exceptions.StorageInternalError, sqlalchemy.exc.SQLAlchemyError) as e:
    reason = str(e.__cause__ or e).strip().partition('\n')[0]
    raise runtimes.RuntimeFailure(f"the sweep's data base failed: {reason}") from e
  finally:
    optuna.logging.set_verbosity(verbosity)


class _InOrder(optuna.samplers.BaseSampler):
  """The points of a list: the n-th to the n-th trial, whichever machine asks."""

  def __init__(self, listed: Sequence[Point]):
    self._listed = listed

  def infer_relative_search_space(self, study: Any, trial: Any) -> dict:
    return {}

  def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict:
    return {}

  def sample_independent(
    self, study: Any, trial: Any, param_name: str, param_distribution: Any
  ) -> Any:
    number = _original_number(trial)
    before = study.get_trials(deepcopy=False)[:number]
    return self._listed[sum(map(_counts, before))][param_name]


def _original_number(trial: optuna.trial.FrozenTrial) -> int:
  """The number of the interrupted trial whose place it takes, or else its own."""
  return trial.system_attrs.get('failed_trial', trial.number)


def _counts(trial: optuna.trial.FrozenTrial) -> bool:
  """Whether it is one of the trials that the sweep asks for."""
  is_first = _original_number(trial) == trial.number
  return is_first and 'is_surplus' not in trial.user_attrs


def _put_up_again(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
  """Adds a trial that takes the place of another, to be made by whoever asks next."""
  optuna.storages.RetryHeartbeatStaleTrialCallback()(study, trial)


def _storage(url: str) -> optuna.storages.RDBStorage:
  """The data base, its tables made if need be."""
  is_sqlite = url.startswith('sqlite')
  attempt = 1
  while True:
    try:
      with _optuna():
        return optuna.storages.RDBStorage(
          url,
          # Others may be writing at the same time.
          engine_kwargs={'connect_args': {'timeout': 60}} if is_sqlite else None,
          heartbeat_interval=HEARTBEAT_SECONDS,
          grace_period=_GRACE_SECONDS,
          heartbeat_stale_trial_callback=_put_up_again,
        )
    except runtimes.RuntimeFailure:
      # Another machine may be making the same tables at this moment.
      if attempt == _OPEN_ATTEMPTS:
        raise
      attempt += 1
      time.sleep(0.5)


class TakenOver(Exception):
  """Another machine has taken this one for dead, and its trial is made there."""


class Ledger:
  """The trials of one sweep."""

  def __init__(self, sweep: Sweep, url: str, where: str, *, is_shared: bool = False):
    """Opens the sweep in a data base, or begins it there.

    Args:
      sweep: The sweep.
      url: The data base, as SQLAlchemy writes it.
      where: What the trials of this machine and directory are marked with.
      is_shared: Whether others may be at the same sweep.

    Raises:
      UserError: If the data base cannot be used.
    """
    self._sweep, self._where, self._is_shared = sweep, where, is_shared
    self._running: dict[int, optuna.trial.Trial] = {}
    text = json.dumps(sweep.identity(), sort_keys=True)
    name = f'sweep-{hashlib.sha256(text.encode()).hexdigest()[:16]}'
    try:
      self._storage = _storage(url)
      with _optuna():
        self.study = optuna.create_study(
          storage=self._storage,
          study_name=name,
          direction=sweep.goal,
          pruner=self._pruner(),
          load_if_exists=True,
        )
        self.study.sampler = self._sampler()
    except (runtimes.RuntimeFailure, ImportError, ValueError) as error:
      shown = re.sub(r'(?<=:)[^:@/]*(?=@)', '***', url)  # Not the password.
      raise UserError(f'{shown} is no data base that can be used: {error}') from error

  def _sampler(self) -> optuna.samplers.BaseSampler:
    if self._sweep.sampler != 'tpe':
      return _InOrder(points(self._sweep))
    # Continued, or on another machine, it must not draw the same again.
    drawn = len(self.study.get_trials(deepcopy=False))
    seed = zlib.crc32(f'{self._sweep.seed} {self._where} {drawn}'.encode())
    return optuna.samplers.TPESampler(seed=seed, constant_liar=True)

  def _pruner(self) -> optuna.pruners.BasePruner:
    after = self._sweep.prune_after
    if self._sweep.pruner == 'median':
      return optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=after)
    if self._sweep.pruner == 'halving':
      return optuna.pruners.SuccessiveHalvingPruner(min_resource=max(1, after))
    return optuna.pruners.NopPruner()

  def trials(self) -> list[optuna.trial.FrozenTrial]:
    """All trials but those that were interrupted and whose place another took."""
    with _optuna():
      everything = self.study.get_trials(deepcopy=False)
    wanted = [trial for trial in everything if 'is_surplus' not in trial.user_attrs]
    return list({_original_number(trial): trial for trial in wanted}.values())

  def take_up(self, *, failed: bool = False) -> None:
    """Puts up again what this machine was doing when it was last stopped.

    Args:
      failed: Whether what failed, on any machine, is put up again too.
    """
    for trial in self.trials():
      if trial.number in self._running:
        continue
      if trial.state == State.RUNNING and self._is_ours(trial):
        with _optuna():
          self.study.tell(trial.number, state=State.FAIL)
          _put_up_again(self.study, trial)
      elif failed and trial.state == State.FAIL:
        with _optuna():
          _put_up_again(self.study, trial)

  def abandon(self) -> None:
    """Puts up again what is running here: it was stopped."""
    self._running.clear()
    self.take_up()

  def num_elsewhere(self) -> int:
    """How many trials are being made on other machines."""
    running = [t for t in self.trials() if t.state == State.RUNNING]
    return sum(trial.number not in self._running for trial in running)

  def _is_ours(self, trial: optuna.trial.FrozenTrial) -> bool:
    if 'where' in trial.user_attrs:
      return trial.user_attrs['where'] == self._where
    # Its machine was stopped before it could say so.
    age = datetime.datetime.now() - trial.datetime_start
    return not self._is_shared or age.total_seconds() > _GRACE_SECONDS

  def ask(self) -> tuple[int, Point] | None:
    """The number and the point of the next trial; None if there is nothing to do."""
    with _optuna():
      optuna.storages.fail_stale_trials(self.study)
      trials = self.trials()
      is_waiting = any(trial.state == State.WAITING for trial in trials)
      if len(trials) >= self._sweep.trials and not is_waiting:
        return None
      trial = self.study.ask()
      # From here on it is found and taken up again, should this process be stopped.
      trial.set_user_attr('where', self._where)
      before = self.study.get_trials(deepcopy=False)[: trial.number + 1]
      if sum(map(_counts, before)) > self._sweep.trials:  # Two asked for the last one.
        trial.set_user_attr('is_surplus', True)
        self.study.tell(trial, state=State.FAIL)
        return None
      point = _suggest(trial, self._sweep)
      self._running[trial.number] = trial
      self.beat()
      return trial.number, point

  def beat(self) -> None:
    """Tells other machines that this one is alive; call every `HEARTBEAT_SECONDS`."""
    with _optuna():
      for trial in self._running.values():
        # Optuna's own loop, which this is in the place of, does the same.
        self._storage.record_heartbeat(trial._trial_id)

  def report(self, number: int, value: float, round_num: int) -> bool:
    """Notes what a run has reached, and returns whether it is losing.

    Raises:
      TakenOver: If it is made elsewhere; nothing more is to be told of it.
    """
    trial = self._running[number]
    if math.isnan(value):
      return False
    try:
      with _optuna():
        trial.report(value, round_num)
        return trial.should_prune()
    except optuna.exceptions.UpdateFinishedTrialError:
      del self._running[number]
      raise TakenOver from None

  def tell(
    self,
    number: int,
    state: optuna.trial.TrialState,
    *,
    value: float | None = None,
    reason: str = '',
    seconds: float = 0.0,
  ) -> None:
    """Notes how a run ended."""
    trial = self._running.pop(number)
    taken_over = optuna.exceptions.UpdateFinishedTrialError
    with _optuna(), contextlib.suppress(taken_over):
      trial.set_user_attr('seconds', round(seconds, 1))
      trial.set_user_attr('reason', reason)
      self.study.tell(trial, value, state)
