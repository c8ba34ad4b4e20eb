"""MimeLite: Karimireddy et al. 2021, "Breaking the centralized barrier", Algorithm 1.

On client i, from y = x: g <- grad f_i(y; b)                          for K batches b
                         y <- y - eta U(g, s)
At the server:           s <- V(mean of grad f_i(x), s)
                         x <- x - eta_g mean of (x - y_i)

Mime without its correction, in one phase. With SGD for (U, V) it is FedAvg.
"""

from typing import Any

import tensorflow_federated as tff

from tff_algorithms import mime_framework, models, oracles


def build_mime_lite(
  model: models.Model | tff.learning.models.FunctionalModel | oracles.Oracle,
  *,
  base_optimizer: tff.learning.optimizers.Optimizer,
  batch_size: int,
  **arguments: Any,
) -> tff.learning.templates.LearningProcess:
  """Builds MimeLite.

  `next` is `(<S@SERVER, {batch*}@CLIENTS> -> <state=S@SERVER, metrics=M@SERVER>)`; see
  `process.build_learning_process` for S and M.

  Args:
    model: What is trained: a model, or any gradient oracle.
    base_optimizer: (U, V) with its rate eta: a pair by
      `base_optimizers.as_tff_optimizer`, or any of TFF's.
    batch_size: The rows of a local step.
    **arguments: More arguments of `mime_framework.build`.
  """
  return mime_framework.build(
    model,
    mime_framework.GradientUpload,
    base_optimizer=base_optimizer,
    batch_size=batch_size,
    **arguments,
  )
