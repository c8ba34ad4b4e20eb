"""The rounds of a run: cohort, round, evaluation, checkpoint, and again."""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import json
import logging
import math
import pathlib
import tempfile
import time
from typing import Any, NamedTuple

import tasks
from tasks import client_files
from tff_algorithms import client_inputs, privacy
from tff_algorithms.client_states import ClientState
from tff_algorithms.process_types import StatefulProcess, model_weights
from training_loops import (
  aggregators,
  algorithms,
  checkpoints,
  client_state_exchange,
  client_state_store,
  evaluation,
  exports,
  feeding,
  files,
  interrupts,
  progress,
  records,
  round_arguments,
  run_directory,
  sampling,
  train_flags,
  versions,
)
from training_loops.failures import RuntimeFailure
from training_loops.options import UserError

_FULL = 'No space left on device'

_logger = logging.getLogger(__name__)


def load_task(flags: dict[str, Any]) -> tasks.Task:
  """The task that the flags describe.

  Raises:
    UserError: If it cannot be had with these flags.
  """
  with data_errors(flags):
    task = tasks.load(
      flags['task'], seed=flags['seed'], **train_flags.task_options(flags)
    )
    if not any(map(task.test.num_examples, task.test.client_ids)):
      raise UserError(f'with these flags {task.name} has no example left for testing.')
    return task


@contextlib.contextmanager
def data_errors(flags: dict[str, Any]) -> Iterator[None]:
  """Makes what is wrong with a task's data or its options the user's mistake."""
  try:
    yield
  except ValueError as error:
    # Where it is the user's own, what it says may not tell what it is about.
    prefix = f'{flags["task"]}: ' if '.' in flags['task'] else ''
    raise UserError(f'{prefix}{error}') from error


@contextlib.contextmanager
def _disk_errors() -> Iterator[None]:
  """Makes a full disk that clients meet the OSError that it is."""
  try:
    yield
  except Exception as error:  # Whatever the runtime makes of it.
    if _FULL in str(error):
      raise OSError(
        f'{_FULL}: {tempfile.gettempdir()} (TMPDIR names another)'
      ) from error
    raise


def build_process(
  flags: dict[str, Any],
  task: tasks.Task,
  client_input: client_inputs.ClientInput | None = None,
  central_input: client_inputs.ClientInput | None = None,
) -> Any:
  """The process that the flags describe.

  Args:
    flags: The run's flags.
    task: The task.
    client_input: What the clients' argument is, ordinary data sets by default.
    central_input: What the server's is, likewise, where it has one.

  Raises:
    UserError: If the flags do not go together, or not with the task.
  """
  try:
    return algorithms.build(flags, task, client_input, central_input)
  except ValueError as error:
    raise UserError(str(error)) from error


def build_sampler(flags: dict[str, Any], task: tasks.Task) -> sampling.Sampler:
  """What draws the clients of each round.

  Raises:
    UserError: If the flags do not go together, or not with the task.
  """
  num_clients = len(task.train.client_ids)
  if flags['clients_per_round'] > num_clients:
    raise UserError(
      f'--clients_per_round={flags["clients_per_round"]} is more than the '
      f'{num_clients} clients of {task.name}.'
    )
  with data_errors(flags):
    return sampling.Sampler(
      client_ids=task.train.client_ids,
      clients_per_round=flags['clients_per_round'],
      seed=flags['seed'],
      sampling=flags['sampling'],
      num_examples=task.train.num_examples,
      sampling_variance=flags.get('sampling_variance'),
      dropout_rate=flags['dropout_rate'],
      straggler_rate=flags['straggler_rate'],
      straggler_steps=flags['straggler_steps'],
      available_share=flags['available_share'],
      rounds_per_day=flags['rounds_per_day'],
      fewest=2 if algorithms.splits_cohort(flags) else 1,
    )


def restored(
  checkpoint: checkpoints.Checkpoint, template: Any, flags: dict[str, Any]
) -> Any:
  """The state in a checkpoint of a run with these flags.

  Args:
    checkpoint: The checkpoint.
    template: Any state of the run's process.
    flags: The run's flags.

  Raises:
    UserError: If the checkpoint's state is another than the template.
  """
  try:
    return checkpoint.restore(template)
  except checkpoints.MismatchError as error:
    raise UserError(
      f'the checkpoint was written by another version of {flags["algorithm"]} or '
      f'{flags["task"]}: {error}.'
    ) from error


