"""Tests of the description of this machine."""

import tensorflow as tf

from benchmarks import machine


def test_processor_and_versions_are_told():
  text = machine.describe()
  assert ' cores of ' in text
  assert f'TensorFlow {tf.__version__}' in text
