"""Failures of the machinery, as opposed to mistakes of the user and to bugs.

Importing this module does not import TensorFlow.
"""


class RuntimeFailure(RuntimeError):
  """The runtime itself failed, rather than the computation that it was given.

  Attributes:
    exit_code: What a program exits with that it ends.
  """

  exit_code = 1


class WorkersLost(RuntimeFailure):
  """None of the workers on other machines is left. What was saved is whole."""

  exit_code = 3
