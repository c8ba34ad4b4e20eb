"""What a round of Mime, or of elastic aggregation, costs beside its gradients.

    python -m benchmarks.mime_speed --models=cnn --epochs=1,10
    python -m benchmarks.mime_speed --models=cnn --epochs=10 --contest=elastic

With E local epochs FedAvg takes E gradients of every example in a round, MimeLite E + 1
and Mime 2 E + 1; elastic aggregation of FedAvg takes E of nine tenths of them and one
of the rest, and stands beside FedAvg on those nine tenths. They take turns, round by
round, on the same cohorts of synthetic images, so that a ratio is that of two rounds
side by side.
"""

from collections.abc import Sequence
import pathlib
import tempfile
import time
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

_CONTEST = flags.DEFINE_enum(
  'contest', 'mime', ['mime', 'elastic'], 'Which algorithms take turns with FedAvg.'
)

_CPU_TIME = flags.DEFINE_bool(
  'cpu_time',
  False,
  'Seconds of the processor, in this process, where others are at work too.',
)

_NUM_ROUNDS = 10  # By default.
_LEARNING_RATE = 0.01
_FED_AVG = 'FedAvg'
_HELD_BACK = 0.1
# Few clients have the 200 examples to hold back a batch of 20.
_BATCH_SIZE = {'mime': 20, 'elastic': 10}

# Gradients of an example in a round with E local epochs, by contest.
GRADIENTS = {
  'mime': {
    _FED_AVG: lambda epochs: epochs,
    'MimeLite': lambda epochs: epochs + 1,
    'Mime': lambda epochs: 2 * epochs + 1,
  },
  'elastic': {
    _FED_AVG: lambda epochs: (1 - _HELD_BACK) * epochs,
    'elastic': lambda epochs: (1 - _HELD_BACK) * epochs + _HELD_BACK,
  },
}


def _contestants(model_name: str, files: Any, epochs: int) -> dict[str, Any]:
  from benchmarks import synthetic_images, turns
  from tasks import image_models
  from tff_algorithms import client_inputs

  if model_name == 'cnn':
    model = image_models.cnn_dropout(synthetic_images.NUM_CLASSES)
  else:
    model = image_models.logistic(
      synthetic_images.IMAGE_SHAPE, synthetic_images.NUM_CLASSES
    )
  batch_size = _BATCH_SIZE[_CONTEST.value]
  common = {'batch_size': batch_size, 'epochs': epochs, 'seed': SEED.value}
  build = {'mime': _of_mime, 'elastic': _of_elastic}[_CONTEST.value]
  processes = build(model, client_inputs.from_id(files.load), common)
  return {name: turns.Contestant(process, str) for name, process in processes.items()}


def _of_mime(model: Any, client_input: Any, common: dict[str, Any]) -> dict[str, Any]:
  from tff_algorithms import base_optimizers, fed_avg, mime, mime_lite

  common = {'client_input': client_input, **common}
  momentum = base_optimizers.as_tff_optimizer(
    base_optimizers.momentum(), _LEARNING_RATE
  )
  return {
    _FED_AVG: fed_avg.build_fed_avg(
      model, client_learning_rate=_LEARNING_RATE, **common
    ),
    'MimeLite': mime_lite.build_mime_lite(model, base_optimizer=momentum, **common),
    'Mime': mime.build_mime(model, base_optimizer=momentum, **common),
  }


def _of_elastic(
  model: Any, client_input: Any, common: dict[str, Any]
) -> dict[str, Any]:
  """Both leave the same rows out of training."""
  from tff_algorithms import elastic, fed_avg

  arguments = elastic.elastic_arguments(
    model,
    client_input,
    batch_size=common['batch_size'],
    weighting='examples',
    seed=SEED.value,
    fraction=_HELD_BACK,
  )
  return {
    name: fed_avg.build_fed_avg(
      model,
      client_learning_rate=_LEARNING_RATE,
      client_input=arguments['client_input'],
      terms=terms,
      **common,
    )
    for name, terms in ((_FED_AVG, []), ('elastic', arguments['terms']))
  }


def rows_of_table(
  model_name: str, epochs: int, seconds: dict[str, np.ndarray], contest: str = 'mime'
) -> list[str]:
  """The lines of the table for one model and one number of epochs."""
  lines, gradients_of = [], GRADIENTS[contest]
  for name, measured in seconds.items():
    gradients = gradients_of[name](epochs) / gradients_of[_FED_AVG](epochs)
    ratio = np.median(measured / seconds[_FED_AVG])
    lines.append(
      f'| {model_name} | {epochs} | {name} | {1000 * np.median(measured):.0f} '
      f'| {gradients:.3f} | {ratio:.3f} | {ratio / gradients:.3f} |'
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
  num_contestants = len(GRADIENTS[_CONTEST.value])
  total = len(_MODELS.value) * len(_EPOCHS.value) * num_contestants * len(cohorts)
  lines = [
    '| model | epochs | algorithm | ms a round | gradients | time | time / gradients |',
    '|---|---|---|---|---|---|---|',
  ]
  with (
    runtimes.create('in_process' if _CPU_TIME.value else 'local'),
    tempfile.TemporaryDirectory() as directory,
    tqdm.tqdm(total=total, unit='round') as progress,
  ):
    decode = synthetic_images.decode
    files = client_files.write(data, pathlib.Path(directory, 'clients'), decode)
    for model_name in _MODELS.value:
      for epochs in map(int, _EPOCHS.value):
        contestants = _contestants(model_name, files, epochs)
        seconds, _ = turns.take_turns(
          contestants,
          cohorts,
          lambda _: progress.update(),
          time.process_time if _CPU_TIME.value else time.perf_counter,
        )
        lines += rows_of_table(model_name, epochs, seconds, _CONTEST.value)
  circumstances = (
    f'{machine.describe()} {num_rounds} rounds each, after {turns.WARM_UP_ROUNDS} '
    f'to warm up; {_CLIENTS.value} clients a round, batches of '
    f'{_BATCH_SIZE[_CONTEST.value]}'
    f'{"; seconds of the processor." if _CPU_TIME.value else "."}'
  )
  text = '\n'.join(lines) + f'\n\n{circumstances}\n'
  print(text)
  if OUTPUT.value:
    pathlib.Path(OUTPUT.value).write_text(text)


if __name__ == '__main__':
  app.run(main)
