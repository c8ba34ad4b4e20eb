"""A generative adversarial network on handwritten digits, by two saddle-point methods.

Pictures that the generator makes in the course of training, beside real ones, and the
curves of FedAvg-S and of extra-step local SGD.
"""

from collections.abc import Mapping, Sequence
import pathlib
import shutil
from typing import Any

import numpy as np

from experiments import experiment
from tasks import pictures
from training_loops import (
  command_line,
  files,
  plots,
  progress,
  results,
  run,
  summaries,
  tables,
  train_flags,
)

_TITLE = 'An adversarial network on handwritten digits'

_TEXT = """
The best known saddle-point problem that is not convex-concave (Goodfellow et al. 2014),
with the two methods of this package that take local steps without a phase before: the
generator is minimised over and the discriminator maximised over, together, on 50
clients whose shares of the ten digits are uneven (Dirichlet, 0.3). Of no paper's
experiments; it shows that the gradient mapping goes through networks, noise and
minibatches. Ten clients a round, 20 local steps on batches of 20, both rates 0.1,
constant, one seed. [What f is](../../deviations.md#tasks).

- **Samples.** After 20 rounds both generators draw the mean digit; after 80 most
  pictures are digits, and all ten occur, though clients have them unevenly. What the
  rows show is not chosen: it is the same twelve points of noise throughout.
- **After 80 rounds** the samples get sharper, and do not come nearer to the real
  digits: by the table they are a little further from them. A constant rate does not
  settle on a saddle point: the norm of the gradient mapping grows from its start, where
  the scores hardly depend on anything, and stays up.
- **An extra step** of each local step costs twice the gradients. The samples are as
  good; the scores are nearer to 1/2, where real and made pictures cannot be told apart,
  and the norm is no smaller, nor smoother. How near a saddle point a method comes can
  be measured where it is known: in the [quadratic games](../saddle_figures/README.md).
"""

_CREDIT = """
The real digits are those bundled with scikit-learn: Alpaydin and Kaynak (1998), Optical
Recognition of Handwritten Digits, UCI Machine Learning Repository, CC BY 4.0.
"""

_FLAGS: Mapping[str, Any] = {
  'task': 'digits_gan',
  'client_learning_rate': 0.1,
  'local_steps': 20,
  'clients_per_round': 10,
  'rounds_per_eval': 5,
  'rounds_per_checkpoint': 50,
}
_METHODS = {
  'FedAvg-S': 'fed_avg_s',
  'extra-step local SGD': 'extra_step_local_sgd',
}
_SHOWN = (5, 20, 80, 300)  # After these rounds the generator is asked for pictures.
_COLUMNS = (
  'eval/loss',
  'eval/gradient_mapping_norm',
  'eval/score_of_real',
  'eval/score_of_made',
)
_NUM_PICTURES = 12  # Of a row.
_NUM_JUDGED = 1000
_SEED = 1


def _run(flags: dict[str, Any]) -> None:
  progress.show_on_console()
  directory = pathlib.Path(flags['results_dir'])
  files.check_writable(directory)
  shown = tuple(r for r in _SHOWN if r < (flags['rounds'] or np.inf))
  if flags['rounds']:
    shown += (flags['rounds'],)
  every_flags = {
    name: train_flags.configure(
      **_FLAGS,
      algorithm=algorithm,
      rounds=shown[-1],
      label=name,
      output_dir=pathlib.Path(flags['output_dir']) / algorithm,
    )
    for name, algorithm in _METHODS.items()
  }
  runtime = train_flags.create_runtime(next(iter(every_flags.values())))
  runtime.launch()  # Its worker starts while TensorFlow is being imported.
  with runtime:
    for name, run_flags in every_flags.items():
      print(name, flush=True)
      for num_rounds in shown:
        _train(run_flags | {'rounds': num_rounds}, runtime)
  _write(every_flags, shown, flags, directory)


def _train(run_flags: dict[str, Any], runtime: Any) -> None:
  """Trains up to a round, and keeps the weights that there are then."""
  kept = _kept(run_flags, run_flags['rounds'])
  if not kept.exists():
    run.train(run_flags, runtime=runtime)
    with (
      files.replacing(kept) as file,
      open(kept.with_name('weights.npz'), 'rb') as new,
    ):
      shutil.copyfileobj(new, file)


