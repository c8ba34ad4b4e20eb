"""A worker that computes clients for whoever trains with `--runtime=remote`.

It is TFF's own, behind a door that opens to certificates: see docs/scaling.md. It runs
until SIGTERM or Ctrl-C; if TFF's worker ends, it ends with exit code 1, for systemd or
Kubernetes to start it again.
"""

from collections.abc import Mapping
import contextlib
import ctypes
import logging
import pathlib
import time
from typing import Any

from tasks import scratch
from training_loops import (
  certificates,
  command_line,
  cores,
  interrupts,
  progress,
  worker_protocol,
)
from training_loops.options import REQUIRED, Section, UserError, integer, path
from training_loops.worker_process import SocketWorker

_POLL_SECONDS = 0.2
_DEFAULT_PORT = 8470

# Parameters of glibc's malloc: how many arenas there are; from what size on memory is
# asked for, and given back, by itself.
_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3

_logger = logging.getLogger('training_loops.worker')  # Not '__main__'.


def _check(flags: Mapping[str, Any]) -> None:
  """Refuses what gRPC or a driver would take for another number, or for none."""
  for name, most in (
    ('port', worker_protocol.MAX_PORT),
    ('health_port', worker_protocol.MAX_PORT),
    ('num_threads', worker_protocol.MAX_THREADS),
  ):
    if (flags[name] or 0) > most:
      raise UserError(f'--{name}={flags[name]}: expected at most {most}.')


PROGRAM = command_line.Program(
  module='training_loops.worker',
  summary='Computes clients for those who train with --runtime=remote.',
  example='--port=8470 --certificates=certificates/worker',
  sections=(
    Section(
      'Worker',
      [
        integer('port', _DEFAULT_PORT, 'Where it listens; 0: any.', at_least=0),
        path('certificates', REQUIRED, 'Directory of ca.pem, cert.pem, key.pem.'),
        integer(
          'num_threads', None, 'Clients computed at once, one a core by default.'
        ),
        integer(
          'health_port',
          None,
          'Where it tells anybody, in plain text, whether it is well (gRPC health).',
        ),
      ],
    ),
  ),
  check=_check,
)


def main(flags: dict[str, Any]) -> None:
  """Serves until a signal comes."""
  _give_memory_back()
  progress.show_on_console()
  own = certificates.read(flags['certificates'])
  num_threads = flags['num_threads'] or min(cores.number(), worker_protocol.MAX_THREADS)
  with interrupts.raised(), scratch.directory() as directory:
    try:
      _serve(directory, own, num_threads, flags)
    except interrupts.Interrupted:
      _logger.info('Stopped.')


def _serve(
  directory: pathlib.Path,
  own: certificates.Certificates,
  num_threads: int,
  flags: dict[str, Any],
) -> None:
  with contextlib.ExitStack() as stack:
    worker = SocketWorker(num_threads, directory)
    stack.callback(lambda: worker.kill())  # The one that there is then.
    from training_loops import worker_front  # Takes a moment, as the worker does.

    ports = flags['port'], flags['health_port']
    front = worker_front.Front(worker.connect(), own, *ports, num_threads)
    stack.callback(front.stop)
    _logger.info('Port %d, %d clients at once.', front.port, num_threads)
    while worker.is_alive():
      time.sleep(_POLL_SECONDS)
      if front.is_left and worker.is_alive():
        _logger.info("What TFF's worker computes is for nobody: it is started anew.")
        worker.kill()
        worker = SocketWorker(num_threads, directory)
        front.renew(worker.connect())
    raise worker.failure('There is nothing left to serve.')


def _give_memory_back() -> None:
  """Has this process give the memory of messages back, not keep it in ever more holes.

  These are of ever other sizes, and come in any of many threads; left to itself glibc
  raises the size from which it gives back to that of the largest.
  """
  library = ctypes.CDLL(None)
  if hasattr(library, 'mallopt'):  # Of another C library than glibc there is none.
    library.mallopt(_M_ARENA_MAX, 2)
    library.mallopt(_M_MMAP_THRESHOLD, 2**17)


if __name__ == '__main__':
  command_line.run(PROGRAM, main)
