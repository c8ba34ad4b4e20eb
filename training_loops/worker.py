"""A worker that computes clients for whoever trains with `--runtime=remote`.

It is TFF's own, behind a door that opens to certificates: see docs/scaling.md. It runs
until SIGTERM or Ctrl-C; if TFF's worker ends, it ends with exit code 1, for systemd or
Kubernetes to start it again.
"""

import logging
import time
from typing import Any

from tasks import scratch
from training_loops import certificates, command_line, interrupts, pool, progress
from training_loops.options import REQUIRED, Section, integer, path
from training_loops.worker_process import SocketWorker

_POLL_SECONDS = 0.2
_DEFAULT_PORT = 8470

_logger = logging.getLogger('training_loops.worker')  # Not '__main__'.

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
)


def main(flags: dict[str, Any]) -> None:
  """Serves until a signal comes."""
  progress.show_on_console()
  own = certificates.read(flags['certificates'])
  num_threads = flags['num_threads'] or pool.num_cores()
  with interrupts.raised(), scratch.directory() as directory:
    worker = SocketWorker(num_threads, directory)
    try:
      _serve(worker, own, num_threads, flags)
    except interrupts.Interrupted:
      _logger.info('Stopped.')
    finally:
      worker.kill()


def _serve(
  worker: SocketWorker,
  own: certificates.Certificates,
  num_threads: int,
  flags: dict[str, Any],
) -> None:
  from training_loops import worker_front  # Takes a moment, as the worker does.

  channel = worker.connect()
  ports = flags['port'], flags['health_port']
  front = worker_front.Front(channel, own, *ports, num_threads)
  try:
    _logger.info('Port %d, %d clients at once.', front.port, num_threads)
    while worker.is_alive():
      time.sleep(_POLL_SECONDS)
    raise worker.failure('There is nothing left to serve.')
  finally:
    front.stop()


if __name__ == '__main__':
  command_line.run(PROGRAM, main)
