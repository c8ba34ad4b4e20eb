"""Loc-Mime: Karimireddy et al. 2021, "Breaking the centralized barrier", section 5.2.

On client i, from y = x and s_i = s:
                         g   <- grad f_i(y; b) - grad f_i(x; b) + c   for K batches b
                         y   <- y - eta U(g, s_i)
                         s_i <- V(g, s_i)
At the server:           s   <- V(c, s), the s_i are thrown away
                         x   <- x - eta_g mean of (x - y_i)

The paper's ablation of Mime: the optimizer's state is not fixed in the local steps.
"""

from typing import Any

import tensorflow_federated as tff

from tff_algorithms import mime, models, oracles


def build_loc_mime(
  model: models.Model | tff.learning.models.FunctionalModel | oracles.Oracle,
  *,
  base_optimizer: tff.learning.optimizers.Optimizer,
  batch_size: int,
  **arguments: Any,
) -> tff.learning.templates.LearningProcess:
  """Builds Loc-Mime, with the arguments and the types of `mime.build_mime`.

  Args:
    model: What is trained: a model, or any gradient oracle.
    base_optimizer: (U, V) with its rate eta: a pair by
      `base_optimizers.as_tff_optimizer`, or any of TFF's.
    batch_size: The rows of a local step.
    **arguments: More arguments of `build_mime`.
  """
  return mime.build_mime(
    model,
    base_optimizer=base_optimizer,
    batch_size=batch_size,
    updates_locally=True,
    **arguments,
  )
