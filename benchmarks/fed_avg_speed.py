"""The speed of FedAvg: this package beside tff.learning, on the same runtime.

    python -m benchmarks.fed_avg_speed --models=logistic,cnn --clients=10,50

Four ways to run the same rounds take turns, round by round, so that whatever else the
machine does falls on all of them: the same synthetic images shaped as EMNIST, the same
cohorts, one epoch in batches of 20, so the same number of gradient steps. That they are
the same steps is verified first: after two rounds of logistic regression, nothing
shuffled, the weights agree. Measured are ours with their defaults: guards, metrics and
shuffling on.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import pathlib
import tempfile
from typing import Any

from absl import app, flags, logging
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff
import tqdm

from benchmarks import machine, models, synthetic_images, turns
from benchmarks.common_flags import MODELS, OUTPUT, ROUNDS, SEED
from benchmarks.synthetic_images import decode
from benchmarks.turns import WARM_UP_ROUNDS, Contestant
from tasks import client_files
from tasks.federated_data import FederatedData
from tff_algorithms import client_inputs
from tff_algorithms.fed_avg import build_fed_avg
from training_loops import runtimes

_MODELS = {
  'logistic': (models.logistic, models.keras_logistic),
  'cnn': (models.cnn, models.keras_cnn),
}

_CLIENTS = flags.DEFINE_list('clients', ['10', '50'], 'Clients a round.')
flags.register_validator(
  'clients',
  lambda sizes: all(size.isdecimal() and int(size) > 0 for size in sizes),
  'Positive whole numbers are needed.',
)

_BATCH_SIZE = 20
_LEARNING_RATE = 0.01
_AGREEMENT = 1e-5

_BASELINE = 'tff.learning, Keras'
_FUNCTIONAL = 'tff.learning, FunctionalModel'
_DATASETS = 'this package, tf.data clients'
_BY_ID = 'this package, clients by id'


@dataclasses.dataclass(frozen=True)
class _Timing:
  """The measured rounds of one contestant, against the baseline's.

  Attributes:
    model: The name of the model.
    num_clients: Clients a round.
    contestant: The name of the contestant.
    seconds: The time of each round.
    examples: How many examples each round trained on.
    speedup: The baseline's time over this one, median of the rounds.
  """

  model: str
  num_clients: int
  contestant: str
  seconds: np.ndarray
  examples: np.ndarray
  speedup: float


def _contestants(
  model_name: str,
  data: FederatedData,
  files: client_files.ClientFiles,
  shuffle: bool,
) -> dict[str, Contestant]:
  """The four ways to run FedAvg, with everything prepared that a user prepares once."""
  model_fn, keras_fn = _MODELS[model_name]
  model = model_fn()

  def variable_model():
    return tff.learning.models.from_keras_model(
      keras_fn(),
      loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
      input_spec=model.input_spec,
      metrics=[tf.keras.metrics.SparseCategoricalAccuracy('accuracy')],
    )

  def tff_fed_avg(tff_model):
    return tff.learning.algorithms.build_weighted_fed_avg(
      tff_model,
      client_optimizer_fn=tff.learning.optimizers.build_sgdm(_LEARNING_RATE),
      server_optimizer_fn=tff.learning.optimizers.build_sgdm(1.0),
    )

  def our_fed_avg(clients=None):
    return build_fed_avg(
      model,
      client_learning_rate=_LEARNING_RATE,
      batch_size=_BATCH_SIZE,
      shuffle=shuffle,
      client_input=clients,
      seed=SEED.value,
    )

  datasets = {
    client_id: tf.data.Dataset.from_tensor_slices(decode(data.rows(client_id))).batch(
      _BATCH_SIZE
    )
    for client_id in data.client_ids
  }
  return {
    _BASELINE: Contestant(tff_fed_avg(variable_model), datasets.get),
    _FUNCTIONAL: Contestant(tff_fed_avg(models.functional(model)), datasets.get),
    _DATASETS: Contestant(our_fed_avg(), datasets.get),
    _BY_ID: Contestant(our_fed_avg(client_inputs.from_id(files.load)), str),
  }


def _weights(
  process: tff.learning.templates.LearningProcess, state: Any
) -> tuple[np.ndarray, ...]:
  """All contestants have the same weights in the same order."""
  return tuple(tf.nest.flatten(process.get_model_weights(state).trainable))


def _verify(
  contestants: Mapping[str, Contestant], cohorts: Sequence[Sequence[str]]
) -> None:
  """Checks that logistic regression gives everyone the same weights."""
  trained = {}
  for name, contestant in contestants.items():
    state = contestant.process.initialize()
    for cohort in cohorts:
      clients = [contestant.argument(client_id) for client_id in cohort]
      state = contestant.process.next(state, clients).state
    weights = _weights(contestant.process, state)
    trained[name] = np.concatenate([np.ravel(array) for array in weights])
  expected = trained[_BASELINE]
  for name, weights in trained.items():
    difference = np.linalg.norm(weights - expected) / np.linalg.norm(expected)
    if not difference < _AGREEMENT:
      raise AssertionError(f'{name} trains to other weights: {difference:.1e} away.')


def _loss(
  model_name: str,
  weights: tuple[np.ndarray, ...],
  data: FederatedData,
  cohort: Sequence[str],
) -> float:
  """The mean over a cohort of the clients' losses."""
  model = _MODELS[model_name][0]()
  model_weights = tff.learning.models.ModelWeights(weights, ())
  losses = []
  for client_id in cohort:
    rows = decode(data.rows(client_id))
    outputs = model.predict(model_weights, rows['x'], None)
    losses.append(model.loss(rows['y'], outputs))
  return float(np.mean(losses))


