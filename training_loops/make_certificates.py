"""Makes certificates for a trial of workers on other machines."""

import pathlib
from typing import Any

from training_loops import certificates, command_line
from training_loops.options import REQUIRED, Section, integer, path, text

PROGRAM = command_line.Program(
  module='training_loops.make_certificates',
  summary=(
    'Makes an authority, and certificates that it has signed: driver/ for those who '
    'train, worker/ for their workers. For more than a trial, have your own authority '
    'sign them.'
  ),
  example='--output_dir=certificates --hosts=worker-1,worker-2,10.0.0.3',
  sections=(
    Section(
      'Certificates',
      [
        path('output_dir', REQUIRED, 'Where they are written; a new directory.'),
        text(
          'hosts',
          'localhost,127.0.0.1',
          'Names and addresses that drivers know the workers by, between commas.',
        ),
        integer('days', 30, 'How long they are valid.'),
      ],
    ),
  ),
)


def main(flags: dict[str, Any]) -> None:
  """Makes them and says what to do with them."""
  directory = pathlib.Path(flags['output_dir'])
  certificates.make(directory, flags['hosts'].split(','), flags['days'])
  print(
    f'Valid for {flags["days"]} days.\n'
    f'To the machine that trains: {directory / "driver"}; to each worker: '
    f'{directory / "worker"}.\n'
    f'Keep {directory / "authority"} to yourself: its key signs whom all of them trust.'
  )


if __name__ == '__main__':
  command_line.run(PROGRAM, main)
