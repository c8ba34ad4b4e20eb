"""How far training the CNN of EMNIST is from what the machine can multiply at best.

    python -m benchmarks.gemm_peak --seconds_per_1000=0.28

The peak is that of large products of float32 matrices, on all cores; the operations of
the CNN are those of its gradient, as TensorFlow counts them in batches of 20.
"""

from collections.abc import Sequence
import time

from absl import app, flags

_SECONDS = flags.DEFINE_float(
  'seconds_per_1000',
  None,
  'What 1,000 examples took, to be compared.',
  lower_bound=0,
)
_SIZE = 4096
_REPETITIONS = 10
_BATCH_SIZE = 20


def peak() -> float:
  """Operations a second, in the fastest of several products of large matrices."""
  import tensorflow as tf

  a = tf.random.stateless_normal([_SIZE, _SIZE], [0, 0])
  seconds = []
  for _ in range(_REPETITIONS):
    start = time.perf_counter()
    tf.matmul(a, a).numpy()
    seconds.append(time.perf_counter() - start)
  return 2 * _SIZE**3 / min(seconds)


def operations_per_example() -> float:
  """Of the CNN's gradient."""
  from tasks import image_models
  from tff_algorithms import flops, oracles

  oracle = oracles.as_oracle(image_models.cnn_dropout(62))
  return flops.of_a_step(oracle, _BATCH_SIZE) / _BATCH_SIZE


def main(argv: Sequence[str]) -> None:
  """Measures and prints."""
  if len(argv) > 1:
    raise app.UsageError(f'unexpected {argv[1]!r}.')
  best, needed = peak(), 1000 * operations_per_example()
  print(f'Peak: {best / 1e9:.0f} GFLOP/s.')
  print(f'1,000 examples: {needed / 1e9:.0f} GFLOP, {needed / best:.3f} s at the peak.')
  if _SECONDS.value:
    print(f'In {_SECONDS.value} s: {needed / best / _SECONDS.value:.0%} of the peak.')


if __name__ == '__main__':
  app.run(main)
