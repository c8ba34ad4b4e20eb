"""Trains one run after the other, as `pool` asks for them through a pipe.

A process of its own: TensorFlow, whose import takes as long as a small run, is imported
once, and whatever goes wrong in a run ends here. Started by `pool` as

    python -m training_loops.runner DESCRIPTOR [xla]
"""

import logging
from multiprocessing import connection
import os
import sys
import traceback
from typing import Any

from training_loops import importing, interrupts, pool, run, runtimes
from training_loops.options import UserError

_MAX_REASON_LENGTH = 300


def serve(pipe: 'connection.Connection[Any, Any]') -> None:
  """Answers each dict of flags with its rows, and with how the run ended."""
  logging.getLogger('training_loops').setLevel(logging.INFO)  # For the runs' own logs.
  while True:
    try:
      flags = pipe.recv()  # A signal here ends this process: there is nothing to save.
    except EOFError:  # No more runs are wanted.
      return
    pipe.send(_outcome(flags, pipe))


def _outcome(
  flags: dict[str, Any], pipe: 'connection.Connection[Any, Any]'
) -> pool.Outcome:
  try:
    run.train(flags, on_row=pipe.send)
  except UserError as error:
    return pool.Outcome('refused', str(error))
  except (OSError, runtimes.RuntimeFailure) as error:
    reason = _first_line(str(error)).removesuffix(' Its last words:')
    return pool.Outcome('failed', reason, str(error))
  except Exception as error:
    reason = f'{type(error).__name__}: {error}'
    return pool.Outcome('failed', _first_line(reason), traceback.format_exc())
  return pool.Outcome('done')


def _first_line(text: str) -> str:
  return text.strip().partition('\n')[0][:_MAX_REASON_LENGTH]


def main(descriptor: int, xla: bool) -> None:
  """Serves the pipe until its other end is closed."""
  interrupts.install()
  pipe: connection.Connection[Any, Any] = connection.Connection(descriptor)
  # TensorFlow is set up once, for the runtime of most runs, and as for a run by itself:
  # with other threads numbers would be others in the last bit.
  runtimes.create('in_process', xla=xla).launch()
  importing.import_tff()
  from training_loops import training  # noqa: F401 (imported while nothing else is on)

  serve(pipe)
  # What TensorFlow and TFF would still do at exit is of no use to anyone.
  os._exit(0)


if __name__ == '__main__':
  try:
    main(int(sys.argv[1]), xla=sys.argv[2:] == ['xla'])
  except interrupts.Interrupted as interrupted:
    interrupted.exit()
