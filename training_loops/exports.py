"""The trained model, for use elsewhere: weights.npz and a SavedModel."""

import io
import os
import pathlib
import shutil
from typing import Any

import numpy as np
import tensorflow as tf
import tree

from tff_algorithms import models
from training_loops import files


def write_weights(path: pathlib.Path, weights: models.ModelWeights) -> None:
  """Writes an npz file whose arrays are named by their place: trainable/0, ..."""
  arrays = {
    '/'.join(map(str, place)): np.asarray(leaf)
    for place, leaf in tree.flatten_with_path(weights)
  }
  content = io.BytesIO()
  np.savez(content, **arrays)
  files.write_bytes(path, content.getvalue())


def write_saved_model(
  path: pathlib.Path, model: Any, weights: models.ModelWeights
) -> None:
  """Writes a SavedModel whose `predict` maps x to the model's outputs."""
  model = models.as_model(model)
  module = tf.Module()
  module.weights = tf.nest.map_structure(tf.Variable, tuple(weights))

  @tf.function(input_signature=[models.x_and_y(model.input_spec)[0]])
  def predict(x):
    return model.predict(models.ModelWeights(*module.weights), x, None)

  module.predict = predict
  temporary = path.with_name(f'.{path.name}.new')
  shutil.rmtree(temporary, ignore_errors=True)
  with files.written_by_tensorflow():
    tf.saved_model.save(module, str(temporary))
  # A directory cannot be replaced in one step: without one for an instant is the
  # worst that can be seen, and the run counts as finished only afterwards.
  shutil.rmtree(path, ignore_errors=True)
  os.rename(temporary, path)
