"""Says which workers on other machines can be used from here."""

import sys
from typing import Any

from training_loops import certificates, command_line, worker_link, worker_protocol
from training_loops.options import REQUIRED, Section, path, text

_TIMEOUT_SECONDS = 10.0

PROGRAM = command_line.Program(
  module='training_loops.check_workers',
  summary=(
    'Says which workers can be used with --runtime=remote; exits with 1 if some cannot.'
  ),
  example='--workers=worker-1:8470,worker-2:8470 --certificates=certificates/driver',
  sections=(
    Section(
      'Workers',
      [
        text('workers', REQUIRED, 'Where they are: host:port,host:port.'),
        path('certificates', REQUIRED, 'Directory of ca.pem, cert.pem, key.pem.'),
      ],
    ),
  ),
)


def main(flags: dict[str, Any]) -> None:
  """Tries each worker and prints a line on it."""
  addresses = worker_protocol.addresses(flags['workers'])
  credentials = worker_link.credentials(certificates.read(flags['certificates']))
  all_are_well = True
  for address in addresses:
    session = worker_link.Session(address, credentials, _TIMEOUT_SECONDS)
    try:
      session.attend()
      print(f'{address}: well, {session.num_threads} clients at once.')
    except worker_link.WorkerLost as error:
      all_are_well = False
      print(f'{address}: {error}.')
    finally:
      session.close()
  if not all_are_well:
    sys.exit(1)


if __name__ == '__main__':
  command_line.run(PROGRAM, main)