def train(
  flags: dict[str, Any],
  directory: run_directory.RunDirectory,
  files_directory: pathlib.Path,
  on_row: Callable[[records.Row], None] = lambda row: None,
) -> None:
  """Trains from where the directory stands until the rounds asked for are done.

  Args:
    flags: The run's flags.
    directory: The run's directory.
    files_directory: Where clients' rows and states go in this time of it, empty.
    on_row: Called with each row of metrics, those of an earlier time included.
  """
  task = load_task(flags)
  sampler = build_sampler(flags, task)
  with contextlib.ExitStack() as stack:
    with data_errors(flags):
      eval_rows = _eval_rows(task, flags)
      evaluate_saddle = _saddle_evaluator(task, flags)
      feed = round_arguments.RoundArguments(flags, task, sampler, files_directory)
      stack.callback(feed.close)
      feed.arguments(1)  # Bad data are found before anything is written.
    process = build_process(flags, task, feed.client_input, feed.central_input)
    first_state = process.initialize()
    client_states = _client_states(flags, directory, process, files_directory)
    stack.enter_context(directory.opened(flags))
    if client_states:
      stack.callback(client_states.close)
    if not directory.config_file.exists():
      _write_config(directory, flags)  # From now on it is a run.
    with progress.logged_to(directory.log_file):
      training = _Training(
        flags,
        directory,
        task,
        eval_rows,
        evaluate_saddle,
        feed,
        process,
        first_state,
        client_states,
        on_row,
      )
      _write_config(directory, flags)
      # While it goes on it is not finished, even if it once was with fewer rounds.
      directory.result_file.unlink(missing_ok=True)
      directory.failure_file.unlink(missing_ok=True)
      training.run()


def _write_config(directory: run_directory.RunDirectory, flags: dict[str, Any]) -> None:
  made_with = {'versions': versions.versions(), 'git_commit': versions.git_commit()}
  if directory.config_file.exists():
    old = json.loads(directory.config_file.read_text())
    if old['versions'] != made_with['versions']:
      _logger.warning(
        'Continuing with other versions than before: the numbers may differ.'
      )
    made_with = {name: old[name] for name in made_with}
  files.write_json(directory.config_file, {'flags': flags, **made_with})


_DIVERGED = (
  'Round %d: the loss of every client is infinite or not a number. Such clients are '
  'left out, so the model may never change again; try a smaller learning rate.'
)
_NO_SENSITIVITY = (
  'Round %d: no client holds back a batch of its data for its sensitivity, which takes '
  '{rows} examples, so all weights are boosted alike; try a smaller '
  '--elastic_batch_size, or a larger --elastic_fraction.'
)


class _Completed(NamedTuple):
  """A round that is done.

  Attributes:
    round_num: The round.
    state: The process's state after it.
    client_states: What its clients keep and the store does not have yet.
  """

  round_num: int
  state: Any
  client_states: Sequence[ClientState]


def _client_states(
  flags: dict[str, Any],
  directory: run_directory.RunDirectory,
  process: Any,
  files_directory: pathlib.Path,
) -> (
  client_state_store.ClientStateStore | client_state_exchange.ClientStateExchange | None
):
  """Where the clients' states are kept; None if they keep nothing."""
  if not isinstance(process, StatefulProcess):
    return None
  first = process.initialize_client()
  store = client_state_store.ClientStateStore(
    directory.client_states,
    first,
    {name: flags[name] for name in ('algorithm', 'task')},
  )
  if not process.client_states_by_file:
    return store
  own = files_directory / 'client_states'
  own.mkdir()
  return client_state_exchange.ClientStateExchange(store, own)


