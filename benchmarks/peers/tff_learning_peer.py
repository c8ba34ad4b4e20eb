"""TFF's own `tff.learning` as a peer, with Keras models and TFF's default context."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from benchmarks.peers import tff_models
from benchmarks.peers.peer import Peer, Work, serve


class TffLearningPeer(Peer):
  """`build_weighted_fed_avg` or `build_weighted_mime_lite`."""

  def __init__(self, work: Work):
    self._work = work

  def _process(self, exact: bool) -> Any:
    work = self._work

    def model_fn():
      return tff.learning.models.from_keras_model(
        tff_models.keras_model(work, exact),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=tff_models.model(work).input_spec,
        metrics=[tf.keras.metrics.SparseCategoricalAccuracy('accuracy')],
      )

    sgdm = tff.learning.optimizers.build_sgdm
    if work.algorithm == 'mime_lite':
      return tff.learning.algorithms.build_weighted_mime_lite(
        model_fn,
        base_optimizer=sgdm(work.learning_rate, work.momentum),
        server_optimizer=sgdm(1.0),
      )
    return tff.learning.algorithms.build_weighted_fed_avg(
      model_fn, client_optimizer_fn=sgdm(work.learning_rate)
    )

  def start(self, exact: bool) -> None:
    self._process_of_work = process = self._process(exact)
    weights = tff.learning.models.ModelWeights(list(self._work.weights), [])
    self._state = process.set_model_weights(process.initialize(), weights)
    self._datasets = [
      tff_models.dataset(
        tff_models.rows(self._work, i), self._work.batch_size, shuffle=not exact
      )
      for i in range(len(self._work.clients))
    ]

  def round(self, cohort: Sequence[int]) -> None:
    clients = [self._datasets[i] for i in cohort]
    self._state = self._process_of_work.next(self._state, clients).state

  def weights(self) -> Sequence[np.ndarray]:
    return self._process_of_work.get_model_weights(self._state).trainable


if __name__ == '__main__':
  serve(TffLearningPeer)