def _measure(
  model_name: str,
  contestants: Mapping[str, Contestant],
  data: FederatedData,
  num_clients: int,
  progress: tqdm.tqdm,
) -> list[_Timing]:
  """Trains all contestants for the rounds to be measured, taking turns."""
  cohorts = synthetic_images.cohorts(
    data, num_clients, WARM_UP_ROUNDS + ROUNDS.value, SEED.value
  )
  names = list(contestants)

  def on_round(name):
    progress.set_postfix_str(f'{model_name}, {num_clients} clients: {name}')
    progress.update()

  measured, states = turns.take_turns(contestants, cohorts, on_round)
  for name, state in states.items():
    weights = _weights(contestants[name].process, state)
    loss = _loss(model_name, weights, data, cohorts[-1])
    if not np.isfinite(loss):
      raise AssertionError(f'{name} diverges: its loss is {loss}.')
  examples = np.array([sum(map(data.num_examples, cohort)) for cohort in cohorts])
  return [
    _Timing(
      model=model_name,
      num_clients=num_clients,
      contestant=name,
      seconds=measured[name],
      examples=examples[WARM_UP_ROUNDS:],
      speedup=float(np.median(measured[_BASELINE] / measured[name])),
    )
    for name in names
  ]


def _table(timings: Sequence[_Timing]) -> str:
  """A Markdown table."""
  lines = [
    '| model | clients | FedAvg of | ms a round | quartiles | s per 1,000 examples '
    '| times faster |',
    '|---|---|---|---|---|---|---|',
  ]
  for timing in timings:
    milliseconds = 1000 * timing.seconds
    low, median, high = (np.percentile(milliseconds, q) for q in (25, 50, 75))
    per_thousand = np.median(1000 * timing.seconds / timing.examples)
    lines.append(
      f'| {timing.model} | {timing.num_clients} | {timing.contestant} | {median:.0f} '
      f'| {low:.0f} - {high:.0f} | {per_thousand:.4f} | {timing.speedup:.2f} |'
    )
  return '\n'.join(lines)


def _circumstances() -> str:
  return (
    f'{machine.describe()} {ROUNDS.value} rounds each, after {WARM_UP_ROUNDS} to '
    f'warm up; batches of {_BATCH_SIZE}, one epoch.'
  )


def main(argv: Sequence[str]) -> None:
  """Measures and prints the table."""
  if len(argv) > 1:
    raise app.UsageError(f'unexpected {argv[1]!r}.')
  logging.set_verbosity(logging.WARNING)  # TFF notes each metric that it adds.
  cohort_sizes = [int(size) for size in _CLIENTS.value]
  data = synthetic_images.make(2 * max(cohort_sizes), SEED.value)
  rounds = WARM_UP_ROUNDS + ROUNDS.value
  num_contestants = 4
  timings: list[_Timing] = []
  with (
    runtimes.create('local'),
    tempfile.TemporaryDirectory() as directory,
    tqdm.tqdm(
      total=len(MODELS.value) * len(cohort_sizes) * rounds * num_contestants,
      unit='round',
    ) as progress,
  ):
    files = client_files.write(data, pathlib.Path(directory, 'clients'), decode)
    for model_name in MODELS.value:
      if model_name == 'logistic':
        unshuffled = _contestants(model_name, data, files, shuffle=False)
        few = synthetic_images.cohorts(data, min(cohort_sizes), 2, SEED.value)
        _verify(unshuffled, few)
      contestants = _contestants(model_name, data, files, shuffle=True)
      for num_clients in cohort_sizes:
        timings += _measure(model_name, contestants, data, num_clients, progress)
  text = f'{_table(timings)}\n\n{_circumstances()}\n'
  print(text)
  if OUTPUT.value:
    pathlib.Path(OUTPUT.value).write_text(text)


if __name__ == '__main__':
  app.run(main)