class _Training:
  """One run in one process.

  What is completed is kept in a single attribute, so that an interrupt at any
  instant finds a round and the states that belong to it.
  """

  def __init__(
    self,
    flags,
    directory,
    task,
    eval_rows,
    evaluate_saddle,
    feed,
    process,
    first_state,
    client_states,
    on_row,
  ):
    self._flags = flags
    self._directory = directory
    self._task = task
    self._feed = feed
    self._process = process
    self._evaluate = evaluation.Evaluator(task.model, flags.get('num_threads'))
    self._eval_rows = eval_rows
    self._evaluate_saddle = evaluate_saddle
    self._store = checkpoints.Store(directory.checkpoints)
    self._on_row = on_row
    self._warned_of: set[str] = set()

    self._completed = _Completed(0, first_state, ())
    record: dict[str, Any] = {'rows': [], 'timing': [], 'seconds': 0.0}
    for checkpoint in self._store.newest_first():
      record = dict(checkpoint.record)
      state = restored(checkpoint, first_state, flags)
      self._completed = _Completed(record['round'], state, ())
      _logger.info('Continuing after round %d.', record['round'])
      self._check_rounds(record)
      break
    self._saved_round = self._completed.round_num
    self._client_states = client_states
    if client_states:
      client_states.restore(self._saved_round, record.get('client_states'))
    self._store.remove_after(self._saved_round)
    self._records = records.Records(directory.path, record['rows'], record['timing'])
    self._start = time.monotonic() - record['seconds']

  def _check_rounds(self, record: dict[str, Any]) -> None:
    rounds, done = self._flags['rounds'], record['round']
    is_evaluated = bool(record['rows']) and record['rows'][-1]['round'] == done
    if done > rounds or (done == rounds and not is_evaluated):
      raise UserError(
        f'--rounds={rounds} is too few: {self._directory.path} has done {done} already.'
      )

  def run(self) -> None:
    """Does the rounds that are left, then writes the model."""
    rounds = self._flags['rounds']
    try:
      with interrupts.raised():
        for row in self._records.rows:
          self._on_row(row)
        done = self._completed.round_num
        with progress.Progress(rounds, done, self._flags['algorithm']) as shown:
          for round_num in range(done + 1, rounds + 1):
            self._run_round(round_num, shown)
        self._finish()
    except KeyboardInterrupt:
      self._save_after('Interrupted')
      raise
    except RuntimeFailure:
      self._save_after('The runtime failed')
      raise
    finally:
      self._records.close()

  def _save_after(self, what: str) -> None:
    if self._completed.round_num > self._saved_round:
      self._save()
    if self._saved_round:
      _logger.warning(
        '%s; saved after round %d. The same command continues.', what, self._saved_round
      )
    else:
      _logger.warning('%s before a round was done. Nothing was saved.', what)

  def _run_round(self, round_num: int, shown: progress.Progress) -> None:
    self._keep_client_states()
    with data_errors(self._flags):
      arguments = self._feed.arguments(round_num, self._client_states)
    if round_num < self._flags['rounds']:
      self._feed.prepare(round_num + 1)
    with _disk_errors():
      output = self._process.next(self._completed.state, *arguments)
    train_metrics = output.metrics['client_work']['train']
    self._warn(round_num, train_metrics)
    is_last = round_num == self._flags['rounds']
    is_best = False
    if is_last or round_num % self._flags['rounds_per_eval'] == 0:
      weights = model_weights(output.state)
      eval_metrics: dict[str, Any] = {}
      for part, rows in self._eval_rows.items():
        prefix = f'{part}_' if part else ''
        for name, value in self._evaluate(weights, rows).items():
          # What is not defined on a part (its AUC, if it has one label) is left out.
          if not part or math.isfinite(value):
            eval_metrics[f'{prefix}{name}'] = value
      if (optimum := self._task.optimum) is not None:
        eval_metrics['distance_to_optimum'] = evaluation.distance(
          weights.trainable, optimum.trainable
        )
      if self._evaluate_saddle:
        eval_metrics.update(self._evaluate_saddle(weights))
      spent = self._privacy(round_num)
      row = records.as_row(
        round_num, train=train_metrics, eval=eval_metrics, privacy=spent
      )
      self._records.add(row, time.monotonic() - self._start)
      is_best = records.best_round(self._records.rows) == round_num
      shown.evaluated(row)
      self._on_row(row)
    client_states = output.client_states if self._client_states else ()
    self._completed = _Completed(round_num, output.state, client_states)
    shown.round_done(train_metrics)
    if is_last or is_best or round_num % self._flags['rounds_per_checkpoint'] == 0:
      self._save()

  def _keep_client_states(self) -> None:
    """Hands those of the completed round to the store, before the next one begins."""
    if self._client_states:
      self._client_states.write(self._completed.client_states)
      # Interrupted before this, it is done again; after it, not with other files.
      self._completed = self._completed._replace(client_states=())

  def _save(self) -> None:
    round_num, state, _ = self._completed
    # An interrupt may have come between a row and the completion of its round.
    rows, timing = (
      [row for row in rows if row['round'] <= round_num]
      for rows in (self._records.rows, self._records.timing)
    )
    best_round = records.best_round(rows)
    record = {
      'round': round_num,
      'best_round': best_round,
      'rows': rows,
      'timing': timing,
      'seconds': time.monotonic() - self._start,
    }
    if self._client_states:
      self._keep_client_states()
      record['client_states'] = self._client_states.commit(round_num)
    self._store.save(round_num, state, record, best_round)
    self._saved_round = round_num

  def _privacy(self, round_num: int) -> dict[str, float]:
    """What the rounds so far have spent, where there is noise."""
    if self._flags.get('aggregator') != 'dp':
      return {}
    num_clients = len(self._task.train.client_ids)
    spent = privacy.epsilon(
      aggregators.num_private_rounds(self._flags, round_num),
      noise_multiplier=self._flags['dp_noise_multiplier'],
      sampling_probability=self._flags['clients_per_round'] / num_clients,
      delta=self._flags['dp_delta'] or 1 / num_clients,
    )
    return {'epsilon': spent}

  def _warn(self, round_num: int, train_metrics: Any) -> None:
    """Tells once of what goes wrong without an error."""
    texts = []
    if not math.isfinite(float(train_metrics['loss'])):
      texts.append(_DIVERGED)
    if train_metrics.get('num_sensitivities', 1) == 0:
      flags = self._flags
      batch_size = flags['elastic_batch_size'] or flags['batch_size']
      rows = math.ceil(batch_size / flags['elastic_fraction'])
      texts.append(_NO_SENSITIVITY.format(rows=rows))
    for text in texts:
      if text not in self._warned_of:
        self._warned_of.add(text)
        _logger.warning(text, round_num)

  def _finish(self) -> None:
    from training_loops import plots  # Matplotlib: nobody waits for it before the end.

    round_num, state, _ = self._completed
    path, rows = self._directory.path, self._records.rows
    weights = model_weights(state)
    exports.write_weights(path / 'weights.npz', weights)
    exports.write_saved_model(path / 'saved_model', self._task.model, weights)
    name = self._flags['label'] or self._flags['algorithm']
    title = f'{name} on {self._flags["task"]}'
    plots.write_curves(path / 'curves.png', rows, title)
    best_round = records.best_round(rows)
    result = {'rounds': round_num, 'best_round': best_round, 'final': rows[-1]}
    files.write_json(self._directory.result_file, result)


