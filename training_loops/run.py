"""Training as a function: flags in, an output directory and its content out.

    flags = train_flags.configure(
      task='digits_logistic', algorithm='fed_avg', rounds=50, output_dir='runs/x')
    result = run.train(flags)

Importing this module does not import TensorFlow: a run that is refused or already
finished is answered at once.
"""

from collections.abc import Callable
import contextlib
import logging
from typing import Any

from tasks import scratch
from training_loops import results, run_directory, runtimes, train_flags

_logger = logging.getLogger(__name__)


def train(
  flags: dict[str, Any],
  *,
  runtime: runtimes.Runtime | None = None,
  on_row: Callable[[dict[str, Any]], None] = lambda row: None,
) -> results.Result:
  """Trains, or goes on training, until the rounds asked for are done.

  Interrupted (a `KeyboardInterrupt`), it saves the last completed round.

  Args:
    flags: From `train_flags.configure` or `train_flags.from_arguments`.
    runtime: A started runtime to use; by default one is made for this run.
    on_row: Called with each row of metrics.csv, those of an earlier time included.

  Raises:
    UserError: If the flags, the task and the output directory do not go together.
      Nothing is written then.
  """
  directory = run_directory.RunDirectory(flags['output_dir'])
  directory.check(flags)
  finished = directory.finished_rounds()
  if finished >= flags['rounds']:
    _logger.info('%s is finished: %d rounds are done.', directory.path, finished)
    result = results.load(directory.path)
    for row in result.rows:
      on_row(row)
    return result
  train_flags.check_task(flags)
  # A worker that an interrupt leaves at work writes there: it has to end before.
  with scratch.directory() as files_directory, contextlib.ExitStack() as stack:
    if not runtime:
      own_runtime = train_flags.create_runtime(flags)
      own_runtime.launch()  # Its worker starts while TensorFlow is being imported.
      stack.enter_context(own_runtime)
    from training_loops import training

    training.train(flags, directory, files_directory, on_row)
  return results.load(directory.path)
