"""What a benchmark was measured on."""

import pathlib
import platform

import tensorflow as tf
import tensorflow_federated as tff

from training_loops import cores


def describe() -> str:
  """The processor and the versions, in a sentence."""
  return (
    f'{cores.number()} cores of {_cpu()}, Python '
    f'{platform.python_version()}, TensorFlow {tf.__version__}, TensorFlow Federated '
    f'{tff.__version__}.'
  )


def _cpu() -> str:
  for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
    if line.startswith('model name'):
      return line.partition(':')[2].strip()
  return platform.machine()