def _eval_rows(task: tasks.Task, flags: dict[str, Any]) -> dict[str, Any]:
  """The test rows ('') and those of the task's parts, by name.

  They are those of all clients, or a subset that depends on the seed alone.
  """
  return {
    name: _rows_of(task, data, flags['max_eval_examples'], flags['seed'])
    for name, data in {'': task.test, **task.test_parts}.items()
  }


def _saddle_evaluator(
  task: tasks.Task, flags: dict[str, Any]
) -> evaluation.SaddleEvaluator | None:
  """What evaluates how far from a saddle point the weights are; None without one."""
  if task.objective is None or not task.objective.is_gradient_mapping:
    return None
  # A known saddle point is that of all rows, and of no part of them.
  size = flags['max_eval_examples'] if task.optimum is None else None
  rows = _rows_of(task, task.train, size, flags['seed'])
  return evaluation.SaddleEvaluator(
    task.objective, rows, task.optimum, flags.get('num_threads')
  )


def _rows_of(
  task: tasks.Task, data: tasks.FederatedData, size: int | None, seed: int
) -> Any:
  """The rows of all clients, or a subset of this size."""
  chosen = None
  if size is not None:
    num_rows = sum(map(data.num_examples, data.client_ids))
    chosen = sampling.subset(num_rows, size, seed=seed)
  rows = data.all_rows(chosen)
  what = 'the training data' if data is task.train else 'the test data'
  client_files.check_features(rows, feeding.features(task.model), what)
  return rows
