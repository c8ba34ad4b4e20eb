"""What a round of Mime and of MimeLite costs, beside the gradients that it takes.

    python -m benchmarks.mime_speed --models=cnn --epochs=1,10

With E local epochs FedAvg takes E gradients of every example in a round, MimeLite E + 1
and Mime 2 E + 1. The three take turns, round by round, on the same cohorts of synthetic
images, so that a ratio is that of two rounds side by side.
"""

from collections.abc import Sequence
import pathlib
import tempfile
from typing import Any

from absl import app, flags, logging
import numpy as np
import tqdm

from benchmarks.common_flags import OUTPUT, ROUNDS, SEED
from training_loops import importing, runtimes

_KNOWN_MODELS = ('logistic', 'cnn')

_MODELS = flags.DEFINE_list('models', list(_KNOWN_MODELS), 'Which models to train.')
flags.register_validator(
  'models',
  lambda names: set(names) <= set(_KNOWN_MODELS),
  f'Known are {", ".join(_KNOWN_MODELS)}.',
)
_EPOCHS = flags.DEFINE_list('epochs', ['1', '10'], 'Local epochs.')
flags.register_validator(
  'epochs',
  lambda epochs: all(e.isdecimal() and int(e) > 0 for e in epochs),
  'Positive whole numbers are needed.',
)
_CLIENTS = flags.DEFINE_integer(
  'clients_per_round', 10, 'Clients a round.', lower_bound=1
)

_NUM_ROUNDS = 10  # By default.
_BATCH_SIZE = 20
_LEARNING_RATE = 0.01
_FED_AVG = 'FedAvg'

# Gradients of an example in a round with E local epochs.
GRADIENTS = {
  _FED_AVG: lambda epochs: epochs,
  'MimeLite': lambda epochs: epochs + 1,
  'Mime': lambda epochs: 2 * epochs + 1,
}


def _contestants(model_name: str, files: Any, epochs: int) -> dict[str, Any]:
  from benchmarks import synthetic_images, turns
  from tasks import image_models
  from tff_algorithms import base_optimizers, client_inputs, fed_avg, mime, mime_lite

  if model_name == 'cnn':
    model = image_models.cnn_dropout(synthetic_images.NUM_CLASSES)
  else:
    model = image_models.logistic(
      synthetic_images.IMAGE_SHAPE, synthetic_images.NUM_CLASSES
    )
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
  return {name: turns.Contestant(process, str) for name, process in processes.items()}


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
  importing.import_tff()
  from benchmarks import machine, synthetic_images, turns
  from tasks import client_files

  num_rounds = ROUNDS.value or _NUM_ROUNDS
  data = synthetic_images.make(2 * _CLIENTS.value, SEED.value)
  cohorts = synthetic_images.cohorts(
    data, _CLIENTS.value, turns.WARM_UP_ROUNDS + num_rounds, SEED.value
  )
  total = len(_MODELS.value) * len(_EPOCHS.value) * len(GRADIENTS) * len(cohorts)
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
    for model_name in _MODELS.value:
      for epochs in map(int, _EPOCHS.value):
        contestants = _contestants(model_name, files, epochs)
        seconds, _ = turns.take_turns(contestants, cohorts, lambda _: progress.update())
        lines += rows_of_table(model_name, epochs, seconds)
  circumstances = (
    f'{machine.describe()} {num_rounds} rounds each, after {turns.WARM_UP_ROUNDS} '
    f'to warm up; {_CLIENTS.value} clients a round, batches of {_BATCH_SIZE}.'
  )
  text = '\n'.join(lines) + f'\n\n{circumstances}\n'
  print(text)
  if OUTPUT.value:
    pathlib.Path(OUTPUT.value).write_text(text)


if __name__ == '__main__':
  app.run(main)
