"""What a round of Mime and of MimeLite costs, beside the gradients that it takes.

    python -m benchmarks.mime_speed --models=cnn --epochs=1,10

With E local epochs FedAvg takes E gradients of every example in a round, MimeLite E + 1
and Mime 2 E + 1. The three take turns, round by round, on the same cohorts of synthetic
images, so that a ratio is that of two rounds side by side.
"""

from collections.abc import Sequence
import pathlib
import tempfile

from absl import app, flags, logging
import numpy as np
import tqdm

from benchmarks import machine, models, synthetic_images, turns
from benchmarks.common_flags import MODELS, OUTPUT, ROUNDS, SEED
from benchmarks.turns import WARM_UP_ROUNDS, Contestant
from tasks import client_files
from tff_algorithms import base_optimizers, client_inputs, fed_avg, mime, mime_lite
from training_loops import runtimes

_MODELS = {'logistic': models.logistic, 'cnn': models.cnn}
_EPOCHS = flags.DEFINE_list('epochs', ['1', '10'], 'Local epochs.')
flags.register_validator(
  'epochs',
  lambda epochs: all(e.isdecimal() and int(e) > 0 for e in epochs),
  'Positive whole numbers are needed.',
)
_CLIENTS = flags.DEFINE_integer(
  'clients_per_round', 10, 'Clients a round.', lower_bound=1
)

_BATCH_SIZE = 20
_LEARNING_RATE = 0.01
_FED_AVG = 'FedAvg'

# Gradients of an example in a round with E local epochs.
GRADIENTS = {
  _FED_AVG: lambda epochs: epochs,
  'MimeLite': lambda epochs: epochs + 1,
  'Mime': lambda epochs: 2 * epochs + 1,
}


def _contestants(
  model_name: str, files: client_files.ClientFiles, epochs: int
) -> dict[str, Contestant]:
  model = _MODELS[model_name]()
  common = {
    'batch_size': _BATCH_SIZE,
    'epochs': epochs,
    'client_input': client_inputs.from_id(files.load),
    'seed': SEED.value,
  }
  momentum = base_optimizers.as_tff_optimizer(
    base_optimizers.momentum(), _LEARNING_RATE
  )
  processes = {
    _FED_AVG: fed_avg.build_fed_avg(
      model, client_learning_rate=_LEARNING_RATE, **common
    ),
    'MimeLite': mime_lite.build_mime_lite(model, base_optimizer=momentum, **common),
    'Mime': mime.build_mime(model, base_optimizer=momentum, **common),
  }
  return {name: Contestant(process, str) for name, process in processes.items()}


def rows_of_table(
  model_name: str, epochs: int, seconds: dict[str, np.ndarray]
) -> list[str]:
  """The lines of the table for one model and one number of epochs."""
  lines = []
  for name, measured in seconds.items():
    gradients = GRADIENTS[name](epochs) / epochs
    ratio = np.median(measured / seconds[_FED_AVG])
    lines.append(
      f'| {model_name} | {epochs} | {name} | {1000 * np.median(measured):.0f} '
      f'| {gradients:.2f} | {ratio:.2f} | {ratio / gradients:.2f} |'
    )
  return lines


def main(argv: Sequence[str]) -> None:
  """Measures and prints the table."""
  if len(argv) > 1:
    raise app.UsageError(f'unexpected {argv[1]!r}.')
  logging.set_verbosity(logging.WARNING)  # TFF notes each metric that it adds.
  data = synthetic_images.make(2 * _CLIENTS.value, SEED.value)
  cohorts = synthetic_images.cohorts(
    data, _CLIENTS.value, WARM_UP_ROUNDS + ROUNDS.value, SEED.value
  )
  total = len(MODELS.value) * len(_EPOCHS.value) * len(GRADIENTS) * len(cohorts)
  lines = [
    '| model | epochs | algorithm | ms a round | gradients | time | time / gradients |',
    '|---|---|---|---|---|---|---|',
  ]
  with (
    runtimes.create('local'),
    tempfile.TemporaryDirectory() as directory,
    tqdm.tqdm(total=total, unit='round') as progress,
  ):
    decode = synthetic_images.decode
    files = client_files.write(data, pathlib.Path(directory, 'clients'), decode)
    for model_name in MODELS.value:
      for epochs in map(int, _EPOCHS.value):
        contestants = _contestants(model_name, files, epochs)
        seconds, _ = turns.take_turns(contestants, cohorts, lambda _: progress.update())
        lines += rows_of_table(model_name, epochs, seconds)
  circumstances = (
    f'{machine.describe()} {ROUNDS.value} rounds each, after {WARM_UP_ROUNDS} to '
    f'warm up; {_CLIENTS.value} clients a round, batches of {_BATCH_SIZE}.'
  )
  text = '\n'.join(lines) + f'\n\n{circumstances}\n'
  print(text)
  if OUTPUT.value:
    pathlib.Path(OUTPUT.value).write_text(text)


if __name__ == '__main__':
  app.run(main)
