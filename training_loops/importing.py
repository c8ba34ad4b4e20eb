"""Importing TensorFlow Federated in a program, in three quarters of the time.

Importing this module does not import TensorFlow.
"""

import gc
import sys


def import_tff() -> None:
  """Imports TensorFlow Federated, and with it TensorFlow, unless that is done.

  The import makes half a million objects that stay, and next to no garbage; while they
  come to be, Python would look through all of them for garbage time and again. They are
  left out of its later searches too: one in the midst of a round would take as long as
  many rounds of a small model.
  """
  if 'tensorflow_federated' in sys.modules:
    return
  was_enabled = gc.isenabled()
  gc.disable()
  try:
    import tensorflow_federated  # noqa: F401

    gc.freeze()
  finally:
    if was_enabled:
      gc.enable()