def _kept(run_flags: Mapping[str, Any], num_rounds: int) -> pathlib.Path:
  return pathlib.Path(run_flags['output_dir']) / f'weights_{num_rounds}.npz'


def _pictures(task: Any, path: pathlib.Path, count: int) -> np.ndarray:
  """What the generator with these weights makes."""
  import tensorflow as tf

  from tasks import digits_gan

  with np.load(path) as arrays:
    flat = list(arrays.values())
  weights = tf.nest.pack_sequence_as(task.model.initialize(np.array([0, 0])), flat)
  return digits_gan.sample(weights, count, _SEED)


def _nearest(images: np.ndarray, real: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The distance of each to the nearest real one, and which that is.

  Of the real ones themselves it is another one.
  """
  a, b = images.reshape(len(images), -1), real.reshape(len(real), -1)
  squares = (a**2).sum(axis=1)[:, np.newaxis] - 2 * a @ b.T + (b**2).sum(axis=1)
  if images is real:
    np.fill_diagonal(squares, np.inf)
  return np.sqrt(np.maximum(squares.min(axis=1), 0)), squares.argmin(axis=1)


def _judged(name: str, images: np.ndarray, real: Mapping[str, np.ndarray]) -> list[str]:
  """A row of the table: how near to real digits, and which digits they are."""
  distances, indices = _nearest(images, real['x'])
  counts = np.bincount(real['y'][indices], minlength=10) / len(images)
  off_mean = np.linalg.norm(images.mean(axis=0) - real['x'].mean(axis=0))
  return [
    name,
    f'{distances.mean():.2f}',
    f'{off_mean:.2f}',
    f'{counts.min():.1%} to {counts.max():.1%}',
  ]


def _write(
  every_flags: Mapping[str, dict[str, Any]],
  shown: Sequence[int],
  flags: dict[str, Any],
  directory: pathlib.Path,
) -> None:
  """The page and its pictures."""
  from training_loops import training

  directory.mkdir(parents=True, exist_ok=True)
  task = training.load_task(next(iter(every_flags.values())))
  real = task.train.all_rows()
  chosen = np.random.default_rng(_SEED).permutation(len(real['x']))[:_NUM_PICTURES]
  rows, table = {}, [_judged('real digits', real['x'], real)]
  for name, run_flags in every_flags.items():
    for num_rounds in shown:
      images = _pictures(task, _kept(run_flags, num_rounds), _NUM_JUDGED)
      heading = f'{name}, {num_rounds} rounds'
      rows[heading] = images[:_NUM_PICTURES]
      table.append(_judged(heading, images, real))
  rows['real digits'] = real['x'][chosen]
  pictures.image_rows(directory / 'digits.png', rows, _TITLE)
  runs = results.load_all(each['output_dir'] for each in every_flags.values())
  groups = summaries.group(runs)
  curves = {c: {g.name: g.curve(c) for g in groups} for c in _COLUMNS}
  plots.write_comparison(directory / 'curves.png', curves, _TITLE)
  seconds = sum(each.seconds for each in runs)
  header = [
    '',
    'mean distance to the nearest real digit',
    'distance of the mean pictures',
    'share of the rarest and the commonest digit',
  ]
  content = [
    f'# {_TITLE}',
    _TEXT.strip(),
    f'## How\n\n{experiment.how(pathlib.Path(__file__).stem, flags)}',
    '## Digits\n\n![Digits](digits.png)',
    _CREDIT.strip(),
    f'Of {_NUM_JUDGED} pictures each, beside the {len(real["x"])} digits trained on:',
    tables.markdown(header, table),
    '## Curves\n\n![Curves](curves.png)',
    f'{seconds / 60:.0f} minutes of training.',
  ]
  files.write_bytes(directory / 'README.md', ('\n\n'.join(content) + '\n').encode())
  print(f'\n{directory / "README.md"}')


if __name__ == '__main__':
  command_line.run(experiment.program(__file__, _TITLE), _run)
